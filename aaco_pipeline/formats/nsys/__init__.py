"""Exports of NVIDIA's Nsight Systems (`nsys export --type sqlite`), possibly gzip-compressed.

Based on the schema in Nsight Systems' export documentation (2019 to 2026), which only creates tables that have data,
and checked with real exports of 2023.2, 2024.5, 2026.1 and 2026.2. Columns and tables are found by name; if a table
exists several times (`_V2`, `_V3`), the plain name is used, else the highest number. The reader relies on these
properties: times are ns since the recording began; names are numbers of `StringIds`; a process is bits 24 to 47 of
`globalPid` and `globalTid`, a thread the lowest 24; `deviceId` is CUDA's number within the process; `correlationId` is
unique within its process; a grid counts blocks; names of runtime calls end with their CUDA version
(`cudaLaunchKernel_v7000`), which is removed. By default a graph launch is one record
(`CUPTI_ACTIVITY_KIND_GRAPH_TRACE`) that hides its kernels; it becomes one dispatch of a kernel named after the graph.
Two columns are misleading: before schema 3.25 the kinds of waits are numbered differently than documented, and a wait's
device is always 0; its call and its context give both. Not read: operating system and library calls, sampled metrics
and call stacks, NVTX payloads.
"""

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import first_bytes
from aaco_pipeline.formats.parsing.sqlite_database import MAGIC, connected

#: Table names that few other programs use.
_OWN: Final = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "TARGET_INFO_", "ENUM_NSYS_", "META_DATA_CAPTURE")
#: nvprof's table of names; its databases also have activity tables, but with other columns.
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
    except (sqlite3.Error, ValueError):  # packed or damaged: decide by the declarations at its start
        names = {name.decode() for name in _DECLARED.findall(head)}
    if _NVPROF in names or not any(name.startswith(_OWN) for name in names):
        return None
    return DetectedFormat("nsys", "Nsight Systems export (SQLite)")


def newest(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """List the tables of each kind, the valid one first: the plain name, else the highest version."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        versioned = _VERSIONED.fullmatch(name)
        kind, rank = (versioned[1], -int(versioned[2])) if versioned else (name, -(10**6))
        found.setdefault(kind, []).append((rank, name))
    return {kind: tuple(name for _, name in sorted(several)) for kind, several in found.items()}


DOCUMENTATION: Final = FormatRow(
    "Nsight Systems export (`nsys export --type sqlite`), 2019 to 2026, also gzip",
    "its tables `CUPTI_ACTIVITY_KIND_…`, `NVTX_EVENTS`, `TARGET_INFO_…`",
    "dispatches, whole graphs, calls, copies, NVTX ranges, waits, devices, processes",
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one export; times are int64 ns of the clock `nsys`, counted from the beginning of the recording.

    Tables: `processes`, `devices`, `clock_domains`, `environment`, `kernels`, `dispatches`, `api_calls`,
    `memory_copies`, `markers`, `synchronizations`. Details: `source_rows`; `streams` (`stream_id`, `device_id`,
    `source_stream`); `launch_facts` (`dispatch_id`, `registers_per_thread`). CaptureError if it is not such an export,
    lacks `StringIds`, is truncated or damaged, or exceeds the limits.
    """
    from aaco_pipeline.formats.nsys import reading

    return reading.read(path, limits or Limits())
