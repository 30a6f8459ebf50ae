"""Limits compared with intervals over sessions, and budgets with the exact binomial interval."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.statistics.verdicts.service_level import (
    Limit,
    error_budget,
    quantile_against_limit,
    service_levels,
    usual_budget,
)
from aaco_pipeline.statistics.verdicts.session_quantiles import session_quantiles

P99: pl.Series = pl.Series([1_000_000, 1_020_000, 980_000, 1_010_000, 990_000, None])


@pytest.mark.parametrize(
    ("limit_ns", "state"), [(1_100_000, "ok"), (1_005_000, "at_risk"), (990_000, "at_risk"), (900_000, "breached")]
)
def test_the_limit_is_compared_with_the_whole_interval(limit_ns: int, state: str) -> None:
    row = quantile_against_limit(P99, limit_ns)
    assert (row["state"], row["sessions"]) == (state, 5)
    assert int(row["ci_low_ns"] or 0) < int(row["quantile_ns"] or 0) < int(row["ci_high_ns"] or 0)


@pytest.mark.parametrize(("count", "quantile_ns"), [(4, 1_002_390), (0, None)])
def test_few_sessions_are_not_enough_data(count: int, quantile_ns: int | None) -> None:
    row = quantile_against_limit(P99[:count], 1)
    assert (row["state"], row["quantile_ns"], row["ci_low_ns"]) == ("not_enough_data", quantile_ns, None)


@pytest.mark.parametrize(
    ("over", "requests", "state"),
    [
        (0, 1_000, "ok"),
        (9, 1_000, "at_risk"),
        (30, 1_000, "breached"),
        (0, 100, "not_enough_data"),
        (9, 20, "breached"),
    ],
)
def test_the_budget_is_compared_with_the_exact_interval(over: int, requests: int, state: str) -> None:
    row = error_budget(over, requests, 0.01)
    interval = stats.binomtest(over, requests).proportion_ci(0.95, "exact")
    assert row["state"] == state
    assert [row["ci_low_ratio"], row["ci_high_ratio"]] == pytest.approx([interval.low, interval.high])
    assert row["burn"] == pytest.approx(over / requests / 0.01)


def test_no_request_is_no_data() -> None:
    row = error_budget(0, 0, 0.01)
    assert row.pop("state") == "not_enough_data"
    assert set(row.values()) == {None}


@given(st.integers(1, 5_000), st.floats(0, 1), st.floats(0.001, 0.5))
def test_more_over_the_limit_is_never_better(requests: int, share: float, budget: float) -> None:
    order = {"ok": 0, "not_enough_data": 1, "at_risk": 1, "breached": 2}
    over = int(share * (requests - 1))
    states = [order[str(error_budget(count, requests, budget)["state"])] for count in (over, over + 1)]
    assert states[0] <= states[1]


@pytest.mark.parametrize(("over", "requests", "budget"), [(2, 1, 0.01), (-1, 1, 0.01), (0, 1, 0.0), (0, 1, 1.0)])
def test_invalid_shares_are_refused(over: int, requests: int, budget: float) -> None:
    with pytest.raises(UsageError, match="no share"):
        error_budget(over, requests, budget)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be kept"):
        quantile_against_limit(P99, 0)


def iterations(sessions: int, of_each: int = 1_000, between: float = 0.0, seed: int = 0) -> pl.DataFrame:
    """Iterations of about 1 ms in one arm; `between` is the spread of the sessions' levels."""
    random = np.random.default_rng(seed)
    levels = 1e6 * (1 + between * random.standard_normal((sessions, 1)))
    took = np.rint(levels * (1 + 0.02 * random.standard_normal((sessions, of_each)))).astype(np.int64)
    named = np.repeat([f"s{number:02}" for number in range(sessions)], of_each)
    places = {"arm": "candidate", "block": np.repeat(np.arange(sessions, dtype=np.int32), of_each)}
    return pl.DataFrame(
        {"session_id": named, **places, "iteration": np.tile(np.arange(of_each), sessions), "latency_ns": took.ravel()}
    )


def level(measured: pl.DataFrame, limit: Limit) -> dict[str, object]:
    summed_up = session_quantiles(measured).with_columns(workload=pl.lit("resnet50"))
    table = service_levels(summed_up, measured, [limit])
    assert to_contract("service_levels", table).equals(table)
    return table.row(0, named=True)


@pytest.mark.parametrize(
    ("sessions", "of_each", "limit_ns", "state"),
    [
        (10, 1_000, 1_100_000, "ok"),
        (10, 1_000, 1_046_000, "at_risk"),
        (10, 1_000, 1_030_000, "breached"),
        (4, 1_000, 1_100_000, "not_enough_data"),
        (4, 1_000, 900_000, "not_enough_data"),
        (10, 999, 1_100_000, "not_enough_data"),
    ],
)
def test_a_limit_is_kept_by_the_quantile_and_by_the_share_or_it_is_not_said(
    sessions: int, of_each: int, limit_ns: int, state: str
) -> None:
    row = level(iterations(sessions, of_each), Limit("latency_p99", limit_ns, 0.01))
    assert row["state"] == state
    assert row["sessions"] == (sessions if of_each >= 1_000 else 0)
    assert row["iterations"] == sessions * of_each


def test_a_budget_smaller_than_the_quantile_s_share_is_what_breaches() -> None:
    """The P90 keeps to the limit by far, and still more iterations take longer than may."""
    row = level(iterations(10), Limit("latency_p90", 1_040_000, 0.001))
    assert isinstance(row["ci_high_ns"], int)
    assert (row["state"], row["ci_high_ns"] < 1_040_000) == ("breached", True)
    assert row["burn_ratio"] == pytest.approx(float(str(row["over_limit_ratio"])) / 0.001)


def test_sessions_that_differ_widen_the_interval_of_the_share() -> None:
    def width(between: float) -> float:
        row = level(iterations(10, between=between, seed=3), Limit("latency_p50", 1_000_000, 0.5))
        return float(str(row["over_limit_high_ratio"])) - float(str(row["over_limit_low_ratio"]))

    alike, apart = width(0.0), width(0.03)
    exact = stats.binomtest(5_000, 10_000).proportion_ci(0.95, "exact")
    assert alike == pytest.approx(exact.high - exact.low, rel=0.8)
    assert apart > 10 * alike


def test_a_session_that_cannot_be_used_counts_for_nothing() -> None:
    broken = iterations(6).with_columns(
        latency_ns=pl.when(pl.col("session_id") == "s00").then(-1).otherwise("latency_ns")
    )
    row = level(broken, Limit("latency_p99", 1_100_000, 0.01))
    assert (row["state"], row["sessions"], row["iterations"]) == ("ok", 5, 5_000)


def test_without_limits_there_are_no_rows() -> None:
    measured = iterations(5)
    summed_up = session_quantiles(measured).with_columns(workload=pl.lit("resnet50"))
    assert service_levels(summed_up, measured, []).is_empty()


def test_the_usual_budget_is_what_lies_above_the_quantile() -> None:
    assert [usual_budget(f"latency_{name}") for name in ("p50", "p90", "p99")] == [0.5, 0.1, 0.01]


@pytest.mark.parametrize(
    ("metric", "limit_ns", "budget", "words"),
    [
        ("latency_p95", 1, 0.01, "latency_p95 has no limit: choose one of latency_p50, latency_p90, latency_p99"),
        ("latency_p99", 0, 0.01, "cannot be kept"),
        ("latency_p99", 1, 1.0, "a budget of 1"),
    ],
)
def test_invalid_limits_are_refused(metric: str, limit_ns: int, budget: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Limit(metric, limit_ns, budget)
