"""How a dump of `gpu_metrics` tables, or a folder of them, is recognized, and which card each of its files is of.

What the dumps hold is `aaco_pipeline.formats.gpu_metrics.reading`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.regular_files import entries, is_folder, open_regular

FORMAT: Final = "amdgpu-gpu-metrics"
_LARGEST_TABLE: Final = 1 << 16
_CARD: Final = re.compile(r"card\d{1,4}(?!\d)")


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a dump by the header of its first table, a folder by its first dump; None for anything else.

    A table of a version that cannot be read is recognized too, so that `read` can refuse it by name.
    """
    try:
        if is_folder(path):
            first = next(dump_files(path), None)
            found = probe(first) if first is not None else None
            return DetectedFormat(FORMAT, f"folder of dumps: {found.detail}") if found is not None else None
        with open_regular(path) as stream:
            head = stream.read(_LARGEST_TABLE)
    except (OSError, ValueError, CaptureError):
        return None
    if len(head) <= 4 or not (1 <= head[2] <= 3 and head[3] <= 32):  # size, format and content revision
        return None
    from aaco_pipeline.formats.gpu_metrics.layouts import dotted, header, is_table

    return DetectedFormat(FORMAT, f"gpu_metrics table of version {dotted(header(head)[1])}") if is_table(head) else None


def dump_files(folder: Path) -> Iterator[Path]:
    """The files of a folder and of its folders named for cards, in order of name; links and devices, too."""
    for entry in entries(folder):
        if not entry.is_folder:
            yield entry.path
        elif _CARD.match(entry.path.name):
            yield from (inner.path for inner in entries(entry.path) if not inner.is_folder)


def device_of(name: str) -> str | None:
    """The card that a file or folder is named for."""
    match = _CARD.match(name)
    return match[0] if match is not None else None
