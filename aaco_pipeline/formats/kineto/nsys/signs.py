"""How an export of Nsight Systems is recognized, and which of its tables is meant where one is there several times.

Reading it is `aaco_pipeline.formats.kineto.nsys.reading`.
"""

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.compression import first_bytes
from aaco_pipeline.formats.rocpd.signs import MAGIC, connected

#: What its tables are called, and hardly anybody else's.
_OWN: Final = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "TARGET_INFO_", "ENUM_NSYS_", "META_DATA_CAPTURE")
#: The table of names of nvprof, whose databases have tables of activities, too, with other columns.
_NVPROF: Final = "StringTable"
_PROBED_BYTES: Final = 256 << 10
_DECLARED: Final = re.compile(rb'CREATE TABLE "?([A-Za-z][A-Za-z0-9_]{2,80})')
_VERSIONED: Final = re.compile(r"(.+?)_V([0-9]{1,4})")


def probe(path: Path) -> DetectedFormat | None:
    """Recognize an export by its tables' names; None for anything else, such as a database of nvprof."""
    head = first_bytes(path, _PROBED_BYTES)
    if not head.startswith(MAGIC):
        return None
    try:
        with closing(connected(path)) as connection:
            listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            names = {str(name) for (name,) in listed}
    except (sqlite3.Error, ValueError):  # packed or damaged: by what its beginning declares
        names = {name.decode() for name in _DECLARED.findall(head)}
    if _NVPROF in names or not any(name.startswith(_OWN) for name in names):
        return None
    return DetectedFormat("nsys", "Nsight Systems export (SQLite)")


def newest(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The tables of each kind, the one that is meant first: the plain name, else the highest version."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        versioned = _VERSIONED.fullmatch(name)
        kind, rank = (versioned[1], -int(versioned[2])) if versioned else (name, -(10**6))
        found.setdefault(kind, []).append((rank, name))
    return {kind: tuple(name for _, name in sorted(several)) for kind, several in found.items()}
