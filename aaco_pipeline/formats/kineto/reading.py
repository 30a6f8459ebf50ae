"""Read a Kineto trace into frames of its events by kind, piece by piece, in one pass over the file.

`aaco_pipeline.formats.kineto.tables` builds the tables.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.kineto.events import (
    CALLS,
    COLLECTIVE_NUMBERS,
    COLLECTIVE_RECORD,
    COLLECTIVE_TEXTS,
    COPIES,
    FLOWS,
    FORMER,
    KERNELS,
    LAUNCHED_KERNEL,
    MARKERS,
    MORE_OF_INPUTS,
    OPERATORS,
    RATIOS,
    RUNTIMES,
    SHAPES,
    SYNCS,
    Collected,
)
from aaco_pipeline.formats.kineto.tables import Trace
from aaco_pipeline.formats.parsing.json_fields import Column, Objects
from aaco_pipeline.formats.parsing.json_stream import Cursor, CutError, Pieces, Positions

_EVENTS: Final = "traceEvents"
_OUTER: Final = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id")
_INNER: Final = (
    *("correlation", "device", "stream", "bytes", "grid", "block", "shared memory", "graph node id"),
    *("registers per thread", "blocks per SM", "warps per SM", "est. achieved occupancy %"),
    *("cuda_sync_kind", "wait_on_stream", "wait_on_cuda_event_record_corr_id", *SHAPES, *MORE_OF_INPUTS),
    *(*COLLECTIVE_TEXTS.values(), *COLLECTIVE_NUMBERS.values(), LAUNCHED_KERNEL),
)


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.kineto.read`."""
    collected = Collected()
    metadata: dict[str, Any] = {}
    with Pieces(path, limits) as pieces:
        cursor = Cursor(path, pieces, limits)
        try:
            if cursor.follows(b"["):
                _read_events(path, cursor, limits, collected)
            else:
                for key in cursor.entries():
                    if key == _EVENTS and cursor.follows(b"["):
                        _read_events(path, cursor, limits, collected)
                    else:
                        metadata[key] = cursor.value()
        except CutError:
            collected.cut = True
    if not collected.found:
        raise CaptureError(f"{path}: not a Kineto trace, or cut before its events: no array traceEvents")
    return Trace(path, metadata, collected).reading()


def _read_events(path: Path, cursor: Cursor, limits: Limits, into: Collected) -> None:
    """Collect every complete event of the next array."""
    into.found = True
    for piece, part in cursor.batches():
        into.events += len(part.start)
        if into.events > limits.events:
            raise CaptureError(f"{path}: more than {limits.events} events; profile fewer steps")
        if len(part.start):
            _collect(Objects(piece, part, _OUTER, "args", _INNER), into)


def _collect(events: Objects, into: Collected) -> None:
    """Add the columns of one piece's events; each column is only read for the events that need it."""
    everything = np.arange(events.count)
    kinds = pl.DataFrame({"ph": events.texts("ph", everything), "cat": events.texts("cat", everything)})
    kinds = kinds.with_columns(pl.col("cat").replace(FORMER))
    into.pieces["counts"].append(kinds.group_by("ph", "cat", maintain_order=True).len())
    complete = pl.col("ph") == "X"

    def rows(taken: pl.Expr) -> Positions:
        return kinds.select(taken.fill_null(False).arg_true()).to_series().to_numpy().astype(np.int64)

    cats = pl.col("cat")
    if len(kernels := rows(complete & (cats == KERNELS))):
        into.pieces["kernels"].append(_kernels(events, kernels))
    if len(copies := rows(complete & cats.is_in(COPIES))):
        frame = _device_activities(events, copies, kinds)
        into.pieces["copies"].append(frame.with_columns(bytes=events.integers("bytes", copies).series()))
    if len(syncs := rows(complete & (cats == SYNCS))):
        into.pieces["syncs"].append(_syncs(events, syncs, kinds))
    for kind, wanted in (("calls", CALLS), ("markers", MARKERS)):
        if len(chosen := rows(complete & cats.is_in(wanted))):
            correlation = events.unsigned("correlation", chosen).series()
            frame = _times(events, chosen, kinds).with_columns(correlation=correlation)
            into.pieces[kind].append(frame)
            if wanted is CALLS:
                _collectives(events, chosen, frame, into)
    if events.any_has(next(iter(SHAPES))) and len(operators := rows(cats == OPERATORS)):
        into.pieces["shapes"].append(_shapes(events, operators))
    if events.any_has(LAUNCHED_KERNEL) and len(launches := rows(complete & cats.is_in(RUNTIMES))):
        into.pieces["launches"].append(_launches(events, launches))
    if len(flows := rows(pl.col("ph").is_in(["s", "f"]) & (cats == FLOWS))):
        flow, thread, time = (
            events.unsigned("id", flows),
            events.integers("tid", flows),
            events.thousandths("ts", flows),
        )
        columns = {"flow_id": flow.series(), "thread_id": thread.series(), "time_ns": time.series()}
        into.pieces["flows"].append(kinds[flows].select(role="ph", **columns))


def _shapes(events: Objects, rows: Positions) -> pl.DataFrame:
    """Read the operators that state the shapes and types of their inputs, as text from the trace."""
    recorded = {**SHAPES, **MORE_OF_INPUTS}
    return pl.DataFrame(
        {
            "operator": events.texts("name", rows).cast(pl.Categorical),
            "start_ns": events.thousandths("ts", rows).series(),
            **{column: events.lists(key, rows).cast(pl.Categorical) for key, column in recorded.items()},
        }
    ).drop_nulls(["operator", "start_ns", *SHAPES.values()])


def _launches(events: Objects, rows: Positions) -> pl.DataFrame:
    """Read the calls that state the kernel they launch and its size."""
    return pl.DataFrame(
        {
            "correlation": events.unsigned("correlation", rows).series(),
            "kernel": events.texts(LAUNCHED_KERNEL, rows).cast(pl.Categorical),
            **{name: column.series() for name, column in _sizes(events, rows).items()},
        }
    ).drop_nulls(["correlation", "kernel"])


def _sizes(events: Objects, rows: Positions) -> dict[str, Column]:
    """Read work-items of the grid and of a workgroup along each axis; Kineto's grid counts blocks."""
    columns: dict[str, Column] = {}
    for axis, block, size in zip("xyz", events.triples("grid", rows), events.triples("block", rows), strict=True):
        columns[f"grid_{axis}"] = Column(block.value * size.value, block.valid & size.valid)
        columns[f"workgroup_{axis}"] = size
    return columns


def _times(events: Objects, rows: Positions, kinds: pl.DataFrame) -> pl.DataFrame:
    """Read the columns of every relevant event; `start_ns` and `end_ns` are null if the times are unreadable."""
    start, length = events.thousandths("ts", rows), events.thousandths("dur", rows)
    end = Column(start.value + length.value, start.valid & length.valid)
    return pl.DataFrame(
        {
            "cat": kinds.get_column("cat").gather(rows).cast(pl.Categorical),
            "name": events.texts("name", rows).cast(pl.Categorical),
            "pid": events.integers("pid", rows).series(),
            "tid": events.integers("tid", rows).series(),
            "start_ns": Column(start.value, end.valid).series(),
            "end_ns": end.series(),
        }
    )


def _collectives(events: Objects, rows: Positions, calls: pl.DataFrame, into: Collected) -> None:
    """Collect the operators that record a collective, with its arguments."""
    recording = (calls.get_column("name") == COLLECTIVE_RECORD).fill_null(False)
    if recording.any():
        found = rows[recording.to_numpy()]
        texts = {name: events.texts(key, found) for name, key in COLLECTIVE_TEXTS.items()}
        numbers = {name: events.integers(key, found).series() for name, key in COLLECTIVE_NUMBERS.items()}
        into.pieces["collectives"].append(calls.filter(recording).with_columns(**texts, **numbers))


def _device_activities(events: Objects, rows: Positions, kinds: pl.DataFrame) -> pl.DataFrame:
    """Read times with device, stream and correlation; early traces use the process and thread for the first two."""
    placed = _times(events, rows, kinds).with_columns(
        device=events.integers("device", rows).series(),
        stream=events.integers("stream", rows).series(),
        correlation=events.unsigned("correlation", rows).series(),
    )
    placed = placed.with_columns(device=pl.coalesce("device", "pid"), stream=pl.coalesce("stream", "tid"))
    return placed.drop("pid", "tid")


def _kernels(events: Objects, rows: Positions) -> pl.DataFrame:
    kinds = pl.DataFrame({"cat": pl.repeat(KERNELS, events.count, eager=True)})
    columns = {
        "lds": events.integers("shared memory", rows),
        "graph_node_id": events.unsigned("graph node id", rows),
        "registers_per_thread": events.integers("registers per thread", rows),
        **_sizes(events, rows),
    }
    keys = zip(RATIOS, ("blocks per SM", "warps per SM", "est. achieved occupancy %"), strict=True)
    return _device_activities(events, rows, kinds).with_columns(
        **{name: column.series() for name, column in columns.items()},
        **{name: events.thousandths(key, rows).series() / 1000 for name, key in keys},
    )


def _syncs(events: Objects, rows: Positions, kinds: pl.DataFrame) -> pl.DataFrame:
    return _device_activities(events, rows, kinds).with_columns(
        kind=events.texts("cuda_sync_kind", rows),
        waited_stream=events.integers("wait_on_stream", rows).series(),
        waited_correlation_id=events.unsigned("wait_on_cuda_event_record_corr_id", rows).series(),
    )
