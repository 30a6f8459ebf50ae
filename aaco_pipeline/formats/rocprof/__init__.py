"""CSV tables of rocprof version 1 (`results.csv`, `results.stats.csv`) and of version 2 (`results_<pid>.csv`).

One row is one kernel execution, with a column per counter. The two versions name columns differently, and
post-processing tools mix both spellings; any mixture is read. The reader relies on these properties: `grd` and `wgr`
are products over the axes; kernel names end in ` [clone .kd]` or `.kd`; times are present only if requested from the
profiler; header and text may be quoted or not. Not read: `results.db`, traces of API calls, and addresses of signals
and code.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.csv_text import header_of
from aaco_pipeline.formats.parsing.regular_files import is_regular

#: Columns that identify a table of totals.
STATISTICS: Final = ("name", "calls", "totaldurationns")


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a table of rocprof version 1 or 2 by its header; None for anything else. Reads a few KB."""
    names = frozenset(header_of(path) or ()) if is_regular(path) else frozenset[str]()
    if is_wide(names):
        version = 1 if "kernelname" in names or "queue_index" in names else 2
        return DetectedFormat("rocprof-csv", f"rocprof version {version}, kernels and counters (CSV)")
    if names.issuperset(STATISTICS) and "minns" not in names:
        return DetectedFormat("rocprof-csv", "rocprof version 1, statistics (CSV)")
    return None


def is_wide(names: frozenset[str]) -> bool:
    """Return whether plain column names belong to a table with one row per execution and counters as columns."""
    identified = not names.isdisjoint(("index", "dispatch_id")) and "gpu_id" in names
    return identified and not names.isdisjoint(("kernelname", "kernel_name")) and "counter_name" not in names


DOCUMENTATION: Final = FormatRow(
    "rocprof version 1 and 2 CSV", "the header", "counters, dispatches where times are stated"
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one table of rocprof version 1 or 2.

    Tables: `processes`, `devices`, `kernels`, `dispatches` (executions with measured times), `counters`,
    `clock_domains`, or only `reported_statistics`. Details: `counter_dispatches` (see
    `aaco_pipeline.formats.parsing.counter_passes`), `dispatch_keys`, `source_rows`. Grid and workgroup of `dispatches`
    are null, because the file only has their products, which the detail keeps. CaptureError for anything else.
    """
    from aaco_pipeline.formats.rocprof import reading

    return reading.read(path, limits or Limits())
