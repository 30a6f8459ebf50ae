"""The text of rocprofv3's results file to frames of its records by process and kind, piece by piece.

What the records become is `aaco_pipeline.formats.rocprofv3_json.tables`.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.parsing.json_stream import Cursor, CutError, Pieces, lines
from aaco_pipeline.formats.rocprofv3_json import tables
from aaco_pipeline.formats.rocprofv3_json.columns import SCHEMAS, SYMBOLS
from aaco_pipeline.formats.rocprofv3_json.processes import Process
from aaco_pipeline.formats.rocprofv3_json.signs import ROOT

_LISTS: Final = ("buffer_records", "callback_records")
#: Small parts that are kept whole; every other part of a process is passed over.
_KEPT: Final = ("metadata", "agents", "counters", "strings")


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.rocprofv3_json.read`."""
    processes: list[Process] = []
    cut = found = False
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
    return tables.reading(path, processes, cut)


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
    for batch in _batches(path, cursor, limits, into, kind):
        if kind in SCHEMAS:
            into.records.setdefault(kind, []).append(_parsed(path, batch, SCHEMAS[kind]))


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
