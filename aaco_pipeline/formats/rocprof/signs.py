"""How the CSV tables of rocprof version 1 and 2 are recognized: by the columns in the header.

Reading them is `aaco_pipeline.formats.rocprof.reading`.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.csv_header import header_of
from aaco_pipeline.formats.parsing.regular_files import is_regular

#: The columns by which a table of sums is recognized.
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
    """Whether plain column names are those of one row per execution with counters as columns."""
    identified = not names.isdisjoint(("index", "dispatch_id")) and "gpu_id" in names
    return identified and not names.isdisjoint(("kernelname", "kernel_name")) and "counter_name" not in names
