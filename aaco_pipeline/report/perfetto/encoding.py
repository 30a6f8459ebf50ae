"""Tracks and frames in, the bytes of a Perfetto trace out: every record of a kind is filled by columns, none by itself.

How records become bytes is `aaco_pipeline.report.perfetto.records`, lanes for slices that overlap are
`aaco_pipeline.report.perfetto.lanes`. What becomes a track or a slice is decided by the caller; nothing here knows a
table of the lake or runs a viewer.
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
from aaco_pipeline.report.perfetto.lanes import Integers, Mask, Rule
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
    vector_field,
)
from aaco_pipeline.report.perfetto.slices import (
    Annotation,
    Drawing,
    DrawnStretch,
    FirstUses,
    Gathering,
    Stretch,
    final_tracks,
    refuse,
    times,
    track_indices,
)

COUNTER_COLUMNS: Final = ("track", "time_ns", "value")
KERNEL_COLUMNS: Final = ("gpu_id", "process", "queue", "start_ns", "end_ns", "name")
LAUNCH_COLUMNS: Final = tuple(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz")

_TRACK_EVENTS: Final = 1  # the packet sequences: each has its own interned strings
_GPU_STAGES: Final = 2
_ANNOTATION_FIELDS: Final = {str: "string_value", int: "int_value", float: "double_value"}


@dataclass(frozen=True)
class Track:
    """One line of the viewer: `parent` is the `uuid` of the track it lies under, `order` its rank among siblings.

    A process needs its `pid`, a thread `pid` and `tid`. `unit` is a counter's. A uuid is any number from 1 on; small
    ones make small traces, because every record carries one at the width of the largest. `lanes` says what becomes of
    slices that overlap: by another rule than `Rule.REFUSE` the track is as many as it has lanes, none without slices,
    and the tracks of higher uuids move up; such a track is no parent.
    """

    uuid: int
    name: str
    parent: int | None = None
    kind: Literal["slices", "counter", "process", "thread"] = "slices"
    unit: str | None = None
    pid: int | None = None
    tid: int | None = None
    order: int | None = None
    lanes: Rule = Rule.REFUSE


@dataclass(frozen=True)
class TraceSummary:
    """What a trace holds: `flows` are the joined pairs, `bytes` the size of the file.

    `flow_ends_left_out` counts slices whose flow could not be drawn: it has no partner, or begins before its cause.
    """

    slices: int
    counters: int
    flows: int
    flow_ends_left_out: int
    kernels: int
    bytes: int


def encode(
    tracks: Sequence[Track],
    slices: pl.DataFrame | Iterable[pl.DataFrame],
    counters: pl.DataFrame | None = None,
    *,
    kernels: pl.DataFrame | None = None,
    metadata: Mapping[str, str | int | float] | None = None,
) -> Iterator[bytes]:
    """The uncompressed trace, piece by piece; equal input gives equal bytes. Everything is checked before the first.

    `slices` are one frame or several, taken one at a time and kept on the disk where they are many: what is held in
    memory is what begins within a short time, and what is open then. A frame has track (a uuid), start_ns, end_ns and
    name, and may have category, flow_id with flow_role ("out" at the cause, "in" at the effect; an effect is joined to
    the cause of that id directly before it), and annotations: every further column of whole numbers, floats or strings,
    in the order of the tracks that have them. Null means absent. Slices of one track must nest (a slice may begin where
    another ends) unless its `lanes` say otherwise. Of equal slices those of the lower track stand first.
    `counters` has track, time_ns and value; rows without a value are skipped.
    `metadata` becomes the annotations of one instant named "session" at the first time of the trace.
    `kernels` is for dispatches that a GPU tool recorded and for nothing else: one row per dispatch with gpu_id,
    process (the pid), queue (its name), start_ns, end_ns and name; optionally submission_id and grid_* and workgroup_*
    in work-items. What ran on a CPU belongs into `slices`, never here: the viewer calls every row work of a GPU.

    Times are nanoseconds on one axis that must not begin below 0: Perfetto knows no earlier time, so shift first.
    Raises ValueError that names the first offending row.
    """
    return _Trace(tracks, slices, counters, kernels, metadata).chunks()


def write_trace(
    path: Path,
    tracks: Sequence[Track],
    slices: pl.DataFrame | Iterable[pl.DataFrame],
    counters: pl.DataFrame | None = None,
    *,
    kernels: pl.DataFrame | None = None,
    metadata: Mapping[str, str | int | float] | None = None,
    scheduling: Iterable[bytes] = (),
) -> TraceSummary:
    """Replace `path` by the gzip-compressed trace of `encode`, with a kernel's `scheduling` (by that module) behind it,
    whole or not at all; equal input gives equal bytes."""
    trace = _Trace(tracks, slices, counters, kernels, metadata)
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
        kernels=trace.kernels,
        bytes=path.stat().st_size,
    )


class _Trace:
    """A checked trace: what it holds, counted, and its bytes."""

    def __init__(
        self,
        tracks: Sequence[Track],
        slices: pl.DataFrame | Iterable[pl.DataFrame],
        counters: pl.DataFrame | None,
        kernels: pl.DataFrame | None,
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
        kernels = pl.DataFrame() if kernels is None else kernels
        self.slices, self.counters, self.kernels = self._gathering.count, counters.height, kernels.height
        self.flows, self.flow_ends_left_out = self._drawing.flows, self._drawing.flow_ends_left_out
        self._places, held = final_tracks(self._drawing.lanes, rules)
        self._lowest_lanes = np.array([own[0] if own else 0 for own in held], np.int64)
        self._tracks = _laned(tracks, held)
        self._final_uuids = np.array([track.uuid for track in self._tracks], np.uint64)
        of_slices = [self._slice_records()] if self.slices else []
        bulks = ((self._counter_records, counters), (self._kernel_records, kernels))
        self._bulk = [*of_slices, *(records(frame) for records, frame in bulks if frame.height)]

    def chunks(self) -> Iterator[bytes]:
        """All bytes, once: the header, then every bulk of records in the order of its times."""
        return chain([self._header()], *self._bulk)

    def _slice_records(self) -> Iterator[bytes]:
        """Interned strings are laid down now; records are made a stretch of time at a time, as they are asked for."""
        gathering, uses = self._gathering, self._drawing.uses
        if gathering.first_ns is not None:
            self._first_times.append(gathering.first_ns)
        texts = {"name": self._ranked("names", uses["name"]), "category": self._ranked("categories", uses["category"])}
        annotations = sorted(gathering.annotations.items(), key=lambda one: one[1].at)
        for name, one in annotations:
            self._strings["annotations"].append(name)
            if one.kind == "text":
                texts[f"={name}"] = self._ranked("annotation_texts", uses[f"={name}"])
        return self._stretches(texts, annotations)

    def _stretches(
        self, texts: Mapping[str, "_Ranked"], annotations: Sequence[tuple[str, Annotation]]
    ) -> Iterator[bytes]:
        names = ("name", "category", "flow", "role", *(f"={name}" for name, _ in annotations))
        for number, stretch in enumerate(self._gathering.stretches(names)):
            yield from self._stretch_records(stretch, self._drawing.stretch(number), texts, annotations)

    def _stretch_records(
        self,
        stretch: Stretch,
        drawn: DrawnStretch,
        texts: Mapping[str, "_Ranked"],
        annotations: Sequence[tuple[str, Annotation]],
    ) -> Iterator[bytes]:
        gathering, columns = self._gathering, stretch.columns
        track = np.concatenate((drawn.track, stretch.slices.track))
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
            fields.append(Field(message_field(4, [*number_field(1, number), *parts]), stretch.present.get(key)))
        if gathering.has_flows:
            for field, rows in ((47, drawn.causes), (48, drawn.effects)):
                joined = np.zeros(len(stretch.slices), bool)
                joined[rows] = True
                fields.append(Field(fixed64_field(field, columns["flow"]), joined))
        start = varints(stretch.slices.start, most=gathering.most_start)
        of_row, templates = packet_templates(_TRACK_EVENTS, start, 11, fields)
        end = varints(np.concatenate((drawn.end, stretch.slices.end)), most=gathering.most_end)
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

    def _kernel_records(self, frame: pl.DataFrame) -> Iterator[bytes]:
        start, end = times("kernels", frame, KERNEL_COLUMNS, ("start_ns", "end_ns"))
        self._first_times.append(int(start.min()))
        fields = [
            Field(
                [
                    *number_field(1, varints(np.arange(1, frame.height + 1))),
                    *number_field(2, varints(end - start)),
                    *number_field(5, self._intern("processes", frame["process"].cast(pl.String))),
                    *number_field(11, varints(frame["gpu_id"].to_numpy())),
                    *number_field(13, self._intern("queues", frame["queue"])),
                    *number_field(14, len(self._strings["queues"]) + 1),  # the one stage is interned after the queues
                    *number_field(20, self._intern("kernels", frame["name"])),
                ]
            )
        ]
        if "submission_id" in frame.columns:
            submission = frame["submission_id"].cast(pl.UInt32).fill_null(0).to_numpy()
            fields.append(Field(number_field(10, varints(submission)), _present(frame, "submission_id")))
        if set(LAUNCH_COLUMNS) <= set(frame.columns):
            sizes = {name: frame[name].cast(pl.Int64).fill_null(1).to_numpy() for name in LAUNCH_COLUMNS}
            refuse("kernels", frame, np.min(list(sizes.values()), axis=0) < 1, "a launch has at least one work-item")
            grid, workgroup = [sizes[name] for name in LAUNCH_COLUMNS[:3]], [sizes[name] for name in LAUNCH_COLUMNS[3:]]
            grid = [-(-items // size) for items, size in zip(grid, workgroup, strict=True)]  # in workgroups, rounded up
            launch = [*message_field(1, vector_field(grid)), *message_field(2, vector_field(workgroup))]
            fields.append(Field(message_field(21, launch), _present(frame, *LAUNCH_COLUMNS)))
        of_row, templates = packet_templates(_GPU_STAGES, varints(start), 53, fields)
        rows = np.argsort(start, kind="stable")
        return packets_in_order(templates, of_row[rows], rows)

    def _intern(self, table: str, values: pl.Series) -> Cells:
        strings, before = values.drop_nulls().unique(maintain_order=True).cast(pl.String), len(self._strings[table])
        self._strings[table] += strings.to_list()
        codes = values.cast(pl.String).cast(pl.Enum(strings)).to_physical().cast(pl.Int64).fill_null(0).to_numpy()
        return varints(np.arange(before + 1, before + max(1, len(strings)) + 1), codes)

    def _header(self) -> bytes:
        """The few packets that are no records: interned strings, tracks, metadata."""
        trace = perfetto_trace_pb2.Trace()
        interned = trace.packet.add(trusted_packet_sequence_id=_TRACK_EVENTS, sequence_flags=1).interned_data
        _fill_table(interned.event_names, "name", self._strings["names"])
        _fill_table(interned.event_categories, "name", self._strings["categories"])
        _fill_table(interned.debug_annotation_names, "name", self._strings["annotations"])
        texts = [text.encode() for text in self._strings["annotation_texts"]]
        _fill_table(interned.debug_annotation_string_values, "str", texts)
        ordered = {track.parent for track in self._tracks if track.order is not None}
        for track in self._tracks:
            trace.packet.add(track_descriptor=_descriptor(track, orders_children=track.uuid in ordered))
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
        if self.kernels:
            interned = trace.packet.add(trusted_packet_sequence_id=_GPU_STAGES, sequence_flags=1).interned_data
            _fill_table(interned.event_names, "name", self._strings["kernels"])
            _fill_table(interned.graphics_contexts, "pid", map(int, self._strings["processes"]))
            for context in interned.graphics_contexts:
                context.api = context.HIP
            _fill_table(interned.gpu_specifications, "name", [*self._strings["queues"], "kernel dispatch"])
            interned.gpu_specifications[-1].category = interned.gpu_specifications[-1].COMPUTE
        return bytes(trace.SerializeToString())


@dataclass(frozen=True)
class _Ranked:
    """A column's texts as varints in the order of their first use, and the place of each code in it."""

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
    """The tracks with one for each lane; those behind move up as many numbers as there are more of them."""
    moved = dict(zip((t.uuid for t in tracks), accumulate((len(own) - 1 for own in lanes), initial=0), strict=False))
    return [
        replace(
            track,
            uuid=track.uuid + moved[track.uuid] + number,
            name=track.name if lane == 0 else f"{track.name}, lane {lane + 1}",
            parent=None if track.parent is None else track.parent + moved[track.parent],
            kind="slices" if lane and track.kind == "thread" else track.kind,  # else a second thread of its number
        )
        for track, own in zip(tracks, lanes, strict=True)
        for number, lane in enumerate(own)
    ]


def _fill_table(table: Any, field: str, values: Iterable[str | bytes | int]) -> None:
    for iid, value in enumerate(values, 1):
        table.add(iid=iid, **{field: value})


def _descriptor(track: Track, *, orders_children: bool = False) -> Any:
    """The TrackDescriptor of `track`; what is None stays unset."""
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
        sibling_order_rank=track.order,
        child_ordering=message.EXPLICIT if orders_children else None,
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


def _present(frame: pl.DataFrame, *columns: str) -> Mask | None:
    """The rows where none of `columns` is null, None for all of them."""
    if not any(frame[name].null_count() for name in columns):
        return None
    return frame.select(pl.all_horizontal(pl.col(columns).is_not_null())).to_series().to_numpy()
