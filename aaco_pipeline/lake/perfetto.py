"""Tracks and frames in, the bytes of a Perfetto trace out: every record of a kind is filled by columns, none by itself.

What becomes a track or a slice is decided by the caller; nothing here knows a table of the lake or runs a viewer.
"""

import gzip
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.lake.files import write_atomically

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

SLICE_COLUMNS: Final = ("track", "start_ns", "end_ns", "name")
FLOW_AND_CATEGORY_COLUMNS: Final = ("category", "flow_id", "flow_role")
COUNTER_COLUMNS: Final = ("track", "time_ns", "value")
KERNEL_COLUMNS: Final = ("gpu_id", "process", "queue", "start_ns", "end_ns", "name")
LAUNCH_COLUMNS: Final = tuple(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz")

_TRACK_EVENTS: Final = 1  # the packet sequences: each has its own interned strings
_GPU_STAGES: Final = 2
_LONGEST_VARINT: Final = 10
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

    `flow_ends_left_out` counts slices whose flow could not be drawn: no partner, or one that begins before its cause.
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
    cause, "in" at the effect; an id joins its first cause to its first later effect), and annotations: every
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


def assign_lanes(frame: pl.DataFrame, *, by: Sequence[str] = ("track",)) -> pl.DataFrame:
    """`frame` with a column `lane` (int32, from 0 in every group of `by`): no two slices of a lane overlap.

    There are as many lanes as slices ever run at once. Nested slices get lanes of their own, too.
    """
    start, end = (frame[name].cast(pl.Int64).to_numpy() for name in ("start_ns", "end_ns"))
    groups = frame.select(pl.struct(by).rank("dense")).to_series().to_numpy().astype(np.int64)
    rows, is_end = _events_in_order(start, end)
    by_group = np.argsort(groups[rows], kind="stable")
    rows, is_end = rows[by_group], is_end[by_group]
    # How many run at once goes up to `level` at a begin and down from it at an end. Whoever brings it up takes the
    # lane of whoever last brought it down from there, so following these predecessors leads to the lane's first slice.
    running = np.cumsum(1 - 2 * is_end.astype(np.int64))
    level = running + is_end
    by_level = np.lexsort((level, groups[rows]))
    row, at_end = rows[by_level], is_end[by_level]
    reuses = np.flatnonzero(~at_end[1:] & at_end[:-1] & (level[by_level][1:] == level[by_level][:-1])) + 1
    reuses = reuses[groups[row[reuses]] == groups[row[reuses - 1]]]
    first = np.arange(frame.height)
    first[row[reuses]] = row[reuses - 1]
    while (further := first[first] != first).any():
        first[further] = first[first[further]]
    lane = np.zeros(frame.height, np.int64)
    lane[rows[~is_end]] = level[~is_end] - 1
    return frame.with_columns(pl.Series("lane", lane[first], pl.Int32))


# --- Records: bytes that never change, with columns of fixed width between them ---


@dataclass(frozen=True)
class _Cells:
    """A column, encoded to one width: row i is line i of `table`, or line `index[i]` of it."""

    table: Bytes
    index: Integers | None = None

    def of(self, rows: Integers) -> Bytes:
        return self.table[rows if self.index is None else self.index[rows]]


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
        self.record = np.frombuffer(constant, np.uint8)

    def fill(self, rows: Integers) -> Bytes:
        """The records of `rows`, one per line."""
        records = np.empty((len(rows), self.width), np.uint8)
        records[:] = self.record
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


def _number(field: int, value: "_Cells | int") -> list[_Part]:
    return [_varint(field << 3), value if isinstance(value, _Cells) else _varint(value)]


def _fixed64(field: int, values: npt.NDArray[Any]) -> list[_Part]:
    little_endian = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return [_varint(field << 3 | 1), _Cells(little_endian.view(np.uint8).reshape(-1, 8))]


def _message(field: int, parts: Sequence[_Part]) -> list[_Part]:
    return [_varint(field << 3 | 2) + _varint(sum(map(_size, parts))), *parts]


def _varints(values: npt.NDArray[Any]) -> _Cells:
    """Whole numbers, each with as many bytes as the largest needs; a negative one needs all ten."""
    numbers = values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    table = np.empty((len(numbers), width), np.uint8)
    for i in range(width):
        table[:, i] = (numbers >> np.uint64(7 * i)).astype(np.uint8) | np.uint8(128)
    table[:, -1] &= 127
    return _Cells(table)


def _packet(sequence: int, time: _Cells, flags: int, event: Sequence[_Part]) -> list[_Part]:
    return _message(1, [*_number(8, time), *_number(10, sequence), *_number(13, flags), *event])


def _templates(
    wrap: Callable[[Sequence[_Part]], Sequence[_Part]], fields: Sequence[_Field], rows: int
) -> tuple[Integers, list[_Template]]:
    """For every row the number of its template, and the templates: one per set of present fields that occurs."""
    pattern = np.zeros(rows, np.int64)
    optional = [field.present for field in fields if field.present is not None]
    if len(optional) > 62:
        raise ValueError(f"{len(optional)} columns of slices have nulls; at most 62 may")
    for i, present in enumerate(optional):
        pattern |= present.astype(np.int64) << i
    occurring = np.unique(pattern)
    templates = []
    for bits in occurring.tolist():
        has = iter([bool(bits >> i & 1) for i in range(len(optional))])
        templates.append(_Template(wrap([p for f in fields if f.present is None or next(has) for p in f.parts])))
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
    """A checked trace: its counts, and its bytes on demand."""

    def __init__(
        self,
        tracks: Sequence[Track],
        slices: pl.DataFrame,
        counters: pl.DataFrame | None,
        kernels: pl.DataFrame | None,
        metadata: Mapping[str, str | int | float] | None,
    ) -> None:
        _check_tracks(tracks)
        self._tracks = tracks
        self._metadata = metadata or {}
        self._first_time: list[int] = []
        self._interned: dict[str, list[str]] = {}
        self.flows = self.flow_ends_left_out = 0
        self._bulk = [self._slices(slices)] if slices.height else []
        self.slices = slices.height
        counters = pl.DataFrame() if counters is None or not counters.height else counters.drop_nulls("value")
        self._bulk += [self._counters(counters)] if counters.height else []
        self.counters = counters.height
        kernels = pl.DataFrame() if kernels is None else kernels
        self._bulk += [self._kernels(kernels)] if kernels.height else []
        self.kernels = kernels.height

    def chunks(self) -> Iterator[bytes]:
        yield self._header()
        for records in self._bulk:
            yield from records

    def _slices(self, frame: pl.DataFrame) -> Iterator[bytes]:
        start, end, track = self._times_and_tracks("slices", frame, "start_ns", "end_ns", counters=False)
        rows, is_end = _events_in_order(start, end)
        _check_nesting(frame, track, rows, is_end)
        names = self._intern("event_names", frame["name"])
        own = [_Field([*_number(9, 1), *_number(11, self._uuids(track)), *_number(10, names)])]
        if "category" in frame.columns:
            own.append(_Field(_number(3, self._intern("event_categories", frame["category"])), _present(frame["category"])))
        annotations = [c for c in frame.columns if c not in (*SLICE_COLUMNS, *FLOW_AND_CATEGORY_COLUMNS)]
        for iid, name in enumerate(annotations, 1):
            own.append(_Field(_message(4, [*_number(1, iid), *self._annotation(frame[name])]), _present(frame[name])))
        self._interned["debug_annotation_names"] = annotations
        if "flow_id" in frame.columns:
            ids = frame["flow_id"].cast(pl.UInt64).fill_null(0).to_numpy()
            causes, effects = self._joined_flows(frame, rows[~is_end])
            own += [_Field(_fixed64(47, ids), causes), _Field(_fixed64(48, ids), effects)]
        own = [field for field in own if field.present is None or field.present.any()]

        def begin(parts: Sequence[_Part]) -> list[_Part]:
            return _packet(_TRACK_EVENTS, _varints(start), 2, _message(11, parts))

        of_row, templates = _templates(begin, own, frame.height)
        end_event = _message(11, [*_number(9, 2), *_number(11, self._uuids(track))])
        templates.append(_Template(_packet(_TRACK_EVENTS, _varints(end), 2, end_event)))
        return _records(templates, np.where(is_end, len(templates) - 1, of_row[rows]), rows)

    def _counters(self, frame: pl.DataFrame) -> Iterator[bytes]:
        time, _, track = self._times_and_tracks("counters", frame, "time_ns", "time_ns", counters=True)
        values = frame["value"].cast(pl.Float64).to_numpy()
        _refuse("counters", frame, ~np.isfinite(values), "value is not a finite number; leave it null")
        event = _message(11, [*_number(9, 4), *_number(11, self._uuids(track)), *_fixed64(44, values)])
        template = _Template(_packet(_TRACK_EVENTS, _varints(time), 2, event))
        return _records([template], np.zeros(frame.height, np.int64), np.argsort(time, kind="stable"))

    def _kernels(self, frame: pl.DataFrame) -> Iterator[bytes]:
        start, end = self._times("kernels", frame, KERNEL_COLUMNS, "start_ns", "end_ns")
        every: list[_Part] = [
            *_number(1, _varints(np.arange(1, frame.height + 1))),
            *_number(2, _varints(end - start)),
            *_number(13, self._intern("queues", frame["queue"])),
            *_number(14, 1 + len(self._interned["queues"])),  # the one stage follows the queues
            *_number(11, _varints(frame["gpu_id"].to_numpy())),
            *_number(5, self._intern("processes", frame["process"].cast(pl.String))),
            *_number(20, self._intern("kernel_names", frame["name"])),
        ]
        own = [_Field(every)]
        if "submission_id" in frame.columns:
            submissions = frame["submission_id"].cast(pl.UInt32).fill_null(0).to_numpy()
            own.append(_Field(_number(10, _varints(submissions)), _present(frame["submission_id"])))
        if set(LAUNCH_COLUMNS) <= set(frame.columns):
            launch = {name: frame[name].cast(pl.UInt32).fill_null(1).to_numpy() for name in LAUNCH_COLUMNS}
            _refuse("kernels", frame, np.any([a == 0 for a in launch.values()], axis=0), "a launch has no work-items")
            workgroups = {f"grid_{axis}": -(-launch[f"grid_{axis}"].astype(np.int64) // launch[f"workgroup_{axis}"]) for axis in "xyz"}
            sizes = [
                _message(field, [p for i, axis in enumerate("xyz", 1) for p in _number(i, _varints(of[f"{what}_{axis}"]))])
                for field, what, of in ((1, "grid", workgroups), (2, "workgroup", launch))
            ]
            known = frame.select(pl.all_horizontal(pl.col(LAUNCH_COLUMNS).is_not_null())).to_series().to_numpy()
            own.append(_Field(_message(21, [*sizes[0], *sizes[1]]), known))

        def stage(parts: Sequence[_Part]) -> list[_Part]:
            return _packet(_GPU_STAGES, _varints(start), 2, _message(53, parts))

        rows = np.argsort(start, kind="stable")
        of_row, templates = _templates(stage, own, frame.height)
        return _records(templates, of_row[rows], rows)
