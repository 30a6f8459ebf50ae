"""Tracks and frames in, the bytes of a Perfetto trace out: every record of a kind is filled by columns, none by itself.

How records become bytes is `aaco_pipeline.lake.perfetto.records`, lanes for slices that overlap are
`aaco_pipeline.lake.perfetto.lanes`. What becomes a track or a slice is decided by the caller; nothing here knows a
table of the lake or runs a viewer.
"""

import gzip
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from aaco_pipeline.lake.files import write_atomically
from aaco_pipeline.lake.perfetto.lanes import Integers, Mask, crossing_slices, events_in_order
from aaco_pipeline.lake.perfetto.records import (
    Cells,
    Field,
    Part,
    fixed64_field,
    message_field,
    number_field,
    packet_templates,
    packets_in_order,
    varints,
    vector_field,
)

SLICE_COLUMNS: Final = ("track", "start_ns", "end_ns", "name")
OPTIONAL_SLICE_COLUMNS: Final = ("category", "flow_id", "flow_role")
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
    ones make small traces, because every record carries one at the width of the largest.
    """

    uuid: int
    name: str
    parent: int | None = None
    kind: Literal["slices", "counter", "process", "thread"] = "slices"
    unit: str | None = None
    pid: int | None = None
    tid: int | None = None
    order: int | None = None


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
    slices: pl.DataFrame,
    counters: pl.DataFrame | None = None,
    *,
    kernels: pl.DataFrame | None = None,
    metadata: Mapping[str, str | int | float] | None = None,
) -> Iterator[bytes]:
    """The uncompressed trace, piece by piece; equal input gives equal bytes. Everything is checked before the first.

    `slices` has track (a uuid), start_ns, end_ns and name, and may have category, flow_id with flow_role ("out" at the
    cause, "in" at the effect; an effect is joined to the cause of that id directly before it), and annotations: every
    further column of whole numbers, floats or strings. Null means absent. Slices of one track must nest (a slice may
    begin where another ends); where they overlap otherwise, make one track per lane of `assign_lanes`.
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
    slices: pl.DataFrame,
    counters: pl.DataFrame | None = None,
    *,
    kernels: pl.DataFrame | None = None,
    metadata: Mapping[str, str | int | float] | None = None,
) -> TraceSummary:
    """Replace `path` by the gzip-compressed trace of `encode`, whole or not at all; equal input gives equal bytes.

    Only the compressed bytes are held in memory, about 15 for a slice.
    """
    trace = _Trace(tracks, slices, counters, kernels, metadata)
    compressed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=compressed, mtime=0) as stream:
        for chunk in trace.chunks():
            stream.write(chunk)
    write_atomically(path, compressed.getvalue())
    return TraceSummary(
        slices=trace.slices,
        counters=trace.counters,
        flows=trace.flows,
        flow_ends_left_out=trace.flow_ends_left_out,
        kernels=trace.kernels,
        bytes=compressed.tell(),
    )


class _Trace:
    """A checked trace: what it holds, counted, and its bytes."""

    def __init__(
        self,
        tracks: Sequence[Track],
        slices: pl.DataFrame,
        counters: pl.DataFrame | None,
        kernels: pl.DataFrame | None,
        metadata: Mapping[str, str | int | float] | None,
    ) -> None:
        _check_tracks(tracks)
        self._tracks = sorted(tracks, key=lambda track: track.uuid)
        self._uuids = np.array([track.uuid for track in self._tracks], np.uint64)
        self._metadata = metadata or {}
        self._strings: defaultdict[str, list[str]] = defaultdict(list)
        self._first_times: list[int] = []
        self.flows = self.flow_ends_left_out = 0
        counters = counters.drop_nulls("value") if counters is not None and counters.height else pl.DataFrame()
        kernels = pl.DataFrame() if kernels is None else kernels
        self.slices, self.counters, self.kernels = slices.height, counters.height, kernels.height
        bulks = ((self._slice_records, slices), (self._counter_records, counters), (self._kernel_records, kernels))
        self._bulk = [records(frame) for records, frame in bulks if frame.height]

    def chunks(self) -> Iterator[bytes]:
        """All bytes, once: the header, then every bulk of records in the order of its times."""
        return chain([self._header()], *self._bulk)

    def _slice_records(self, frame: pl.DataFrame) -> Iterator[bytes]:
        start, end = self._times("slices", frame, SLICE_COLUMNS, "start_ns", "end_ns")
        track = self._track_indices("slices", frame, counters=False)
        rows, is_end = events_in_order(start, end)
        _refuse(
            "slices",
            frame,
            crossing_slices(track, rows, is_end, frame.height),
            "overlaps a slice of its track without nesting; give it another lane",
        )
        uuid = varints(self._uuids, track)
        fields = [
            Field(
                [*number_field(9, 1), *number_field(11, uuid), *number_field(10, self._intern("names", frame["name"]))]
            )
        ]
        if "category" in frame.columns:
            category = self._intern("categories", frame["category"])
            fields.append(Field(number_field(3, category), _present(frame, "category")))
        for name in frame.columns:
            if name not in (*SLICE_COLUMNS, *OPTIONAL_SLICE_COLUMNS):
                self._strings["annotations"].append(name)
                named = number_field(1, len(self._strings["annotations"]))
                fields.append(Field(message_field(4, [*named, *self._annotation(frame[name])]), _present(frame, name)))
        if "flow_id" in frame.columns:
            flow = frame["flow_id"].cast(pl.UInt64).fill_null(0).to_numpy()
            causes, effects = self._joined_flows(frame, rows[~is_end], flow)
            fields += [Field(fixed64_field(47, flow), causes), Field(fixed64_field(48, flow), effects)]
        of_row, templates = packet_templates(_TRACK_EVENTS, varints(start), 11, fields)
        at_end = [Field([*number_field(9, 2), *number_field(11, uuid)])]
        end_template = packet_templates(_TRACK_EVENTS, varints(end), 11, at_end)[1]
        return packets_in_order([*templates, *end_template], np.where(is_end, len(templates), of_row[rows]), rows)

    def _counter_records(self, frame: pl.DataFrame) -> Iterator[bytes]:
        time, _ = self._times("counters", frame, COUNTER_COLUMNS, "time_ns", "time_ns")
        uuid = varints(self._uuids, self._track_indices("counters", frame, counters=True))
        values = frame["value"].cast(pl.Float64).to_numpy()
        _refuse("counters", frame, ~np.isfinite(values), "value is not finite; leave it null")
        fields = [Field([*number_field(9, 4), *number_field(11, uuid), *fixed64_field(44, values)])]
        of_row, templates = packet_templates(_TRACK_EVENTS, varints(time), 11, fields)
        return packets_in_order(templates, of_row, np.argsort(time, kind="stable"))

    def _kernel_records(self, frame: pl.DataFrame) -> Iterator[bytes]:
        start, end = self._times("kernels", frame, KERNEL_COLUMNS, "start_ns", "end_ns")
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
            _refuse("kernels", frame, np.min(list(sizes.values()), axis=0) < 1, "a launch has at least one work-item")
            grid, workgroup = [sizes[name] for name in LAUNCH_COLUMNS[:3]], [sizes[name] for name in LAUNCH_COLUMNS[3:]]
            grid = [-(-items // size) for items, size in zip(grid, workgroup, strict=True)]  # in workgroups, rounded up
            launch = [*message_field(1, vector_field(grid)), *message_field(2, vector_field(workgroup))]
            fields.append(Field(message_field(21, launch), _present(frame, *LAUNCH_COLUMNS)))
        of_row, templates = packet_templates(_GPU_STAGES, varints(start), 53, fields)
        rows = np.argsort(start, kind="stable")
        return packets_in_order(templates, of_row[rows], rows)

    def _times(
        self, what: str, frame: pl.DataFrame, required: Sequence[str], first: str, last: str
    ) -> tuple[Integers, Integers]:
        for name in required:
            _refuse(what, frame, frame[name].is_null().to_numpy(), f"{name} is null")
        start, end = (frame[name].cast(pl.Int64).to_numpy() for name in (first, last))
        _refuse(what, frame, start < 0, f"{first} is negative; shift the axis, for Perfetto's times begin at 0")
        _refuse(what, frame, end < start, f"{last} lies before {first}")
        self._first_times.append(int(start.min()))
        return start, end

    def _track_indices(self, what: str, frame: pl.DataFrame, *, counters: bool) -> Integers:
        wanted = frame["track"].cast(pl.UInt64).to_numpy()
        is_counter = np.array([track.kind == "counter" for track in self._tracks], bool)
        indices = np.searchsorted(self._uuids, wanted)
        known = indices < len(self._uuids)
        known[known] = self._uuids[indices[known]] == wanted[known]
        _refuse(what, frame, ~known, "track is not among the tracks")
        holds = "holds no counter" if counters else "is a counter's"
        _refuse(what, frame, is_counter[indices] != counters, f"track {holds}")
        return indices

    def _intern(self, table: str, values: pl.Series) -> Cells:
        strings, before = values.drop_nulls().unique(maintain_order=True).cast(pl.String), len(self._strings[table])
        self._strings[table] += strings.to_list()
        codes = values.cast(pl.String).cast(pl.Enum(strings)).to_physical().cast(pl.Int64).fill_null(0).to_numpy()
        return varints(np.arange(before + 1, before + max(1, len(strings)) + 1), codes)

    def _annotation(self, values: pl.Series) -> list[Part]:
        if values.dtype == pl.String:
            return number_field(17, self._intern("annotation_texts", values))
        if values.dtype.is_float():
            return fixed64_field(5, values.cast(pl.Float64).fill_null(0).to_numpy())
        if values.dtype.is_integer():
            return number_field(3 if values.dtype.is_unsigned_integer() else 4, varints(values.fill_null(0).to_numpy()))
        raise ValueError(f"slices: annotation {values.name} is {values.dtype}, not a string or number")

    def _joined_flows(self, frame: pl.DataFrame, begins: Integers, flow: npt.NDArray[np.uint64]) -> tuple[Mask, Mask]:
        """Which rows are the cause of a flow that is drawn, and which its effect."""
        role = frame["flow_role"]
        _refuse("slices", frame, (~role.is_in(["out", "in"])).fill_null(False).to_numpy(), "flow_role is not out or in")
        takes_part = (role.is_not_null() & frame["flow_id"].is_not_null()).to_numpy()
        rows = begins[takes_part[begins]]
        rows = rows[np.argsort(flow[rows], kind="stable")]
        is_cause, same = (role == "out").fill_null(False).to_numpy()[rows], np.diff(flow[rows]) == 0
        joined = np.flatnonzero(is_cause[:-1] & ~is_cause[1:] & same)
        self.flows, self.flow_ends_left_out = len(joined), len(rows) - 2 * len(joined)
        causes, effects = np.zeros((2, frame.height), bool)
        causes[rows[joined]] = effects[rows[joined + 1]] = True
        return causes, effects

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


def _refuse(what: str, frame: pl.DataFrame, wrong: Mask, reason: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{what} row {row} {frame.row(row, named=True)}: {reason}")


def _present(frame: pl.DataFrame, *columns: str) -> Mask | None:
    """The rows where none of `columns` is null, None for all of them."""
    if not any(frame[name].null_count() for name in columns):
        return None
    return frame.select(pl.all_horizontal(pl.col(columns).is_not_null())).to_series().to_numpy()
