"""The events of one process in a rocpd database as canonical frames with dense ids.

Several processes become one reading in `rocpd`. Facts of the format relied on (rocprofv3 7.0 to 7.13): an event's
`stack_id` is the tracer's internal correlation, shared by a call and what it launched (its `correlation_id` is the
program's own and nearly always 0); grids are in work-items; a call without length is a sample on a track; ids of
processes and threads need not be the operating system's.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.rocpd.database import Database, TableSet
from aaco_pipeline.formats.rocpd.lookup import Lookup, Numbering, devices, integer, names, processes, records, text

_DOMAIN_NAMES: Final = {
    "hsa_finalize": "hsa_finalizer",
    # rocprofiler-systems' own names
    "rocm_hip": "hip_runtime",
    "rocm_hip_runtime": "hip_runtime",
    "rocm_hip_compiler": "hip_compiler",
    "rocm_hsa": "hsa_core",
    "rocm_rccl": "rccl",
    "rocm_rocdecode": "rocdecode",
    "rocm_rocjpeg": "rocjpeg",
}
_MARKER: Final = "marker"
_UNNAMED: Final = "(unnamed)"
_DIRECTIONS: Final = ("host_to_device", "device_to_host", "device_to_device", "host_to_host")
#: With the name, what makes two loaded symbols one kernel: one is loaded for every device.
_SYMBOL_COLUMNS: Final = {
    "arch_vgprs": "arch_vgpr_count",
    "accum_vgprs": "accum_vgpr_count",
    "sgprs": "sgpr_count",
    "static_lds_bytes": "group_segment_size",
    "static_scratch_bytes": "private_segment_size",
}
_LOOKED_UP: Final = (
    *("metadata", "string", "info_node", "info_process", "info_thread", "info_agent", "info_queue", "info_stream"),
    *("info_pmc", "info_category", "track", "event"),
)
_ACTIVITY: Final = {"pid": "pid", "tid": "tid", "start": "start", "end": "end", "stack": "event.stack_id"}


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


def parts(database: Database, tables: TableSet, limits: Limits, pass_name: str) -> Parts:
    """Everything of one process's tables. CaptureError when they are damaged or hold too many events."""
    reader = _Reader(database, tables, limits)
    reader.dispatches()
    reader.memory_copies()
    reader.calls()
    reader.memory_allocations()
    reader.counters(pass_name)
    reader.facts()
    return reader.parts


class _Reader:
    """One pass over the tables of a process; the numbers it gives to ids grow as events name them."""

    def __init__(self, database: Database, tables: TableSet, limits: Limits) -> None:
        self.database, self.tables, self.limits = database, tables, limits
        self.parts = Parts(rows={kind: (database.count(tables, kind), 0) for kind in sorted(tables.tables)})
        for kind in _LOOKED_UP:
            if kind in self.parts.rows:
                self.parts.rows[kind] = (self.parts.rows[kind][0],) * 2
        if (events := sum(rows for rows, _ in self.parts.rows.values())) > limits.events:
            raise CaptureError(f"{database.path}: {events} rows, more than the limit of {limits.events}; not read")
        strings = records(database, tables, "string", "id", "string")
        self.strings = names(strings, "string")
        categories = [(row["id"], row["string"]) for row in strings]
        if "info_category" in tables.tables:  # schema 4
            rows = records(database, tables, "info_category", "id", "name", "string")
            categories = [(row["id"], row["string"] if row["name"] is None else row["name"]) for row in rows]
        self.categories = {one: text(name) for one, name in categories if isinstance(one, int)}
        threads = [row for row in records(database, tables, "info_thread", "id", "tid") if isinstance(row["id"], int)]
        self.threads = Lookup(
            [row["id"] for row in threads], pl.Series([integer(row["tid"]) for row in threads], dtype=pl.Int64)
        )
        self.agents = records(
            *(database, tables, "info_agent", "id", "nid", "type", "absolute_index", "type_index", "name"),
            *("vendor_name", "product_name", "extdata"),
        )
        self.process_rows = records(
            *(database, tables, "info_process", "id", "nid", "pid", "start", "fini", "command", "environment"),
        )
        self.process = Numbering(row["id"] for row in self.process_rows if isinstance(row["id"], int))
        self.device = Numbering(row["id"] for row in self.agents if row["type"] == "GPU" and isinstance(row["id"], int))
        self.queue, self.stream = Numbering(), Numbering()
        self.dispatch_events = pl.DataFrame()

    def dispatches(self) -> None:
        sizes = [f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz"]
        wanted = {
            **_ACTIVITY,
            **{name: name for name in ("agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id", *sizes)},
            **{name: name for name in ("private_segment_size", "group_segment_size", "graph_node_id")},
            **({"event_id": "event_id"} if self.parts.rows.get("pmc_event", (0, 0))[0] else {}),
        }
        source = self._activities("kernel_dispatch", wanted)
        device = self.device.applied(source["agent_id"])
        kernel = self._kernels(source["kernel_id"])
        self.parts.frames["dispatches"] = source.select(
            pl.int_range(pl.len(), dtype=pl.Int32).alias("dispatch_id"),
            "process_id",
            "thread_id",
            device.alias("device_id"),
            self.queue.applied(source["queue_id"], keep_null=True).alias("queue_id"),
            self.stream.applied(source["stream_id"], keep_null=True).alias("stream_id"),
            kernel.alias("kernel_id"),
            "correlation_id",
            "start_ns",
            "end_ns",
            *(pl.col(f"grid_size_{axis}").alias(f"grid_{axis}") for axis in "xyz"),
            *(pl.col(f"workgroup_size_{axis}").alias(f"workgroup_{axis}") for axis in "xyz"),
            lds_allocated_bytes="group_segment_size",
            scratch_bytes="private_segment_size",
            # The column is there with 0 for every dispatch outside a graph.
            graph_node_id=_correlation("graph_node_id"),
            self_ns=pl.max_horizontal(pl.col("end_ns") - pl.col("start_ns"), 0),
            below_resolution=pl.lit(False),
        )
        self.parts.frames["dispatch_keys"] = source.select(
            pl.int_range(pl.len(), dtype=pl.Int32).alias("dispatch_id"),
            source_dispatch_id=pl.col("dispatch_id").reinterpret(signed=False),
        )
        if "event_id" in source.columns:
            self.dispatch_events = source.select(
                "event_id",
                pl.int_range(pl.len(), dtype=pl.Int32).alias("dispatch_id"),
                pass_duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            )
        self.parts.rows["kernel_dispatch"] = (source.height,) * 2
        self.parts.counts["unknown agents"] += len(self.device.unknown())

    def _kernels(self, symbols: pl.Series) -> pl.Series:
        """The kernel of each dispatch; `kernels` holds those dispatched, each once however often it was loaded."""
        used = symbols.unique().sort()
        listed = ", ".join(map(str, used.drop_nulls().to_list()))
        columns = ("id", "code_object_id", "kernel_name", "display_name", *_SYMBOL_COLUMNS.values())
        rows = {}
        if self.tables.has("info_kernel_symbol", "id"):
            rows = {
                row["id"]: row
                for row in records(
                    self.database, self.tables, "info_kernel_symbol", *columns, where=f"id IN ({listed})"
                )
            }
        known: dict[tuple[object, ...], int] = {}
        keys = []
        numbers = []
        for symbol in used.to_list():
            row = rows.get(symbol)
            name = text(row["display_name"]) or (text(row["kernel_name"]) or "").removesuffix(".kd") if row else None
            self.parts.counts["unknown kernels"] += not name
            name = name or ("kernel not stated" if symbol is None else f"unknown kernel {symbol}")
            facts = (name, *(integer(row[column]) if row else None for column in _SYMBOL_COLUMNS.values()))
            numbers.append(known.setdefault(facts, len(known)))
            keys.append(
                {
                    "kernel_id": numbers[-1],
                    "source_kernel_id": symbol,
                    "code_object_id": integer(row["code_object_id"]) if row else None,
                    "symbol": text(row["kernel_name"]) if row else None,
                }
            )
        named = [(number, *facts) for facts, number in known.items()]
        schema = {"kernel_id": pl.Int32, "name": pl.String, **dict.fromkeys(_SYMBOL_COLUMNS, pl.Int64)}
        self.parts.frames["kernels"] = pl.DataFrame(named, schema=schema, orient="row")
        key_schema = {
            "kernel_id": pl.Int32,
            "source_kernel_id": pl.Int64,
            "code_object_id": pl.Int64,
            "symbol": pl.String,
        }
        self.parts.frames["kernel_keys"] = pl.DataFrame(keys, schema=key_schema)
        if "info_kernel_symbol" in self.parts.rows:
            self.parts.rows["info_kernel_symbol"] = (self.parts.rows["info_kernel_symbol"][0], len(rows))
        pairs = [(symbol, number) for symbol, number in zip(used.to_list(), numbers, strict=True) if symbol is not None]
        applied = Lookup([one for one, _ in pairs], pl.Series([number for _, number in pairs], dtype=pl.Int32))
        found = applied.applied(symbols)
        return found.fill_null(numbers[used.to_list().index(None)]) if used.null_count() else found

    def memory_copies(self) -> None:
        wanted = {
            **_ACTIVITY,
            **{name: name for name in ("src_agent_id", "dst_agent_id", "name_id", "size", "queue_id", "stream_id")},
        }
        source = self._activities("memory_copy", wanted)
        name = self.strings.applied(source["name_id"]).str.to_lowercase().str.strip_prefix("memory_copy_")
        origin, target = self._device_of(source["src_agent_id"]), self._device_of(source["dst_agent_id"])
        self.parts.frames["memory_copies"] = source.select(
            pl.int_range(pl.len(), dtype=pl.Int32).alias("copy_id"),
            "process_id",
            origin.alias("source_device_id"),
            target.alias("destination_device_id"),
            self.queue.applied(source["queue_id"], keep_null=True).alias("queue_id"),
            self.stream.applied(source["stream_id"], keep_null=True).alias("stream_id"),
            name.alias("direction"),
            "correlation_id",
            "start_ns",
            "end_ns",
            size_bytes="size",
        ).with_columns(
            # Of two devices the file does not say which one's engine copied.
            device_id=pl.when(pl.col("source_device_id") == pl.col("destination_device_id"))
            .then(pl.col("source_device_id"))
            .when(pl.col("source_device_id").is_null() | pl.col("destination_device_id").is_null())
            .then(pl.coalesce("source_device_id", "destination_device_id")),
            direction=pl.when(pl.col("direction").str.contains("fill|memset"))
            .then(pl.lit("fill"))
            .when(pl.col("direction").is_in(_DIRECTIONS))
            .then(pl.col("direction")),
        )
        self.parts.counts["copies between devices"] += (
            self.parts.frames["memory_copies"]
            .filter(pl.col("source_device_id") != pl.col("destination_device_id"))
            .height
        )
        if "memory_copy" in self.parts.rows:
            self.parts.rows["memory_copy"] = (source.height,) * 2

    def calls(self) -> None:
        """`api_calls` and `markers`: regions, and samples that are calls or markers without length."""
        wanted = {**_ACTIVITY, "name_id": "name_id", "category": "event.category_id"}
        regions = self._activities("region", wanted)
        regions = regions.with_columns(self._domains(regions["category"]).alias("domain"))
        instants = self._activities("sample", {**wanted, "start": "timestamp", "end": "timestamp"})
        instants = instants.with_columns(self._domains(instants["category"]).alias("domain"))
        categories = pl.Series([key for key, name in self.categories.items() if _is_call(name)], dtype=pl.Int64)
        kept = instants["category"].is_in(categories.implode()) | (instants["domain"] == _MARKER)
        self._count_not_taken(instants.filter(~kept.fill_null(False)))
        markers = []
        calls = []
        for kind, frame in (("region", regions), ("sample", instants)):
            mask = frame["domain"] == _MARKER
            markers.append(self._marked(kind, frame, mask))
            taken = ~mask if kind == "region" else kept.fill_null(False) & ~mask
            calls.append(frame.filter(taken) if not taken.all() else frame)
            if kind in self.parts.rows:
                self.parts.rows[kind] = (frame.height, markers[-1].height + calls[-1].height)
        found = pl.concat(calls)
        name = self.strings.applied(found["name_id"])
        self.parts.counts["calls without name"] += name.null_count()
        self.parts.counts["calls without category"] += int((found["domain"] == "unknown").sum())
        self.parts.frames["api_calls"] = found.select(
            pl.int_range(pl.len(), dtype=pl.Int32).alias("call_id"),
            *("process_id", "thread_id", "domain"),
            name.fill_null(_UNNAMED).alias("name"),
            *("correlation_id", "start_ns", "end_ns"),
        )
        self.parts.frames["markers"] = pl.concat(markers).select(
            pl.int_range(pl.len(), dtype=pl.Int32).alias("marker_id"),
            *("process_id", "thread_id", "name", "start_ns", "end_ns"),
        )

    def _marked(self, kind: str, frame: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
        """The markers of a kind with their text: the message in the event's own data, else the name."""
        marked = frame.filter(mask)
        names_ = self.strings.applied(marked["name_id"])
        messages = pl.Series([None] * marked.height, dtype=pl.String)
        if marked.height and self.tables.has("event", "extdata"):
            ids = [str(key) for key, name in self.categories.items() if _domain(name) == _MARKER]
            rows = self.database.rows(
                f"SELECT e.extdata FROM {self.tables.table(kind)} AS t JOIN {self.tables.table('event')} AS e "
                f"ON e.id = t.event_id WHERE e.category_id IN ({', '.join(ids)}) ORDER BY t.rowid"
            )
            data = pl.Series([row[0] if isinstance(row[0], str) else None for row in rows], dtype=pl.String)
            try:
                found = data.str.json_path_match("$.message")
            except pl.exceptions.PolarsError:
                found = pl.Series(dtype=pl.String)
            if len(found) == marked.height:
                messages = found
            else:
                self.parts.counts["markers with damaged text"] += marked.height
        return marked.with_columns(
            name=pl.coalesce(pl.lit(messages), pl.lit(names_), pl.lit(_UNNAMED))
            if marked.height
            else pl.lit(None, pl.String)
        )

    def _domains(self, categories: pl.Series) -> pl.Series:
        """The domain of each event, `marker` for markers."""
        used = [one for one in categories.unique().to_list() if one is not None]
        by_id = pl.Series([_domain(self.categories.get(one)) for one in used], dtype=pl.String)
        return Lookup(used, by_id).applied(categories).fill_null("unknown")

    def _count_not_taken(self, samples: pl.DataFrame) -> None:
        for domain, rows in samples.group_by("domain").len().sort("domain").iter_rows():
            self.parts.not_taken[f"samples of {domain}"] += rows

    def memory_allocations(self) -> None:
        kind = "memory_allocate"
        wanted = {**_ACTIVITY, **{name: name for name in ("agent_id", "address", "size")}}
        source = self._activities(kind, wanted)
        stated = records(self.database, self.tables, kind, "type", "level") or [{}] * source.height
        operation = pl.Series([text(row.get("type")) for row in stated], dtype=pl.String).fill_null("unknown")
        level = pl.Series([text(row.get("level")) for row in stated], dtype=pl.String)
        self.parts.frames["memory_allocations"] = source.select(
            pl.int_range(pl.len(), dtype=pl.Int32).alias("allocation_id"),
            *("process_id", "thread_id", "correlation_id", "start_ns", "end_ns"),
            self._device_of(source["agent_id"]).alias("device_id"),
            operation.alias("operation"),
            level.alias("level"),
            address=pl.col("address").reinterpret(signed=False),
            size_bytes="size",
        ).select(
            pl.exclude("level", "operation", "size_bytes"),
            kind=pl.when(pl.col("level") == "SCRATCH").then(pl.lit("scratch")).otherwise(pl.lit("memory")),
            operation=pl.when(pl.col("level") == "VIRTUAL")
            .then(pl.concat_str(pl.lit("VIRTUAL_"), "operation"))
            .otherwise("operation"),
            # A release has no size to state; the column, never null, then holds 0.
            size_bytes=pl.when((pl.col("size_bytes") != 0) | (pl.col("operation") != "FREE")).then("size_bytes"),
        )
        if kind in self.parts.rows:
            self.parts.rows[kind] = (source.height,) * 2

    def counters(self, pass_name: str) -> None:
        """`counters`: values of kernels' events, summed over the counter's instances."""
        kind = "pmc_event"
        count = self.parts.rows.get(kind, (0, 0))[0]
        if not count:
            return
        source = self.database.integers(
            self.tables, kind, {"event_id": "event_id", "pmc_id": "pmc_id", "sample_id": "sample_id"}
        )
        source = source.with_columns(self.database.reals(self.tables, kind, "value"))
        known = names(records(self.database, self.tables, "info_pmc", "id", "name"), "name")
        counter = known.applied(source["pmc_id"])
        self.parts.counts["values of unknown counters"] += counter.null_count()
        nameless = pl.concat_str(pl.lit("unknown counter "), pl.col("pmc_id").cast(pl.String)).fill_null(_UNNAMED)
        source = source.with_columns(counter=pl.coalesce(pl.lit(counter), nameless))
        dispatched = self.dispatch_events.drop_nulls("event_id").unique("event_id", keep="first", maintain_order=True)
        joined = source.join(dispatched, on="event_id", how="left", maintain_order="left")
        sampled = pl.col("sample_id").is_not_null()
        finite = pl.col("value").is_finite().fill_null(False)
        counts = joined.select(
            sampled=sampled.sum(),
            stray=(~sampled & pl.col("dispatch_id").is_null()).sum(),
            empty=(~sampled & pl.col("dispatch_id").is_not_null() & ~finite).sum(),
        ).row(0, named=True)
        self.parts.counts["counter rows of streaming samples"] += counts["sampled"]
        self.parts.counts["counter rows of no kernel"] += counts["stray"]
        self.parts.counts["counter rows without value"] += counts["empty"]
        taken = joined.filter(~sampled & finite).drop_nulls("dispatch_id")
        self.parts.rows[kind] = (count, taken.height)
        self.parts.frames["counters"] = (
            taken.group_by("dispatch_id", "counter", maintain_order=True)
            .agg(pl.col("value").sum(), pl.col("pass_duration_ns").first())
            .with_columns(pl.lit(pass_name).alias("pass"))
        )

    def facts(self) -> None:
        """`processes`, `environment`, `devices`, and the names of queues, streams and code objects."""
        found, database, tables = self.parts, self.database, self.tables
        nodes = records(database, tables, "info_node", "id", "hostname")
        hosts = {row["id"]: text(row["hostname"]) for row in nodes}
        found.hosts = tuple(dict.fromkeys(name for name in hosts.values() if name))
        found.counts["unknown processes"] += len(self.process.unknown())
        found.frames["processes"], found.frames["environment"] = processes(
            self.process_rows, self.process, tables.guid, hosts
        )
        found.frames["devices"], found.frames["device_keys"] = devices(
            self.agents, self.device, hosts, self.limits.depth
        )
        for kind, numbering in (("queue", self.queue), ("stream", self.stream)):
            titles = {row["id"]: text(row["name"]) for row in records(database, tables, f"info_{kind}", "id", "name")}
            listed = [(number, one, titles.get(one)) for number, one in enumerate(numbering.ids)]
            schema = {f"{kind}_id": pl.Int32, f"source_{kind}_id": pl.Int64, "name": pl.String}
            found.frames[f"{kind}s"] = pl.DataFrame(listed, schema=schema, orient="row")
        objects = records(database, tables, "info_code_object", "id", "agent_id", "uri", "load_base", "load_size")
        found.frames["code_objects"] = pl.DataFrame(
            {
                "code_object_id": pl.Series([integer(row["id"]) for row in objects], dtype=pl.Int64),
                "device_id": self._device_of(pl.Series([integer(row["agent_id"]) for row in objects], dtype=pl.Int64)),
                "uri": pl.Series([text(row["uri"]) for row in objects], dtype=pl.String),
                "load_base": pl.Series([integer(row["load_base"]) for row in objects], dtype=pl.Int64),
                "load_size": pl.Series([integer(row["load_size"]) for row in objects], dtype=pl.Int64),
            }
        )
        if "info_code_object" in found.rows:
            found.rows["info_code_object"] = (len(objects),) * 2
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

    def _activities(self, kind: str, wanted: dict[str, str]) -> pl.DataFrame:
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
            source.select(_correlation("stack")).to_series().alias("correlation_id"),
        )

    def _device_of(self, agents: pl.Series) -> pl.Series:
        """The device of each agent that is one; null for the host's memory."""
        known = {row["id"] for row in self.agents}
        unknown = [one for one in agents.unique().to_list() if one is not None and one not in known]
        self.parts.counts["unknown agents of memory"] += len(unknown)
        pairs = [(one, number) for number, one in enumerate(self.device.ids) if one is not None]
        numbers = pl.Series([number for _, number in pairs], dtype=pl.Int32)
        return Lookup([one for one, _ in pairs], numbers).applied(agents)


def _correlation(column: str) -> pl.Expr:
    """An unsigned id in which 0 means none."""
    return pl.when(pl.col(column) != 0).then(pl.col(column).reinterpret(signed=False))


def _is_call(category: str | None) -> bool:
    return (category or "").lower().removesuffix("_ext").endswith("_api") and _domain(category) != _MARKER


def _domain(category: str | None) -> str:
    """The lake's name of a category of calls; `marker` for markers of any spelling."""
    name = (category or "unknown").lower()
    if _MARKER in name:
        return _MARKER
    while name.endswith(("_api", "_ext")):
        name = name[:-4]
    return _DOMAIN_NAMES.get(name, name) or "unknown"
