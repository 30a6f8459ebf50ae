"""rocprofv3's `*_results.json` (one line, one element per process, possibly gzip-compressed) to canonical tables.

Facts of the format this reader relies on (seen on 7.x, read in the writer's source for the rest): times are integer ns
of the host's boot clock; grids count work-items; `kind` and `operation` of a record index the lists in `strings`; the
first kernel symbol is a placeholder; a counter has one record per dispatch and hardware instance; handles and addresses
reach 2^64 - 1. The file is written at the end of the process, so a cut one is read up to the cut.
"""

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits, open_unpacked
from aaco_pipeline.formats.parsing.json_stream import Cursor, CutError, Pieces, lines
from aaco_pipeline.formats.rocprofv3_json import tables as rocprofv3_json_tables
from aaco_pipeline.formats.rocprofv3_json.columns import SCHEMAS, SYMBOLS, Process

ROOT: Final = "rocprofiler-sdk-tool"
_LISTS: Final = ("buffer_records", "callback_records")
#: Small parts that are kept whole; every other part of a process is passed over.
_KEPT: Final = ("metadata", "agents", "counters", "strings")
_PROBED_BYTES: Final = 4096


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a results file by its first key; None for anything else. Reads at most 4 KiB."""
    try:
        with open_unpacked(path) as stream:
            head = stream.read(_PROBED_BYTES).lstrip()
    except (CaptureError, OSError, EOFError, zlib.error):
        return None
    if head.startswith(b"{") and head[1:].lstrip().startswith(f'"{ROOT}"'.encode()):
        return DetectedFormat("rocprofv3-json", "rocprofv3 results (JSON)")
    return None


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read a results file; times are int64 ns of the host's boot clock, unshifted.

    Tables: `processes`, `devices`, `clock_domains`, `kernels` (those that were dispatched), `dispatches`, `api_calls`,
    `memory_copies`, `markers`, `counters` (summed over hardware instances, `pass` empty: the caller knows which pass
    a file is), `memory_allocations`, `pc_samples`. Details: `source_rows`; `dispatch_keys` (`dispatch_id`,
    `source_dispatch_id`, `process_id`); `queues` and `streams` (dense id, `process_id`, `handle`, of queues also
    `device_id`). A run that only counted has its dispatches from the counter records.

    Memory: the columns, and one piece of the file. A file that stops in the middle is read up to its last whole record
    and told as `partial`. Raises CaptureError for another format, damage before the end, or beyond the limits.
    """
    limits = limits or Limits()
    processes: list[Process] = []
    cut = False
    found = False
    with Pieces(path, limits) as pieces:
        cursor = Cursor(path, pieces, limits)
        try:
            for key in cursor.entries():
                if key != ROOT:
                    cursor.skip()
                    continue
                found = True
                for _ in cursor.items():
                    processes.append(Process())
                    _read_process(path, cursor, limits, processes[-1])
        except CutError:
            cut = True
    if not found or not processes:
        raise CaptureError(f"{path}: not a rocprofv3 results file, or empty: no process in {ROOT}")
    return rocprofv3_json_tables.reading(path, processes, cut)


def _read_process(path: Path, cursor: Cursor, limits: Limits, into: Process) -> None:
    for part in cursor.entries():
        if part in _LISTS and cursor.follows(b"{"):
            for kind in cursor.entries():
                _read_records(path, cursor, limits, into, kind)
        elif part == "kernel_symbols" and cursor.follows(b"["):
            frames = [_parsed(path, piece, SYMBOLS) for piece in _batches(path, cursor, limits, into, part)]
            into.symbols = pl.concat([into.symbols, *frames])
        elif part in _KEPT:
            into.parts[part] = cursor.value()
        elif cursor.follows(b"["):
            for _ in _batches(path, cursor, limits, into, part):
                pass
        else:
            cursor.skip()


def _read_records(path: Path, cursor: Cursor, limits: Limits, into: Process, kind: str) -> None:
    """Add the records of one kind; of a cut file those before the cut."""
    into.counts.setdefault(kind, 0)
    if not cursor.follows(b"["):
        cursor.skip()
        return
    frames: list[pl.DataFrame] = []
    try:
        for batch in _batches(path, cursor, limits, into, kind):
            if kind in SCHEMAS:
                frames.append(_parsed(path, batch, SCHEMAS[kind]))
    finally:
        if frames:
            before = [into.records[kind]] if kind in into.records else []
            into.records[kind] = pl.concat([*before, *frames])


def _batches(path: Path, cursor: Cursor, limits: Limits, into: Process, kind: str) -> Iterator[io.BytesIO]:
    """The objects of the array that comes next, one a line, some at a time; counts them."""
    for piece, part in cursor.batches():
        into.counts[kind] = into.counts.get(kind, 0) + len(part.start)
        if into.counts[kind] > limits.events:
            raise CaptureError(f"{path}: more than {limits.events} records of {kind}; profile a shorter run")
        if len(part.start):
            yield lines(piece, part)


def _parsed(path: Path, text: io.BytesIO, schema: pl.Schema) -> pl.DataFrame:
    try:
        return pl.read_ndjson(text, schema=schema)
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise CaptureError(
            f"{path}: damaged: a record is not as expected: {str(error).splitlines()[0][:200]}"
        ) from error
