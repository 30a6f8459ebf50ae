"""Slices that overlap come to lie in lanes: none is lost, and pieces make the same lanes."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aaco_pipeline.report.perfetto import (
    slices as gathering,
)
from aaco_pipeline.report.perfetto.encoding import (
    Track,
    encode,
)
from aaco_pipeline.report.perfetto.lanes import Rule
from tests.report.perfetto.decoding import DEVICE, THREAD, TIMES, Slice, decode, flows, slices, spans


def laid(rule: Rule, *frames: pl.DataFrame) -> dict[str, list[Slice]]:
    """Where slices of the tracks THREAD and DEVICE come to lie by that rule, by the name of the track."""
    tracks = [Track(uuid, str(uuid), lanes=rule) for uuid in (THREAD, DEVICE)]
    decoded = decode(b"".join(encode(tracks, frames)))
    found: dict[str, list[Slice]] = {}
    for one in decoded.slices:
        found.setdefault(decoded.tracks[one.track].name, []).append(one)
    return found


@given(spans())
def test_lanes_hold_no_overlap_and_are_as_few_as_can_be(drawn: list[tuple[int, tuple[int, int]]]) -> None:
    found = laid(Rule.FLAT, slices(*((track, *span, f"slice {i}") for i, (track, span) in enumerate(drawn))))
    assert Counter(one.name for own in found.values() for one in own) == Counter(
        f"slice {i}" for i in range(len(drawn))
    )
    for track in (THREAD, DEVICE):
        own = [span for on, span in drawn if on == track]
        # At every instant: what runs, and one of the slices without duration, for these can follow each other.
        most = max(sum(a <= t < b for a, b in own) + any(a == b == t for a, b in own) for t in range(13))
        lanes = {name: held for name, held in found.items() if name.startswith(str(track))}
        assert set(lanes) == {str(track) if i == 0 else f"{track}, lane {i + 1}" for i in range(most)}
        assert all(one.depth == 0 for held in lanes.values() for one in held)


@given(spans(), st.sampled_from([Rule.STACK, Rule.FLAT]), st.integers(0, 12))
def test_pieces_and_short_stretches_of_time_make_the_same_trace(
    drawn: list[tuple[int, tuple[int, int]]], rule: Rule, cut: int
) -> None:
    rows = [(track, *span, f"slice {i % 3}", i % 4, "out" if i % 2 else "in") for i, (track, span) in enumerate(drawn)]
    frame = flows(*rows).with_columns(
        size=pl.int_range(pl.len()), note=pl.when(pl.col("flow_id") > 1).then(pl.col("name"))
    )
    tracks = [Track(uuid, str(uuid), lanes=rule) for uuid in (THREAD, DEVICE)]
    whole = b"".join(encode(tracks, frame))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "_STRETCH_SLICES", 1)
        patch.setattr(gathering, "_EVERY", 1)
        assert b"".join(encode(tracks, [frame[:cut], frame[cut:]])) == whole


def test_a_threads_further_lanes_are_no_further_threads() -> None:
    tracks = [Track(1, "p", kind="process", pid=5), Track(2, "t", 1, "thread", pid=5, tid=6, lanes=Rule.STACK)]
    decoded = decode(b"".join(encode(tracks, slices((2, 0, 10, "a"), (2, 5, 20, "b"), (2, 30, 31, "c")))))
    threads = {track.name: track.HasField("thread") for track in decoded.tracks.values() if track.parent_uuid}
    assert threads == {"t": True, "t, lane 2": False, "t, lane 3": False}


def left_by_rounds(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The slices that stay in the stack, one at a time: all that end with other open slices than they began with go."""
    while True:
        events = sorted(
            [(b, 0, -a, -i, i) for i, (a, b) in enumerate(spans) if a < b]
            + [(a, 1, -b, i, i) for i, (a, b) in enumerate(spans)]
        )
        depth, began, goes = 0, dict[int, int](), set[int]()
        for _, begins, _, _, number in events:
            if not begins:
                depth -= 1
                goes |= {number} if depth != began[number] else set()
            elif spans[number][0] < spans[number][1]:
                began[number], depth = depth, depth + 1
        if not goes:
            return sorted(spans)
        spans = [span for i, span in enumerate(spans) if i not in goes]


@given(st.lists(st.tuples(TIMES, TIMES), max_size=12))
@example([(0, 2), (0, 3), (1, 3), (2, 4), (3, 5), (3, 5)])  # two crossings that hide a third
def test_lanes_of_a_stack_keep_every_slice_nest_in_the_first_and_overlap_in_none_of_the_others(
    times: list[tuple[int, int]],
) -> None:
    spans = [(min(pair), max(pair)) for pair in times]
    found = laid(Rule.STACK, slices(*((DEVICE, *span, str(i)) for i, span in enumerate(spans))))
    assert Counter(int(one.name) for own in found.values() for one in own) == Counter(range(len(spans)))
    stack = found.pop(str(DEVICE), [])
    assert sorted((one.start, one.end) for one in stack) == left_by_rounds(spans)
    for held in found.values():
        own = sorted((one.start, one.end) for one in held)
        assert all(before[1] <= after[0] for before, after in pairwise(own))


def test_a_stack_without_crossing_calls_stays_one_lane() -> None:
    frame = slices((DEVICE, 0, 10, "a"), (DEVICE, 1, 5, "b"), (DEVICE, 2, 3, "c"), (DEVICE, 6, 9, "d"))
    assert list(laid(Rule.STACK, frame)) == [str(DEVICE)]
