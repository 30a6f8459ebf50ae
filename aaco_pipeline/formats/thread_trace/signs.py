"""How the folder of a decoded thread trace is recognized: by how its files begin; and which dispatch it says it is of.

Reading it is `aaco_pipeline.formats.thread_trace.reading`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.compression import first_bytes
from aaco_pipeline.formats.parsing.regular_files import is_regular, open_regular

FORMAT: Final = "rocprofv3-thread-trace"
_HEAD_BYTES: Final = 4096
#: Words that the beginning of a file of the folder holds.
_MARKS: Final = {
    "filenames.json": (b'"gfxv"', b'"wave_filenames"', b'"global_begin_time"'),
    "code.json": (b'"code"',),
}
#: How the decoder names a folder, and the tool the raw file of one shader engine: process, agent, engine, dispatch.
FOLDER: Final = re.compile(r"ui_output_agent_(\d{1,20})_dispatch_(\d{1,20})")
_RAW: Final = re.compile(r"(\d{1,18})_(\d{1,20})_shader_engine_\d{1,9}_(\d{1,20})\.att")
#: Headings of functions stand among the first kilobytes of a listing, the traced kernel's first of all.
_LISTING_BYTES: Final = 256 << 10
_HEADING: Final = re.compile(r'\[\s*"; ([^"\\]{1,65536})"\s*,[^,"]*,[^,"]*,\s*"([^"\\]{0,65536})"')


@dataclass(frozen=True)
class TracedDispatch:
    """Which dispatch a folder is of: the agent's handle and the number, and the functions that its listing names."""

    agent: str | None
    dispatch: int | None
    kernels: frozenset[str]


def traced_dispatch(path: Path) -> TracedDispatch:
    """What a folder's name and the beginning of its listing say; None where they say nothing."""
    named = FOLDER.fullmatch(path.name)
    listing = path / "code.json"
    head = first_bytes(listing, _LISTING_BYTES).decode("utf-8", "replace") if is_regular(listing) else ""
    kernels = frozenset(name for pair in _HEADING.findall(head) for name in pair if name)
    if named is None:
        return TracedDispatch(None, None, kernels)
    return TracedDispatch(named[1], int(named[2]), kernels)


def raw_trace(path: Path) -> tuple[str, int, int] | None:
    """Agent's handle, dispatch and process that the name of a raw thread trace states; None for any other file."""
    named = _RAW.fullmatch(path.name)
    return None if named is None else (named[2], int(named[3]), int(named[1]))


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
