"""Decisions on made sources: what is accepted, what is refused by which guard, and on which data."""

from dataclasses import replace

import numpy as np
import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.decision.outcome import Decision
from aaco_pipeline.optimization.decision.plan import LEAST_LAYOUTS, Plan
from aaco_pipeline.optimization.decision.rule import against_itself, decide, draw_layouts
from tests.optimization.decision.made import MadePairs

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
    return (
        MadePairs(candidate, lambda number: gain, noise=noise, of_layout=of_layout),
        MadePairs(baseline, noise=noise, of_layout=of_layout),
    )


def test_a_true_gain_is_accepted_with_its_interval() -> None:
    decision = decided(*made(1.10))
    assert decision.accepted
    assert decision.guard is None
    assert decision.gain is not None
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
    assert decision.guard == "confirmation"
    assert decision.gain is not None
    assert decision.gain.layouts == PLAN.confirming_layouts[0]


def test_the_gain_reported_is_that_of_the_confirmation() -> None:
    candidate, baseline = made(1.0)
    searched = PLAN.search_layouts[0]
    decision = decided(replace(candidate, gain=lambda number: 1.3 if number < searched else 1.1), baseline)
    assert decision.accepted
    assert decision.search is not None
    assert decision.gain is not None
    assert decision.search.ratio == pytest.approx(1.3, abs=0.02)
    assert decision.gain.ratio == pytest.approx(1.1, abs=0.02)


def test_a_gain_in_three_of_five_layouts_is_refused() -> None:
    candidate, baseline = made(1.0)
    decision = decided(
        replace(candidate, gain=lambda number: 1.2 if number < PLAN.search_layouts[0] or number % 5 < 3 else 1.01),
        baseline,
    )
    assert decision.guard == "layouts"
    assert decision.gain is not None
    assert decision.gain.ratio >= 1.02


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
    with pytest.raises(Refused, match="passes as changed") as refused:
        decided(baseline, candidate)
    assert refused.value.guard == "aa"


def test_a_machine_on_which_identical_code_differs_wildly_decides_nothing() -> None:
    with pytest.raises(Refused, match="nothing can be decided") as refused:
        decided(*made(1.1, of_layout=0.8))
    assert refused.value.guard == "aa"


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
    assert decision.guard == "not_faster"
    assert decision.beside is not None
    assert decision.beside.ratio == pytest.approx(1.1, abs=0.03)
    assert "slows it down" in decision.reason


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
    assert faster is not None
    assert faster.calls_to_break_even == 0
    unknown = decided(*made(1.25)).first_calls
    assert unknown is not None
    assert unknown.calls_to_break_even is None
