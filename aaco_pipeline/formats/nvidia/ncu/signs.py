"""How ncu's CSV is recognized: a header of its columns, behind lines of ncu's own. Reading it is `reading`."""

from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed
from aaco_pipeline.formats.parsing.csv_header import first_record, plain_name
from aaco_pipeline.formats.parsing.regular_files import is_regular

#: How the header's line begins, whatever stands before it.
HEADER: Final = b'"ID","Process ID",'
#: Columns of both pages; those of the plain one alone.
COLUMNS: Final = ("id", "process_id", "kernel_name", "block_size", "grid_size")
LONG: Final = ("metric_name", "metric_unit", "metric_value")
#: What ncu and the program may write before the header.
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
    """The plain names of a header's line; None when it lacks what every table of ncu has."""
    names = tuple(map(plain_name, first_record(line.rstrip(b"\r")) or ()))
    return names if set(COLUMNS) <= set(names) else None
