"""The trace database of rocprof version 1 (`results.db`, SQLite, possibly gzip-compressed).

Written by its `tblextr.py` next to `results.csv` with `--hip-trace`, `--hsa-trace`, `--roctx-trace` or `--sys-trace`.
Based on that program's source; no real file has been available. Tables, all times in ns of one clock: `HIP` and `HSA`
are calls, `OPS` and `COPY` device activities, with the number of the HIP call that requested them (`Index`, counted
within a process), `KERN` the kernels of a run without `OPS`, with counters as columns as in `results.csv`, `rocTX`
ranges and marks. Not read: call arguments, the writer's own rows (`hsa_dispatch`, barrier packets), and the sizes of
grids and copies, which the writer omits.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import first_bytes
from aaco_pipeline.formats.parsing.sqlite_database import MAGIC, connected

KERNELS: Final = "KERN"
#: The writer creates the table of kernels in every database, with at least these columns.
SIGNATURE: Final = frozenset({"Index", "KernelName"})
_PROBED_BYTES: Final = 256 << 10
_DECLARED: Final = re.compile(rb"CREATE TABLE KERN \(([^()]{0,65536})\)")


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a database by its table `KERN`; None for anything else."""
    head = first_bytes(path, _PROBED_BYTES)
    if not head.startswith(MAGIC):
        return None
    try:
        with closing(connected(path)) as connection:
            columns = {str(row[1]) for row in connection.execute(f"PRAGMA table_info({KERNELS})")}
    except (sqlite3.Error, ValueError):  # packed, or damaged before its names: decide by the declarations at its start
        declared = _DECLARED.search(head)
        columns = {name.decode() for name in re.findall(rb'"(\w+)"', declared[1])} if declared else set()
    return DetectedFormat("rocprof-database", "rocprof version 1 trace (SQLite)") if columns >= SIGNATURE else None


DOCUMENTATION: Final = FormatRow(
    "rocprof version 1 `results.db`, also gzip", "its table `KERN`", "dispatches, calls, copies, markers, counters"
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one database; times are int64 ns on the profiler's own clock, which cannot be aligned with another.

    Tables: `processes`, `devices` (by number only), `clock_domains`, `kernels`, `dispatches`, `api_calls`,
    `memory_copies`, `markers`, `counters`. Details: `source_rows`, and for a run without `OPS` those of
    `aaco_pipeline.formats.rocprof`. CaptureError if it is not such a database, is truncated, damaged or unfinished, or
    exceeds the limits.
    """
    from aaco_pipeline.formats.rocprof_db import reading

    return reading.read(path, limits or Limits())
