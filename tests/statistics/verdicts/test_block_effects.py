"""Sign flips against every pattern of signs, and effects by block against a count by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.statistics.verdicts.block_effects import block_effects, sign_flip_p, t_test_p
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
