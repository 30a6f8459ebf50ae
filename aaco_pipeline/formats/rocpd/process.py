"""One process's tables in a rocpd database: names, dense ids, and facts about the process and its devices.

`aaco_pipeline.formats.rocpd.tables` reads the events. Processes and single dispatches can also be read alone;
`aaco_pipeline.capture.belonging` uses them to decide which files form one run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits, StatedProcess, table_of
from aaco_pipeline.formats.parsing.lookup import Lookup, Numbering, fields, integer, names, rank_of, text
from aaco_pipeline.formats.parsing.redaction import safe_command, safe_environment
from aaco_pipeline.formats.parsing.sqlite_database import Database, TableSet, opened, quoted
from aaco_pipeline.formats.rocpd import RPD_TABLES
from aaco_pipeline.formats.thread_trace import plain_name

_LOOKED_UP: Final = (
    *("metadata", "string", "info_node", "info_process", "info_thread", "info_agent", "info_queue", "info_stream"),
    *("info_pmc", "info_category", "track", "event"),
)
_AGENT: Final = (
    *("id", "nid", "type", "absolute_index", "type_index", "name", "vendor_name", "product_name", "extdata"),
)
_PROCESS: Final = ("id", "nid", "pid", "start", "fini", "command", "environment")
#: Columns of every kind of event, which `activities` converts.
ACTIVITY: Final = {"pid": "pid", "tid": "tid", "start": "start", "end": "end", "stack": "event.stack_id"}


#: A rocprofv3 database has at least one of these kinds of tables.
_RECORD_KINDS: Final = ("kernel_dispatch", "region", "sample", "memory_copy", "memory_allocate", "pmc_event")
_METADATA: Final = "rocpd_metadata"


def table_sets(database: Database) -> tuple[TableSet, ...]:
    """List the table sets in order of their suffix. CaptureError if the database is not rocprofv3's."""
    path, most = database.path, database.limits.tables
    listed = database.rows("SELECT type, name FROM sqlite_master WHERE name LIKE 'rocpd%' ORDER BY name")
    present = [str(name) for kind, name in listed if kind == "table"]
    if len(present) > most:
        raise CaptureError(f"{path}: more than {most} tables; not a profiler's database")
    if RPD_TABLES & set(present) and not any(name.startswith("rocpd_kernel_dispatch") for name in present):
        raise CaptureError(
            f"{path}: this is an RPD database of rocmProfileData, not rocprofv3's rocpd; read it as such"
        )
    suffixes = sorted(
        (one.removeprefix(_METADATA) for one in present if one.startswith(_METADATA)), key=len, reverse=True
    )
    if not suffixes:
        views = any(kind == "view" for kind, _ in listed)
        reason = "its tables are views that need an SQLite extension; unpack it first" if views else "no rocpd table"
        raise CaptureError(f"{path}: not a rocpd database: {reason}")
    tables: dict[str, dict[str, frozenset[str]]] = {suffix: {} for suffix in suffixes}
    for name in present:
        suffix = next((one for one in suffixes if name.endswith(one)), None)
        if suffix is not None:
            kind = name.removeprefix("rocpd_")[: len(name) - len("rocpd_") - len(suffix)]
            tables[suffix][kind] = database.columns(name)
    found = tuple(_table_set(database, suffix, tables[suffix]) for suffix in sorted(suffixes))
    if not any(kind in one.tables for one in found for kind in _RECORD_KINDS):
        raise CaptureError(f"{path}: a rocpd database without any table of events; capture again")
    return found


def _table_set(database: Database, suffix: str, tables: Mapping[str, frozenset[str]]) -> TableSet:
    metadata: dict[str, str] = {}
    if {"tag", "value"} <= tables["metadata"]:
        rows = database.rows(f"SELECT tag, value FROM {quoted(_METADATA + suffix)}")
        metadata = {str(tag): str(value) for tag, value in rows}
    return TableSet(suffix, metadata.get("guid") or suffix.strip("_") or None, metadata, tables)


@dataclass
class Parts:
    """Frames by table or detail, read from one process's tables, and counts for its evidence.

    `rows` are (in, out) by kind of source table, `counts` oddities by name, `not_taken` skipped samples by content,
    `hosts` the host names.
    """

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    not_taken: Counter[str] = field(default_factory=Counter)
    hosts: tuple[str, ...] = ()


class ProcessTables:
    """The tables of a process being read; ids get numbers as events name them."""

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
        """Read a small table of the process; see `Database.records`."""
        return self.database.records(self.tables, kind, *columns)

    def took(self, kind: str, count: int) -> None:
        """Count the rows used from the table of a kind, if it exists."""
        if kind in self.parts.rows:
            self.parts.rows[kind] = (self.parts.rows[kind][0], count)

    def facts(self) -> None:
        """Build `processes`, `environment`, `devices`, and the names of queues, streams and code objects."""
        found = self.parts
        nodes = self.records("info_node", "id", "hostname")
        hosts = {row["id"]: text(row["hostname"]) for row in nodes}
        found.hosts = tuple(dict.fromkeys(name for name in hosts.values() if name))
        found.counts["unknown processes"] += len(self.process.unknown())
        found.frames["processes"], found.frames["environment"] = _processes(
            self.process_rows, self.process, self.tables.guid, hosts
        )
        found.frames["devices"], found.frames["device_keys"] = _devices(
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
        """Count dispatches outside the time in which their process was traced."""
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
        """Read a table's rows with `process_id`, `thread_id`, `correlation_id`, `start_ns` and `end_ns`."""
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
        """Return the device of each agent that is one; null for host memory."""
        known = {row["id"] for row in self.agents}
        unknown = [one for one in agents.unique().to_list() if one is not None and one not in known]
        self.parts.counts["unknown agents of memory"] += len(unknown)
        return self.device.lookup().applied(agents)


_DEVICE_KEYS: Final = pl.Schema(
    {
        **{"device_id": pl.Int32(), "host": pl.String(), "handle": pl.String()},
        **dict.fromkeys(("agent_id", "absolute_index", "type_index"), pl.Int64()),
        "pci_address": pl.String(),
    }
)
#: Columns of `devices` by an agent's field; 0 means that the driver did not report it.
_DEVICE_FIELDS: Final = {
    **{"compute_units": "cu_count", "xcc_count": "num_xcc", "simd_per_cu": "simd_per_cu"},
    **{"wavefront_size": "wave_front_size", "max_clock_mhz": "max_engine_clk_fcompute"},
}


def _processes(
    rows: Sequence[Mapping[str, Any]], numbering: Numbering, guid: str | None, hosts: Mapping[object, str | None]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Build `processes`, and `environment` from the permitted variables of the first process that states any.

    `hosts` maps node ids to host names.
    """
    by_id = {row["id"]: row for row in rows}
    found: list[dict[str, Any]] = []
    kept: dict[str, str] = {}
    for number, one in enumerate(numbering.ids):
        row = by_id.get(one, {})
        environment = fields(row.get("environment"), _DEPTH)
        kept = kept or safe_environment(environment)
        command = text(row.get("command"))
        facts = {"guid": guid, "host": hosts.get(row.get("nid")), "pid": integer(row.get("pid"))}
        shown = safe_command(command) if command else None
        found.append({"process_id": number, **facts, "rank": rank_of(environment), "command": shown})
    variable = {"category": "environment_variable", "in_fingerprint": True}
    variables = ({**variable, "key": key, "value": value} for key, value in kept.items())
    return table_of("processes", found), table_of("environment", variables)


def _devices(
    agents: Sequence[Mapping[str, Any]], numbering: Numbering, hosts: Mapping[object, str | None], depth: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Build `devices` of the numbered agents, and the detail `device_keys`; an unknown agent has only a handle."""
    by_id = {agent["id"]: agent for agent in agents}
    found: list[dict[str, Any]] = []
    keys: list[dict[str, Any]] = []
    for number, one in enumerate(numbering.ids):
        agent = by_id.get(one, {})
        facts = fields(agent.get("extdata"), depth)
        handle = facts.get("id")
        handle = handle.get("handle") if isinstance(handle, dict) else None
        named = str(handle) if isinstance(handle, int) else "agent not stated" if one is None else f"agent {one}"
        identity = {"device_id": number, "handle": named}
        found.append({**identity, **_device_facts(agent, facts)})
        indices = {name: integer(agent.get(name)) for name in ("absolute_index", "type_index")}
        host, address = hosts.get(agent.get("nid")), _pci_address(facts)
        keys.append({**identity, "host": host, "agent_id": one, **indices, "pci_address": address})
    return table_of("devices", found), pl.DataFrame(keys, schema=_DEVICE_KEYS)


def _device_facts(agent: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read columns of `devices` from an agent's structure."""

    def listed(name: str, field_name: str, level: int | None = None) -> list[int]:
        entries = facts.get(name)
        known = [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
        known = [one for one in known if level is None or one.get("level") == level]
        return [value for one in known if (value := integer(one.get(field_name)))]

    return {
        "vendor": text(agent.get("vendor_name")) or None,
        "arch": text(agent.get("name")) or None,
        "product": text(agent.get("product_name")) or None,
        **{column: integer(facts.get(name)) or None for column, name in _DEVICE_FIELDS.items()},
        "memory_clock_mhz": max(listed("mem_banks", "mem_clk_max"), default=None),
        "memory_bytes": integer(sum(listed("mem_banks", "size_in_bytes"))) or None,
        "memory_bus_bits": integer(sum(listed("mem_banks", "width"))) or None,
        "l2_bytes": _from_kibibytes(max(listed("caches", "size", level=2), default=None)),
        "lds_bytes": _from_kibibytes(integer(facts.get("lds_size_in_kb")) or None),
    }


def _from_kibibytes(size: int | None) -> int | None:
    return None if size is None else integer(size * 1024)


def _pci_address(facts: Mapping[str, Any]) -> str | None:
    """Return `domain:bus:device.function`, which is the same in every process of a host, unlike the handle."""
    location, domain = integer(facts.get("location_id")), integer(facts.get("domain"))
    if not location or domain is None or location < 0 or domain < 0:
        return None
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def correlation(column: str) -> pl.Expr:
    """Read an unsigned id; 0 means none."""
    return pl.when(pl.col(column) != 0).then(pl.col(column).reinterpret(signed=False))


_DEPTH: Final = 8
#: No job has more processes in one file; further ones are not compared.
_MOST_PROCESSES: Final = 1024


def stated_processes(path: Path) -> tuple[StatedProcess, ...]:
    """See `aaco_pipeline.formats.rocpd.stated_processes`."""
    try:
        with opened(path, Limits()) as database:
            return tuple(one for tables in table_sets(database) for one in _stated(database, tables))
    except CaptureError:
        return ()


def traced(path: Path, agent: str, dispatch: int, kernels: frozenset[str]) -> bool:
    """See `aaco_pipeline.formats.rocpd.traced`; a thread trace without kernels matches any kernel."""
    wanted = {plain_name(name) for name in kernels}
    try:
        with opened(path, Limits()) as database:
            return any(_has(database, tables, agent, dispatch, wanted) for tables in table_sets(database))
    except CaptureError:
        return False


def _stated(database: Database, tables: TableSet) -> list[StatedProcess]:
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
    """Return an agent's handle, by which thread-trace files name it."""
    identity = fields(extdata, _DEPTH).get("id")
    handle = identity.get("handle") if isinstance(identity, dict) else None
    return None if handle is None else str(handle)
