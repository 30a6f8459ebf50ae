"""The folder that `aaco record` writes for any program: its runs, and the marks set by the program.

Written by `aaco_pipeline.recording.documents`, the marks by `mark.py` and `aaco_mark.h` in the same package. This
reader takes the data of the project's own recorder: start and end of each run, its usage, its exit, its iterations and
phases. Profiler files in a pass's folder have their own reader and are combined with this data in
`aaco_pipeline.capture.program`; `aaco_pipeline.formats.native.telemetry` reads samples of host and GPUs. The reader
relies on these properties: all times are CLOCK_MONOTONIC of one host, which is the axis; a run's wall time is from just
before exec to the end of its wait; user and system time and peak memory come from `wait4`, and cover the program and
all children that it waited for.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.json_document import json_document
from aaco_pipeline.formats.parsing.regular_files import is_regular

FORMAT: Final = "aaco-program"
CAPTURE_FILE: Final = "capture.json"


__all__ = ["CAPTURE_FILE", "DOCUMENTATION", "FORMAT", "probe", "read"]

DOCUMENTATION: Final = FormatRow(
    "`aaco record`, the folder of a program's runs",
    "a folder whose `capture.json` says `aaco-program`",
    "runs with their times and ends, iterations and phases that the program marked, what profilers and samplers left",
)


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a recorded folder by its `capture.json`."""
    file = path / CAPTURE_FILE
    if not is_regular(file):
        return None
    try:
        document = json_document(file)
    except CaptureError:
        return None
    if isinstance(document, dict) and document.get("format") == FORMAT:
        return DetectedFormat(FORMAT, "runs of a program, recorded by aaco record")
    return None


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read the runs in a recorded folder; times are int64 ns from the first run's first clock reading.

    Tables: `program_runs`, `program_marks`, `iterations`, `processes`, `devices`, `clock_domains`. CaptureError, in one
    line, if it is not such a folder, has a later version, contradicts itself or exceeds the limits.
    """
    from aaco_pipeline.formats.program.runs import read_documents, tables_of

    return tables_of(read_documents(path), limits or Limits())
