"""Rows of `bottlenecks`: the same for the same session whatever the order of its rows, and what they say at most."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aaco_pipeline.analysis.bottlenecks.classification import INPUTS, classify, reach_of_kernels, session_signals
from aaco_pipeline.assets.classification import BUILT_IN_RULES, load_bottleneck_rules
from aaco_pipeline.lake.contracts import contract, polars_schema
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


def test_the_session_is_named_for_what_most_of_its_time_went_to() -> None:
    found = classify(session(), RULES).bottlenecks
    first = found.row(0, named=True)
    assert (first["scope"], first["label"], first["runner_up"]) == ("session", "compute_vector", "memory_dram")
    assert first["score"] == pytest.approx(0.5)
    assert "at most 50.0 %" in first["recommendation"]
    labels = found.filter(pl.col("scope") == "kernel").select("kernel_id", "label").rows()
    assert labels == [(0, "compute_vector"), (1, "memory_dram"), (2, None)]


def test_when_most_of_the_time_has_no_cause_there_is_no_label() -> None:
    only = [{"kernel_id": 2, "bound": "dram", "efficiency_ratio": 0.8, "quality_flags": []}]
    found = classify(session(roofline=only), RULES)
    first = found.bottlenecks.row(0, named=True)
    assert (first["label"], first["score"], first["recommendation"]) == (None, None, None)
    shown = {one["signal"]: one["value"] for one in first["evidence"]}
    assert shown["share_busy_unexplained"] == pytest.approx(0.8)


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(random: Any) -> None:
    tables = session()
    shuffled = {
        name: frame.sample(fraction=1, shuffle=True, seed=random.randrange(99)) for name, frame in tables.items()
    }
    assert classify(shuffled, RULES).bottlenecks.equals(classify(tables, RULES).bottlenecks)


def test_an_empty_session_has_its_one_row_without_a_label() -> None:
    nothing = {name: frame.clear() for name, frame in session().items()}
    found = classify(nothing, RULES)
    assert found.bottlenecks.select("scope", "label").rows() == [("session", None)]
    assert found.missing.height > 0
    assert found.missing.get_column("reason").null_count() == 0


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
    kernel = classify(tables, RULES).bottlenecks.row(1, named=True)
    assert "at most 16.0 %" in kernel["recommendation"]
    elsewhere = classify(session(), RULES).bottlenecks.row(1, named=True)
    assert "is not known" in elsewhere["recommendation"]


@pytest.mark.parametrize(("kind", "counted"), [("capture", False), ("live", True)])
def test_a_captures_other_cards_say_nothing_of_its_clock(kind: str, counted: bool) -> None:
    """Another card of the host was held back; the run's own was not sampled."""
    other = {"device_id": 1, "time_ns": 0, "gfx_activity_ratio": 1.0, "throttle_reasons": ["ppt"]}
    tables = session(
        sessions=[{"source_kind": kind, "provider": CPU_PROVIDER}],
        dispatches=[{"dispatch_id": 0, "device_id": 0}],
        gpu_samples=[other],
    )
    kernels = pl.DataFrame({"label": ["compute_vector"], "total_ns": [1]})
    assert (session_signals(tables, kernels, RULES)["power_throttled"].value is not None) is counted
