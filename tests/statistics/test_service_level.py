"""Limits held against intervals over sessions, and budgets against the exact binomial interval."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from aaco_pipeline.errors import UsageError
from aaco_pipeline.statistics.service_level import error_budget, quantile_against_limit

P99: pl.Series = pl.Series([1_000_000, 1_020_000, 980_000, 1_010_000, 990_000, None])


@pytest.mark.parametrize(
    ("limit_ns", "state"), [(1_100_000, "ok"), (1_005_000, "at_risk"), (990_000, "at_risk"), (900_000, "breached")]
)
def test_the_limit_is_held_against_the_whole_interval(limit_ns: int, state: str) -> None:
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
def test_the_budget_is_held_against_the_exact_interval(over: int, requests: int, state: str) -> None:
    row = error_budget(over, requests, 0.01)
    interval = stats.binomtest(over, requests).proportion_ci(0.95, "exact")
    assert row["state"] == state
    assert [row["ci_low_ratio"], row["ci_high_ratio"]] == pytest.approx([interval.low, interval.high])
    assert row["burn"] == pytest.approx(over / requests / 0.01)


def test_no_request_is_no_data() -> None:
    row = error_budget(0, 0, 0.01)
    assert row.pop("state") == "not_enough_data"
    assert set(row.values()) == {None}


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5_000), st.floats(0, 1), st.floats(0.001, 0.5))
def test_more_over_the_limit_is_never_better(requests: int, share: float, budget: float) -> None:
    order = {"ok": 0, "not_enough_data": 1, "at_risk": 1, "breached": 2}
    over = int(share * (requests - 1))
    states = [order[str(error_budget(count, requests, budget)["state"])] for count in (over, over + 1)]
    assert states[0] <= states[1]


@pytest.mark.parametrize(("over", "requests", "budget"), [(2, 1, 0.01), (-1, 1, 0.01), (0, 1, 0.0), (0, 1, 1.0)])
def test_what_is_no_share_is_refused(over: int, requests: int, budget: float) -> None:
    with pytest.raises(UsageError, match="no share"):
        error_budget(over, requests, budget)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be kept"):
        quantile_against_limit(P99, 0)
