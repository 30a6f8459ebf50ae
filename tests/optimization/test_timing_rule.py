"""The sign test over layouts against every path there is, and decisions on made sources."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.timing_rule import (
    LEAST_LAYOUTS,
    NONE,
    Decision,
    Pairs,
    Plan,
    against_itself,
    decide,
    draw_layouts,
    estimate,
    log_ratio,
    misses_allowed,
)
from tests.optimization.made_pairs import MadePairs

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
    assert (after.ratio >= before.ratio) and (after.ci_low >= before.ci_low) and (after.ci_high >= before.ci_high)


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


PLAN = Plan(candidates=20)


def decided(
    candidate: MadePairs, baseline: MadePairs, plan: Plan = PLAN, *, seed: int = 5, floor_ns: float | None = None
) -> Decision:
    layouts = draw_layouts(seed, plan)
    itself = against_itself(baseline, layouts.itself, plan)
    return decide(candidate, baseline, layouts, plan, itself=itself, floor_ns=floor_ns)


def made(gain: float, seed: int = 3, *, noise: float = 0.03, of_layout: float = 0.005) -> tuple[MadePairs, MadePairs]:
    """A candidate of that gain, and the baseline beside itself."""
    candidate, baseline = np.random.default_rng(seed).spawn(2)
    shared: Any = {"noise": noise, "of_layout": of_layout}
    return MadePairs(candidate, lambda number: gain, **shared), MadePairs(baseline, **shared)


def test_a_true_gain_is_accepted_with_its_interval() -> None:
    decision = decided(*made(1.10))
    assert decision.accepted and decision.guard is None and decision.gain is not None
    assert 1.02 <= decision.gain.ci_low <= decision.gain.ratio <= decision.gain.ci_high
    assert decision.gain.ratio == pytest.approx(1.10, abs=0.01)
    assert decision.alpha == decision.gain.alpha == pytest.approx(0.01 / 20)
    assert decision.pairs == PLAN.pairs * decision.layouts


def test_identical_code_is_never_accepted() -> None:
    for seed in range(40):
        candidate, baseline = made(1.0, seed, of_layout=0.04)
        baseline.of_layout = 0.005
        assert not decided(candidate, baseline, seed=seed).accepted


def test_identical_code_on_a_quiet_machine_is_stopped_at_the_first_look() -> None:
    layouts = {decided(*made(1.0, seed, noise=0.005), seed=seed).layouts for seed in range(20)}
    assert layouts == {PLAN.search_layouts[0]}


def test_a_gain_of_exactly_the_threshold_is_refused() -> None:
    assert not any(decided(*made(1.02, seed, noise=0.01), seed=seed).accepted for seed in range(20, 60))


def test_a_gain_of_five_per_cent_is_mostly_accepted() -> None:
    assert sum(decided(*made(1.05, seed, of_layout=0.01), seed=seed).accepted for seed in range(100, 130)) >= 27


def test_layouts_that_are_lucky_or_unlucky_with_nothing_between_are_not_a_gain() -> None:
    """Four alike are common then; the confirmation needs more of them than chance gives."""
    outcomes = []
    for seed in range(100):
        lucky = np.random.default_rng(seed)
        candidate, baseline = made(1.0, seed, noise=0.005)
        candidate.gain = lambda number, lucky=lucky: float(lucky.choice([1 / 1.065, 1.065]))  # type: ignore[misc]
        outcomes.append(decided(candidate, baseline, seed=seed))
    assert any(one.gain is not None for one in outcomes)
    assert not any(one.accepted for one in outcomes)


def test_a_gain_of_the_search_alone_is_refused_by_the_confirmation() -> None:
    candidate, baseline = made(1.0)
    searched = PLAN.search_layouts[0]
    decision = decided(replace(candidate, gain=lambda number: 1.2 if number < searched else 1.0), baseline)
    assert decision.guard == "confirmation" and decision.gain is not None
    assert decision.gain.layouts == PLAN.confirming_layouts[0]


def test_the_gain_reported_is_that_of_the_confirmation() -> None:
    candidate, baseline = made(1.0)
    searched = PLAN.search_layouts[0]
    decision = decided(replace(candidate, gain=lambda number: 1.3 if number < searched else 1.1), baseline)
    assert decision.accepted and decision.search is not None and decision.gain is not None
    assert decision.search.ratio == pytest.approx(1.3, abs=0.02)
    assert decision.gain.ratio == pytest.approx(1.1, abs=0.02)


def test_a_gain_in_three_of_five_layouts_is_refused() -> None:
    candidate, baseline = made(1.0)
    first = PLAN.search_layouts[0]
    decision = decided(replace(candidate, gain=lambda at: 1.2 if at < first or at % 5 < 3 else 1.01), baseline)
    assert decision.guard == "layouts" and decision.gain is not None and decision.gain.ratio >= 1.02


def test_a_winner_holds_in_at_least_four_fresh_layouts() -> None:
    """By what is declared, whatever is measured: no look passes with fewer."""
    for plan in (PLAN, Plan(), Plan(alpha=0.2, confirming_layouts=(4, 5, 6))):
        looks = zip(plan.confirming_layouts, plan.confirming_misses, strict=True)
        assert min(look - misses for look, misses in looks if misses >= 0) >= LEAST_LAYOUTS


def test_a_confirmation_sees_no_layout_of_the_search() -> None:
    candidate, baseline = made(1.10)
    assert decided(candidate, baseline).accepted
    assert len(set(candidate.asked)) == len(candidate.asked)
    searched, confirmed = candidate.asked[:6], candidate.asked[6:]
    assert set(confirmed) <= set(baseline.asked)
    assert not set(searched) & set(baseline.asked)


def test_drawn_layouts_are_all_different() -> None:
    drawn = draw_layouts(1, PLAN)
    everything = (*drawn.itself, *drawn.search, *drawn.confirmation)
    assert len(set(everything)) == len(everything)
    assert draw_layouts(1, PLAN) == drawn != draw_layouts(2, PLAN)


@pytest.mark.parametrize("gain", [1.1, 0.9])
def test_a_baseline_that_differs_from_itself_ends_all_decisions(gain: float) -> None:
    candidate, baseline = made(gain)
    with pytest.raises(Refused, match=r"^aa: .*passes as changed"):
        decided(baseline, candidate)


def test_a_machine_on_which_identical_code_differs_wildly_decides_nothing() -> None:
    with pytest.raises(Refused, match=r"^aa: .*nothing can be decided"):
        decided(*made(1.1, of_layout=0.8))


def test_a_baseline_that_differs_from_itself_only_later_is_noticed_in_the_confirmation() -> None:
    candidate, baseline = made(1.10)
    later = replace(baseline, gain=lambda number: 1.0 if number < PLAN.self_layouts else 1.05)
    assert decided(candidate, later).guard == "aa"


def test_a_time_below_the_floor_is_impossible() -> None:
    assert decided(*made(3.0), floor_ns=500_000).guard == "impossible"
    assert decided(*made(3.0), floor_ns=200_000).accepted


def test_a_time_that_falls_below_the_floor_only_later_is_impossible_too() -> None:
    candidate, baseline = made(1.0)
    later = replace(candidate, gain=lambda number: 1.5 if number < PLAN.search_layouts[0] else 3.0)
    assert decided(later, baseline, floor_ns=500_000).guard == "impossible"


def test_a_candidate_that_slows_the_baseline_wins_nothing() -> None:
    candidate, baseline = made(1.10)
    decision = decided(replace(candidate, baseline_ns=1.1e6), baseline)
    assert decision.guard == "not_faster" and "slows it down" in decision.reason
    assert decision.beside is not None and decision.beside.ratio == pytest.approx(1.1, abs=0.03)


def test_a_slower_start_is_paid_back_after_so_many_calls() -> None:
    candidate, baseline = made(1.25)
    decision = decided(replace(candidate, first_call_ns=(1_000_000, 3_000_000)), baseline)
    assert decision.first_calls is not None
    # 2 ms later, 0.2 ms saved a call.
    assert decision.first_calls.calls_to_break_even == pytest.approx(10, abs=2)
    assert decision.first_calls.candidate_load_ns is None


def test_a_start_that_is_no_slower_has_nothing_to_pay_back() -> None:
    candidate, baseline = made(1.25)
    faster = decided(replace(candidate, first_call_ns=(2_000_000, 1_000_000)), baseline).first_calls
    assert faster is not None and faster.calls_to_break_even == 0
    unknown = decided(*made(1.25)).first_calls
    assert unknown is not None and unknown.calls_to_break_even is None
