"""Rows that no trace can hold are refused, with the row and what to do about it."""

import polars as pl
import pytest

from aaco_pipeline.lake.perfetto import Track, encode
from tests.lake.perfetto.decoding import DEVICE, NO_SLICES, POWER, TRACKS, counter_rows, slices


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (slices((DEVICE, 0, 1, "a"), (DEVICE, -5, 1, "b")), "slices row 1 .*'name': 'b'.*start_ns is negative; shift"),
        (slices((DEVICE, 5, 4, "a")), "end_ns lies before start_ns"),
        (slices((99, 0, 1, "a")), "track is not among the tracks"),
        (slices((POWER, 0, 1, "a")), "track is a counter's"),
        (slices((DEVICE, 0, 1, None)), "name is null"),
        (slices((DEVICE, 0, 5, "a"), (DEVICE, 3, 8, "b")), "slices row 0 .* give it another lane"),
    ],
)
def test_slices_that_no_trace_can_hold_are_refused(frame: pl.DataFrame, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        encode(TRACKS, frame)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([(POWER, -1, 1.0)], "counters row 0 .* time_ns is negative"),
        ([(DEVICE, 1, 1.0)], "track holds no counter"),
        ([(POWER, 1, float("nan"))], "value is not finite"),
    ],
)
def test_counters_that_no_trace_can_hold_are_refused(rows: list[tuple[int, int, float]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        encode(TRACKS, NO_SLICES, counter_rows(*rows))


@pytest.mark.parametrize(
    ("tracks", "complaint"),
    [
        ([Track(0, "zero")], "a uuid lies from 1"),
        ([Track(1 << 64, "too large")], "a uuid lies from 1"),
        ([Track(1, "a"), Track(1, "b")], "belongs to one track"),
        ([Track(1, "a", parent=2)], "parent is not among the tracks"),
        ([Track(1, "a", kind="process")], "a process needs its pid"),
        ([Track(1, "a", kind="thread", pid=1)], "a thread its pid and tid"),
    ],
)
def test_tracks_that_contradict_themselves_are_refused(tracks: list[Track], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        encode(tracks, NO_SLICES)


def test_more_columns_with_nulls_than_patterns_can_be_told_apart_are_refused() -> None:
    rows = slices(*((DEVICE, i, i, "a") for i in range(2)), **{f"column {i}": [None, 1] for i in range(63)})
    with pytest.raises(ValueError, match="63 columns have nulls"):
        encode(TRACKS, rows)
