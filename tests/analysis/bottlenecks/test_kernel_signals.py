"""Signals of kernels from their tables, and the label that the package's rules give each pattern of them."""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.bottlenecks.kernel_limits import LABEL_OF_RESOURCE, ROOF_LABELS
from aaco_pipeline.analysis.bottlenecks.kernel_signals import KERNEL_SIGNALS, kernel_signals
from aaco_pipeline.analysis.bottlenecks.rules import Judgement, Signal, judge
from aaco_pipeline.assets.classification import BUILT_IN_RULES, load_bottleneck_rules
from aaco_pipeline.lake.contracts import contract, polars_schema

TABLES = (
    *("kernel_stats", "kernels", "dispatches", "roofline", "resource_bounds", "counter_metrics", "occupancy"),
    *("att_stalls", "operator_kernels", "model_nodes"),
)
RULES = load_bottleneck_rules(BUILT_IN_RULES)
LONG = 500_000


def tables(median: int = LONG, **given_rows: list[dict[str, Any]]) -> dict[str, pl.DataFrame]:
    """One kernel, number 0, with a median duration, and rows of other tables about it."""
    statistics = {"kernel_id": 0, "dispatch_count": 10, "total_ns": 10 * median, "p50_ns": median}
    kernel = {"kernel_id": 0, "name": "k", "short_name": "k"}
    every = {name: [{"kernel_id": 0, **row} for row in listed] for name, listed in given_rows.items()}
    every = {"kernel_stats": [statistics], "kernels": [kernel], **every}
    return {
        name: pl.DataFrame(every.get(name, []), schema=polars_schema(contract(name))).drop("session_id")
        for name in TABLES
    }


def placed(bound: str, share: float, *flags: str, second: tuple[str, float] | None = None) -> list[dict[str, Any]]:
    other = {} if second is None else {"second_bound": second[0], "second_ratio": second[1]}
    return [{"bound": bound, "efficiency_ratio": share, "quality_flags": list(flags), **other}]


def signals(found: dict[str, pl.DataFrame], on_cpu: float = 1.0) -> dict[str, Any]:
    return kernel_signals(found, on_cpu).row(0, named=True)


def judged(found: dict[str, pl.DataFrame], on_cpu: float = 1.0) -> Judgement:
    row = signals(found, on_cpu)
    return judge({name: Signal(row[name], "ratio", "t") for name in KERNEL_SIGNALS}, RULES, "kernel")


def label(found: dict[str, pl.DataFrame], on_cpu: float = 1.0) -> str | None:
    rule = judged(found, on_cpu).rule
    return None if rule is None else rule.label


@pytest.mark.parametrize("resource", LABEL_OF_RESOURCE)
def test_at_a_roof_a_kernel_is_named_for_the_roof(resource: str) -> None:
    assert label(tables(roofline=placed(resource, 0.7))) == LABEL_OF_RESOURCE[resource]


@pytest.mark.parametrize(("second", "runner_up"), [(0.73, "compute_vector"), (0.71, None)])
def test_a_second_roof_as_near_is_the_runner_up(second: float, runner_up: str | None) -> None:
    found = judged(tables(roofline=placed("dram", 0.8, second=("vector", second))))
    assert found.rule is not None
    assert (found.rule.label, found.runner_up) == ("memory_dram", runner_up)


@pytest.mark.parametrize(
    ("share", "names"),
    [
        (0.9, ("memory_dram", None)),
        (0.65, ("memory_dram", "latency")),
        (0.55, ("latency", "memory_dram")),
        (0.4, ("latency", None)),
    ],
)
def test_near_the_threshold_both_sides_are_named(share: float, names: tuple[str, str | None]) -> None:
    found = judged(tables(roofline=placed("dram", share)))
    assert found.rule is not None
    assert (found.rule.label, found.runner_up) == names
    # The nearest roof is named with its share however far it is.
    assert next(one.value for one in found.evidence if one.signal == "nearest_roof") == pytest.approx(share)


@pytest.mark.parametrize(
    ("share", "flags", "expected"),
    [(0.61, (), "memory_dram"), (0.59, (), "latency"), (0.45, ("model_based",), "memory_dram")],
)
def test_the_least_bytes_that_shapes_imply_need_not_reach_as_far(
    share: float, flags: tuple[str, ...], expected: str
) -> None:
    assert label(tables(roofline=placed("dram", share, *flags))) == expected


@pytest.mark.parametrize(
    ("family", "share", "expected"),
    [
        ("elementwise", 0.3, "memory_dram"),
        ("embedding/gather", 0.3, "latency"),
        ("kv cache", 0.3, "latency"),
        ("elementwise", 0.2, "latency"),
    ],
)
def test_an_operator_that_streams_is_not_held_up_by_latency(family: str, share: float, expected: str) -> None:
    kernel = [{"name": "k", "short_name": "k", "family": family}]
    assert label(tables(kernels=kernel, roofline=placed("dram", share, "model_based"))) == expected


def test_time_without_a_cpu_is_not_a_distance_from_the_roof() -> None:
    contended = tables(roofline=placed("vector", 0.4))
    assert (label(contended), label(contended, on_cpu=0.5)) == ("latency", "compute_vector")


@pytest.mark.parametrize("roof", [placed("dram", 0.9), placed("dram", 0.2), []])
def test_a_kernel_as_short_as_a_launch_is_too_short_to_judge(roof: list[dict[str, Any]]) -> None:
    found = judged(tables(median=9_999, roofline=roof, counter_metrics=metrics(active_threads_ratio=0.1)))
    assert (found.rule, found.runner_up) == (None, None)
    assert [one.signal for one in found.evidence] == ["too_short_to_judge"]
    assert label(tables(median=10_000, roofline=placed("dram", 0.9))) == "memory_dram"


def test_no_label_of_a_kernel_is_launch() -> None:
    assert "launch" not in {rule.label for rule in RULES.of("kernel")}


def metrics(**values: float) -> list[dict[str, Any]]:
    return [
        {"metric": name, "unit": "ratio", "value": value, "n": 1, "quality_flags": []} for name, value in values.items()
    ]


FAR = placed("dram", 0.3)
SPILLING = [{"name": "k", "short_name": "k", "static_scratch_bytes": 64}]


@pytest.mark.parametrize(
    ("expected", "runner_up", "rows"),
    [
        ("latency", None, {}),
        # 0.8 of the time in the LDS, 0.6 of that repeats accesses: 0.48 for nothing, and 0.2 without any unit at work.
        (
            "lds_bank_conflict",
            "latency",
            {"counter_metrics": metrics(lds_bank_conflict_ratio=0.6, lds_busy_ratio=0.8)},
        ),
        (
            "latency",
            "lds_bank_conflict",
            {"counter_metrics": metrics(lds_bank_conflict_ratio=0.4, lds_busy_ratio=0.5)},
        ),
        ("latency", None, {"counter_metrics": metrics(lds_bank_conflict_ratio=0.05, lds_busy_ratio=0.5)}),
        ("latency", "divergence", {"counter_metrics": metrics(active_threads_ratio=0.3, valu_busy_ratio=0.5)}),
        ("divergence", "latency", {"counter_metrics": metrics(active_threads_ratio=0.2, valu_busy_ratio=0.58)}),
        # Without the time that vector instructions took, lost lanes cost an unknown part of it.
        ("latency", None, {"counter_metrics": metrics(active_threads_ratio=0.3)}),
        ("occupancy", "latency", {"occupancy": [{"achieved_ratio": 0.2, "theoretical_ratio": 0.25}]}),
        ("latency", "occupancy", {"occupancy": [{"achieved_ratio": 0.8, "theoretical_ratio": 1.0}]}),
        ("latency", None, {"occupancy": [{"achieved_ratio": 0.95, "theoretical_ratio": 1.0}]}),
        ("spill", "latency", {"kernels": SPILLING, "counter_metrics": metrics(scratch_busy_ratio=0.8)}),
        ("latency", None, {"kernels": SPILLING}),
        ("latency", None, {"counter_metrics": metrics(scratch_busy_ratio=0.8)}),
        ("atomics", None, {"att_stalls": [{"reason": "vector memory atomic issue", "stall_cycles": 9}]}),
        ("instruction_fetch", None, {"att_stalls": [{"reason": "no_instruction", "samples": 9}]}),
        ("latency", None, {"counter_metrics": metrics(l1i_hit_ratio=0.9)}),
    ],
)
def test_below_every_roof_what_costs_most_is_named(expected: str, runner_up: str | None, rows: dict[str, Any]) -> None:
    found = judged(tables(roofline=FAR, **rows))
    assert found.rule is not None
    assert (found.rule.label, found.runner_up) == (expected, runner_up)


@pytest.mark.parametrize(
    ("cost", "rows", "value"),
    [
        ("divergence", {"counter_metrics": metrics(active_threads_ratio=0.25, valu_busy_ratio=0.4)}, 0.3),
        ("lds_bank_conflict", {"counter_metrics": metrics(lds_bank_conflict_ratio=0.5, lds_busy_ratio=0.4)}, 0.2),
        ("spill", {"kernels": SPILLING, "counter_metrics": metrics(scratch_busy_ratio=0.4)}, 0.4),
        (
            "atomics",
            {"att_stalls": [{"reason": "atomic", "samples": 1}, {"reason": "other", "samples": 3}]},
            0.25 * 0.7,
        ),
        ("instruction_fetch", {"att_stalls": [{"reason": "no_instruction", "samples": 9}]}, 0.7),
        ("occupancy", {"occupancy": [{"achieved_ratio": 0.25}]}, 0.75 * 0.7),
        ("latency", {"occupancy": [{"achieved_ratio": 0.25}]}, 0.25 * 0.7),
        # Units that work leave less time without a cause than the nearest roof alone would.
        ("latency", {"counter_metrics": metrics(valu_busy_ratio=0.5)}, 0.5),
    ],
)
def test_what_a_cause_costs_is_a_share_of_the_kernels_time(cost: str, rows: dict[str, Any], value: float) -> None:
    assert signals(tables(roofline=FAR, **rows))[f"cost_of_{cost}"] == pytest.approx(value)
    assert signals(tables(median=1_000, roofline=FAR, **rows))[f"cost_of_{cost}"] is None


@pytest.mark.parametrize(
    ("cause", "values"),
    [
        ("divergence", {"active_threads_ratio": 0.1, "valu_busy_ratio": 0.99}),
        ("lds_bank_conflict", {"lds_bank_conflict_ratio": 0.9, "lds_busy_ratio": 0.99}),
    ],
)
def test_what_a_unit_did_in_vain_stands_second_to_a_roof_that_limits(cause: str, values: dict[str, float]) -> None:
    found = judged(tables(roofline=placed("dram", 0.65), counter_metrics=metrics(**values)))
    assert found.rule is not None
    assert (found.rule.label, found.runner_up) == ("memory_dram", cause)
    assert next(one.value for one in found.evidence if one.signal == f"cost_of_{cause}") == pytest.approx(
        0.89, abs=0.01
    )


def test_where_no_roof_is_known_no_cause_is_named() -> None:
    assert label(tables(counter_metrics=metrics(active_threads_ratio=0.1, valu_busy_ratio=0.99))) is None


def test_a_communication_kernel_communicates() -> None:
    assert label(tables(kernels=[{"name": "k", "short_name": "k", "family": "comm"}])) == "communication"


def test_a_long_kernel_of_which_nothing_is_known_has_no_label() -> None:
    row = signals(tables())
    assert label(tables()) is None
    assert all(row[name] is None for name in ("nearest_roof", *(f"at_{name}" for name in ROOF_LABELS), "scratch"))


def test_where_the_model_has_no_arithmetic_the_bytes_alone_decide() -> None:
    bound = {"resource": "dram", "work": 1.0, "unit": "byte", "lower_bound_ns": 1, "share_ratio": 0.05}
    given_rows: dict[str, Any] = {
        "roofline": [{"quality_flags": ["model_based"]}],
        "resource_bounds": [{**bound, "ceiling_source": "measured", "work_source": "model"}],
        "operator_kernels": [{"node_id": 3, "dispatch_count": 10, "total_ns": 1, "match": "name"}],
    }
    node = {"node_id": 3, "name": "n", "op_type": "GatherElements", "domain": "ai.onnx", "inputs": [], "outputs": []}

    def with_flops(flops: float) -> dict[str, pl.DataFrame]:
        made = tables(**given_rows)
        schema = polars_schema(contract("model_nodes"))
        return {**made, "model_nodes": pl.DataFrame([{**node, "flops": flops}], schema=schema).drop("session_id")}

    moving = signals(with_flops(0.0))
    assert (moving["nearest_roof"], moving["at_memory_dram"], moving["indirect_access"]) == (0.05, None, 1.0)
    assert label(with_flops(0.0)) == "latency"
    assert label(with_flops(10.0)) is None
