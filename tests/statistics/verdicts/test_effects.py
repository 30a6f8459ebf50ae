"""Sign flips against every pattern of signs, and effects by block against a count by hand.

Power against the noncentral t of scipy, and levels of looks against published tables.
"""

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from aaco_pipeline.errors import UsageError
from aaco_pipeline.statistics.verdicts.effects import (
    block_effects,
    blocks_needed,
    levels_at_looks,
    minimum_detectable_ratio,
    sign_flip_p,
    t_test_p,
)
from tests.statistics.verdicts.campaigns import arm, campaign


@given(st.lists(st.integers(-4, 6), min_size=1, max_size=10))
def test_all_patterns_of_signs_are_counted_ties_included(values: list[int]) -> None:
    ratios = np.array(values) / 7
    patterns = np.array(list(product((1, -1), repeat=len(values))))
    reaching = patterns @ np.array(values) >= sum(values)
    assert sign_flip_p(ratios) == pytest.approx(np.mean(reaching))


def test_the_least_p_is_one_pattern_of_all() -> None:
    assert sign_flip_p(np.linspace(0.1, 1, 20)) == pytest.approx(2.0**-20)


def test_an_arm_without_a_session_in_a_block_leaves_that_block_out() -> None:
    sessions = campaign(1.1, blocks=6)
    lost = sessions.filter((sessions["arm"] == "baseline") | (sessions["block"] != 2))
    row = block_effects(lost, "baseline", "candidate", "p50_ns").row(0, named=True)
    assert (row["paired"], len(row["log_ratios"]), row["sessions_baseline"], row["sessions_candidate"]) == (5, 5, 6, 5)
    assert row["mean"] == pytest.approx(np.mean(row["log_ratios"]))
    assert row["deviation"] == pytest.approx(np.std(row["log_ratios"], ddof=1))


def test_nothing_paired_is_described_by_the_arms_means() -> None:
    row = block_effects(arm("candidate", [2.0, 2.0]), "baseline", "candidate", "p50_ns").row(0, named=True)
    assert (row["paired"], row["mean"], row["unpaired_mean"]) == (0, None, None)


def test_no_difference_and_no_spread_is_no_evidence() -> None:
    zero = np.zeros(1)
    assert t_test_p(zero, zero, np.full(1, 4.0)).tolist() == [1.0]
    assert t_test_p(np.ones(1), zero, np.full(1, 4.0)).tolist() == [0.0]


def power(effect: float, deviation: float, blocks: int, level: float = 0.05) -> float:
    noncentrality = np.log1p(effect) / deviation * np.sqrt(blocks)
    return float(stats.nct.sf(stats.t.ppf(1 - level / 2, blocks - 1), blocks - 1, noncentrality))


@pytest.mark.parametrize(("blocks", "deviation"), [(3, 0.01), (5, 0.02), (10, 0.02), (60, 0.1)])
def test_the_detectable_effect_is_found_in_four_of_five(blocks: int, deviation: float) -> None:
    error = np.array([deviation / np.sqrt(blocks)])
    found = minimum_detectable_ratio(error, np.array([blocks - 1.0]), np.array([0.05]))
    assert power(float(found[0]), deviation, blocks) == pytest.approx(0.8, abs=1e-4)


@given(st.floats(0.001, 0.4), st.floats(0.005, 0.1), st.sampled_from([0.05, 0.01]))
def test_the_blocks_needed_are_the_fewest_that_do(deviation: float, ratio: float, level: float) -> None:
    blocks = blocks_needed(deviation, ratio, level)
    if blocks < 2_000:
        assert power(ratio, deviation, blocks, level) >= 0.8 - 1e-4
        assert blocks == 2 or power(ratio, deviation, blocks - 1, level) < 0.8


def test_beyond_the_listed_blocks_the_normal_distribution_serves() -> None:
    assert blocks_needed(0.3, 0.01, 0.05) == pytest.approx((2.8016 * 0.3 / np.log(1.01)) ** 2, rel=2e-3)


def test_the_levels_of_five_equal_looks_are_the_published_ones() -> None:
    bounds = [-stats.norm.ppf(level / 2) for level in levels_at_looks((1, 2, 3, 4, 5))]
    # Bounds of the O'Brien-Fleming spending function, two-sided 0.05; Lan and DeMets, 1983, and tables after them.
    assert bounds == pytest.approx([4.877, 3.357, 2.680, 2.290, 2.031], abs=1e-3)


def test_one_look_has_the_whole_level() -> None:
    assert levels_at_looks((10,)) == (0.05,)


@pytest.mark.parametrize("looks", [(1, 33), (1, 60), pytest.param((1, 200), marks=pytest.mark.nightly)])
def test_a_look_too_early_to_find_anything_costs_the_last_one_nothing(looks: tuple[int, ...]) -> None:
    assert levels_at_looks(looks)[-1] == pytest.approx(0.05, rel=1e-6)


@pytest.fixture(scope="module")
def sums() -> npt.NDArray[np.float64]:
    """Scores of 40,000 campaigns of identical code after each of 30 blocks: the sum of what the blocks added."""
    return np.cumsum(np.random.default_rng(0).standard_normal((40_000, 30)), axis=1)


@given(looks=st.lists(st.integers(1, 30), min_size=2, max_size=4, unique=True).map(sorted))
def test_looking_again_raises_no_false_alarms(looks: list[int], sums: npt.NDArray[np.float64]) -> None:
    levels = levels_at_looks(tuple(looks))
    scores = sums[:, np.array(looks) - 1] / np.sqrt(looks)
    ever = (np.abs(scores) > -stats.norm.ppf(np.array(levels) / 2)).any(axis=1).mean()
    assert ever == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("looks", [(), (0, 5), (5, 5), (10, 5)])
def test_looks_that_do_not_ascend_are_refused(looks: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="give ascending numbers"):
        levels_at_looks(looks)
