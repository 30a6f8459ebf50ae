"""Signals of kernels from their tables, and the label that the package's rules give each pattern of them.

One decision on what limits a kernel: the same code at the same speed gets the same one, whatever else differs.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.bottlenecks.classification import Judgement, Signal, judge
from aaco_pipeline.analysis.bottlenecks.kernel_signals import (
    KERNEL_SIGNALS,
    LABEL_OF_RESOURCE,
    ROOF_LABELS,
    grids,
    kernel_limits,
    kernel_signals,
)
from aaco_pipeline.analysis.thresholds import AT_A_ROOF, BALANCED, LAUNCH_SIZED_NS, ROOF_UNCERTAINTY
from aaco_pipeline.assets.classification import BUILT_IN_RULES, load_bottleneck_rules
from aaco_pipeline.lake.contracts import contract, polars_schema, polars_types

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
        ("lds_bank_conflict", "latency", {"counter_metrics": metrics(lds_bank_conflict_ratio=0.6, lds_busy_ratio=0.8)}),
        ("latency", "lds_bank_conflict", {"counter_metrics": metrics(lds_bank_conflict_ratio=0.4, lds_busy_ratio=0.5)}),
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
def test_the_cost_of_a_cause_is_a_share_of_the_kernels_time(cost: str, rows: dict[str, Any], value: float) -> None:
    assert signals(tables(roofline=FAR, **rows))[f"cost_of_{cost}"] == pytest.approx(value)
    assert signals(tables(median=1_000, roofline=FAR, **rows))[f"cost_of_{cost}"] is None


@pytest.mark.parametrize(
    ("cause", "values"),
    [
        ("divergence", {"active_threads_ratio": 0.1, "valu_busy_ratio": 0.99}),
        ("lds_bank_conflict", {"lds_bank_conflict_ratio": 0.9, "lds_busy_ratio": 0.99}),
    ],
)
def test_wasted_work_comes_second_to_a_limiting_roof(cause: str, values: dict[str, float]) -> None:
    found = judged(tables(roofline=placed("dram", 0.65), counter_metrics=metrics(**values)))
    assert found.rule is not None
    assert (found.rule.label, found.runner_up) == ("memory_dram", cause)
    assert next(one.value for one in found.evidence if one.signal == f"cost_of_{cause}") == pytest.approx(
        0.89, abs=0.01
    )


def test_without_a_known_roof_no_cause_is_named() -> None:
    assert label(tables(counter_metrics=metrics(active_threads_ratio=0.1, valu_busy_ratio=0.99))) is None


def test_a_communication_kernel_communicates() -> None:
    assert label(tables(kernels=[{"name": "k", "short_name": "k", "family": "comm"}])) == "communication"


def test_a_long_kernel_of_which_nothing_is_known_has_no_label() -> None:
    row = signals(tables())
    assert label(tables()) is None
    assert all(row[name] is None for name in ("nearest_roof", *(f"at_{name}" for name in ROOF_LABELS), "scratch"))


def test_without_arithmetic_in_the_model_the_bytes_decide() -> None:
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


GRID = "1048576/256"
Kernel = dict[str, Any]


def kernel(bound: str = "dram", share: float | None = 0.7, **stated: Any) -> Kernel:
    return {"bound": bound, "share": share, "median": LONG, "name": "k", "grid": GRID, **stated}


def decided(*kernels: Kernel, numbers: Sequence[int] | None = None, on_cpu: float = 1.0) -> dict[int, dict[str, Any]]:
    """The decision on each kernel by its number, which is its place unless `numbers` says otherwise."""
    rows = list(zip(numbers or range(len(kernels)), kernels, strict=True))
    stats = pl.DataFrame(
        [(i, one["median"]) for i, one in rows], schema={"kernel_id": pl.Int32, "p50_ns": pl.Int64}, orient="row"
    )
    placed = pl.DataFrame(
        [
            {
                "kernel_id": i,
                "duration_ns": one["median"],
                "bound": one["bound"] if one["share"] is not None else None,
                "efficiency_ratio": one["share"],
                "second_bound": one.get("second"),
                "second_ratio": one.get("second_share"),
                "quality_flags": one.get("flags", []),
            }
            for i, one in rows
        ],
        schema={name: dtype for name, dtype in polars_types("roofline").items() if name in PLACED},
    )
    launched = pl.DataFrame(
        [(i, one["name"], one["grid"]) for i, one in rows],
        schema={"kernel_id": pl.Int32, "name": pl.String, "grid": pl.String},
        orient="row",
    )
    indirect = pl.DataFrame(
        [(i, one.get("indirect")) for i, one in rows],
        schema={"kernel_id": pl.Int32, "indirect_access": pl.Float64},
        orient="row",
    )
    found = kernel_limits(placed, stats, launched, indirect, on_cpu)
    return {row["kernel_id"]: row for row in found.iter_rows(named=True)}


PLACED = ("kernel_id", "duration_ns", "bound", "efficiency_ratio", "second_bound", "second_ratio", "quality_flags")


def decision(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["nearest"], row["is_limit"], row["is_near"], row["is_sure"], row["too_short"]


@pytest.mark.parametrize("resource", LABEL_OF_RESOURCE)
def test_at_the_threshold_the_nearest_roof_limits_and_just_below_it_is_near(resource: str) -> None:
    at, below, far, sure = (
        decided(kernel(resource, share))[0]
        for share in (AT_A_ROOF, AT_A_ROOF - 0.001, AT_A_ROOF - ROOF_UNCERTAINTY - 0.001, AT_A_ROOF + ROOF_UNCERTAINTY)
    )
    assert (at["is_limit"], at["is_near"], at["is_sure"]) == (True, False, False)
    assert (below["is_limit"], below["is_near"]) == (False, True)
    assert (far["is_limit"], far["is_near"]) == (False, False)
    assert (sure["is_limit"], sure["is_sure"]) == (True, True)
    assert {row["nearest"] for row in (at, below, far, sure)} == {LABEL_OF_RESOURCE[resource]}


def test_two_identical_stencils_on_both_sides_of_the_threshold_have_one_limit() -> None:
    found = decided(kernel(share=0.645), kernel(share=0.569, name="k.kd"))
    assert decision(found[0]) == decision(found[1])
    assert found[0]["is_limit"]
    assert found[0]["share"] == pytest.approx(0.607)


@pytest.mark.parametrize("other", [{"grid": "64/64"}, {"name": "j"}, {"share": 0.3}, {"bound": "l2"}])
def test_kernels_of_other_code_grid_roof_or_speed_are_decided_separately(other: dict[str, Any]) -> None:
    found = decided(kernel(share=0.62), kernel(**{"share": 0.57, **other}))
    assert (found[0]["is_limit"], found[1]["is_limit"]) == (True, False)


def test_below_a_launch_nothing_is_decided() -> None:
    row = decided(kernel(median=LAUNCH_SIZED_NS - 1, share=0.9))[0]
    assert (row["too_short"], row["nearest"], row["share"], row["is_limit"]) == (True, None, None, None)
    assert decided(kernel(median=LAUNCH_SIZED_NS, share=0.9))[0]["is_limit"]


def test_without_a_roof_nothing_is_decided() -> None:
    row = decided(kernel(share=None))[0]
    assert decision(row) == (None, None, None, None, False)


@pytest.mark.parametrize(("second_share", "expected"), [(BALANCED * 0.8, "compute_matrix"), (0.71, None)])
def test_a_second_roof_is_named_where_it_needed_nearly_as_long(second_share: float, expected: str | None) -> None:
    row = decided(kernel(share=0.8, second="matrix", second_share=second_share))[0]
    assert row["second"] == expected


@pytest.mark.parametrize(
    ("indirect", "bound", "share", "limits"),
    [
        (None, "dram", 0.41, True),
        (None, "dram", 0.39, False),
        (1.0, "dram", 0.39, False),
        (0.0, "dram", 0.26, True),
        (0.0, "dram", 0.24, False),
        (0.0, "vector", 0.41, False),
    ],
)
def test_bytes_from_shapes_may_stay_below_the_limit(
    indirect: float | None, bound: str, share: float, limits: bool
) -> None:
    assert decided(kernel(bound, share, flags=["model_based"], indirect=indirect))[0]["is_limit"] == limits


def test_time_without_a_cpu_is_taken_out() -> None:
    assert decided(kernel(share=0.4), on_cpu=0.5)[0]["share"] == pytest.approx(0.8)


def test_grids_tell_launches_apart_and_not_how_often_they_were() -> None:
    dispatches = pl.DataFrame(
        {"kernel_id": [0, 0, 1, 1, 2], "grid_work_items": [64, 64, 64, 128, None], "workgroup_work_items": [64] * 5}
    )
    found = dict(grids(dispatches).iter_rows())
    assert found == {0: "64/64", 1: "128/64,64/64", 2: "0/64"}


shares = st.floats(0.05, 1.2)


@given(
    shares=st.lists(shares, min_size=1, max_size=6),
    noise=st.lists(st.floats(-0.02, 0.02), min_size=6, max_size=6),
    order=st.permutations(range(12)),
    numbers=st.permutations(range(100, 112)),
)
def test_the_same_code_at_the_same_speed_gets_the_same_decision(
    shares: list[float], noise: list[float], order: list[int], numbers: list[int]
) -> None:
    """Each kernel twice, a little faster or slower the second time, under any numbers and in any order."""
    twice = [
        kernel(share=share * (1 + jitter), name=f"void k<{i}>(float*){suffix}")
        for i, share in enumerate(shares)
        for suffix, jitter in (("", 0.0), (" [clone .kd]", noise[i]))
    ]
    found = decided(*twice)
    for i in range(len(shares)):
        assert decision(found[2 * i]) == decision(found[2 * i + 1])
    # Neither the order of the rows, nor numbers, nor what the names are, decides anything.
    places = [place for place in order if place < len(twice)]
    renamed = [{**twice[place], "name": twice[place]["name"].replace("void k", "other")} for place in places]
    again = decided(*renamed, numbers=[numbers[place] for place in places])
    for place in places:
        assert decision(again[numbers[place]]) == decision(found[place])


@given(share=shares, others=st.lists(shares, max_size=5))
def test_a_kernels_decision_does_not_depend_on_other_codes_of_its_session(share: float, others: list[float]) -> None:
    alone = decided(kernel(share=share))[0]
    among = decided(kernel(share=share), *(kernel(share=one, name=f"other{i}") for i, one in enumerate(others)))[0]
    assert among == alone
