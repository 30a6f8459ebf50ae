"""Nesting of events, against trees with a known truth."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st

from aaco_pipeline.formats.ort_profile.nesting import nesting
from tests.formats.ort_profile.made_up import LOADING, Event, call, conserved, from_disk, node, read, written

#: Fine ticks in a microsecond: the truth is known to 1/8 µs, the profile only to 1.
FINE = 8


@dataclass
class Span:
    """One event of the truth, in fine ticks; `at` is its place in the file, which is in order of end."""

    start: int
    parent: "Span | None"
    end: int = 0
    at: int = -1
    children: "list[Span]" = field(default_factory=list)

    @property
    def ts(self) -> int:
        return self.start // FINE

    @property
    def dur(self) -> int:
        return (self.end - self.start) // FINE

    def ancestors(self) -> "list[Span]":
        return [] if self.parent is None else [self.parent, *self.parent.ancestors()]


def grow(tape: Sequence[int], deepest: int, after: int = 0) -> list[Span]:
    """The events, in order of end, of the forest that the numbers of the tape spell: pauses and forks.

    `after` is what follows the tape's last number.
    """
    numbers = iter(tape)
    clock = 0
    emitted: list[Span] = []

    def pause() -> None:
        nonlocal clock
        clock += next(numbers, after)

    def one(parent: Span | None, depth: int) -> Span:
        pause()
        span = Span(clock, parent)
        for _ in range(next(numbers, after) % 4 if depth < deepest else 0):
            pause()
            span.children.append(one(span, depth + 1))
        pause()
        span.end = clock
        span.at = len(emitted)
        emitted.append(span)
        return span

    first = next(numbers, after)
    for _ in range(1 + first % 4):
        one(None, 0)
    return emitted


# Pauses around one tick, where cutting off matters, and some of many ticks.
tapes = st.lists(st.integers(0, 2 * FINE) | st.integers(0, 9) | st.integers(0, 20 * FINE), max_size=60)
forests = st.builds(grow, tapes, st.integers(0, 5))
#: From 0 to 15 an event, in it one of no measured length from 5 to 12, in that one from 9 to 11: on the next tick.
REACHING = grow([0, 0, 1, 5, 0, 1, 4, 0, 0, 2, 1, 3], 5)


def found_parents(forest: Sequence[Span]) -> list[int]:
    ordered = sorted(forest, key=lambda span: span.at)
    return [
        int(at)
        for at in nesting(
            np.array([span.at for span in ordered], np.int64),
            np.array([span.ts for span in ordered], np.int64),
            np.array([span.dur for span in ordered], np.int64),
        )
    ]


def reach(span: Span) -> int:
    """The latest tick that the event, or one inside it, is known to have come to."""
    return max([span.ts + span.dur, *(reach(child) for child in span.children)])


def undecidable(span: Span) -> bool:
    """Begun on its parent's tick, and not known to have come to the next one."""
    return span.parent is not None and reach(span) == span.ts == span.parent.ts


@given(forest=forests)
@example(forest=REACHING)
def test_every_parent_that_can_be_known_is_found(forest: list[Span]) -> None:
    for span, found in zip(forest, found_parents(forest), strict=True):
        true = -1 if span.parent is None else span.parent.at
        if undecidable(span):
            assert found in {-1, *(outer.at for outer in span.ancestors())}
        else:
            assert found == true, [(s.start, s.end, s.ts, s.dur) for s in forest]


@given(forest=st.builds(grow, st.lists(st.integers(FINE, 3 * FINE), max_size=200), st.integers(0, 8), st.just(FINE)))
def test_where_everything_takes_a_tick_every_parent_is_found(forest: list[Span]) -> None:
    assert found_parents(forest) == [-1 if span.parent is None else span.parent.at for span in forest]


def test_positions_are_those_of_the_file_not_of_the_array() -> None:
    arrays = [np.array(a, np.int64) for a in ([100, 205, 310, 420], [12, 11, 10, 40], [2, 5, 9, 3])]
    assert nesting(*arrays).tolist() == [205, 310, -1, -1]


def test_deep_and_wide_nesting_is_found() -> None:
    depth = 3000
    start = np.arange(depth, 0, -1, dtype=np.int64)
    assert nesting(np.arange(depth), start, 2 * (depth - start) + 1).tolist() == [*range(1, depth), -1]
    wide = np.arange(1, depth, dtype=np.int64)
    children = nesting(np.arange(depth), np.append(wide, 0), np.append(np.ones(depth - 1, np.int64), depth + 1))
    assert children.tolist() == [depth - 1] * (depth - 1) + [-1]


def test_no_events_have_no_parents() -> None:
    nothing = np.zeros(0, np.int64)
    assert nesting(nothing, nothing, nothing).tolist() == []


def test_a_left_neighbour_of_no_length_on_the_same_tick_is_no_child() -> None:
    arrays = [np.array(a, np.int64) for a in ([0, 1, 2], [5, 7, 5], [0, 1, 4])]
    assert nesting(*arrays).tolist() == [-1, 2, -1]
    assert nesting(*(array[[0, 2]] for array in arrays)).tolist() == [-1, -1]


def test_an_event_of_no_length_whose_child_came_to_the_next_tick_is_inside_the_one_around_it() -> None:
    assert [(span.ts, span.dur) for span in REACHING] == [(1, 0), (0, 0), (0, 1)]
    assert found_parents(REACHING) == [1, 2, -1]


def profile_of(forest: Sequence[Span]) -> list[Event]:
    end = max(span.end for span in forest)
    nodes = [node(f"n{span.at}", span.ts, span.dur) for span in forest]
    return [LOADING, *nodes, call("model_run", 0, end // FINE)]


@from_disk
@given(forest=forests)
@example(forest=REACHING)
def test_self_times_are_never_negative_and_sum_to_the_top_level(scratch: Path, forest: list[Span]) -> None:
    dispatches = read(written(scratch, profile_of(forest))).tables["dispatches"]
    assert dispatches.height == len(forest)
    assert conserved(dispatches)


@from_disk
@given(forest=forests)
@example(forest=REACHING)
def test_top_level_dispatches_of_one_thread_never_overlap(scratch: Path, forest: list[Span]) -> None:
    dispatches = read(written(scratch, profile_of(forest))).tables["dispatches"]
    top = dispatches.filter(pl.col("parent_dispatch_id").is_null()).sort("start_ns", "end_ns")
    overlap = top.filter(pl.col("start_ns") < pl.col("end_ns").shift(1))
    assert overlap.is_empty(), [(s.start, s.end, s.ts, s.dur) for s in forest]


@from_disk
@given(forest=forests)
@example(forest=REACHING)
def test_a_runs_self_times_never_exceed_the_run(scratch: Path, forest: list[Span]) -> None:
    dispatches = read(written(scratch, profile_of(forest))).tables["dispatches"]
    assert int(dispatches["self_ns"].sum()) <= max(span.end for span in forest) // FINE * 1000
    assert dispatches["iteration"].to_list() == [0] * len(forest)
