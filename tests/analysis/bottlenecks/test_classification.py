"""Rows of `bottlenecks`: the same for the same session whatever the order of its rows, and what they say at most."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.bottlenecks.classification import INPUTS, classify, reach_of_kernels
from aaco_pipeline.assets.classification import BUILT_IN_RULES, load_bottleneck_rules
from aaco_pipeline.lake.contracts import contract, polars_schema, polars_types
from aaco_pipeline.providers import CPU_PROVIDER

RULES = load_bottleneck_rules(BUILT_IN_RULES)


def session(**given_rows: list[dict[str, Any]]) -> dict[str, pl.DataFrame]:
    """A session on the CPU that ran three kernels in each of four iterations, and rows of other tables."""
    iteration = {"phase": "measure", "latency_ns": 1_000_000, "cpu_time_ns": 1_000_000, "run_delay_ns": 0}
    times = (500_000, 300_000, 100_000)
    every: dict[str, list[dict[str, Any]]] = {
        "sessions": [{"source_kind": "live", "provider": CPU_PROVIDER}],
        "iterations": [{**iteration, "pass": name, "iteration": i} for name in ("latency", "trace") for i in range(4)],
        "kernels": [{"kernel_id": i, "name": f"k{i}", "short_name": f"k{i}"} for i in range(3)],
        "kernel_stats": [
            {"kernel_id": i, "dispatch_count": 4, "total_ns": 4 * time, "p50_ns": time} for i, time in enumerate(times)
        ],
        "roofline": [
            {"kernel_id": 0, "bound": "vector", "efficiency_ratio": 0.9, "quality_flags": []},
            {"kernel_id": 1, "bound": "dram", "efficiency_ratio": 0.8, "quality_flags": []},
        ],
        **given_rows,
    }
    return {
        name: pl.DataFrame(every.get(name, []), schema=polars_schema(contract(name))).drop("session_id")
        for name in INPUTS
    }


def test_every_kernel_with_statistics_is_judged_and_nothing_else() -> None:
    found = classify(session(), RULES)
    assert found.select("scope", "kernel_id", "label").rows() == [
        ("kernel", 0, "compute_vector"),
        ("kernel", 1, "memory_dram"),
        ("kernel", 2, None),
    ]


def test_a_kernel_that_waited_for_a_cpu_is_held_to_the_time_it_had_one() -> None:
    slow = [{"kernel_id": 0, "bound": "vector", "efficiency_ratio": 0.4, "quality_flags": []}]
    tables = session(roofline=slow)
    assert classify(tables, RULES).item(0, "label") == "latency"
    assert classify(tables, RULES, 0.5).item(0, "label") == "compute_vector"


@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(random: Any) -> None:
    tables = session()
    shuffled = {
        name: frame.sample(fraction=1, shuffle=True, seed=random.randrange(99)) for name, frame in tables.items()
    }
    assert classify(shuffled, RULES).equals(classify(tables, RULES))


def test_without_kernels_there_are_no_rows() -> None:
    nothing = {name: frame.clear() for name, frame in session().items()}
    found = classify(nothing, RULES)
    assert found.is_empty()
    assert found.schema == polars_types("bottlenecks")


def test_a_kernel_can_save_its_time_on_the_critical_path_and_no_more() -> None:
    path = {"activity_kind": "dispatch", "slack_ns": 0, "free_slack_ns": 0, "binding_edge": "none"}
    summary = {"scope": "session", "window_ns": 1000, "path_ns": 900, "unexplained_ns": 100, "category": "compute"}
    dispatch = {"process_id": 0, "device_id": 0, "below_resolution": False, "kernel_id": 0}
    tables = session(
        critical_path=[{**path, "activity_id": i, "is_critical": i != 1, "unexplained_wait_ns": 0} for i in range(3)],
        critical_path_summary=[{**summary, "category_ns": 900}],
        dispatches=[{**dispatch, "dispatch_id": i, "start_ns": 100 * i, "end_ns": 100 * i + 80} for i in range(3)],
    )
    assert reach_of_kernels(tables) == {0: pytest.approx(0.16)}
    kernel = classify(tables, RULES).row(0, named=True)
    assert "at most 16.0 %" in kernel["recommendation"]
    elsewhere = classify(session(), RULES).row(0, named=True)
    assert "is not known" in elsewhere["recommendation"]
