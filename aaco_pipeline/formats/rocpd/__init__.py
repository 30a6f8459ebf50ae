"""rocprofv3's rocpd databases (SQLite, possibly gzip-compressed).

Written by rocprofv3 7.0 and later and by rocprofiler-systems: schema 3 and 3.0.0 to 3.0.5 of ROCm 7, also with several
processes merged into one database; a newer schema is read by the names of its columns as far as they are known. Not
taken: arguments of calls, streamed samples of counters, and whatever the lake has no table for, each told in evidence.
Databases of rocmProfileData, which call themselves rocpd too, are `aaco_pipeline.formats.rpd`'s.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, FormatRow, Limits, StatedProcess
from aaco_pipeline.formats.parsing.sqlite_file import probe

__all__ = ["DOCUMENTATION", "hosts", "probe", "read", "stated_processes", "traced"]

DOCUMENTATION: Final = FormatRow(
    "rocpd database (rocprofv3 7.0 and later, rocprofiler-systems), also gzip",
    "its tables, never its version number",
    "dispatches, calls, copies, markers, allocations, counters, devices, processes",
)


def hosts(path: Path) -> set[str | None]:
    """The hosts that a database names; none when it cannot be read, which its reader will say."""
    from aaco_pipeline.formats.parsing.sqlite_database import opened

    try:
        with opened(path, Limits()) as database:
            nodes = [database.records(one, "info_node", "hostname") for one in database.sets()]
            return {row["hostname"] for rows in nodes for row in rows}
    except CaptureError:
        return set()


def stated_processes(path: Path) -> tuple[StatedProcess, ...]:
    """The processes that a database states; none when it cannot be read, which its reader will say."""
    from aaco_pipeline.formats.rocpd import process

    return process.stated_processes(path)


def traced(path: Path, agent: str, dispatch: int, kernels: frozenset[str]) -> bool:
    """Whether a database has the dispatch of that number on that agent (its handle), of one of these kernels."""
    from aaco_pipeline.formats.rocpd import process

    return process.traced(path, agent, dispatch, kernels)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one database. Times are int64 ns of the host's CLOCK_BOOTTIME, ids dense from 0 in the source's order.

    Tables: `processes`, `devices` (GPUs, and whatever else dispatches name), `clock_domains`, `environment`, `kernels`
    (those dispatched), `dispatches`, `api_calls`, `memory_copies`, `markers`, `counters`, `memory_allocations`.

    Details: `dispatch_keys` and `source_rows` as for every reader; `kernel_keys` (kernel_id, source_kernel_id,
    code_object_id, symbol: the mangled name), `device_keys` (device_id, host, handle, agent_id, absolute_index,
    type_index, pci_address: the same in every process of a host, unlike the handle), `queues` and `streams` (the dense
    id, the source's and its name) and `code_objects` (code_object_id, device_id, uri, load_base, load_size).

    Raises CaptureError for what is no such database, is cut or damaged, not yet finished, or over the limits.
    """
    from aaco_pipeline.formats.rocpd import reading

    return reading.read(path, limits or Limits())
