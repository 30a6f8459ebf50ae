"""What a rocpd database states of its processes and of a single dispatch, without its events being read.

By this `aaco_pipeline.capture.belonging` tells which files are of one run.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits, StatedProcess
from aaco_pipeline.formats.rocpd.database import Database, TableSet, opened
from aaco_pipeline.formats.rocpd.lookup import fields, integer, rank_of, text
from aaco_pipeline.formats.thread_trace.matching import plain_name

_DEPTH: Final = 8
#: More processes than any job has in one file are not compared.
_MOST_PROCESSES: Final = 1024


def stated_processes(path: Path) -> tuple[StatedProcess, ...]:
    """See `aaco_pipeline.formats.rocpd.stated_processes`."""
    try:
        with opened(path, Limits()) as database:
            return tuple(one for tables in database.sets() for one in _processes(database, tables))
    except CaptureError:
        return ()


def traced(path: Path, agent: str, dispatch: int, kernels: frozenset[str]) -> bool:
    """See `aaco_pipeline.formats.rocpd.traced`; a thread trace that lists no kernel has none to differ in."""
    wanted = {plain_name(name) for name in kernels}
    try:
        with opened(path, Limits()) as database:
            return any(_has(database, tables, agent, dispatch, wanted) for tables in database.sets())
    except CaptureError:
        return False


def _processes(database: Database, tables: TableSet) -> list[StatedProcess]:
    hosts = {row["id"]: text(row["hostname"]) for row in database.records(tables, "info_node", "id", "hostname")}
    columns = ("nid", "pid", "ppid", "command", "environment", "init", "fini", "start", "end")
    found = []
    for row in database.records(tables, "info_process", *columns)[:_MOST_PROCESSES]:
        begin, end = (
            next((value for value in map(integer, (row[first], row[second])) if value is not None), None)
            for first, second in (("start", "init"), ("end", "fini"))
        )
        found.append(
            StatedProcess(
                host=hosts.get(row["nid"]),
                pid=integer(row["pid"]),
                parent_pid=integer(row["ppid"]),
                command=text(row["command"]),
                rank=rank_of(fields(row["environment"], _DEPTH)),
                guid=tables.guid,
                start_ns=begin,
                end_ns=end,
            )
        )
    return found


def _has(database: Database, tables: TableSet, agent: str, dispatch: int, wanted: set[str]) -> bool:
    if dispatch >= 1 << 63 or not tables.has("kernel_dispatch", "dispatch_id", "kernel_id", "agent_id"):
        return False
    agents = {
        row["id"] for row in database.records(tables, "info_agent", "id", "extdata") if _handle(row["extdata"]) == agent
    }
    where = f"dispatch_id = {dispatch}"
    rows = database.records(tables, "kernel_dispatch", "kernel_id", "agent_id", where=where)
    kernels = {integer(row["kernel_id"]) for row in rows if row["agent_id"] in agents} - {None}
    if not kernels or not wanted:
        return bool(kernels)
    listed = ", ".join(map(str, sorted(one for one in kernels if one is not None)))
    symbols = database.records(tables, "info_kernel_symbol", "kernel_name", "display_name", where=f"id IN ({listed})")
    return any(plain_name(text(name)) in wanted for row in symbols for name in row.values())


def _handle(extdata: object) -> str | None:
    """The handle of an agent, by which files of thread traces name it."""
    identity = fields(extdata, _DEPTH).get("id")
    handle = identity.get("handle") if isinstance(identity, dict) else None
    return None if handle is None else str(handle)
