"""CSV from NVIDIA's Nsight Compute (`ncu --csv`): hardware counters of each profiled kernel.

Both pages are read: `--page raw`, with a row per kernel, a column per metric and a row of units below the header; and
the default page, with a row per kernel and metric. Lines of ncu (`==PROF==`) and of the program around the table are
skipped. Values are converted to base units (byte, byte/second, nsecond, hz). No durations are read: ncu runs kernels
one at a time and several times each, by default at clocks that it sets.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed
from aaco_pipeline.formats.parsing.csv_text import first_record, plain_name
from aaco_pipeline.formats.parsing.regular_files import is_regular

#: Start of the header line.
HEADER: Final = b'"ID","Process ID",'
#: Columns of both pages, and of the default page alone.
COLUMNS: Final = ("id", "process_id", "kernel_name", "block_size", "grid_size")
LONG: Final = ("metric_name", "metric_unit", "metric_value")
#: Upper bound on the text that ncu and the program write before the header.
_PROBED_BYTES: Final = 1 << 20


def probe(path: Path) -> DetectedFormat | None:
    """Recognize ncu's CSV by its header; None for anything else. Reads up to a MiB."""
    if not is_regular(path):
        return None
    try:
        with open_decompressed(path) as stream:
            head = stream.read(4096)
            if not head.startswith((HEADER, b"==")):
                return None
            head += stream.read(_PROBED_BYTES)
    except (CaptureError, *DAMAGED):
        return None
    start = 0 if head.startswith(HEADER) else head.find(b"\n" + HEADER) + 1
    names = columns_of(head[start:].split(b"\n", 1)[0]) if head.startswith(HEADER, start) else None
    if names is None:
        return None
    page = "a row a kernel and metric" if set(LONG) <= set(names) else "a row a kernel"
    return DetectedFormat("ncu-csv", f"Nsight Compute, {page} (CSV)")


def columns_of(line: bytes) -> tuple[str, ...] | None:
    """Return the plain names of a header line; None if it lacks a column that every ncu table has."""
    names = tuple(map(plain_name, first_record(line.rstrip(b"\r")) or ()))
    return names if set(COLUMNS) <= set(names) else None


DOCUMENTATION: Final = FormatRow("Nsight Compute, `ncu --csv`, both pages", "the header", "counters of NVIDIA GPUs")


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one table of ncu.

    Tables: `processes`, `devices`, `kernels` (names as in the file, mangled if requested so), `counters` (`counter` is
    ncu's name of the metric with its roll-up, `dram__bytes_read.sum`). Details: `counter_dispatches` (see
    `aaco_pipeline.formats.parsing.counter_passes`; no execution has times), `mangled_kernels` (the column `name`),
    `source_rows`. CaptureError for anything else.
    """
    from aaco_pipeline.formats.ncu import reading

    return reading.read(path, limits or Limits())
