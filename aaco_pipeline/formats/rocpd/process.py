"""One process's tables of a rocpd database: what they look up, the numbers given to ids, and the process's own facts.

Its events are `aaco_pipeline.formats.rocpd.tables`'.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits, StatedProcess
from aaco_pipeline.formats.parsing.lookup import (
    Lookup,
    Numbering,
    devices,
    fields,
    integer,
    names,
    processes,
    rank_of,
    text,
)
from aaco_pipeline.formats.parsing.sqlite_database import Database, TableSet, opened
from aaco_pipeline.formats.thread_trace.matching import plain_name

_LOOKED_UP: Final = (
    *("metadata", "string", "info_node", "info_process", "info_thread", "info_agent", "info_queue", "info_stream"),
    *("info_pmc", "info_category", "track", "event"),
)
_AGENT: Final = (
    *("id", "nid", "type", "absolute_index", "type_index", "name", "vendor_name", "product_name", "extdata"),
)
_PROCESS: Final = ("id", "nid", "pid", "start", "fini", "command", "environment")
#: What every kind of event has, by the columns that `activities` makes its own of.
ACTIVITY: Final = {"pid": "pid", "tid": "tid", "start": "start", "end": "end", "stack": "event.stack_id"}


@dataclass
class Parts:
    """What the tables of one process hold: frames by table or detail of the reading, and counts for its evidence.

    `rows` are (in, out) by kind of source table, `counts` oddities by name, `not_taken` samples by what they are,
    `hosts` the host names.
    """

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    not_taken: Counter[str] = field(default_factory=Counter)
    hosts: tuple[str, ...] = ()


class ProcessTables:
    """The tables of a process while they are read; the numbers given to ids grow as events name them."""

    def __init__(self, database: Database, tables: TableSet, limits: Limits) -> None:
        self.database, self.tables, self.limits = database, tables, limits
        self.parts = Parts(rows={kind: (database.count(tables, kind), 0) for kind in sorted(tables.tables)})
        for kind in _LOOKED_UP:
            if kind in self.parts.rows:
                self.parts.rows[kind] = (self.parts.rows[kind][0],) * 2
        if (events := sum(rows for rows, _ in self.parts.rows.values())) > limits.events:
            raise CaptureError(f"{database.path}: {events} rows, more than the limit of {limits.events}; not read")
        strings = self.records("string", "id", "string")
        self.strings = names(strings, "string")
        categories = [(row["id"], row["string"]) for row in strings]
        if "info_category" in tables.tables:  # schema 4
            rows = self.records("info_category", "id", "name", "string")
            categories = [(row["id"], row["string"] if row["name"] is None else row["name"]) for row in rows]
        self.categories = {one: text(name) for one, name in categories if isinstance(one, int)}
        threads = self.records("info_thread", "id", "tid")
        self.threads = Lookup.of(((row["id"], integer(row["tid"])) for row in threads), pl.Int64)
        self.agents = self.records("info_agent", *_AGENT)
        self.process_rows = self.records("info_process", *_PROCESS)
        self.process = Numbering(row["id"] for row in self.process_rows if isinstance(row["id"], int))
        self.device = Numbering(row["id"] for row in self.agents if row["type"] == "GPU" and isinstance(row["id"], int))
        self.queue, self.stream = Numbering(), Numbering()
        self.dispatch_events = pl.DataFrame()

    def records(self, kind: str, *columns: str) -> list[dict[str, Any]]:
        """The rows of a small table of the process; see `Database.records`."""
        return self.database.records(self.tables, kind, *columns)

    def took(self, kind: str, count: int) -> None:
        """Count the rows taken of the table of a kind, if there is one."""
        if kind in self.parts.rows:
            self.parts.rows[kind] = (self.parts.rows[kind][0], count)

    def facts(self) -> None:
        """`processes`, `environment`, `devices`, and the names of queues, streams and code objects."""
        found = self.parts
        nodes = self.records("info_node", "id", "hostname")
        hosts = {row["id"]: text(row["hostname"]) for row in nodes}
        found.hosts = tuple(dict.fromkeys(name for name in hosts.values() if name))
        found.counts["unknown processes"] += len(self.process.unknown())
        found.frames["processes"], found.frames["environment"] = processes(
            self.process_rows, self.process, self.tables.guid, hosts
        )
        found.frames["devices"], found.frames["device_keys"] = devices(
            self.agents, self.device, hosts, self.limits.depth
        )
        for kind, numbering in (("queue", self.queue), ("stream", self.stream)):
            titles = {row["id"]: text(row["name"]) for row in self.records(f"info_{kind}", "id", "name")}
            listed = [(number, one, titles.get(one)) for number, one in enumerate(numbering.ids)]
            schema = {f"{kind}_id": pl.Int32, f"source_{kind}_id": pl.Int64, "name": pl.String}
            found.frames[f"{kind}s"] = pl.DataFrame(listed, schema=schema, orient="row")
        objects = self.records("info_code_object", "id", "agent_id", "uri", "load_base", "load_size")
        frame = pl.DataFrame(
            {
                "code_object_id": [integer(row["id"]) for row in objects],
                "device_id": [integer(row["agent_id"]) for row in objects],
                "uri": [text(row["uri"]) for row in objects],
                "load_base": [integer(row["load_base"]) for row in objects],
                "load_size": [integer(row["load_size"]) for row in objects],
            },
            schema_overrides={"uri": pl.String},
        ).cast({"code_object_id": pl.Int64, "device_id": pl.Int64, "load_base": pl.Int64, "load_size": pl.Int64})
        found.frames["code_objects"] = frame.with_columns(self.device_of(frame["device_id"]).alias("device_id"))
        self.took("info_code_object", len(objects))
        self._outside_process()

    def _outside_process(self) -> None:
        """Count dispatches beyond the times between which their process was traced."""
        started = [integer(row["start"]) for row in self.process_rows]
        ended = [integer(row["fini"]) for row in self.process_rows]
        dispatches = self.parts.frames["dispatches"]
        if not dispatches.height or None in started or None in ended or not started:
            return
        bounds = pl.DataFrame({"first": started, "last": ended}, schema={"first": pl.Int64, "last": pl.Int64})
        first, last = bounds["first"].min(), bounds["last"].max()
        outside = (dispatches["start_ns"] < first) | (dispatches["end_ns"] > last)
        self.parts.counts["dispatches outside their process"] += int(outside.sum())

    def activities(self, kind: str, wanted: dict[str, str]) -> pl.DataFrame:
        """Rows of a table with `process_id`, `thread_id`, `correlation_id`, `start_ns` and `end_ns` made of its own."""
        source = self.database.integers(self.tables, kind, wanted)
        for name in ("start", "end"):
            if source[name].null_count():
                raise CaptureError(f"{self.database.path}: {kind} has rows without {name}; the file is damaged")
        process = source["pid"]
        if process.null_count() and self.process.known_count == 1:
            process = process.fill_null(self.process.ids[0])
        return source.drop("pid", "tid", "start", "end", "stack").with_columns(
            self.process.applied(process).alias("process_id"),
            self.threads.applied(source["tid"]).alias("thread_id"),
            source["start"].alias("start_ns"),
            source["end"].alias("end_ns"),
            source.select(correlation("stack")).to_series().alias("correlation_id"),
        )

    def device_of(self, agents: pl.Series) -> pl.Series:
        """The device of each agent that is one; null for the host's memory."""
        known = {row["id"] for row in self.agents}
        unknown = [one for one in agents.unique().to_list() if one is not None and one not in known]
        self.parts.counts["unknown agents of memory"] += len(unknown)
        return self.device.lookup().applied(agents)


def correlation(column: str) -> pl.Expr:
    """An unsigned id in which 0 means none."""
    return pl.when(pl.col(column) != 0).then(pl.col(column).reinterpret(signed=False))


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
