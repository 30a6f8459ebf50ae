"""Figures about a session: against a hand-computed example, the definition of a quantile, and simulation."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom

from aaco_pipeline.analysis.sessions.metrics import (
    METRICS,
    amplification_metrics,
    kernels_per_iteration,
    latency_metrics,
    launch_metrics,
    quantile_interval,
    timeline_metrics,
)
from aaco_pipeline.lake.contracts import contract, polars_schema
from aaco_pipeline.lake.validation import conform

LATENCY_METRICS = {
    "latency_p50",
    "latency_p90",
    "latency_p99",
    "latency_mean",
    "latency_standard_deviation",
    "latency_coefficient_of_variation",
    "latency_interquartile_range",
    "cpu_time_mean",
    "run_delay_mean",
    "throughput",
}


def iterations(
    latencies: Sequence[int],
    *,
    of: str = "latency",
    warmup: int = 0,
    cpu: Sequence[int | None] | None = None,
    delay: Sequence[int | None] | None = None,
) -> pl.DataFrame:
    count = len(latencies)
    return pl.DataFrame(
        {
            "pass": [of] * count,
            "iteration": list(range(count)),
            "phase": ["warmup" if i < warmup else "measure" for i in range(count)],
            "latency_ns": list(latencies),
            "cpu_time_ns": list(cpu) if cpu is not None else list(latencies),
            "run_delay_ns": list(delay) if delay is not None else [0] * count,
            "token_index": [None] * count,
        },
        schema={
            "pass": pl.String,
            "iteration": pl.Int32,
            "phase": pl.String,
            "latency_ns": pl.Int64,
            "cpu_time_ns": pl.Int64,
            "run_delay_ns": pl.Int64,
            "token_index": pl.Int32,
        },
    )


NO_BLOCKS = pl.DataFrame(schema=polars_schema(contract("iteration_blocks"))).drop("session_id")


def metrics(session: pl.DataFrame, batch_size: int | None, blocks: pl.DataFrame = NO_BLOCKS) -> pl.DataFrame:
    return latency_metrics(session, blocks, batch_size)


def figures(frame: pl.DataFrame, of: str = "latency") -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in frame.filter(pl.col("pass") == of).iter_rows(named=True)}


def test_the_figures_of_a_small_session_are_the_hand_computed_ones() -> None:
    session = iterations([9_000_000, 40, 10, 30, 20, 60], warmup=1, cpu=[7, 1, 2, 3, 4, 5], delay=[8, 10, 0, 20, 0, 30])
    rows = figures(metrics(session, batch_size=4))
    assert {name: (row["value"], row["unit"], row["n"]) for name, row in rows.items()} == {
        "latency_p50": (30.0, "ns", 5),
        "latency_p90": (60.0, "ns", 5),
        "latency_p99": (60.0, "ns", 5),
        "latency_mean": (32.0, "ns", 5),
        # squares of 8, -22, -2, -12, 28: 64 + 484 + 4 + 144 + 784 = 1480; / 4 = 370
        "latency_standard_deviation": (pytest.approx(370**0.5), "ns", 5),
        "latency_coefficient_of_variation": (pytest.approx(370**0.5 / 32), "ratio", 5),
        "latency_interquartile_range": (20.0, "ns", 5),  # ranks 4 and 2 of 10 20 30 40 60
        "cpu_time_mean": (3.0, "ns", 5),
        "run_delay_mean": (12.0, "ns", 5),
        "throughput": (pytest.approx(5 * 4 * 1e9 / 160), "inference/s", 5),
    }
    assert {row["phase"] for row in rows.values()} == {"measure"}


def test_warm_up_changes_no_figure() -> None:
    latencies = [40, 10, 30, 20, 60]
    slow_start = iterations([10**9, *latencies], warmup=1)
    assert metrics(slow_start, 1).equals(metrics(iterations(latencies), 1))


def test_each_pass_has_its_own_figures() -> None:
    session = pl.concat([iterations([10, 20, 30]), iterations([100, 200, 300, 400], of="trace")])
    rows = metrics(session, 1)
    assert figures(rows)["latency_mean"]["value"] == 20.0
    assert figures(rows, "trace")["latency_mean"]["value"] == 250.0
    assert set(figures(rows)) == set(figures(rows, "trace")) == LATENCY_METRICS


def test_distortion_is_the_profiled_median_over_the_unprofiled() -> None:
    session = pl.concat([iterations([10, 20, 30]), iterations([50, 70, 90], of="trace")])
    rows = metrics(session, 1).filter(pl.col("metric") == "profiler_distortion")
    assert rows.select("pass", "value", "unit").rows() == [(None, 3.5, "ratio")]


@pytest.mark.parametrize("one", ["latency", "trace"])
def test_one_pass_alone_has_no_distortion(one: str) -> None:
    assert "profiler_distortion" not in metrics(iterations([10, 20], of=one), 1)["metric"].to_list()


def test_an_unmeasurably_short_pass_has_no_ratios() -> None:
    session = pl.concat([iterations([0, 0, 0]), iterations([5, 5, 5], of="trace")])
    rows = metrics(session, 1)
    assert "profiler_distortion" not in rows["metric"].to_list()
    assert figures(rows)["latency_coefficient_of_variation"]["value"] is None
    assert figures(rows)["throughput"]["value"] is None


def test_an_unknown_batch_size_leaves_throughput_null() -> None:
    row = figures(metrics(iterations([10, 20]), None))["throughput"]
    assert row["value"] is None
    assert row["n"] == 2


def test_a_single_iteration_has_no_spread_and_no_interval_it_cannot_have() -> None:
    rows = figures(metrics(iterations([25]), 1))
    assert rows["latency_standard_deviation"]["value"] is None
    assert rows["latency_coefficient_of_variation"]["value"] is None
    assert rows["latency_interquartile_range"]["value"] == 0.0
    assert {
        name: (row["value"], row["ci_low"], row["ci_high"]) for name, row in rows.items() if name[:9] == "latency_p"
    } == {
        "latency_p50": (25.0, None, None),
        "latency_p90": (25.0, None, None),
        "latency_p99": (25.0, 25.0, None),  # one value lies above the true P99 in 1 of 100 sessions only
    }


@pytest.mark.parametrize("session", [iterations([]), iterations([1, 2], warmup=2)], ids=["none", "only warm-up"])
def test_no_measured_iterations_give_no_rows(session: pl.DataFrame) -> None:
    rows = metrics(session, 1)
    assert rows.is_empty()
    assert rows.schema == METRICS


def test_a_reading_nobody_could_take_is_null_and_counts_none() -> None:
    rows = figures(metrics(iterations([1, 2], delay=[None, None], cpu=[None, None]), 1))
    for name in ("run_delay_mean", "cpu_time_mean"):
        assert (rows[name]["value"], rows[name]["n"]) == (None, 0)


def test_the_p99_of_a_hundred_iterations_has_no_upper_end() -> None:
    row = figures(metrics(iterations(range(1, 101)), 1))["latency_p99"]
    assert row["value"] == 99.0
    assert row["ci_high"] is None
    assert row["ci_low"] == 97.0  # of 100 values, P(B < 97) = 0.018 and P(B < 98) = 0.079


@pytest.mark.parametrize(("count", "known"), [(367, False), (368, True)])
def test_the_p99_has_an_upper_end_from_368_iterations_on(count: int, known: bool) -> None:
    _, _, high = quantile_interval(np.arange(count), 0.99)
    assert (high is not None) == known


@pytest.mark.parametrize(
    "quantile", [Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(9, 10), Fraction(99, 100)]
)
def test_a_quantile_is_the_observed_value_of_nearest_rank(quantile: Fraction) -> None:
    for count in range(1, 401):
        value, _, _ = quantile_interval(np.arange(1, count + 1), float(quantile))
        assert value == ceil(count * quantile), count


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9, 0.99])
def test_the_interval_has_the_tightest_ranks_that_leave_half_the_doubt_on_each_side(
    quantile: float, confidence: float
) -> None:
    tail = (1 - confidence) / 2
    for count in (1, 2, 5, 6, 10, 73, 100, 367, 368, 500):
        ranks = np.arange(1, count + 1)
        below = ranks[binom.cdf(ranks - 1, count, quantile) <= tail]  # P(B < rank)
        above = ranks[binom.sf(ranks - 1, count, quantile) <= tail]  # P(B >= rank)
        _, low, high = quantile_interval(ranks * 10, quantile, confidence)
        assert low == (below.max() * 10 if len(below) else None), count
        assert high == (above.min() * 10 if len(above) else None), count


@pytest.mark.parametrize(("quantile", "least", "most"), [(0.5, 0.95, 0.985), (0.9, 0.95, 0.985)])
def test_the_interval_covers_the_true_quantile_as_often_as_it_says(quantile: float, least: float, most: float) -> None:
    random = np.random.default_rng(20240229)
    samples = np.sort((random.exponential(1e6, (2000, 100))).astype(np.int64), axis=1)
    true = -1e6 * np.log(1 - quantile)
    covered = 0
    for sample in samples:
        _, low, high = quantile_interval(sample, quantile)
        covered += (low is None or low <= true) and (high is None or true < high)
    assert least <= covered / len(samples) <= most


def windows(rows: Sequence[tuple[int, int | None, int, int, int]]) -> pl.DataFrame:
    return pl.DataFrame(
        rows,
        schema={
            "device_id": pl.Int32,
            "iteration": pl.Int32,
            "window_start_ns": pl.Int64,
            "window_end_ns": pl.Int64,
            "busy_ns": pl.Int64,
        },
        orient="row",
    )


def test_the_active_ratio_weighs_the_devices_by_their_windows() -> None:
    rows = figures(
        timeline_metrics(windows([(0, None, 0, 100, 90), (1, None, 50, 350, 30), (0, 3, 0, 50, 0)]), 12.5), "trace"
    )
    assert (rows["active_ratio"]["value"], rows["active_ratio"]["n"]) == (120 / 400, 2)
    assert rows["kernels_per_iteration"]["value"] == 12.5


def test_without_a_window_there_is_no_active_ratio() -> None:
    for timeline in (windows([]), windows([(0, None, 7, 7, 0)])):
        rows = figures(timeline_metrics(timeline, None), "trace")
        assert rows["active_ratio"]["value"] is None
        assert rows["kernels_per_iteration"]["value"] is None


def test_kernels_per_iteration_counts_measured_iterations_only_empty_ones_too() -> None:
    session = iterations([1, 1, 1, 1], of="trace", warmup=1)
    dispatches = pl.DataFrame({"iteration": [0, 0, 0, 1, 1, 2, None]}, schema={"iteration": pl.Int32})
    assert kernels_per_iteration(dispatches, session) == 1.0
    assert kernels_per_iteration(dispatches, iterations([1, 1])) is None


def test_the_rows_fit_the_lake() -> None:
    session = pl.concat([iterations([10, 20, 30]), iterations([50], of="trace")])
    rows = pl.concat([metrics(session, None), timeline_metrics(windows([(0, None, 0, 9, 3)]), 2.0)])
    assert conform(contract("session_metrics"), rows, "session").height == rows.height


def test_figures_on_launching_are_one_devices_with_their_units_and_counts() -> None:
    device = {
        "exposed_launch_ns": 30,
        "exposed_launch_ratio": 0.1,
        "launch_tax_score": None,
        "micro_kernel_ratio": 0.5,
        "dispatch_rate_per_s": 2e6,
        "launches": 3,
        "dispatches": 4,
    }
    rows = figures(launch_metrics(device), "trace")
    assert {name: (row["value"], row["unit"], row["n"]) for name, row in rows.items()} == {
        "exposed_launch": (30.0, "ns", 3),
        "exposed_launch_ratio": (0.1, "ratio", 3),
        "launch_tax_score": (None, "kHz", 3),
        "micro_kernel_ratio": (0.5, "ratio", 4),
        "dispatch_rate": (2e6, "dispatch/s", 4),
    }
    assert launch_metrics(None).is_empty()
    assert conform(contract("session_metrics"), launch_metrics(device), "session").height == 5


def test_kernels_for_each_node_are_of_one_iteration_except_the_undivided_figure() -> None:
    rows = figures(amplification_metrics(12.0, 60, 10, 20, 30), "trace")
    assert {name: (row["value"], row["n"]) for name, row in rows.items()} == {
        "kernel_amplification_ratio": (1.2, 10),
        "kernel_amplification_ratio_of_model": (0.6, 20),
        "kernel_amplification_ratio_undivided": (2.0, 30),
    }
    unknown = figures(amplification_metrics(None, 0, None, 0, 0), "trace")
    assert [row["value"] for row in unknown.values()] == [None] * 3
