"""Encode tracks and frames as the bytes of a Perfetto trace, filling all records of a kind column by column.

`aaco_pipeline.report.perfetto.records` converts records to bytes; `aaco_pipeline.report.perfetto.lanes` assigns lanes
to overlapping slices. The caller decides what becomes a track or a slice; this package does not depend on the lake's
tables or a viewer.
"""

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from aaco_pipeline.lake.files import writing_atomically
from aaco_pipeline.report.perfetto.lanes import Integers, Rule
from aaco_pipeline.report.perfetto.records import (
    Bytes,
    Cells,
    Field,
    Part,
    Spool,
    fixed64_field,
    message_field,
    number_field,
    packet_templates,
    packets_in_order,
    varints,
)
from aaco_pipeline.report.perfetto.slices import (
    Annotation,
    Drawing,
    DrawnWindow,
    FirstUses,
    Gathering,
    Window,
    final_tracks,
    refuse,
    times,
    track_indices,
)

COUNTER_COLUMNS: Final = ("track", "time_ns", "value")

_TRACK_EVENTS: Final = 1  # the packet sequence, which has its own interned strings
_ANNOTATION_FIELDS: Final = {str: "string_value", int: "int_value", float: "double_value"}


@dataclass(frozen=True)
class Track:
    """One line of the viewer; `parent` is the `uuid` of the track above it.

    A process needs its `pid`, a thread `pid` and `tid`; `unit` is for counters. A uuid is any positive number; small
    ones keep traces small, because every record stores one at the width of the largest. `lanes` decides how overlapping
    slices are handled: unless it is `Rule.REFUSE`, the track is split into one track per lane (none without slices),
    tracks with higher uuids are renumbered, and it cannot be a parent.
    """

    uuid: int
    name: str
    parent: int | None = None
    kind: Literal["slices", "counter", "process", "thread"] = "slices"
    unit: str | None = None
    pid: int | None = None
    tid: int | None = None
    lanes: Rule = Rule.REFUSE


@dataclass(frozen=True)
class TraceSummary:
    """Counts of a written trace: `flows` is the number of joined pairs, `bytes` the file size.

    `flow_ends_left_out` counts slices whose flow cannot be drawn: no partner, or it began before its cause.
    """

    slices: int
    counters: int
    flows: int
    flow_ends_left_out: int
    bytes: int


def encode(
    tracks: Sequence[Track],
    slices: pl.DataFrame | Iterable[pl.DataFrame],
    counters: pl.DataFrame | None = None,
    *,
    metadata: Mapping[str, str | int | float] | None = None,
) -> Iterator[bytes]:
    """Encode the uncompressed trace piece by piece; equal input gives equal bytes. Everything is checked first.

    Times are nanoseconds on one axis from 0 on, as Perfetto knows no negative times.

    Args:
        tracks: all tracks that slices and counters name.
        slices: one frame or several, taken one at a time and spilled to disk if they are many. Columns: track (a uuid),
            start_ns, end_ns and name; optionally category, and flow_id with flow_role ("out" at the cause, "in" at the
            effect; an effect is joined to the cause of that id directly before it). Every further column of integers,
            floats or strings is an annotation. Null means absent. Slices of one track must nest (one may begin where
            another ends) unless its `lanes` say otherwise. Of equal slices those of the lower track come first.
        counters: track, time_ns and value; rows without a value are skipped.
        metadata: annotations of one instant named "session" at the first time of the trace.

    Raises:
        ValueError: naming the first offending row.
    """
    return _Trace(tracks, slices, counters, metadata).chunks()


def write_trace(
    path: Path,
    tracks: Sequence[Track],
    slices: pl.DataFrame | Iterable[pl.DataFrame],
    counters: pl.DataFrame | None = None,
    *,
    metadata: Mapping[str, str | int | float] | None = None,
    scheduling: Iterable[bytes] = (),
) -> TraceSummary:
    """Replace `path` atomically by the gzip-compressed trace of `encode`, followed by packets of `scheduling`.

    Equal input gives equal bytes.
    """
    trace = _Trace(tracks, slices, counters, metadata)
    with (
        writing_atomically(path) as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0) as stream,
    ):
        for chunk in chain(trace.chunks(), scheduling):
            stream.write(chunk)
    return TraceSummary(
        slices=trace.slices,
        counters=trace.counters,
        flows=trace.flows,
        flow_ends_left_out=trace.flow_ends_left_out,
        bytes=path.stat().st_size,
    )


class _Trace:
    """A checked trace: its counts and its bytes."""

    def __init__(
        self,
        tracks: Sequence[Track],
        slices: pl.DataFrame | Iterable[pl.DataFrame],
        counters: pl.DataFrame | None,
        metadata: Mapping[str, str | int | float] | None,
    ) -> None:
        _check_tracks(tracks)
        tracks = sorted(tracks, key=lambda track: track.uuid)
        rules = np.array([track.lanes for track in tracks], np.int8)
        self._uuids = np.array([track.uuid for track in tracks], np.uint64)
        self._is_counter = np.array([track.kind == "counter" for track in tracks], bool)
        self._metadata = metadata or {}
        self._strings: defaultdict[str, list[str]] = defaultdict(list)
        self._first_times: list[int] = []
        spool = Spool()
        self._gathering = Gathering(self._uuids, self._is_counter, spool)
        for piece in [slices] if isinstance(slices, pl.DataFrame) else slices:
            self._gathering.add(piece)
        self._gathering.check()
        self._drawing = Drawing(self._gathering, rules, self._uuids, spool)
        counters = counters.drop_nulls("value") if counters is not None and counters.height else pl.DataFrame()
        self.slices, self.counters = self._gathering.count, counters.height
        self.flows, self.flow_ends_left_out = self._drawing.flows, self._drawing.flow_ends_left_out
        self._places, held = final_tracks(self._drawing.lanes, rules)
        self._lowest_lanes = np.array([own[0] if own else 0 for own in held], np.int64)
        self._tracks = _laned(tracks, held)
        self._final_uuids = np.array([track.uuid for track in self._tracks], np.uint64)
        of_slices = [self._slice_records()] if self.slices else []
        self._bulk = [*of_slices, *([self._counter_records(counters)] if self.counters else [])]

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes: the header, then the records of each kind in time order. Call it only once."""
        return chain([self._header()], *self._bulk)

    def _slice_records(self) -> Iterator[bytes]:
        """Intern the strings now; records are created later, one time window at a time."""
        gathering, uses = self._gathering, self._drawing.uses
        if gathering.first_ns is not None:
            self._first_times.append(gathering.first_ns)
        texts = {"name": self._ranked("names", uses["name"]), "category": self._ranked("categories", uses["category"])}
        annotations = sorted(gathering.annotations.items(), key=lambda one: one[1].at)
        for name, one in annotations:
            self._strings["annotations"].append(name)
            if one.kind == "text":
                texts[f"={name}"] = self._ranked("annotation_texts", uses[f"={name}"])
        return self._windows(texts, annotations)

    def _windows(
        self, texts: Mapping[str, "_Ranked"], annotations: Sequence[tuple[str, Annotation]]
    ) -> Iterator[bytes]:
        names = ("name", "category", "flow", "role", *(f"={name}" for name, _ in annotations))
        for number, window in enumerate(self._gathering.windows(names)):
            yield from self._window_records(window, self._drawing.window(number), texts, annotations)

    def _window_records(
        self,
        window: Window,
        drawn: DrawnWindow,
        texts: Mapping[str, "_Ranked"],
        annotations: Sequence[tuple[str, Annotation]],
    ) -> Iterator[bytes]:
        gathering, columns = self._gathering, window.columns
        track = np.concatenate((drawn.track, window.slices.track))
        uuid = varints(self._final_uuids, self._places[track] + drawn.lane - self._lowest_lanes[track])
        own = Cells(uuid.table, uuid.index[drawn.opened :] if uuid.index is not None else None)
        name = texts["name"].cells(columns["name"])
        fields = [Field([*number_field(9, 1), *number_field(11, own), *number_field(10, name)])]
        if gathering.categorized:
            held = columns["category"] > 0
            category = number_field(3, texts["category"].cells(columns["category"]))
            fields.append(Field(category, None if held.all() else held))
        for number, (name_of, one) in enumerate(annotations, 1):
            key = f"={name_of}"
            parts = _annotation(one, columns[key], texts.get(key))
            fields.append(Field(message_field(4, [*number_field(1, number), *parts]), window.present.get(key)))
        if gathering.has_flows:
            for field, rows in ((47, drawn.causes), (48, drawn.effects)):
                joined = np.zeros(len(window.slices), bool)
                joined[rows] = True
                fields.append(Field(fixed64_field(field, columns["flow"]), joined))
        start = varints(window.slices.start, most=gathering.most_start)
        of_row, templates = packet_templates(_TRACK_EVENTS, start, 11, fields)
        end = varints(np.concatenate((drawn.end, window.slices.end)), most=gathering.most_end)
        at_end = [Field([*number_field(9, 2), *number_field(11, uuid)])]
        end_template = packet_templates(_TRACK_EVENTS, end, 11, at_end)[1]
        rows = np.where(drawn.is_end, drawn.rows, drawn.rows - drawn.opened)
        kinds = np.full(len(rows), len(templates))
        kinds[~drawn.is_end] = of_row[rows[~drawn.is_end]]
        return packets_in_order([*templates, *end_template], kinds, rows)

    def _ranked(self, table: str, uses: FirstUses) -> "_Ranked":
        strings, ranks = uses.ranks()
        before = len(self._strings[table])
        self._strings[table] += strings
        return _Ranked(varints(np.arange(before + 1, before + max(1, len(strings)) + 1)).table, ranks)

    def _counter_records(self, frame: pl.DataFrame) -> Iterator[bytes]:
        time, _ = times("counters", frame, COUNTER_COLUMNS, ("time_ns", "time_ns"))
        self._first_times.append(int(time.min()))
        track = track_indices("counters", frame, (self._uuids, ~self._is_counter, "holds no counter"))
        uuid = varints(self._final_uuids, self._places[track])
        values = frame["value"].cast(pl.Float64).to_numpy()
        refuse("counters", frame, ~np.isfinite(values), "value is not finite; leave it null")
        fields = [Field([*number_field(9, 4), *number_field(11, uuid), *fixed64_field(44, values)])]
        of_row, templates = packet_templates(_TRACK_EVENTS, varints(time), 11, fields)
        return packets_in_order(templates, of_row, np.argsort(time, kind="stable"))

    def _header(self) -> bytes:
        """Encode the packets before the records: interned strings, tracks, metadata."""
        trace = perfetto_trace_pb2.Trace()
        interned = trace.packet.add(trusted_packet_sequence_id=_TRACK_EVENTS, sequence_flags=1).interned_data
        _fill_table(interned.event_names, "name", self._strings["names"])
        _fill_table(interned.event_categories, "name", self._strings["categories"])
        _fill_table(interned.debug_annotation_names, "name", self._strings["annotations"])
        texts = [text.encode() for text in self._strings["annotation_texts"]]
        _fill_table(interned.debug_annotation_string_values, "str", texts)
        for track in self._tracks:
            trace.packet.add(track_descriptor=_descriptor(track))
        if self._metadata:
            used = {track.uuid for track in self._tracks}
            session = Track(next(uuid for uuid in count(1) if uuid not in used), "session")
            trace.packet.add(track_descriptor=_descriptor(session))
            instant = trace.packet.add(
                trusted_packet_sequence_id=_TRACK_EVENTS, timestamp=min(self._first_times, default=0)
            )
            event = instant.track_event
            event.type, event.track_uuid, event.name = event.TYPE_INSTANT, session.uuid, session.name
            for key, value in self._metadata.items():
                event.debug_annotations.add(name=key, **{_ANNOTATION_FIELDS[type(value)]: value})
        return bytes(trace.SerializeToString())


@dataclass(frozen=True)
class _Ranked:
    """A column's texts as varints in the order of first use, and the rank of each code."""

    table: Bytes
    ranks: Integers

    def cells(self, codes: npt.NDArray[Any]) -> Cells:
        return Cells(self.table, self.ranks[codes])


def _annotation(one: Annotation, values: npt.NDArray[Any], texts: _Ranked | None) -> list[Part]:
    if texts is not None:
        return number_field(17, texts.cells(values))
    if one.kind == "float":
        return fixed64_field(5, values)
    return number_field(3 if one.kind == "unsigned" else 4, varints(values, most=one.most))


def _laned(tracks: Sequence[Track], lanes: Sequence[Sequence[int]]) -> list[Track]:
    """Replace each track by one per lane; later tracks get higher uuids."""
    moved = dict(zip((t.uuid for t in tracks), accumulate((len(own) - 1 for own in lanes), initial=0), strict=False))
    return [
        replace(
            track,
            uuid=track.uuid + moved[track.uuid] + number,
            name=track.name if lane == 0 else f"{track.name}, lane {lane + 1}",
            parent=None if track.parent is None else track.parent + moved[track.parent],
            kind="slices" if lane and track.kind == "thread" else track.kind,  # no second thread of that number
        )
        for track, own in zip(tracks, lanes, strict=True)
        for number, lane in enumerate(own)
    ]


def _fill_table(table: Any, field: str, values: Iterable[str | bytes | int]) -> None:
    for iid, value in enumerate(values, 1):
        table.add(iid=iid, **{field: value})


def _descriptor(track: Track) -> Any:
    """Build the TrackDescriptor of `track`; fields that are None stay unset."""
    message = perfetto_trace_pb2.TrackDescriptor
    kinds: dict[str, dict[str, dict[str, Any]]] = {
        "counter": {"counter": {"unit_name": track.unit or ""}},
        "process": {"process": {"pid": track.pid, "process_name": track.name}},
        "thread": {"thread": {"pid": track.pid, "tid": track.tid, "thread_name": track.name}},
    }
    return message(
        uuid=track.uuid,
        name=track.name,
        parent_uuid=track.parent,
        **kinds.get(track.kind, {}),
    )


def _check_tracks(tracks: Sequence[Track]) -> None:
    uses = Counter(track.uuid for track in tracks)
    for track in tracks:
        if not 0 < track.uuid < 1 << 64 or uses[track.uuid] > 1:
            raise ValueError(f"{track}: a uuid lies from 1 to 2^64-1 and belongs to one track")
        if track.parent is not None and track.parent not in uses:
            raise ValueError(f"{track}: its parent is not among the tracks")
        needed = {"process": (track.pid,), "thread": (track.pid, track.tid)}.get(track.kind, ())
        if None in needed:
            raise ValueError(f"{track}: a process needs its pid, a thread its pid and tid")
