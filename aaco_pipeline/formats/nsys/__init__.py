"""Exports of NVIDIA's Nsight Systems (`nsys export --type sqlite`), possibly gzip-compressed.

Built from the schema in Nsight Systems' own export documentation (2019 to 2026), which says that tables are made only
where there is something to hold, and looked at with real exports of 2023.2, 2024.5, 2026.1 and 2026.2. Columns and
tables are taken by name; of a table that is there several times (`_V2`, `_V3`) the plain name counts, else the highest
number. Facts of the format this reader relies on: times are ns since the recording began; names are numbers of
`StringIds`; a process is bits 24 to 47 of `globalPid` and `globalTid`, a thread the lowest 24; `deviceId` is CUDA's
own number within the process; `correlationId` is unique within its process; a grid counts blocks; names of runtime
calls end with the version they came with (`cudaLaunchKernel_v7000`), which is left out. By default the launch of a
graph is one record (`CUPTI_ACTIVITY_KIND_GRAPH_TRACE`) and its kernels are hidden: it becomes one dispatch of a kernel
that is named after the graph. Two columns do not say what their names do: the kind of a wait is numbered otherwise
than documented before schema 3.25, and a wait's device is 0 whatever it was; its call and its context tell both.
Not taken: calls of the operating system and of libraries, sampled metrics and call stacks, NVTX payloads.
"""

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import first_bytes
from aaco_pipeline.formats.parsing.sqlite_file import MAGIC, connected

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


__all__ = ["DOCUMENTATION", "probe", "read"]

DOCUMENTATION: Final = FormatRow(
    "Nsight Systems export (`nsys export --type sqlite`), 2019 to 2026, also gzip",
    "its tables `CUPTI_ACTIVITY_KIND_…`, `NVTX_EVENTS`, `TARGET_INFO_…`",
    "dispatches, whole graphs, calls, copies, NVTX ranges, waits, devices, processes",
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one export; times are int64 ns of the clock `nsys`, counted from the beginning of the recording.

    Tables: `processes`, `devices`, `clock_domains`, `environment`, `kernels`, `dispatches`, `api_calls`,
    `memory_copies`, `markers`, `synchronizations`. Details: `source_rows`; `streams` (`stream_id`, `device_id`,
    `source_stream`); `launch_facts` (`dispatch_id`, `registers_per_thread`). Raises CaptureError for what is no such
    export, lacks `StringIds`, is cut or damaged, or goes beyond the limits.
    """
    from aaco_pipeline.formats.nsys import reading

    return reading.read(path, limits or Limits())
