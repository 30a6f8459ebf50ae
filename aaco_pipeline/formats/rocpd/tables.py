"""Read one process's events in a rocpd database into canonical frames with dense ids.

`aaco_pipeline.formats.rocpd.reading` combines several processes. The reader relies on these properties (rocprofv3 7.0
to 7.13): an event's `stack_id` is the tracer's internal correlation, shared by a call and its launches (its
`correlation_id` is the program's own and nearly always 0); grids are in work-items; a call without duration is a sample
on a track; ids of processes and threads may differ from the operating system's.
"""

from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.lookup import Lookup, integer, names, text
from aaco_pipeline.formats.parsing.sqlite_database import Database, TableSet
from aaco_pipeline.formats.rocpd.process import ACTIVITY, Parts, ProcessTables, correlation

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
_KERNEL_KEYS: Final = {
    "kernel_id": pl.Int32,
    "source_kernel_id": pl.Int64,
    "code_object_id": pl.Int64,
    "symbol": pl.String,
}
_MARKER: Final = "marker"
_UNNAMED: Final = "(unnamed)"
_DIRECTIONS: Final = ("host_to_device", "device_to_host", "device_to_device", "host_to_host")
#: Together with the name, these identify two loaded symbols as one kernel: it is loaded for every device.
_SYMBOL_COLUMNS: Final = {
    **{"arch_vgprs": "arch_vgpr_count", "accum_vgprs": "accum_vgpr_count", "sgprs": "sgpr_count"},
    **{"static_lds_bytes": "group_segment_size", "static_scratch_bytes": "private_segment_size"},
}
_ROW: Final = pl.int_range(pl.len(), dtype=pl.Int32)


def parts(database: Database, tables: TableSet, limits: Limits, pass_name: str) -> Parts:
    """Read all events of one process's tables. CaptureError if they are damaged or too many."""
    reader = _Reader(database, tables, limits)
    reader.dispatches()
    reader.memory_copies()
    reader.calls()
    reader.memory_allocations()
    reader.counters(pass_name)
    reader.facts()
    return reader.parts


class _Reader(ProcessTables):
    """One pass over the events of a process."""

    def dispatches(self) -> None:
        sizes = [f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz"]
        wanted = {
            **ACTIVITY,
            **{name: name for name in ("agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id", *sizes)},
            **{name: name for name in ("private_segment_size", "group_segment_size", "graph_node_id")},
            **({"event_id": "event_id"} if self.parts.rows.get("pmc_event", (0, 0))[0] else {}),
        }
        source = self.activities("kernel_dispatch", wanted)
        self.parts.frames["dispatches"] = source.select(
            *("process_id", "thread_id", "correlation_id", "start_ns", "end_ns"),
            *(pl.col(f"{one}_size_{axis}").alias(f"{one}_{axis}") for one in ("grid", "workgroup") for axis in "xyz"),
            dispatch_id=_ROW,
            device_id=self.device.applied(source["agent_id"]),
            queue_id=self.queue.applied(source["queue_id"], keep_null=True),
            stream_id=self.stream.applied(source["stream_id"], keep_null=True),
            kernel_id=self._kernels(source["kernel_id"]),
            lds_allocated_bytes="group_segment_size",
            scratch_bytes="private_segment_size",
            # The column exists, with 0 for every dispatch outside a graph.
            graph_node_id=correlation("graph_node_id"),
            self_ns=pl.max_horizontal(pl.col("end_ns") - pl.col("start_ns"), 0),
            below_resolution=pl.lit(False),
        )
        number = pl.col("dispatch_id").reinterpret(signed=False)
        self.parts.frames["dispatch_keys"] = source.select(dispatch_id=_ROW, source_dispatch_id=number)
        if "event_id" in source.columns:
            length = pl.col("end_ns") - pl.col("start_ns")
            self.dispatch_events = source.select("event_id", dispatch_id=_ROW, pass_duration_ns=length)
        self.took("kernel_dispatch", source.height)
        self.parts.counts["unknown agents"] += len(self.device.unknown())

    def _kernels(self, symbols: pl.Series) -> pl.Series:
        """Return the kernel of each dispatch; `kernels` lists each dispatched kernel once."""
        used = symbols.unique().sort()
        listed = ", ".join(map(str, used.drop_nulls().to_list()))
        columns = ("id", "code_object_id", "kernel_name", "display_name", *_SYMBOL_COLUMNS.values())
        rows = {}
        if self.tables.has("info_kernel_symbol", "id"):
            found = self.database.records(self.tables, "info_kernel_symbol", *columns, where=f"id IN ({listed})")
            rows = {row["id"]: row for row in found}
        known: dict[tuple[object, ...], int] = {}
        keys, numbers = [], []
        for symbol in used.to_list():
            row = rows.get(symbol)
            name = text(row["display_name"]) or (text(row["kernel_name"]) or "").removesuffix(".kd") if row else None
            self.parts.counts["unknown kernels"] += not name
            name = name or ("kernel not stated" if symbol is None else f"unknown kernel {symbol}")
            facts = (name, *(integer(row[column]) if row else None for column in _SYMBOL_COLUMNS.values()))
            numbers.append(known.setdefault(facts, len(known)))
            code_object, linked = (integer(row["code_object_id"]), text(row["kernel_name"])) if row else (None, None)
            keys.append((numbers[-1], symbol, code_object, linked))
        named = [(number, *facts) for facts, number in known.items()]
        schema = {"kernel_id": pl.Int32, "name": pl.String, **dict.fromkeys(_SYMBOL_COLUMNS, pl.Int64)}
        self.parts.frames["kernels"] = pl.DataFrame(named, schema=schema, orient="row")
        self.parts.frames["kernel_keys"] = pl.DataFrame(keys, schema=_KERNEL_KEYS, orient="row")
        self.took("info_kernel_symbol", len(rows))
        by_symbol = dict(zip(used.to_list(), numbers, strict=True))
        kernels = Lookup.of(by_symbol.items(), pl.Int32).applied(symbols)
        return kernels.fill_null(by_symbol[None]) if None in by_symbol else kernels

    def memory_copies(self) -> None:
        wanted = {
            **ACTIVITY,
            **{name: name for name in ("src_agent_id", "dst_agent_id", "name_id", "size", "queue_id", "stream_id")},
        }
        source = self.activities("memory_copy", wanted)
        name = self.strings.applied(source["name_id"]).str.to_lowercase().str.strip_prefix("memory_copy_")
        origin, target = pl.col("source_device_id"), pl.col("destination_device_id")
        is_fill, is_known = pl.col("direction").str.contains("fill|memset"), pl.col("direction").is_in(_DIRECTIONS)
        copies = source.select(
            *("process_id", "correlation_id", "start_ns", "end_ns"),
            copy_id=_ROW,
            source_device_id=self.device_of(source["src_agent_id"]),
            destination_device_id=self.device_of(source["dst_agent_id"]),
            queue_id=self.queue.applied(source["queue_id"], keep_null=True),
            stream_id=self.stream.applied(source["stream_id"], keep_null=True),
            direction=name,
            size_bytes="size",
        ).with_columns(
            # The file does not state which of the two devices' engines copied.
            device_id=pl.when((origin != target).not_().fill_null(True)).then(pl.coalesce(origin, target)),
            direction=pl.when(is_fill).then(pl.lit("fill")).when(is_known).then("direction"),
        )
        self.parts.frames["memory_copies"] = copies
        self.parts.counts["copies between devices"] += copies.filter(origin != target).height
        self.took("memory_copy", source.height)

    def calls(self) -> None:
        """Read `api_calls` and `markers`: regions, and samples that are calls or markers without duration."""
        wanted = {**ACTIVITY, "name_id": "name_id", "category": "event.category_id"}
        regions = self.activities("region", wanted)
        regions = regions.with_columns(self._domains(regions["category"]).alias("domain"))
        instants = self.activities("sample", {**wanted, "start": "timestamp", "end": "timestamp"})
        instants = instants.with_columns(self._domains(instants["category"]).alias("domain"))
        categories = pl.Series([key for key, name in self.categories.items() if _is_call(name)], dtype=pl.Int64)
        kept = instants["category"].is_in(categories.implode()) | (instants["domain"] == _MARKER)
        for domain, rows in instants.filter(~kept.fill_null(False)).group_by("domain").len().sort("domain").rows():
            self.parts.not_taken[f"samples of {domain}"] += rows
        markers = []
        calls = []
        for kind, frame in (("region", regions), ("sample", instants)):
            mask = frame["domain"] == _MARKER
            markers.append(self._marked(kind, frame, mask))
            taken = ~mask if kind == "region" else kept.fill_null(False) & ~mask
            calls.append(frame.filter(taken) if not taken.all() else frame)
            self.took(kind, markers[-1].height + calls[-1].height)
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
        """Return the markers of a kind with their text: the message in the event's own data, or else the name."""
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
        """Return the domain of each event, `marker` for markers."""
        domains = ((one, _domain(self.categories.get(one))) for one in categories.unique())
        return Lookup.of(domains, pl.String).applied(categories).fill_null("unknown")

    def memory_allocations(self) -> None:
        kind = "memory_allocate"
        wanted = {**ACTIVITY, **{name: name for name in ("agent_id", "address", "size")}}
        source = self.activities(kind, wanted)
        stated = self.records(kind, "type", "level") or [{}] * source.height
        operation = pl.Series([text(row.get("type")) for row in stated], dtype=pl.String).fill_null("unknown")
        level = pl.Series([text(row.get("level")) for row in stated], dtype=pl.String)
        self.parts.frames["memory_allocations"] = source.select(
            pl.int_range(pl.len(), dtype=pl.Int32).alias("allocation_id"),
            *("process_id", "thread_id", "correlation_id", "start_ns", "end_ns"),
            self.device_of(source["agent_id"]).alias("device_id"),
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
            # A release has no size, so the non-null column contains 0.
            size_bytes=pl.when((pl.col("size_bytes") != 0) | (pl.col("operation") != "FREE")).then("size_bytes"),
        )
        self.took(kind, source.height)

    def counters(self, pass_name: str) -> None:
        """Read `counters`: values of kernel events, summed over the counter's instances."""
        kind = "pmc_event"
        count = self.parts.rows.get(kind, (0, 0))[0]
        if not count:
            return
        source = self.database.integers(
            self.tables, kind, {"event_id": "event_id", "pmc_id": "pmc_id", "sample_id": "sample_id"}
        )
        source = source.with_columns(self.database.reals(self.tables, kind, "value"))
        known = names(self.records("info_pmc", "id", "name"), "name")
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
        self.took(kind, taken.height)
        self.parts.frames["counters"] = (
            taken.group_by("dispatch_id", "counter", maintain_order=True)
            .agg(pl.col("value").sum(), pl.col("pass_duration_ns").first())
            .with_columns(pl.lit(pass_name).alias("pass"))
        )


def _is_call(category: str | None) -> bool:
    return (category or "").lower().removesuffix("_ext").endswith("_api") and _domain(category) != _MARKER


def _domain(category: str | None) -> str:
    """Return the lake's name for a category of calls; `marker` for markers in any spelling."""
    name = (category or "unknown").lower()
    if _MARKER in name:
        return _MARKER
    while name.endswith(("_api", "_ext")):
        name = name[:-4]
    return _DOMAIN_NAMES.get(name, name) or "unknown"
