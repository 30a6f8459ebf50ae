"""How the folder of a decoded thread trace is recognized: by how its files begin.

Reading it is `aaco_pipeline.formats.thread_trace.reading`.
"""

import re
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.regular_files import open_regular

FORMAT: Final = "rocprofv3-thread-trace"
_HEAD_BYTES: Final = 4096
#: Words that the beginning of a file of the folder holds.
_MARKS: Final = {
    "filenames.json": (b'"gfxv"', b'"wave_filenames"', b'"global_begin_time"'),
    "code.json": (b'"code"',),
}


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a folder by what its `filenames.json` or `code.json` begins with; None for anything else."""
    for name, marks in _MARKS.items():
        try:
            with open_regular(path / name) as stream:
                head = stream.read(_HEAD_BYTES)
        except (OSError, ValueError, CaptureError):
            continue
        if head.lstrip().startswith(b"{") and any(mark in head for mark in marks):
            sampled = re.search(rb'"pc_sampling"\s*:\s*true', head) is not None
            what = "program-counter samples by instruction" if sampled else "decoded thread trace"
            return DetectedFormat(FORMAT, what)
    return None
