"""The place of one run among the nights of its level and the hosts of its night, or the reason why there is none."""

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.statistics.history.anomaly import LEAST_HOSTS, LEAST_NIGHTS, place_in_history
from aaco_pipeline.statistics.history.changes import with_levels
from tests.statistics.history.made_up import night_rows, noise, step

NIGHTS, _ = with_levels(night_rows(noise(30, 0.01) + step(30, 15, 0.2)))
NOW_NS = round(1e6 * np.exp(0.2))


@pytest.mark.parametrize(
    ("ratio", "state"), [(1.0, "as before"), (1.02, "as before"), (1.2, "slower"), (0.8, "faster")]
)
def test_a_run_is_held_against_the_level_that_holds_now(ratio: float, state: str) -> None:
    place = place_in_history(NIGHTS, round(NOW_NS * ratio))
    assert place["state"] == state
    assert place["ratio"] == pytest.approx(ratio, rel=0.01)
    assert abs(place["nights"] - 15) <= 1
    assert place["low_ratio"] < 1 < place["high_ratio"]
    assert "where 99 of 100 sessions lie within" in place["reason"]
    assert place["fleet_state"] is None


def test_sessions_of_identical_code_are_rarely_apart() -> None:
    random = np.random.default_rng(3)
    apart = 0
    for seed in range(100):
        nights, _ = with_levels(night_rows(noise(20, 0.01, seed)))
        one = 1e6 * np.exp(random.normal(0, 0.01) + random.normal(0, 0.005 * np.sqrt(10)))
        apart += place_in_history(nights, round(one))["state"] != "as before"
    assert apart <= 4


def test_too_little_history_says_so() -> None:
    few, _ = with_levels(night_rows(noise(LEAST_NIGHTS - 1)))
    place = place_in_history(few, NOW_NS)
    assert (place["state"], place["low_ratio"]) == ("too little history", None)
    assert place["reason"] == f"{LEAST_NIGHTS - 1} of {LEAST_NIGHTS} nights of this level are known"
    assert place_in_history(few.clear(), NOW_NS)["ratio"] is None


@pytest.mark.parametrize(
    ("others", "state", "reason"),
    [
        (1.2, "as before", "the other hosts of that night moved with it"),
        (1.0, "slower", "the other hosts of that night did not: this host did"),
    ],
)
def test_the_fleet_tells_a_host_from_what_all_share(others: float, state: str, reason: str) -> None:
    fleet = pl.Series(np.rint(NOW_NS * others * np.exp(noise(10, 0.005, 5))).astype(np.int64))
    place = place_in_history(NIGHTS, round(NOW_NS * 1.2), fleet)
    assert (place["fleet_state"], place["fleet_hosts"]) == (state, 10)
    assert reason in place["reason"]
    few = place_in_history(NIGHTS, round(NOW_NS * 1.2), fleet.head(LEAST_HOSTS - 1))
    assert few["fleet_state"] is None
