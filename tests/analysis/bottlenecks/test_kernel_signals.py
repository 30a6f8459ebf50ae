"""Signals of kernels from their tables, and the label that the package's rules give each pattern of them."""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.bottlenecks.kernel_signals import (
    KERNEL_SIGNALS,
    LABEL_OF_RESOURCE,
    ROOF_LABELS,
    kernel_signals,
)
from aaco_pipeline.analysis.bottlenecks.rules import Signal, judge
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


def placed(bound: str, share: float, *flags: str) -> list[dict[str, Any]]:
    return [{"bound": bound, "efficiency_ratio": share, "quality_flags": list(flags)}]


def signals(found: dict[str, pl.DataFrame], on_cpu: float = 1.0) -> dict[str, Any]:
    return kernel_signals(found, on_cpu).row(0, named=True)


def label(found: dict[str, pl.DataFrame], on_cpu: float = 1.0) -> str | None:
    row = signals(found, on_cpu)
    judged = judge({name: Signal(row[name], "ratio", "t") for name in KERNEL_SIGNALS}, RULES, "kernel")
    return None if judged.rule is None else judged.rule.label


@pytest.mark.parametrize("resource", LABEL_OF_RESOURCE)
def test_at_a_roof_a_kernel_is_named_for_the_roof(resource: str) -> None:
    assert label(tables(roofline=placed(resource, 0.7))) == LABEL_OF_RESOURCE[resource]


def test_two_roofs_as_near_are_balanced() -> None:
    assert label(tables(roofline=placed("dram", 0.8, "balanced:vector"))) == "balanced"


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
def test_a_kernel_as_short_as_a_launch_is_the_launchs(roof: list[dict[str, Any]]) -> None:
    assert label(tables(median=5_000, roofline=roof)) == "launch"


def metrics(**values: float) -> list[dict[str, Any]]:
    return [
        {"metric": name, "unit": "ratio", "value": value, "n": 1, "quality_flags": []} for name, value in values.items()
    ]


FAR = placed("dram", 0.3)


@pytest.mark.parametrize(
    ("expected", "rows"),
    [
        ("latency", {}),
        ("lds_bank_conflict", {"counter_metrics": metrics(lds_bank_conflict_ratio=0.4, lds_busy_ratio=0.5)}),
        ("latency", {"counter_metrics": metrics(lds_bank_conflict_ratio=0.05, lds_busy_ratio=0.5)}),
        ("divergence", {"counter_metrics": metrics(active_threads_ratio=0.3)}),
        ("latency", {"counter_metrics": metrics(active_threads_ratio=0.99)}),
        ("occupancy", {"occupancy": [{"achieved_ratio": 0.2, "theoretical_ratio": 0.25}]}),
        ("latency", {"occupancy": [{"achieved_ratio": 0.8, "theoretical_ratio": 1.0}]}),
        ("spill", {"kernels": [{"name": "k", "short_name": "k", "static_scratch_bytes": 64}]}),
        ("atomics", {"att_stalls": [{"reason": "vector memory atomic issue", "stall_cycles": 9}]}),
        ("instruction_fetch", {"att_stalls": [{"reason": "no_instruction", "samples": 9}]}),
        ("latency", {"counter_metrics": metrics(l1i_hit_ratio=0.9)}),
    ],
)
def test_below_every_roof_the_evidence_names_what_kept_it_there(expected: str, rows: dict[str, Any]) -> None:
    assert label(tables(roofline=FAR, **rows)) == expected


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
    assert (moving["nearest_roof"], moving["at_memory_dram"], moving["indirect_access"]) == (0.05, 0.05, 1.0)
    assert label(with_flops(0.0)) == "latency"
    assert label(with_flops(10.0)) is None
