"""The sign test over layouts, against every path there is, and the interval it gives."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.optimization.decision.bounds import NONE, estimate, log_ratio, misses_allowed
from aaco_pipeline.optimization.decision.pairs import Pairs
from aaco_pipeline.optimization.decision.plan import Plan

DURATIONS = st.lists(st.integers(100, 10**9), min_size=2, max_size=30)
LOGS = st.lists(st.floats(-1, 1), min_size=8, max_size=8)


def pairs_of(baseline: list[int], candidate: list[int]) -> Pairs:
    count = min(len(baseline), len(candidate))
    return Pairs(np.array(baseline[:count]), np.array(candidate[:count]), np.zeros(count, dtype=np.bool_))


def passed(falls_short: tuple[bool, ...], looks: tuple[int, ...], allowed: tuple[int, ...]) -> bool:
    return any(sum(falls_short[:look]) <= misses for look, misses in zip(looks, allowed, strict=True))


@pytest.mark.parametrize("alpha", [0.25, 0.1, 0.05])
@pytest.mark.parametrize("looks", [(4,), (4, 6, 8), (5, 7, 12)])
def test_all_looks_together_pass_by_chance_no_more_often_than_alpha(looks: tuple[int, ...], alpha: float) -> None:
    allowed = misses_allowed(looks, alpha)
    paths = list(itertools.product((False, True), repeat=looks[-1]))
    assert sum(passed(path, looks, allowed) for path in paths) / len(paths) <= alpha
    # One miss more at the last look would be too many: the level is used, not merely kept.
    looser = (*allowed[:-1], allowed[-1] + 1)
    assert sum(passed(path, looks, looser) for path in paths) / len(paths) > alpha


def test_one_look_is_the_sign_test() -> None:
    assert misses_allowed((6,), 0.01) == (NONE,)
    assert misses_allowed((7,), 0.01) == (0,)
    # P(at most 1 of 11) = 12/2048 = 0.0059; P(at most 2 of 11) = 67/2048 = 0.0327
    assert misses_allowed((11,), 0.01) == (1,)


def test_more_candidates_need_more_layouts() -> None:
    few, many = Plan(candidates=1).confirming_misses, Plan(candidates=50).confirming_misses
    assert all(one >= other for one, other in zip(few, many, strict=True))
    assert few != many


def test_a_bound_passes_a_threshold_where_enough_layouts_do() -> None:
    logs = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07]
    assert estimate(logs, 2, pairs=7, alpha=0.01).ci_low == pytest.approx(math.exp(0.03))
    assert estimate(logs, 2, pairs=7, alpha=0.01).ci_high == pytest.approx(math.exp(0.05))
    none = estimate(logs, NONE, pairs=7, alpha=0.01)
    assert (none.ci_low, none.ci_high) == (0.0, math.inf)


@given(DURATIONS, DURATIONS, st.integers(2, 50))
def test_a_clock_of_another_unit_gives_the_same_ratio(baseline: list[int], candidate: list[int], factor: int) -> None:
    scaled = pairs_of([one * factor for one in baseline], [one * factor for one in candidate])
    assert log_ratio(scaled) == pytest.approx(log_ratio(pairs_of(baseline, candidate)), abs=1e-9)


@given(DURATIONS, DURATIONS)
def test_swapping_the_arms_inverts_the_ratio(baseline: list[int], candidate: list[int]) -> None:
    there, back = pairs_of(baseline, candidate), pairs_of(candidate, baseline)
    assert log_ratio(there) == pytest.approx(-log_ratio(back), abs=1e-9)


@given(LOGS)
def test_swapping_the_arms_inverts_the_interval(logs: list[float]) -> None:
    there = estimate(logs, 1, pairs=8, alpha=0.05)
    back = estimate([-log for log in logs], 1, pairs=8, alpha=0.05)
    inverse = (1 / there.ratio, 1 / there.ci_high, 1 / there.ci_low)
    assert (back.ratio, back.ci_low, back.ci_high) == pytest.approx(inverse)
    assert there.ci_low <= there.ratio <= there.ci_high


@given(LOGS, st.integers(0, 7), st.floats(0, 1))
def test_a_faster_layout_never_lowers_a_bound(logs: list[float], which: int, faster: float) -> None:
    before = estimate(logs, 1, pairs=8, alpha=0.05)
    after = estimate([log + faster * (at == which) for at, log in enumerate(logs)], 1, pairs=8, alpha=0.05)
    assert after.ratio >= before.ratio
    assert after.ci_low >= before.ci_low
    assert after.ci_high >= before.ci_high


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": -0.1},
        {"alpha": 0.0},
        {"alpha": 1e-12},
        {"candidates": 0},
        {"pairs": 1},
        {"search_layouts": (3, 6)},
        {"confirming_layouts": (12, 12)},
        {"confirming_layouts": (4,)},
        {"self_layouts": 4},
    ],
)
def test_a_plan_that_cannot_decide_is_no_plan(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Plan(**wrong)  # type: ignore[arg-type]


def test_pairs_are_pairs() -> None:
    with pytest.raises(ValueError, match="one length"):
        Pairs(np.array([1, 2]), np.array([1, 2, 3]), np.zeros(2, dtype=np.bool_))
    with pytest.raises(ValueError, match="above zero"):
        pairs_of([0, 1], [1, 1])
