"""Helpers for tests of traces: rows to draw, and a decoder based on Perfetto's protobuf classes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    Trace,
    TrackEvent,
)

from aaco_pipeline.report.perfetto.encoding import Track, encode

HOST, THREAD, DEVICE, POWER = 10, 11, 12, 13
TRACKS: Final = (
    Track(HOST, "workload", kind="process", pid=4711),
    Track(THREAD, "main thread", HOST, "thread", pid=4711, tid=4712),
    Track(DEVICE, "CPU EP", HOST),
    Track(POWER, "power", HOST, "counter", unit="W"),
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


def decode(content: bytes) -> Decoded:
    trace, decoded = Trace.FromString(content), Decoded()
    strings: dict[str, dict[int, str]] = {}
    open_slices: defaultdict[int, list[tuple[int, Any]]] = defaultdict(list)
    causes: dict[int, str] = {}
    for packet in trace.packet:
        if packet.sequence_flags == 1:
            assert strings == {}
            interned = packet.interned_data
            for table in ("event_names", "event_categories", "debug_annotation_names"):
                strings[table] = {entry.iid: entry.name for entry in getattr(interned, table)}
            texts = interned.debug_annotation_string_values
            strings["texts"] = {entry.iid: entry.str.decode() for entry in texts}
        elif packet.HasField("track_descriptor"):
            decoded.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
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
