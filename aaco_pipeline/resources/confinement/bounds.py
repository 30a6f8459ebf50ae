"""How much a child that reads a capture may take: memory, time, disk. Decided here, from the size of the capture.

Bounds on single files and texts are `aaco_pipeline.formats.capture_tables.Limits`.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import expanded_limit

#: Bytes such as 6G, and seconds of CPU time, in place of what follows from the capture's size.
MEMORY_VARIABLE: Final = "AACO_READER_MEMORY"
SECONDS_VARIABLE: Final = "AACO_READER_SECONDS"
_LEAST_MEMORY: Final = 4 << 30
_MEMORY_PER_BYTE: Final = 8
_MOST_OF_MACHINE: Final = 0.75
_LEAST_SECONDS: Final = 120
_SECONDS_PER_GIB: Final = 240
#: Of the wall clock, for each second of CPU time: it ends only what waits for ever, however busy the machine is.
_PATIENCE: Final = 60
_LEAST_RESULTS: Final = 256 << 20
_RESULTS_PER_BYTE: Final = 32
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_UNITS: Final[Mapping[str, int]] = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Bounds:
    """What one child may take. `file_bytes` is the largest file it may write, `result_bytes` all tables together."""

    memory_bytes: int
    cpu_seconds: int
    wall_seconds: float
    file_bytes: int
    result_bytes: int


def bounds_for(size: int) -> Bounds:
    """The bounds on reading a capture of `size` bytes on the disk. UsageError for a variable that is no such number."""
    seconds = _stated_seconds() or _LEAST_SECONDS + _SECONDS_PER_GIB * size // (1 << 30)
    memory = _stated_memory() or min(
        max(_LEAST_MEMORY, _MEMORY_PER_BYTE * size), int(_MOST_OF_MACHINE * machine_bytes())
    )
    results = max(_LEAST_RESULTS, _RESULTS_PER_BYTE * size)
    # A packed file is unpacked beside its copy before it is looked through.
    return Bounds(memory, seconds, float(_PATIENCE * seconds), max(results, expanded_limit(size, Limits())), results)


def size_on_disk(files: Iterable[Path]) -> int:
    """The bytes that files take, without the holes of those that are sparse; 0 for what is not there."""
    total = 0
    for file in files:
        try:
            status = file.lstat()
        except OSError:
            continue
        total += min(status.st_size, 512 * status.st_blocks)
    return total


def machine_bytes() -> int:
    """The memory of this machine, or of the container where it has less."""
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        stated = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return own
    return min(own, int(stated)) if stated.isdecimal() else own


def in_words(size: int) -> str:
    """A bound on memory, for people."""
    return f"{size / (1 << 30):.1f} GiB"


def _stated_memory() -> int | None:
    text = os.environ.get(MEMORY_VARIABLE, "").strip()
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None or not int(match[1]):
        raise UsageError(f"{MEMORY_VARIABLE} is {text!r}; give bytes, such as 6G")
    return int(match[1]) * _UNITS[match[2].upper()]


def _stated_seconds() -> int | None:
    text = os.environ.get(SECONDS_VARIABLE, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
        raise UsageError(f"{SECONDS_VARIABLE} is {text!r}; give whole seconds of CPU time, such as 600")
    return int(text)
