"""Repetition in a sequence of numbers: its borders are found, whatever the numbers are called and what lies between."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.steady.repetition import LEAST_LENGTH, Numbers, Phase, alike, phases

#: Numbers that a pattern has, that lie before and after it, and that are inserted.
PATTERN, AROUND, EXTRA = 20, 100, 200


@dataclass(frozen=True)
class Made:
    """A sequence with a pattern from `first` up to `last`, of so many repetitions of `period`."""

    sequence: Numbers
    first: int
    last: int
    period: int
    repetitions: int


@st.composite
def made(draw: st.DrawFn, *, most_extra: float = 0.03, few_extra: bool = False) -> Made:
    """Some number occurs once in the pattern, which identifies a repetition.

    With `few_extra` there are ten repetitions of ten different numbers or more, each with at most one extra.
    """
    different = st.lists(st.integers(0, PATTERN), min_size=10, max_size=PATTERN, unique=True)
    any_ = st.lists(st.integers(0, PATTERN), min_size=1, max_size=30).filter(lambda one: 1 in map(one.count, one))
    pattern = draw(different if few_extra else any_)
    repetitions = draw(st.integers(max(10 if few_extra else 4, -(-2 * LEAST_LENGTH // len(pattern))), 60))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    repeated = np.tile(np.array(pattern), repetitions)
    count = int(draw(st.floats(0, most_extra)) * len(repeated))
    places = random.integers(0, len(repeated), count)
    if few_extra:
        of = random.choice(repetitions, min(count, repetitions), replace=False)
        places = of * len(pattern) + random.integers(0, len(pattern), len(of))
    repeated = np.insert(repeated, places, EXTRA + random.integers(0, 3, len(places)))
    before, after = (AROUND + random.integers(0, 50, draw(st.integers(0, 60))) for _ in range(2))
    sequence = np.concatenate([before, repeated, after])
    return Made(sequence, len(before), len(before) + len(repeated), len(pattern), repetitions)


def found(sequence: Numbers) -> list[Phase]:
    return phases(sequence, np.zeros(len(sequence), np.int64))


def main(sequence: Numbers) -> Phase:
    """The longest section."""
    return max(found(sequence), key=lambda phase: phase.last - phase.first)


@given(made(most_extra=0))
def test_a_pattern_without_extras_is_found_to_the_number(one: Made) -> None:
    phase = main(one.sequence)
    assert (phase.first, phase.last) == (one.first, one.last)
    # A pattern may repeat something itself, and the shorter period is as true.
    assert one.period % phase.period == 0
    assert phase.repetitions == one.repetitions * (one.period // phase.period)
    assert phase.fitting_share == 1


@given(made(few_extra=True))
def test_a_pattern_with_extras_is_found_within_a_period(one: Made) -> None:
    """More extras, or one among few different numbers, and a repetition is no longer like its neighbours."""
    phase = main(one.sequence)
    # Extra numbers at a border may hide one repetition there.
    slack = 2 * one.period + 4
    assert abs(phase.first - one.first) <= slack
    assert abs(phase.last - one.last) <= slack


@given(made(), st.randoms())
def test_names_of_the_numbers_do_not_matter(one: Made, random: np.random.Generator) -> None:
    names = list(range(EXTRA + 3))
    random.shuffle(names)
    renamed = np.array(names)[one.sequence]
    assert [(p.first, p.last, p.period) for p in found(renamed)] == [
        (p.first, p.last, p.period) for p in found(one.sequence)
    ]


@pytest.mark.parametrize("different", [2, 3, 10, 1_000])
def test_numbers_in_any_order_repeat_nothing(different: int) -> None:
    assert found(np.random.default_rng(7).integers(0, different, 5_000)) == []


def test_a_rare_extra_step_does_not_hide_the_step() -> None:
    step = [0, 1, 2, 3, 4, 5, 6, 7]
    sequence = np.array((step * 9 + [50, 51, 52]) * 12)
    phase = main(sequence)
    assert phase.first == 0
    assert phase.last >= len(sequence) - 3
    assert phase.fitting_share > 0.9


def test_layers_within_few_steps_and_steps_when_there_are_many() -> None:
    step = np.array([90, 91, *[1, 2, 3, 4, 5] * 8, 92])
    assert main(np.tile(step, 3)).period == 5
    assert main(np.tile(step, 100)).period == len(step)


def test_two_patterns_one_after_another_are_two_sections() -> None:
    sequence = np.array([1, 2, 3] * 20 + [4, 5, 6, 7] * 50)
    assert [(p.first, p.last, p.period) for p in found(sequence)] == [(0, 60, 3), (60, 260, 4)]


def test_a_lasting_change_of_sizes_begins_another_section() -> None:
    sequence = np.tile([1, 2, 3, 4], 40)
    sizes = np.concatenate([np.full(60, 4096), np.full(100, 1)])
    assert [(p.first, p.last, p.repetitions) for p in phases(sequence, sizes)] == [(0, 60, 15), (60, 160, 25)]


def test_sizes_that_drift_or_are_odd_once_or_unknown_divide_nothing() -> None:
    sequence = np.tile([1, 2, 3, 4], 40)
    drifting = np.arange(160)
    odd = np.where(np.arange(160) // 4 == 20, 7, 1)
    unknown = np.where(np.arange(160) < 60, -1, 1)
    for sizes in (drifting, odd, unknown):
        assert [(p.first, p.last) for p in phases(sequence, sizes)] == [(0, 160)]


@pytest.mark.parametrize("sequence", [[], [1], [1, 2] * 9, list(range(500))])
def test_too_little_or_nothing_that_repeats(sequence: list[int]) -> None:
    assert found(np.array(sequence, np.int64)) == []


def test_likeness_counts_what_both_have() -> None:
    pairs = np.array([1, 1, 2, 1, 2, 2, 3, 3, 3])
    segments = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert alike(pairs, segments, 3).tolist() == [0, pytest.approx(4 / 6), 0]
