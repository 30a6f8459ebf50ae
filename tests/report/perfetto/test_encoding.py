"""What is encoded is what a decoder finds: slices, nesting, flows, counters, annotations, to the nanosecond.

The GPU rows in here are invented to test the format; no GPU ran them.

Rows that no trace can hold are refused, with the row and what to do about it.
"""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    InternedGraphicsContext,
    TrackDescriptor,
)

from aaco_pipeline.report.perfetto.encoding import Track, encode, write_trace
from tests.report.perfetto.decoding import (
    DEVICE,
    HOST,
    NO_SLICES,
    POWER,
    THREAD,
    TRACKS,
    Slice,
    counter_rows,
    crosses,
    decode,
    flows,
    round_trip,
    slices,
    spans,
)


def test_an_empty_trace_holds_the_tracks_alone() -> None:
    for frame in (NO_SLICES, pl.DataFrame()):
        decoded = round_trip(frame, counters=pl.DataFrame(), kernels=pl.DataFrame())
        assert set(decoded.tracks) == {HOST, THREAD, DEVICE, POWER}
        assert (decoded.slices, decoded.counters, decoded.stages) == ([], [], [])


def test_tracks_are_described() -> None:
    tracks = round_trip().tracks
    assert (tracks[HOST].process.pid, tracks[HOST].process.process_name) == (4711, "workload")
    assert tracks[HOST].child_ordering == TrackDescriptor.EXPLICIT
    assert (tracks[THREAD].thread.pid, tracks[THREAD].thread.tid, tracks[THREAD].parent_uuid) == (4711, 4712, HOST)
    assert (tracks[DEVICE].name, tracks[DEVICE].sibling_order_rank) == ("CPU EP", 2)
    assert (tracks[POWER].counter.unit_name, tracks[POWER].sibling_order_rank) == ("W", 1)


def test_slices_keep_name_times_track_and_depth() -> None:
    rows = [
        (THREAD, 5, 9, "inner"),
        (THREAD, 5, 20, "outer"),
        (DEVICE, 0, 1 << 62, "长い — ñame 🚀"),
        (THREAD, 20, 20, ""),
    ]
    assert sorted(round_trip(slices(*rows)).slices, key=lambda found: (found.track, found.start, found.depth)) == [
        Slice(THREAD, "outer", 5, 20, 0),
        Slice(THREAD, "inner", 5, 9, 1),
        Slice(THREAD, "", 20, 20, 0),
        Slice(DEVICE, "长い — ñame 🚀", 0, 1 << 62, 0),
    ]


def test_uuids_may_be_any_positive_number() -> None:
    largest = (1 << 64) - 1
    tracks = [Track(largest, "last"), Track(1, "first", largest)]
    frame = slices((largest, 0, 2, "a"), (1, 1, 3, "b"))
    decoded = decode(b"".join(encode(tracks, frame, metadata={"key": "value"})))
    assert {found.track: found.name for found in decoded.slices} == {largest: "a", 1: "b"}
    assert decoded.tracks[2].name == "session"


@given(spans())
def test_slices_come_back_exactly_when_they_nest(drawn: list[tuple[int, tuple[int, int]]]) -> None:
    frame = slices(*((track, *span, f"slice {i % 3}") for i, (track, span) in enumerate(drawn)))
    if any(a[0] == b[0] and crosses(a[1], b[1]) for i, a in enumerate(drawn) for b in drawn[:i]):
        with pytest.raises(ValueError, match="overlaps a slice of its track without nesting"):
            encode(TRACKS, frame)
    else:
        found = Counter((s.track, s.start, s.end, s.name) for s in round_trip(frame).slices)
        assert found == Counter(frame.rows())


@given(
    st.lists(
        st.tuples(
            st.none() | st.sampled_from(["a", "b"]),
            st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
            st.none() | st.integers(0, (1 << 64) - 1),
            st.none() | st.floats(allow_nan=False),
            st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_annotations_and_categories_come_back_where_they_are_not_null(rows: list[tuple[Any, ...]]) -> None:
    schema = {
        "category": pl.String,
        "iteration": pl.Int64,
        "handle": pl.UInt64,
        "ratio": pl.Float64,
        "família": pl.String,
    }
    further = pl.DataFrame(rows, schema, orient="row")
    frame = pl.concat([slices(*((DEVICE, i, i + 1, "x") for i in range(len(rows)))), further], how="horizontal")
    for found, (category, *values) in zip(round_trip(frame).slices, rows, strict=True):
        assert found.category == category
        named = zip(list(schema)[1:], values, strict=True)
        assert dict(found.annotations) == {name: value for name, value in named if value is not None}


def test_whole_numbers_of_any_type_are_annotations_and_other_types_are_refused() -> None:
    frame = slices((DEVICE, 0, 1, "x"))
    small = frame.with_columns(a=pl.lit(-3, pl.Int8), b=pl.lit(200, pl.UInt8), c=pl.lit(0.5, pl.Float32))
    assert dict(round_trip(small).slices[0].annotations) == {"a": -3, "b": 200, "c": 0.5}
    with pytest.raises(ValueError, match="annotation flag is Boolean"):
        encode(TRACKS, frame.with_columns(flag=True))


def test_flows_join_the_cause_to_its_effect() -> None:
    frame = flows(
        (DEVICE, 30, 40, "kernel 1", 7, "in"),
        (THREAD, 10, 20, "launch 1", 7, "out"),
        (THREAD, 20, 30, "launch 2", (1 << 64) - 1, "out"),
        (DEVICE, 40, 50, "kernel 2", (1 << 64) - 1, "in"),
        (THREAD, 50, 60, "no part", None, None),
        (THREAD, 60, 70, "role only", None, "out"),
        (THREAD, 70, 80, "launch 1 again", 7, "out"),
        (DEVICE, 80, 90, "kernel 1 again", 7, "in"),
    )
    decoded = round_trip(frame)
    assert decoded.flows == [
        ("launch 1", "kernel 1"),
        ("launch 2", "kernel 2"),
        ("launch 1 again", "kernel 1 again"),
    ]
    assert len(decoded.slices) == 8


def test_flows_that_cannot_be_drawn_are_left_out_and_counted(tmp_path: Path) -> None:
    frame = flows(
        (DEVICE, 0, 5, "before its launch", 1, "in"),
        (THREAD, 5, 10, "after its kernel", 1, "out"),
        (THREAD, 10, 20, "graph launch", 2, "out"),
        (DEVICE, 20, 30, "first of the graph", 2, "in"),
        (DEVICE, 30, 40, "second of the graph", 2, "in"),
        (THREAD, 40, 50, "launches nothing", 3, "out"),
    )
    summary = write_trace(tmp_path / "t.gz", TRACKS, frame)
    assert (summary.slices, summary.flows, summary.flow_ends_left_out) == (6, 1, 4)
    assert round_trip(frame).flows == [("graph launch", "first of the graph")]
    with pytest.raises(ValueError, match=r"slices row 0 .* flow_role is not out or in"):
        encode(TRACKS, flows((DEVICE, 0, 5, "x", 1, "sideways")))


@given(
    st.lists(
        st.tuples(st.just(POWER), st.integers(0, 1 << 62), st.none() | st.floats(allow_nan=False, allow_infinity=False))
    )
)
def test_counters_come_back_in_time_order_without_nulls(rows: list[tuple[int, int, float | None]]) -> None:
    expected = sorted((row for row in rows if row[2] is not None), key=lambda row: row[1])
    assert round_trip(counters=counter_rows(*rows)).counters == expected


def test_metadata_is_one_instant_at_the_first_time() -> None:
    notes: dict[str, str | int | float] = {"session": "20250101T000000Z-0000000a", "offset_ns": -7, "uncertainty": 0.25}
    frame, counters = slices((DEVICE, 50, 60, "x")), counter_rows((POWER, 40, 1.0))
    decoded = round_trip(frame, counters=counters, metadata=notes)
    assert decoded.instants == [("session", 40, notes)]
    assert round_trip(metadata=notes).instants == [("session", 0, notes)]
    assert round_trip(frame).instants == []


def test_many_records_across_chunks_keep_their_order() -> None:
    rows = 100_000
    start = np.arange(rows, dtype=np.int64) * 1000
    frame = pl.DataFrame(
        {
            "track": np.where(np.arange(rows) % 3 == 0, THREAD, DEVICE).astype(np.uint64),
            "start_ns": start,
            "end_ns": start + np.arange(rows) % 1000,
            "name": [f"name {i % 300}" for i in range(rows)],
            "iteration": [i if i % 7 else None for i in range(rows)],
        }
    )
    found = round_trip(frame.sample(fraction=1, shuffle=True, seed=1)).slices
    got = [(s.track, s.start, s.end, s.name, dict(s.annotations).get("iteration")) for s in found]
    assert sorted(got, key=lambda slice_: slice_[1]) == frame.rows()


def test_format_of_gpu_render_stages_with_invented_rows() -> None:
    """A format test: these dispatches are invented; a real trace takes them from a GPU tool only."""
    kernels = pl.DataFrame(
        {
            "gpu_id": [0, 1, 0],
            "process": [4711, 4711, 4712],
            "queue": ["queue 1", "queue 2", "queue 1"],
            "start_ns": [300, 100, 200],
            "end_ns": [350, 160, 200],
            "name": ["gemm", "ñorm", "gemm"],
            "submission_id": [None, 1, (1 << 32) - 1],
            **{f"grid_{axis}": [1000, None, 8] for axis in "xyz"},
            **{f"workgroup_{axis}": [256, 64, 8] for axis in "xyz"},
        }
    )
    decoded = round_trip(kernels=kernels)
    strings = decoded.stage_strings
    names = {entry.iid: entry.name for entry in strings.event_names}
    contexts = {entry.iid: (entry.pid, entry.api) for entry in strings.graphics_contexts}
    specifications = {entry.iid: entry.name for entry in strings.gpu_specifications}
    found = []
    for packet in decoded.stages:
        event, launch = packet.gpu_render_stage_event, packet.gpu_render_stage_event.launch
        assert specifications[event.stage_iid] == "kernel dispatch"
        assert contexts[event.context][1] == InternedGraphicsContext.HIP
        found.append(
            (
                *(event.gpu_id, contexts[event.context][0], specifications[event.hw_queue_iid], packet.timestamp),
                *(event.duration, names[event.name_iid]),
                event.submission_id if event.HasField("submission_id") else None,
                (launch.grid_size.y, launch.workgroup_size.z) if event.HasField("launch") else None,
            )
        )
    assert found == [
        (1, 4711, "queue 2", 100, 60, "ñorm", 1, None),
        (0, 4712, "queue 1", 200, 0, "gemm", (1 << 32) - 1, (1, 8)),
        (0, 4711, "queue 1", 300, 50, "gemm", None, (4, 256)),
    ]
    with pytest.raises(ValueError, match=r"kernels row 0 .* at least one work-item"):
        encode(TRACKS, NO_SLICES, kernels=kernels.with_columns(workgroup_x=0))


def test_a_file_is_replaced_whole_and_is_the_same_for_the_same_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "traces" / "trace.pftrace.gz"
    frame, counters = slices((DEVICE, 0, 5, "a"), note=["b"]), counter_rows((POWER, 1, 2.5), (POWER, 2, None))
    first = write_trace(path, TRACKS, frame, counters, metadata={"session": "x"})
    content = path.read_bytes()
    assert (first.slices, first.counters, first.kernels, first.bytes) == (1, 1, 0, len(content))
    assert gzip.decompress(content) == b"".join(encode(TRACKS, frame, counters, metadata={"session": "x"}))
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert write_trace(path, TRACKS, frame, counters, metadata={"session": "x"}) == first
    assert path.read_bytes() == content
    with pytest.raises(ValueError, match="negative"):
        write_trace(path, TRACKS, slices((DEVICE, -1, 5, "a")))
    assert path.read_bytes() == content
    assert [left.name for left in path.parent.iterdir()] == [path.name]


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
