"""Blocks of sessions decide as layouts do: never from one process, and never where a block has nothing to say."""

import math
from typing import Any

import numpy as np
import pytest

from aaco_pipeline.optimization.loop.blocks import looks_of, plan_of, rule_on

PLAN = plan_of(0.02)


def evidence(candidate: list[float | None], itself: list[float | None] | None = None, items: Any = (1, 1)) -> Any:
    """Blocks in which the baseline takes 1 s and the other arm so much less; None is a session without a median."""

    def pairs(ratios: list[float | None]) -> list[dict[str, Any]]:
        return [{"baseline_ns": [10**9], "candidate_ns": [one and round(10**9 / one)]} for one in ratios]

    return {"items": list(items), "pairs": {"candidate": pairs(candidate), "itself": pairs(itself or [])}}


def around(ratio: float, blocks: int, spread: float = 0.003) -> list[float | None]:
    return [ratio * (1 + spread * math.cos(2 * block)) for block in range(blocks)]


def test_identical_code_that_wanders_about_itself_is_quiet() -> None:
    ruling = rule_on("aa", evidence([], around(1.0, 8)), PLAN)
    assert ruling is not None and ruling.passed


@pytest.mark.parametrize("itself", [around(1.1, 8), [2.0, 0.5] * 4, [None] * 8])
def test_nothing_is_decided_where_identical_code_differs_or_has_no_median(itself: list[float | None]) -> None:
    ruling = rule_on("aa", evidence([], itself), PLAN)
    assert ruling is not None and (ruling.passed, ruling.guard) == (False, "aa")


def test_a_search_ends_at_its_first_look_where_all_blocks_agree_and_goes_on_where_they_do_not() -> None:
    first = looks_of("search", PLAN)[0]
    assert (found := rule_on("search", evidence(around(1.3, first)), PLAN)) is not None and found.passed
    assert (lost := rule_on("search", evidence(around(0.9, first)), PLAN)) is not None and lost.guard == "not_faster"
    assert rule_on("search", evidence([*around(1.3, first - 1), 0.9]), PLAN) is None


def test_a_gain_is_confirmed_by_twelve_blocks_that_all_hold_with_the_figures_of_these() -> None:
    ruling = rule_on("confirmation", evidence(around(1.3, 12), around(1.0, 12)), PLAN)
    assert ruling is not None and ruling.passed
    low, ratio, high = ruling.ci_low, ruling.speedup_ratio, ruling.ci_high
    assert ratio == pytest.approx(1.3, rel=0.01)
    assert low is not None and ratio is not None and high is not None and 1.02 < low < ratio < high


def test_a_block_without_a_median_counts_against_what_is_to_be_shown() -> None:
    gains = around(1.3, 12)
    assert rule_on("confirmation", evidence([None, *gains[1:]], around(1.0, 12)), PLAN) is None
    silent: list[float | None] = [None] * 13
    told = rule_on("confirmation", evidence(silent + around(1.3, 11), around(1.0, 24)), PLAN)
    assert told is not None and told.guard == "confirmation" and "13 of 24 blocks" in told.reason


def test_a_gain_smaller_than_the_threshold_is_none() -> None:
    ruling = rule_on("confirmation", evidence(around(1.01, 12), around(1.0, 12)), PLAN)
    assert ruling is not None and ruling.guard == "confirmation"


def test_a_gain_beside_identical_code_that_gains_as_well_is_undecided() -> None:
    ruling = rule_on("confirmation", evidence(around(1.3, 12), around(1.3, 12)), PLAN)
    assert ruling is not None and ruling.guard == "aa"


def test_batches_are_held_against_each_other_by_the_time_of_an_item() -> None:
    """Four times the items in twice the time."""
    ruling = rule_on("confirmation", evidence(around(0.5, 12), around(1.0, 12), items=(1, 4)), PLAN)
    assert ruling is not None and ruling.passed and ruling.speedup_ratio == pytest.approx(2.0, rel=0.01)
    assert "for each item" in ruling.reason


def test_what_gains_nothing_is_confirmed_no_more_often_than_its_share_of_alpha() -> None:
    """Noise about the threshold: of 20,000 candidates at most one in 1,200 may pass, whatever the noise looks like."""
    random, passed = np.random.default_rng(0), 0
    looks, misses = PLAN.confirming_layouts, PLAN.confirming_misses
    for _ in range(20_000):
        fall_short = random.random(looks[-1]) < 0.5
        passed += any(fall_short[:look].sum() <= allowed for look, allowed in zip(looks, misses, strict=True))
    assert passed <= 20_000 * PLAN.candidate_alpha + 3 * math.sqrt(20_000 * PLAN.candidate_alpha)
