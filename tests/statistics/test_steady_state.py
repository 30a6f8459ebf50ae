"""Steady states of series with known levels."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.sessions.metrics import units_of_work
from aaco_pipeline.statistics.steady_state import LEAST_ITERATIONS, levels_since, states_of, steady_state_metrics


def series(levels: list[tuple[int, float]], seed: int = 0) -> np.ndarray:
    """Counts and levels, with 2 % of noise."""
    random = np.random.default_rng(seed)
    return np.concatenate([level * (1 + 0.02 * random.standard_normal(count)) for count, level in levels])


def judged(
    latency: np.ndarray, warmup: int = 3, tokens: int | None = None, runs: list[int] | None = None
) -> dict[str, float | None]:
    iterations = pl.DataFrame(
        {
            "pass": "latency",
            "run": pl.Series([0] * warmup + runs if runs else [None] * (len(latency) + warmup), dtype=pl.Int32),
            "iteration": np.arange(len(latency) + warmup),
            "phase": ["warmup"] * warmup + ["measure"] * len(latency),
            "latency_ns": np.concatenate([np.full(warmup, 10**9), latency]).astype(np.int64),
            "token_index": None,
        },
        schema_overrides={"token_index": pl.Int32},
    )
    iterations = iterations.with_columns(end_ns=pl.col("latency_ns").cum_sum()).with_columns(
        start_ns=pl.col("end_ns") - pl.col("latency_ns")
    )
    if tokens is not None:
        iterations = iterations.with_columns(token_index=((pl.col("iteration") - warmup) % tokens).cast(pl.Int32))
    return dict(steady_state_metrics(units_of_work(iterations)).select("metric", "value").iter_rows())


def test_one_level_is_steady_from_the_first_measured_iteration() -> None:
    assert judged(series([(200, 1e6)])) == {"steady_state": 1.0, "steady_from": 3.0}


def test_a_slow_beginning_is_not_steady_and_the_level_after_it_is_named() -> None:
    found = judged(series([(60, 1.3e6), (240, 1e6)]))
    assert found["steady_state"] == 0.0
    assert found["steady_from"] == pytest.approx(63, abs=3)


def test_a_level_that_came_late_is_not_called_the_steady_one() -> None:
    assert judged(series([(240, 1e6), (60, 1.3e6)])) == {"steady_state": 0.0, "steady_from": None}


def test_processes_that_differ_are_each_steady() -> None:
    levels = series([(100, 1e6), (100, 1.3e6), (100, 1e6)])
    assert judged(levels)["steady_state"] == 0.0
    runs = [0] * 100 + [1] * 100 + [2] * 100
    assert judged(levels, runs=runs) == {"steady_state": 1.0, "steady_from": 3.0}


def test_the_process_that_becomes_steady_last_counts() -> None:
    levels = series([(30, 1.3e6), (170, 1e6), (60, 1.3e6), (140, 1e6)])
    found = judged(levels, runs=[0] * 200 + [1] * 200)
    assert found["steady_state"] == 0.0
    assert found["steady_from"] == pytest.approx(203 + 60, abs=4)
    late = series([(200, 1e6), (150, 1e6), (50, 1.3e6)])
    assert judged(late, runs=[0] * 200 + [1] * 200) == {"steady_state": 0.0, "steady_from": None}


def test_runs_too_short_for_a_level_are_not_judged_and_whole_runs_are_one_series() -> None:
    levels = series([(100, 1e6)])
    assert judged(levels, runs=[0] * 80 + [1] * 20) == {"steady_state": None, "steady_from": None}
    assert judged(levels, warmup=0, runs=list(range(100))) == {"steady_state": 1.0, "steady_from": 0.0}


def test_a_shift_within_the_tolerance_is_steady() -> None:
    assert judged(series([(150, 1.03e6), (150, 1e6)]))["steady_state"] == 1.0


def test_too_few_iterations_are_not_judged() -> None:
    assert judged(series([(LEAST_ITERATIONS - 1, 1e6)])) == {"steady_state": None, "steady_from": None}


def test_single_outliers_are_no_levels() -> None:
    latency = series([(300, 1e6)])
    latency[[50, 120, 200]] *= 5
    assert judged(latency)["steady_state"] == 1.0


def test_requests_are_judged_and_not_their_unlike_tokens() -> None:
    per_token = np.tile([5e6, 1e6, 1.1e6, 1.2e6], 40)
    found = judged(per_token * (1 + 0.01 * np.random.default_rng(1).standard_normal(160)), warmup=4, tokens=4)
    assert found == {"steady_state": 1.0, "steady_from": 4.0}


@given(st.integers(0, 10**6), st.integers(40, 1500))
def test_noise_alone_makes_no_levels(seed: int, count: int) -> None:
    time = series([(count, 1e6)], seed).astype(np.int64)
    assert levels_since(time, np.array([count])) == 0


def test_many_iterations_are_judged_by_blocks() -> None:
    found = judged(series([(20_000, 1.2e6), (80_000, 1e6)]), warmup=0)
    assert found["steady_state"] == 0.0
    assert found["steady_from"] == pytest.approx(20_000, abs=300)


def test_equal_values_are_one_level() -> None:
    assert judged(np.full(100, 1e6)) == {"steady_state": 1.0, "steady_from": 3.0}


def test_a_short_interruption_is_no_level_and_a_long_one_is() -> None:
    assert judged(series([(200, 1e6), (20, 1.5e6), (80, 1e6)]))["steady_state"] == 1.0
    assert judged(series([(100, 1e6), (80, 1.5e6), (120, 1e6)]))["steady_state"] == 0.0


def states(*sessions: np.ndarray) -> list[tuple[str, int]]:
    counts = np.array([len(session) for session in sessions])
    found, since = states_of(np.concatenate(sessions).astype(np.int64), counts)
    return list(zip(found.tolist(), since.tolist(), strict=True))


def two_modes(seed: int, count: int = 300, share: float = 0.5, apart: float = 1.4) -> np.ndarray:
    """Iterations that jump between two modes without order."""
    slow = np.random.default_rng(seed).random(count) < share
    return series([(count, 1e6)], seed) * np.where(slow, apart, 1)


def test_sessions_are_called_by_what_they_are() -> None:
    steady, warming = series([(300, 1e6)]), series([(60, 1.3e6), (240, 1e6)])
    late, short = series([(200, 1e6), (100, 1.3e6)]), series([(LEAST_ITERATIONS - 1, 1e6)])
    found = states(steady, warming, late, short, two_modes(4))
    assert [state for state, _ in found] == ["steady", "steady", "unsteady", "too_short", "bimodal"]
    assert [since for _, since in found] == [0, 60, 0, 0, 0]


@pytest.mark.parametrize(("share", "apart"), [(0.05, 1.4), (0.5, 1.03)])
def test_a_tail_or_modes_that_hardly_differ_are_one_mode(share: float, apart: float) -> None:
    assert states(two_modes(5, share=share, apart=apart))[0][0] == "steady"


@given(st.integers(0, 10**6), st.integers(40, 700))
def test_the_state_of_a_session_does_not_depend_on_other_sessions(seed: int, count: int) -> None:
    one, other = series([(count // 3, 1.2e6), (count - count // 3, 1e6)], seed), two_modes(seed + 1, 77)
    assert states(one, other) == [*states(one), *states(other)]


@given(st.integers(0, 10**6), st.integers(30, 400), st.integers(2, 1_000))
def test_the_unit_of_time_changes_nothing(seed: int, count: int, factor: int) -> None:
    session = np.rint(series([(count // 4, 1.2e6), (count - count // 4, 1e6)], seed))
    assert states(session) == states(session * factor)
