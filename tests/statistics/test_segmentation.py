"""The search for levels, against every partition of short series and on series whose levels are known."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import UsageError
from aaco_pipeline.statistics.segmentation import segment_starts, starts_of_many


def cost(values: np.ndarray, weights: np.ndarray, starts: list[int], penalty: float) -> float:
    parts = [slice(a, b) for a, b in pairwise([*starts, len(values)])]
    levels = [np.average(values[part], weights=weights[part]) for part in parts]
    errors = [weights[part] @ (values[part] - level) ** 2 for part, level in zip(parts, levels, strict=True)]
    return float(sum(errors) + penalty * len(parts))


def least_cost(values: np.ndarray, weights: np.ndarray, penalty: float, least: int) -> float:
    """By trying every last start of every beginning of the series."""
    best = {0: 0.0}
    for end in range(least, len(values) + 1):
        costs = [
            best[start] + cost(values[start:end], weights[start:end], [0], penalty)
            for start in range(end - least + 1)
            if start in best
        ]
        best[end] = min(costs)
    return best[len(values)]


@given(
    st.integers(0, 10**6),
    st.integers(4, 45),
    st.sampled_from([0.0, 0.5, 2.0, 6.0, 30.0]),
    st.integers(1, 4),
    st.booleans(),
)
def test_no_partition_costs_less(seed: int, count: int, penalty: float, least: int, ties: bool) -> None:
    random = np.random.default_rng(seed)
    steps = np.repeat(3 * random.standard_normal(count), random.integers(1, 15, count))[:count]
    values = 1e3 + steps + random.standard_normal(count)
    values = np.round(values) if ties else values
    weights = random.uniform(0.2, 3, count)
    starts = segment_starts(values, penalty, weights, least)
    assert all(b - a >= least for a, b in pairwise([*starts, count]))
    assert cost(values, weights, starts, penalty) == pytest.approx(
        least_cost(values, weights, penalty, least), rel=1e-9, abs=1e-6
    )


def test_levels_are_found_where_they_begin() -> None:
    random = np.random.default_rng(1)
    values = np.repeat([10.0, 13.0, 11.0], [300, 50, 400]) + 0.3 * random.standard_normal(750)
    assert segment_starts(values / 0.3, 3 * np.log(750)) == [0, 300, 350]


def test_a_point_of_small_weight_is_no_level() -> None:
    values = np.zeros(60)
    values[30] = 10.0
    weights = np.ones(60)
    assert segment_starts(values, 20.0, weights) == [0, 30, 31]
    weights[30] = 0.01
    assert segment_starts(values, 20.0, weights) == [0]


def test_levels_of_at_least_two_points_pass_over_a_single_one() -> None:
    values = np.zeros(60)
    values[30] = 5.0
    assert segment_starts(values, 12.0) == [0, 30, 31]
    assert segment_starts(values, 13.0, least=2) == [0]


@pytest.mark.parametrize(("count", "starts"), [(0, []), (1, [0]), (2, [0])])
def test_hardly_any_points_are_one_level(count: int, starts: list[int]) -> None:
    assert segment_starts(np.arange(count, dtype=float), 100.0, least=3) == starts


@pytest.mark.parametrize(
    ("values", "weights", "message"),
    [([1.0, np.nan], None, "not finite"), ([1.0, 2.0], [1.0, 0.0], "not above 0"), ([1.0, 2.0], [1.0], "one each")],
)
def test_invalid_searches_are_refused(values: list[float], weights: list[float] | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        segment_starts(np.array(values), 1.0, None if weights is None else np.array(weights))


def test_a_level_that_costs_less_than_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="a level costs -1"):
        segment_starts(np.zeros(3), -1.0)


@given(st.integers(0, 10**6), st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_many_series_at_once_are_searched_as_one_by_one(seed: int, counts: list[int]) -> None:
    random = np.random.default_rng(seed)
    series = [
        np.cumsum(random.standard_normal(n) * (random.random(n) < 0.2) * 9) + random.normal(0, 1, n) for n in counts
    ]
    padded = np.full((len(counts), max(counts)), 7.0)
    for row, values in enumerate(series):
        padded[row, : len(values)] = values
    penalties = random.uniform(0.5, 20, len(counts))
    starts = starts_of_many(padded, np.array(counts), penalties)
    for row, values in enumerate(series):
        found = np.flatnonzero(starts[row]).tolist()
        one = segment_starts(values, penalties[row])
        ones = np.ones(len(values))
        assert cost(values, ones, found, penalties[row]) == pytest.approx(cost(values, ones, one, penalties[row]))
