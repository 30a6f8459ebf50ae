"""Changes of level are found where they are, with honest intervals; noise, outliers and slopes are none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.statistics.history.levels import (
    LEAST_SEARCHED,
    deviation,
    find_levels,
    night_variances,
    outlier_nights,
    wander,
)
from tests.statistics.history.made_up import Floats, noise, step, unknown


def wandering(nights: int, correlation: float, seed: int) -> Floats:
    made = noise(nights, 1.0, seed)
    for night in range(1, nights):
        made[night] = correlation * made[night - 1] + np.sqrt(1 - correlation**2) * made[night]
    return made


@pytest.mark.parametrize("height", [0.08, -0.08])
@pytest.mark.parametrize("at", [10, 30, 52])
def test_a_step_is_found_with_its_place_and_its_height(at: int, height: float) -> None:
    found = find_levels(noise(60) + step(60, at, height), unknown(60), paired=True)
    (change,) = found.changes
    assert change.kind == "level"
    assert change.earliest <= at <= change.latest
    assert abs(change.start - at) <= 2
    assert abs(change.effect - height) < 3 * change.error < 0.05
    assert (change.before, change.after) == (change.start, 60 - change.start)
    assert found.starts == [0, change.start]


def test_steps_there_and_back_are_two() -> None:
    found = find_levels(noise(60) + step(60, 20, 0.1) - step(60, 40, 0.1), unknown(60), paired=True)
    assert [change.kind for change in found.changes] == ["level", "level"]
    assert [change.effect > 0 for change in found.changes] == [True, False]


def test_identical_code_changes_hardly_ever() -> None:
    changed = sum(len(find_levels(noise(60, seed=seed), unknown(60), paired=True).changes) for seed in range(100))
    assert changed <= 5


def test_a_wander_of_the_host_is_cut_into_levels_hardly_ever() -> None:
    changed = sum(
        len(find_levels(0.02 * wandering(60, 0.5, seed), unknown(60), paired=False).changes) for seed in range(100)
    )
    assert changed <= 10


def test_effects_lie_in_their_intervals_as_often_as_said() -> None:
    inside = []
    for seed in range(200):
        (*_, change) = find_levels(noise(60, seed=seed) + step(60, 30, 0.08), unknown(60), paired=True).changes
        inside.append(abs(change.effect - 0.08) <= 2.002 * change.error)
    assert np.mean(inside) >= 0.9


@pytest.mark.parametrize("nights", [0, 1, 2, LEAST_SEARCHED - 1])
def test_a_series_too_short_is_one_level(nights: int) -> None:
    found = find_levels(step(nights, nights // 2, 0.5), unknown(nights), paired=True)
    assert found.changes == []
    assert found.starts == ([0] if nights else [])


def test_a_step_in_a_constant_series_is_found() -> None:
    (change,) = find_levels(step(20, 12, 0.05), unknown(20), paired=True).changes
    assert (change.start, change.earliest, change.latest) == (12, 12, 12)
    assert change.effect == pytest.approx(0.05)


def test_nights_known_better_weigh_more() -> None:
    """Nights of many sessions agree; those of few are noise that would hide the step if all weighed the same."""
    errors = np.where(np.arange(60) % 2 == 0, 0.002, 0.08)
    values = noise(60, 1.0) * errors + step(60, 30, 0.03)
    (change,) = find_levels(values, errors, paired=True).changes
    assert change.earliest <= 30 <= change.latest + 1
    alike = find_levels(values, unknown(60), paired=True).changes
    assert all(one.error > 5 * change.error for one in alike)


@pytest.mark.parametrize(("last", "height"), [(60, 0.2), (60, -0.2)])
def test_a_slope_is_one_drift(last: int, height: float) -> None:
    found = find_levels(noise(last) + np.linspace(0, height, last), unknown(last), paired=True)
    (change,) = found.changes
    assert change.kind == "drift"
    assert abs(change.effect - height) < 0.05
    assert change.after > last / 2


def test_many_small_steps_one_way_are_one_drift() -> None:
    stairs = 0.02 * np.minimum(np.arange(60) // 6, 8)
    assert [change.kind for change in find_levels(noise(60) + stairs, unknown(60), paired=True).changes] == ["drift"]


def test_a_drift_that_ended_leaves_a_level_after_it() -> None:
    slope = 0.2 * np.clip((np.arange(80) - 20) / 30, 0, 1)
    found = find_levels(noise(80, 0.01) + slope, unknown(80), paired=True)
    (change,) = found.changes
    assert change.kind == "drift"
    assert abs(change.start - 20) <= 6
    assert abs(change.latest - 50) <= 6
    assert found.starts == [0, change.start, change.latest]


def test_one_night_that_stands_alone_is_an_outlier_and_no_level() -> None:
    values = noise(60)
    values[30] += 0.3
    found = find_levels(values, unknown(60), paired=True)
    assert found.changes == []
    assert np.flatnonzero(found.outliers).tolist() == [30]


@pytest.mark.parametrize(("length", "is_level"), [(1, False), (2, False), (3, True)])
def test_nights_that_went_back_are_a_level_from_three_on(length: int, is_level: bool) -> None:
    values = noise(60)
    values[30 : 30 + length] += 0.3
    outliers, undecided = outlier_nights(values, deviation(values))
    assert outliers[30 : 30 + length].all() != is_level
    assert outliers.sum() == (0 if is_level else length)
    assert not undecided.any()
    assert len(find_levels(values, unknown(60), paired=True).changes) == (2 if is_level else 0)


@pytest.mark.parametrize("at", [0, 1, 20, 57, 58])
def test_the_first_nights_of_a_level_are_no_outliers(at: int) -> None:
    values = noise(60, 0.01) + step(60, at, 0.3)
    outliers, undecided = outlier_nights(values, deviation(values))
    assert np.flatnonzero(outliers).tolist() == ([0] if at == 1 else [])
    assert not undecided.any()


def test_the_last_night_apart_is_neither_outlier_nor_level_until_the_next() -> None:
    values = noise(60)
    values[-1] += 0.3
    found = find_levels(values, unknown(60), paired=True)
    assert found.changes == []
    assert found.undecided.tolist() == [False] * 59 + [True]
    assert not found.outliers.any()
    confirmed = np.append(values, values[-1] + 0.01)
    assert [change.start for change in find_levels(confirmed, unknown(61), paired=True).changes] == [59]


@given(st.integers(0, 1000), st.floats(-10, 10), st.integers(8, 40))
def test_another_unit_of_time_changes_nothing(seed: int, shift: float, nights: int) -> None:
    values = noise(nights, seed=seed) + step(nights, nights // 2, 0.1)
    ours, others = (
        find_levels(values, unknown(nights), paired=True),
        find_levels(values + shift, unknown(nights), paired=True),
    )
    assert ours.starts == others.starts
    assert [one.effect for one in ours.changes] == pytest.approx([one.effect for one in others.changes], abs=1e-9)


def test_noise_is_measured_across_changes() -> None:
    values = noise(400) + step(400, 200, 1.0)
    assert deviation(values) == pytest.approx(0.02, rel=0.1)
    assert deviation(np.zeros(10)) == deviation(np.zeros(1)) == 1e-4


def test_a_night_of_unknown_error_takes_that_of_the_others() -> None:
    errors = np.array([0.01, 0.01, np.nan, 0.05] * 10)
    variances = night_variances(noise(40), errors)
    assert variances[2] == variances[0] < variances[3]
    assert len(set(night_variances(noise(40), unknown(40)))) == 1


def test_wander_is_that_of_the_autoregression() -> None:
    measured = np.mean([wander(wandering(200, 0.5, seed), [0]) for seed in range(50)])
    assert measured == pytest.approx(3, rel=0.15)
    assert np.mean([wander(noise(60, 1.0, seed), [0]) for seed in range(50)]) < 1.25
    assert wander(wandering(200, -0.5, 1), [0]) == 1
    assert wander(np.zeros(60), [0]) == 1
