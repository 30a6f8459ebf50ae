"""Tracks and frames in, the bytes of a Perfetto trace out: every record of a kind is filled by columns, none by itself.

What becomes a track or a slice is decided by the caller; nothing here knows a table of the lake or runs a viewer.
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

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

SLICE_COLUMNS: Final = ("track", "start_ns", "end_ns", "name")
OPTIONAL_SLICE_COLUMNS: Final = ("category", "flow_id", "flow_role")
COUNTER_COLUMNS: Final = ("track", "time_ns", "value")
KERNEL_COLUMNS: Final = ("gpu_id", "process", "queue", "start_ns", "end_ns", "name")
LAUNCH_COLUMNS: Final = tuple(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz")

_TRACK_EVENTS: Final = 1  # the packet sequences: each has its own interned strings
_GPU_STAGES: Final = 2
_ANNOTATION_FIELDS: Final = {str: "string_value", int: "int_value", float: "double_value"}
_CHUNK_EVENTS: Final = 1 << 15  # so that a chunk's records stay in the processor's cache


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


def nesting_lanes(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame`, the slices of one track, with a column `lane` (int32): in lane 0 they nest, in the others none overlap.

    Slices that cross another leave lane 0, so that a call stack with a few crossing calls stays one stack.
    """
    if not frame.height:
        return frame.with_columns(lane=pl.lit(None, pl.Int32))
    nested = np.arange(frame.height)
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    # Two slices that cross can hide a third one's crossing, so what is left is looked at until nothing crosses.
    while len(nested):
        own = np.zeros(len(nested), np.int64)
        crossing = _crossing(own, *_events_in_order(start[nested], end[nested]), len(nested))
        if not crossing.any():
            break
        nested = nested[~crossing]
    left = np.ones(frame.height, bool)
    left[nested] = False
    stack = frame.filter(pl.Series(~left)).with_columns(lane=pl.lit(0, pl.Int32))
    if stack.height == frame.height:
        return stack
    others = assign_lanes(frame.filter(pl.Series(left)).with_columns(track=pl.lit(0)))
    return pl.concat([stack, others.drop("track").with_columns(pl.col("lane") + 1)])


def assign_lanes(frame: pl.DataFrame, *, by: Sequence[str] = ("track",)) -> pl.DataFrame:
    """`frame` with a column `lane` (int32, from 0 in every group of `by`): no two slices of a lane overlap.

    There are as many lanes as slices ever run at once. A nested slice gets a lane of its own, too;
    one without duration takes a lane for its instant.
    """
    start, end = (frame[name].cast(pl.Int64).to_numpy() for name in ("start_ns", "end_ns"))
    numbered = frame.select(by).unique(maintain_order=True).with_row_index("group")
    same = frame.select(by).join(numbered, on=list(by), how="left", nulls_equal=True, maintain_order="left")
    group = same["group"].cast(pl.Int64).to_numpy()
    rows, is_end = _events_in_order(start, end)
    by_group = np.argsort(group[rows], kind="stable")
    rows, is_end = rows[by_group], is_end[by_group]
    # The number of slices that run goes up to a level at a begin and down from it at an end. Who brings it up takes
    # the lane of who last brought it down from there; following these predecessors leads to the lane's first slice.
    level = np.cumsum(1 - 2 * is_end.astype(np.int64)) + is_end
    place = group[rows] * (level.max(initial=0) + 1) + level
    by_place = np.argsort(place, kind="stable")
    again = np.flatnonzero(~is_end[by_place][1:] & (np.diff(place[by_place]) == 0))
    first = np.arange(frame.height)
    first[rows[by_place[again + 1]]] = rows[by_place[again]]
    while not np.array_equal(further := first[first], first):
        first = further
    lane = np.empty(frame.height, np.int64)
    lane[rows[~is_end]] = level[~is_end] - 1
    return frame.with_columns(lane=pl.Series(lane[first], dtype=pl.Int32))


# --- Records: bytes that never change, with columns of fixed width between them ---


@dataclass(frozen=True)
class _Cells:
    """A column, encoded to one width: row i is line i of `table`, or line `index[i]` of it."""

    table: Bytes
    index: Integers | None = None

    def of(self, rows: Integers) -> Bytes:
        return np.take(self.table, rows if self.index is None else self.index[rows], axis=0)


_Part = bytes | _Cells


@dataclass(frozen=True)
class _Field:
    """A field of a message that only the rows of `present` have; None stands for all rows."""

    parts: Sequence[_Part]
    present: Mask | None = None


class _Template:
    """A record of one size. Decoders accept varints that are longer than they need to be, which makes that possible."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.cells: list[tuple[slice, _Cells]] = []
        self.width = 0
        for part in parts:
            size = _size(part)
            if isinstance(part, _Cells):
                self.cells.append((slice(self.width, self.width + size), part))
            self.width += size
        constant = b"".join(part if isinstance(part, bytes) else bytes(_size(part)) for part in parts)
        self.record = np.frombuffer(constant, np.uint8).reshape(1, -1)

    def fill(self, rows: Integers) -> Bytes:
        """The records of `rows`, one per line."""
        records = np.repeat(self.record, len(rows), axis=0)
        for columns, cells in self.cells:
            records[:, columns] = cells.of(rows)
        return records


def _size(part: _Part) -> int:
    return len(part) if isinstance(part, bytes) else part.table.shape[1]


def _varint(number: int) -> bytes:
    """The shortest encoding, for tags and lengths."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def _number(field: int, value: _Cells | int) -> list[_Part]:
    return [_varint(field << 3), value if isinstance(value, _Cells) else _varint(value)]


def _fixed64(field: int, values: npt.NDArray[Any]) -> list[_Part]:
    little_endian = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return [_varint(field << 3 | 1), _Cells(little_endian.view(np.uint8).reshape(-1, 8))]


def _message(field: int, parts: Sequence[_Part]) -> list[_Part]:
    return [_varint(field << 3 | 2) + _varint(sum(map(_size, parts))), *parts]


def _varints(values: npt.NDArray[Any], index: Integers | None = None) -> _Cells:
    """Whole numbers, each with as many bytes as the largest needs; a negative one needs all ten."""
    numbers = values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    table = np.empty((len(numbers), width), np.uint8)
    for i in range(width):
        table[:, i] = (numbers >> np.uint64(7 * i)).astype(np.uint8) | np.uint8(128)
    table[:, -1] &= 127
    return _Cells(table, index)


def _vector(axes: Sequence[Integers]) -> list[_Part]:
    return [part for field, values in enumerate(axes, 1) for part in _number(field, _varints(values))]


def _templates(sequence: int, time: _Cells, event: int, fields: Sequence[_Field]) -> tuple[Integers, list[_Template]]:
    """Packets with the message `event` of these `fields`: for every row the number of its template, and the templates.

    There is one template per set of present fields that occurs.
    """
    pattern = np.zeros(len(time.table), np.int64)
    optional = [field.present for field in fields if field.present is not None]
    if len(optional) > 62:
        raise ValueError(f"{len(optional)} columns have nulls; at most 62 may")
    for i, present in enumerate(optional):
        pattern |= present.astype(np.int64) << i
    occurring = np.unique(pattern) if optional else np.zeros(1, np.int64)
    templates = []
    for bits in occurring.tolist():
        has = iter([bool(bits >> i & 1) for i in range(len(optional))])
        parts = [part for field in fields if field.present is None or next(has) for part in field.parts]
        head = [*_number(8, time), *_number(10, sequence), *_number(13, 2)]  # 2: needs the interned strings
        templates.append(_Template(_message(1, [*head, *_message(event, parts)])))
    return np.searchsorted(occurring, pattern), templates


def _records(templates: Sequence[_Template], of_event: Integers, rows: Integers) -> Iterator[bytes]:
    """The records of all events in their order: event i is row `rows[i]` in the template `of_event[i]`."""
    widths = np.array([template.width for template in templates], np.int64)
    for begin in range(0, len(rows), _CHUNK_EVENTS):
        kinds, chunk = of_event[begin : begin + _CHUNK_EVENTS], rows[begin : begin + _CHUNK_EVENTS]
        ends = np.cumsum(widths[kinds])
        content = np.empty(ends[-1], np.uint8)
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            events, width = np.flatnonzero(kinds == kind), templates[kind].width
            # Every offset of the chunk seen as a place for a whole record, so that a record is put by one copy.
            places = np.ndarray((len(content) - width + 1,), f"V{width}", content, strides=(1,))
            places[ends[events] - width] = templates[kind].fill(chunk[events]).view(f"V{width}")[:, 0]
        yield content.tobytes()


# --- What goes into the records ---


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
        self._bulk: list[Iterator[bytes]] = []
        if self.slices:
            self._bulk.append(self._slice_records(slices))
        if self.counters:
            self._bulk.append(self._counter_records(counters))
        if self.kernels:
            self._bulk.append(self._kernel_records(kernels))

    def chunks(self) -> Iterator[bytes]:
        """All bytes, once: the header, then every bulk of records in the order of its times."""
        return chain([self._header()], *self._bulk)

    def _slice_records(self, frame: pl.DataFrame) -> Iterator[bytes]:
        start, end = self._times("slices", frame, SLICE_COLUMNS, "start_ns", "end_ns")
        track = self._track_indices("slices", frame, counters=False)
        rows, is_end = _events_in_order(start, end)
        _check_nesting(frame, track, rows, is_end)
        uuid = _varints(self._uuids, track)
        fields = [_Field([*_number(9, 1), *_number(11, uuid), *_number(10, self._intern("names", frame["name"]))])]
        if "category" in frame.columns:
            category = self._intern("categories", frame["category"])
            fields.append(_Field(_number(3, category), _present(frame, "category")))
        for name in frame.columns:
            if name not in (*SLICE_COLUMNS, *OPTIONAL_SLICE_COLUMNS):
                self._strings["annotations"].append(name)
                named = _number(1, len(self._strings["annotations"]))
                fields.append(_Field(_message(4, [*named, *self._annotation(frame[name])]), _present(frame, name)))
        if "flow_id" in frame.columns:
            flow = frame["flow_id"].cast(pl.UInt64).fill_null(0).to_numpy()
            causes, effects = self._joined_flows(frame, rows[~is_end], flow)
            fields += [_Field(_fixed64(47, flow), causes), _Field(_fixed64(48, flow), effects)]
        of_row, templates = _templates(_TRACK_EVENTS, _varints(start), 11, fields)
        at_end = [_Field([*_number(9, 2), *_number(11, uuid)])]
        end_template = _templates(_TRACK_EVENTS, _varints(end), 11, at_end)[1]
        return _records([*templates, *end_template], np.where(is_end, len(templates), of_row[rows]), rows)

    def _counter_records(self, frame: pl.DataFrame) -> Iterator[bytes]:
        time, _ = self._times("counters", frame, COUNTER_COLUMNS, "time_ns", "time_ns")
        uuid = _varints(self._uuids, self._track_indices("counters", frame, counters=True))
        values = frame["value"].cast(pl.Float64).to_numpy()
        _refuse("counters", frame, ~np.isfinite(values), "value is not finite; leave it null")
        fields = [_Field([*_number(9, 4), *_number(11, uuid), *_fixed64(44, values)])]
        of_row, templates = _templates(_TRACK_EVENTS, _varints(time), 11, fields)
        return _records(templates, of_row, np.argsort(time, kind="stable"))

    def _kernel_records(self, frame: pl.DataFrame) -> Iterator[bytes]:
        start, end = self._times("kernels", frame, KERNEL_COLUMNS, "start_ns", "end_ns")
        fields = [
            _Field(
                [
                    *_number(1, _varints(np.arange(1, frame.height + 1))),
                    *_number(2, _varints(end - start)),
                    *_number(5, self._intern("processes", frame["process"].cast(pl.String))),
                    *_number(11, _varints(frame["gpu_id"].to_numpy())),
                    *_number(13, self._intern("queues", frame["queue"])),
                    *_number(14, len(self._strings["queues"]) + 1),  # the one stage is interned after the queues
                    *_number(20, self._intern("kernels", frame["name"])),
                ]
            )
        ]
        if "submission_id" in frame.columns:
            submission = frame["submission_id"].cast(pl.UInt32).fill_null(0).to_numpy()
            fields.append(_Field(_number(10, _varints(submission)), _present(frame, "submission_id")))
        if set(LAUNCH_COLUMNS) <= set(frame.columns):
            sizes = {name: frame[name].cast(pl.Int64).fill_null(1).to_numpy() for name in LAUNCH_COLUMNS}
            _refuse("kernels", frame, np.min(list(sizes.values()), axis=0) < 1, "a launch has at least one work-item")
            grid, workgroup = [sizes[name] for name in LAUNCH_COLUMNS[:3]], [sizes[name] for name in LAUNCH_COLUMNS[3:]]
            grid = [-(-items // size) for items, size in zip(grid, workgroup, strict=True)]  # in workgroups, rounded up
            launch = [*_message(1, _vector(grid)), *_message(2, _vector(workgroup))]
            fields.append(_Field(_message(21, launch), _present(frame, *LAUNCH_COLUMNS)))
        of_row, templates = _templates(_GPU_STAGES, _varints(start), 53, fields)
        rows = np.argsort(start, kind="stable")
        return _records(templates, of_row[rows], rows)

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

    def _intern(self, table: str, values: pl.Series) -> _Cells:
        strings, before = values.drop_nulls().unique(maintain_order=True).cast(pl.String), len(self._strings[table])
        self._strings[table] += strings.to_list()
        codes = values.cast(pl.String).cast(pl.Enum(strings)).to_physical().cast(pl.Int64).fill_null(0).to_numpy()
        return _varints(np.arange(before + 1, before + max(1, len(strings)) + 1), codes)

    def _annotation(self, values: pl.Series) -> list[_Part]:
        if values.dtype == pl.String:
            return _number(17, self._intern("annotation_texts", values))
        if values.dtype.is_float():
            return _fixed64(5, values.cast(pl.Float64).fill_null(0).to_numpy())
        if values.dtype.is_integer():
            return _number(3 if values.dtype.is_unsigned_integer() else 4, _varints(values.fill_null(0).to_numpy()))
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
            _describe(track, trace.packet.add().track_descriptor, orders_children=track.uuid in ordered)
        if self._metadata:
            used = {track.uuid for track in self._tracks}
            session = Track(next(uuid for uuid in count(1) if uuid not in used), "session")
            _describe(session, trace.packet.add().track_descriptor, orders_children=False)
            instant = trace.packet.add(trusted_packet_sequence_id=_TRACK_EVENTS)
            instant.timestamp = min(self._first_times, default=0)
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


def _describe(track: Track, descriptor: Any, *, orders_children: bool) -> None:
    """Fill the TrackDescriptor of `track`."""
    descriptor.uuid, descriptor.name = track.uuid, track.name
    if track.parent is not None:
        descriptor.parent_uuid = track.parent
    if track.order is not None:
        descriptor.sibling_order_rank = track.order
    if orders_children:
        descriptor.child_ordering = descriptor.EXPLICIT
    if track.kind == "counter":
        descriptor.counter.unit_name = track.unit or ""
    elif track.kind == "process":
        descriptor.process.pid, descriptor.process.process_name = track.pid, track.name
    elif track.kind == "thread":
        descriptor.thread.pid, descriptor.thread.tid = track.pid, track.tid
        descriptor.thread.thread_name = track.name


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


def _sorted(values: Integers, then_by: Integers) -> Integers:
    """The order by `values`, equal ones by `then_by`. Sorting by both is slow, and equal ones are rare."""
    order = np.argsort(values, kind="stable")
    return np.lexsort((then_by, values)) if (np.diff(values[order]) == 0).any() else order


def _events_in_order(start: Integers, end: Integers) -> tuple[Integers, Mask]:
    """The row of every begin and end in the order of a valid trace, and which of them are ends.

    At one instant what began before ends first (inner before outer); then the new slices begin (outer before inner);
    those without duration end at once.
    """
    begins = _sorted(start, -end)
    instant = (start == end)[begins]
    lasting = begins[~instant]
    ends = lasting[_sorted(end[lasting], -np.arange(len(lasting)))]
    twice = np.repeat(begins, 1 + instant)
    rows = np.concatenate((ends, twice))
    is_end = np.ones(len(rows), bool)
    is_end[len(ends) :] = np.diff(twice, prepend=-1) == 0
    in_order = np.argsort(np.where(is_end, end[rows], start[rows]), kind="stable")  # a merge of two sorted runs
    return rows[in_order], is_end[in_order]


def _check_nesting(frame: pl.DataFrame, track: Integers, rows: Integers, is_end: Mask) -> None:
    crossing = _crossing(track, rows, is_end, frame.height)
    _refuse("slices", frame, crossing, "overlaps a slice of its track without nesting; give it another lane")


def _crossing(track: Integers, rows: Integers, is_end: Mask, height: int) -> Mask:
    """Slices nest exactly when each ends with as many open slices on its track as it began with."""
    tracks = track[rows].astype(np.uint16 if track.max() < 1 << 16 else np.int64)  # sorting short numbers is quick
    by_track = np.argsort(tracks, kind="stable")
    open_after = np.empty(len(rows), np.int64)
    open_after[by_track] = np.cumsum(1 - 2 * is_end[by_track].astype(np.int64))
    at_begin, at_end = np.empty((2, height), np.int64)
    at_begin[rows[~is_end]] = open_after[~is_end] - 1
    at_end[rows[is_end]] = open_after[is_end]
    crossing: Mask = at_begin != at_end
    return crossing
