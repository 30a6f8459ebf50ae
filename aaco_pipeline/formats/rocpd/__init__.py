"""rocprofv3's rocpd databases (SQLite, possibly gzip-compressed).

Written by rocprofv3 7.0 and later and by rocprofiler-systems: schema 3 and 3.0.0 to 3.0.5 of ROCm 7, including
databases with several merged processes; a newer schema is read by its known column names. Not read: call arguments,
streamed counter samples, and data for which the lake has no table, each reported in evidence.
`aaco_pipeline.formats.rpd` reads databases of rocmProfileData, which are also called rocpd.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits, StatedProcess
from aaco_pipeline.formats.parsing.compression import first_bytes
from aaco_pipeline.formats.parsing.sqlite_database import MAGIC, connected, opened

#: Tables of rocmProfileData, whose databases are also called rocpd.
RPD_TABLES: Final = frozenset({"rocpd_op", "rocpd_api", "rocpd_api_ops", "rocpd_kernelapi", "rocpd_copyapi"})
_PROBED_BYTES: Final = 256 << 10
#: Raised by SQLite's module for damaged databases; ValueError for messages and names that are not text.
_FAILURES: Final = (sqlite3.Error, ValueError)
DOCUMENTATION: Final = FormatRow(
    "rocpd database (rocprofv3 7.0 and later, rocprofiler-systems), also gzip",
    "its tables, never its version number",
    "dispatches, calls, copies, markers, allocations, counters, devices, processes",
)


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a database by its tables' names; None for anything else, such as one of rocmProfileData."""
    names = table_names(path)
    if any(name.startswith(("rocpd_kernel_dispatch", "rocpd_metadata_")) for name in names):
        return DetectedFormat("rocpd", "rocpd database of rocprofv3 (SQLite)")
    return None


def table_names(path: Path) -> set[str]:
    """List a database's tables; if it is compressed or damaged, those named in its first bytes."""
    head = first_bytes(path, _PROBED_BYTES)
    if not head.startswith(MAGIC):
        return set()
    try:
        with closing(connected(path)) as connection:
            listed = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'rocpd%'").fetchall()
            return {str(name) for (name,) in listed}
    except _FAILURES:  # if it is a rocpd database, its reader reports the damage
        return {name.decode() for name in re.findall(rb"rocpd_[A-Za-z0-9_]+", head)}


def hosts(path: Path) -> set[str | None]:
    """Return the hosts named in a database; empty if it is unreadable, which its reader reports."""
    from aaco_pipeline.formats.rocpd.process import table_sets

    try:
        with opened(path, Limits()) as database:
            nodes = [database.records(one, "info_node", "hostname") for one in table_sets(database)]
            return {row["hostname"] for rows in nodes for row in rows}
    except CaptureError:
        return set()


def stated_processes(path: Path) -> tuple[StatedProcess, ...]:
    """Return the processes stated in a database; empty if it is unreadable, which its reader reports."""
    from aaco_pipeline.formats.rocpd import process

    return process.stated_processes(path)


def traced(path: Path, agent: str, dispatch: int, kernels: frozenset[str]) -> bool:
    """Return whether a database has the dispatch with this number on this agent (handle), of one of these kernels."""
    from aaco_pipeline.formats.rocpd import process

    return process.traced(path, agent, dispatch, kernels)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one database. Times are int64 ns of the host's CLOCK_BOOTTIME, ids dense from 0 in the source's order.

    Tables: `processes`, `devices` (GPUs, and any other devices named by dispatches), `clock_domains`, `environment`,
    `kernels` (those dispatched), `dispatches`, `api_calls`, `memory_copies`, `markers`, `counters`,
    `memory_allocations`.

    Details: `dispatch_keys` and `source_rows` as for every reader; `kernel_keys` (kernel_id, source_kernel_id,
    code_object_id, symbol: the mangled name), `device_keys` (device_id, host, handle, agent_id, absolute_index,
    type_index, pci_address: unlike the handle, the same in every process of a host), `queues` and `streams` (the dense
    id, the source's id and its name) and `code_objects` (code_object_id, device_id, uri, load_base, load_size).

    CaptureError if it is not such a database, is truncated, damaged or unfinished, or exceeds the limits.
    """
    from aaco_pipeline.formats.rocpd import reading

    return reading.read(path, limits or Limits())
