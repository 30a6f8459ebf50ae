"""Figures about a session: against a hand-computed example, the definition of a quantile, and simulation.

Token figures against arithmetic done by hand on a few requests.

The scaling curve on points whose knee and saturation are known by construction.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from aaco_pipeline.analysis.sessions.metrics import (
    CONFIDENCE,
    METRICS,
    amplification_metrics,
    generation_metrics,
    kernels_per_iteration,
    latency_metrics,
    launch_metrics,
    quantile_interval,
    requests,
    scaling_curve,
    timeline_metrics,
)
from aaco_pipeline.lake.contracts import contract, polars_types
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
    columns = zip(latencies, cpu or latencies, delay or [0] * len(latencies), strict=True)
    rows = [
        {"pass": of, "iteration": i, "phase": "warmup" if i < warmup else "measure"}
        | {"latency_ns": latency, "cpu_time_ns": cpu_time, "run_delay_ns": run_delay}
        for i, (latency, cpu_time, run_delay) in enumerate(columns)
    ]
    return pl.DataFrame(rows, schema=polars_types("iterations"))


NO_BLOCKS = pl.DataFrame(schema=polars_types("iteration_blocks"))


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


def test_a_missing_reading_is_null_with_a_count_of_zero() -> None:
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


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9, 0.99])
def test_the_interval_has_the_tightest_ranks_that_leave_half_the_doubt_on_each_side(quantile: float) -> None:
    tail = (1 - CONFIDENCE) / 2
    for count in (1, 2, 5, 6, 10, 73, 100, 367, 368, 500):
        ranks = np.arange(1, count + 1)
        below = ranks[binom.cdf(ranks - 1, count, quantile) <= tail]  # P(B < rank)
        above = ranks[binom.sf(ranks - 1, count, quantile) <= tail]  # P(B >= rank)
        _, low, high = quantile_interval(ranks * 10, quantile)
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
    columns = polars_types("timeline", "device_id", "iteration", "window_start_ns", "window_end_ns", "busy_ns")
    return pl.DataFrame(rows, schema=columns, orient="row")


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


def generations(*of_requests: tuple[str, list[int]], name: str = "latency") -> pl.DataFrame:
    """Requests as (phase, the time of each token), with 5 ns between one token's end and the next one's start."""
    rows: list[tuple[object, ...]] = []
    clock = 0
    for phase, tokens in of_requests:
        for index, taken in enumerate(tokens):
            rows.append((name, len(rows), phase, clock, clock + taken, taken, 1, 0, index))
            clock += taken + 5
    columns = ["pass", "iteration", "phase", "start_ns", "end_ns", "latency_ns", "cpu_time_ns", "run_delay_ns"]
    return pl.DataFrame(rows, schema=[*columns, "token_index"], orient="row")


TWO = generations(("warmup", [900, 90, 90]), ("measure", [1000, 100, 120]), ("measure", [1200, 140, 110]))


def test_a_request_lasts_as_long_as_its_tokens() -> None:
    rows = requests(TWO).select("phase", "tokens", "first_token_ns", "end_to_end_ns", "per_token_ns").rows()
    assert rows == [
        ("warmup", 3, 900, 1080, 90.0),
        ("measure", 3, 1000, 1220, 110.0),
        ("measure", 3, 1200, 1450, 125.0),
    ]


def test_figures_of_two_requests() -> None:
    found = dict(generation_metrics(TWO, batch_size=4, prompt_tokens=50).select("metric", "value").iter_rows())
    assert found["time_to_first_token_p50"] == 1000
    assert found["time_to_first_token_p90"] == 1200
    assert found["time_per_output_token_p50"] == 110.0
    assert found["inter_token_latency_p50"] == 110
    assert found["inter_token_latency_p99"] == 140
    assert found["request_latency_p90"] == 1450
    assert found["output_tokens_per_s"] == pytest.approx(4 * 6 / (1220 + 1450) * 1e9)
    assert found["output_tokens_per_s_per_user"] == pytest.approx(1e9 / 117.5)
    assert found["prefill_tokens_per_s"] == pytest.approx(4 * 50 / 1100 * 1e9)


def test_warm_up_requests_count_in_no_figure() -> None:
    slow = generations(("warmup", [10**9, 10**9, 10**9]), ("measure", [1000, 100, 120]))
    fast = generations(("measure", [1000, 100, 120]))
    assert generation_metrics(slow, 1, 1).rows() == generation_metrics(fast, 1, 1).rows()


def test_a_request_of_one_token_has_no_time_per_token() -> None:
    found = generation_metrics(generations(("measure", [1000]), ("measure", [1100])), 1, 8)
    values = dict(found.select("metric", "value").iter_rows())
    assert values["time_per_output_token_p50"] is None
    assert values["inter_token_latency_p50"] is None
    assert values["output_tokens_per_s_per_user"] is None
    assert values["output_tokens_per_s"] == pytest.approx(2e9 / 2100)


def test_each_pass_has_figures_of_its_own() -> None:
    both = pl.concat([TWO, generations(("measure", [5000, 500, 500]), name="trace")])
    first = generation_metrics(both, 1, 1).filter(pl.col("metric") == "time_to_first_token_p50")
    assert dict(first.select("pass", "value").iter_rows()) == {"latency": 1000, "trace": 5000}


def test_only_warm_up_gives_no_rows() -> None:
    assert generation_metrics(generations(("warmup", [1, 1])), 1, 1).is_empty()


def test_throughput_of_tokens_is_named_so() -> None:
    metrics = latency_metrics(TWO, NO_BLOCKS, 4)
    (unit,) = metrics.filter(pl.col("metric") == "throughput").get_column("unit")
    assert unit == "token/s"


def points(rates: dict[int, float], prompt: int | None = None, tokens: int | None = None) -> pl.DataFrame:
    """Sessions whose throughput is `rates` by batch size; the interval is 10 % to either side of the time."""
    work = tokens or 1
    times = [round(batch * work * 1e9 / rate) for batch, rate in rates.items()]
    return pl.DataFrame(
        {
            "session_id": [f"s{batch}" for batch in rates],
            "batch_size": list(rates),
            "prompt_tokens": [prompt] * len(rates),
            "output_tokens": [tokens] * len(rates),
            "time_ns": times,
            "time_ci_low_ns": [0.9 * time for time in times],
            "time_ci_high_ns": [1.1 * time for time in times],
        },
        schema_overrides={"prompt_tokens": pl.Int32, "output_tokens": pl.Int32},
    )


def landmark(curve: pl.DataFrame, name: str) -> list[int]:
    return curve.filter(pl.col(name)).get_column("batch_size").to_list()


def test_a_curve_that_bends_and_flattens() -> None:
    curve = scaling_curve(points({1: 100, 2: 195, 4: 380, 8: 400, 16: 401}))
    assert landmark(curve, "is_knee") == [4]
    assert landmark(curve, "is_saturated") == [8]
    assert curve.get_column("speedup_ratio").to_list() == pytest.approx([1, 1.95, 3.8, 4, 4.01], rel=1e-6)
    assert curve.get_column("efficiency_ratio").to_list() == pytest.approx([1, 0.975, 0.95, 0.5, 0.250625], rel=1e-6)


def test_the_first_of_several_that_are_good_enough_is_the_saturated_one() -> None:
    curve = scaling_curve(points({1: 100, 2: 195, 4: 196, 8: 200}))
    assert landmark(curve, "is_saturated") == [2]


def test_growing_to_the_end_is_no_saturation_and_a_straight_line_has_no_knee() -> None:
    curve = scaling_curve(points({1: 100, 2: 200, 4: 400, 8: 800}))
    assert landmark(curve, "is_knee") == landmark(curve, "is_saturated") == []


def test_a_falling_curve_is_saturated_at_its_first_point() -> None:
    curve = scaling_curve(points({1: 100, 2: 90, 4: 50}))
    assert landmark(curve, "is_saturated") == [1]


@pytest.mark.parametrize("rates", [{4: 100.0}, {1: 100.0, 2: 100.0}])
def test_one_point_or_equal_ones_have_no_knee(rates: dict[int, float]) -> None:
    curve = scaling_curve(points(rates))
    assert landmark(curve, "is_knee") == []
    assert curve.get_column("speedup_ratio").to_list() == pytest.approx([1.0] * len(rates))


def test_each_prompt_length_is_a_curve_of_its_own() -> None:
    both = pl.concat([points({1: 50, 2: 60}, prompt=64, tokens=8), points({1: 100, 2: 190}, prompt=16, tokens=8)])
    curve = scaling_curve(both)
    assert curve.select("point", "prompt_tokens", "batch_size").rows() == [
        (0, 16, 1),
        (1, 16, 2),
        (2, 64, 1),
        (3, 64, 2),
    ]
    assert curve.get_column("speedup_ratio").to_list() == pytest.approx([1, 1.9, 1, 1.2], rel=1e-6)
    assert set(curve.get_column("throughput_unit")) == {"token/s"}


def test_the_interval_of_the_throughput_comes_from_the_times() -> None:
    (row,) = scaling_curve(points({4: 100})).to_dicts()
    assert row["throughput_ci_low_per_s"] == pytest.approx(100 / 1.1)
    assert row["throughput_ci_high_per_s"] == pytest.approx(100 / 0.9)


@given(st.dictionaries(st.integers(1, 4096), st.floats(1, 1e6), min_size=1, max_size=12))
def test_any_curve_has_one_knee_and_one_saturation_at_most(rates: dict[int, float]) -> None:
    curve = scaling_curve(points(rates))
    assert curve.height == len(rates)
    assert len(landmark(curve, "is_knee")) <= 1
    assert len(landmark(curve, "is_saturated")) <= 1
    assert curve.get_column("batch_size").is_sorted()
