"""Trends within a level, and forecasts from them."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from aaco_pipeline.statistics.history.changes import with_levels
from aaco_pipeline.statistics.history.forecast import LEAST_NIGHTS, back_test, forecast, forecasts, sen_lines, trend
from tests.statistics.history.made_up import night_rows, noise, step

LEVEL = np.log(1e6)


def rising(nights: int, slope: float, seed: int = 0) -> np.ndarray:
    made: np.ndarray = LEVEL + noise(nights, 0.01, seed) + slope * np.arange(nights)
    return made


def test_slope_and_interval_are_those_of_sen() -> None:
    values = rising(40, 0.002)
    found = trend(values)
    theirs = stats.theilslopes(values)
    assert found.slope == pytest.approx(theirs.slope)
    assert (found.low, found.high) == pytest.approx((theirs.low_slope, theirs.high_slope), rel=0.15)
    assert found.is_there
    assert found.p_value == pytest.approx(stats.kendalltau(np.arange(40), values).pvalue, abs=1e-4)
    slopes, last = sen_lines(np.stack([values, values]))
    assert slopes.tolist() == [found.slope] * 2
    assert last.tolist() == pytest.approx([found.last] * 2)


def test_nights_without_a_trend_have_one_hardly_ever() -> None:
    assert np.mean([trend(noise(40, seed=seed)).is_there for seed in range(200)]) <= 0.08


def test_nights_that_hang_together_are_no_trend_either() -> None:
    there = 0
    for seed in range(200):
        values = noise(40, 1.0, seed)
        for night in range(1, 40):
            values[night] += 0.5 * values[night - 1]
        there += trend(values).is_there
    assert there / 200 <= 0.1


def test_a_level_that_rises_reaches_its_limit_when_the_line_does() -> None:
    row = forecast(rising(40, 0.003), round(1e6 * np.exp(0.003 * 59)))
    assert row["state"] == "foretold"
    assert row["nights_to_limit_low"] <= 20 <= row["nights_to_limit_high"]
    assert row["nights_to_limit_low"] <= row["nights_to_limit"] <= row["nights_to_limit_high"]
    assert "of 18 nights foretold 7 ahead" in row["reason"]
    assert "too few nights to try" in forecast(rising(30, 0.003), 2_000_000)["reason"]


@pytest.mark.parametrize(
    ("slope", "limit_ns", "state", "reason"),
    [
        (0.0, 2_000_000, "no trend", "the slope's interval includes 0"),
        (-0.003, 2_000_000, "moving away", "% a night"),
        (0.003, None, "no limit", "no limit is set"),
        (0.003, 1_000_000, "reached", "at the limit or beyond it"),
    ],
)
def test_a_missing_forecast_has_a_reason(slope: float, limit_ns: int | None, state: str, reason: str) -> None:
    row = forecast(rising(40, slope), limit_ns)
    assert row["state"] == state
    assert reason in row["reason"]
    assert row.get("nights_to_limit") == (0 if state == "reached" else None)


def test_too_few_nights_say_so() -> None:
    row = forecast(rising(LEAST_NIGHTS - 1, 0.003), 2_000_000)
    assert row["state"] == "too few nights"
    assert row["reason"] == f"{LEAST_NIGHTS - 1} of {LEAST_NIGHTS} nights since the last change of level"
    assert "slope_ratio" not in row
    assert forecast(np.empty(0), None)["level_ns"] is None


def test_past_forecasts_hit_nine_of_ten_and_beat_the_last_value() -> None:
    tried = [back_test(rising(60, 0.003, seed)) for seed in range(8)]
    assert all(one is not None and one.count == 38 for one in tried)
    assert 0.78 <= np.mean([one.coverage for one in tried if one]) <= 0.98
    assert np.mean([one.pinball_ratio for one in tried if one]) < 1
    assert back_test(rising(30, 0.003)) is None


def test_a_step_is_no_trend() -> None:
    nights, _ = with_levels(night_rows(noise(60, 0.01) + step(60, 30, 0.1)))
    limits = pl.DataFrame({"workload": ["resnet50"], "backend": "cpu", "metric": "latency_p50", "limit_ns": 2_000_000})
    (row,) = forecasts(nights, limits).to_dicts()
    assert row["state"] == "no trend"
    assert abs(row["nights"] - 30) <= 1
    assert row["limit_ns"] == 2_000_000
    assert row["level_ns"] == pytest.approx(1e6 * np.exp(0.1), rel=0.01)
