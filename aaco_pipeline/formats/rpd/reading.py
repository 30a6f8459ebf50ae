"""Read the tables of an RPD database of rocmProfileData into canonical tables.

`aaco_pipeline.formats.rpd` recognizes the databases and documents the columns.
"""

from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import (
    COPY_DIRECTIONS,
    CaptureTables,
    Findings,
    Limits,
    described_kernels,
    dispatch_table,
)
from aaco_pipeline.formats.parsing.counter_passes import clock_domains, numbered
from aaco_pipeline.formats.parsing.lookup import Lookup, text
from aaco_pipeline.formats.parsing.sqlite_database import Database, TableSet, opened
from aaco_pipeline.lake.validation import to_contract

#: The tracer's clock; its files do not state which host clock it is.
CLOCK: Final = "rpd"
_KINDS: Final = ("op", "api", "api_ops", "kernelapi", "copyapi", "string", "ustring", "monitor", "metadata")
_ESSENTIAL: Final = {
    "op": ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id"),
    "api": ("id", "pid", "tid", "start", "end", "apiName_id", "args_id"),
    "api_ops": ("api_id", "op_id"),
    "string": ("id", "string"),
}
_KERNEL: Final = "KernelExecution"
_FILL: Final = "FillBuffer"
#: The tracer's name for a range or mark of the program, whose text is in the arguments.
_MARKER: Final = "UserMarker"
#: Calls that state their launch in workgroups, and those in work-items, by the tracer's source.
_IN_GROUPS: Final = (
    *("hipLaunchKernel", "hipExtLaunchKernel", "hipLaunchCooperativeKernel", "hipModuleLaunchKernel"),
    *("hipLaunchCooperativeKernelMultiDevice", "hipExtLaunchMultiKernelMultiDevice"),
)
_IN_ITEMS: Final = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
_AXES: Final = ("x", "y", "z")
_LAUNCH: Final = {
    "api_id": "api_ptr_id",
    "name_id": "kernelName_id",
    **{f"grid_{axis}": f"grid{axis.upper()}" for axis in _AXES},
    **{f"workgroup_{axis}": f"workgroup{axis.upper()}" for axis in _AXES},
}


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.rpd.read`."""
    with opened(path, limits) as database:
        return _Tables(database, _tables(database), limits).reading(path.name)


def _tables(database: Database) -> TableSet:
    """Return the only set of tables; CaptureError if an essential table or column is missing."""
    kinds = {kind: columns for kind in _KINDS if (columns := database.columns(f"rocpd_{kind}"))}
    for kind, needed in _ESSENTIAL.items():
        lacking = [name for name in needed if name not in kinds.get(kind, frozenset())]
        if lacking:
            reason = f"not an RPD database that is known: rocpd_{kind} has no {', '.join(lacking)}"
            raise CaptureError(f"{database.path}: {reason}; capture with rocprofv3")
    return TableSet("", None, {}, kinds)


class _Tables:
    """The rows of a database being converted to tables."""

    def __init__(self, database: Database, tables: TableSet, limits: Limits) -> None:
        self.database, self.tables = database, tables
        self.counts = {kind: database.count(tables, kind) for kind in _KINDS if kind in tables.tables}
        if sum(self.counts.values()) > limits.events:
            raise CaptureError(f"{database.path}: more than {limits.events} rows; not read")
        self.strings = self._strings("string")
        self.findings = Findings()
        self.lost: dict[str, int] = {}

    def _strings(self, kind: str) -> Lookup:
        rows = self.database.records(self.tables, kind, "id", "string")
        return Lookup.of(((row["id"], text(row["string"])) for row in rows), pl.String)

    def _listed(self, kind: str, schema: dict[str, Any], *expressions: str) -> pl.DataFrame:
        """Evaluate expressions over a table whose columns may have any type, in the order of `schema`."""
        sql = f"SELECT {', '.join(expressions)} FROM {self.tables.table(kind)} ORDER BY rowid"
        return pl.DataFrame(self.database.rows(sql), schema=schema, orient="row")

    def reading(self, source: str) -> CaptureTables:
        """Build all tables and their evidence."""
        calls, operations = self._sound("api", self._calls()), self._sound("op", self._operations(), "gpu")
        operations = operations.join(calls.select("api_id", "pid", "tid", "call"), on="api_id", how="left")
        both = pl.concat([calls.select("pid"), operations.select("pid")]).unique(maintain_order=True)
        only = both.drop_nulls()
        if only.height == 1:
            operations = operations.with_columns(pl.col("pid").fill_null(only.item()))
            both = only
        processes = both.with_columns(process_id=pl.int_range(pl.len(), dtype=pl.Int32))
        calls = calls.join(processes, on="pid", how="left", nulls_equal=True, maintain_order="left")
        operations = operations.join(processes, on="pid", how="left", nulls_equal=True, maintain_order="left")
        operations = numbered(operations.sort("id"), ("gpu",), "device_id")
        operations = numbered(operations, ("process_id", "gpu", "queue"), "queue_id")
        devices = operations.select("device_id", "gpu").unique("device_id", keep="first").sort("device_id")
        kernels = operations.filter(pl.col("kind") == _KERNEL)
        copies = operations.filter(pl.col("kind").str.starts_with("Copy") | (pl.col("kind") == _FILL))
        dispatches, named = self._dispatches(kernels)
        tables = {
            "processes": to_contract("processes", processes),
            "devices": to_contract("devices", devices.select("device_id", handle=pl.col("gpu").cast(pl.String))),
            "kernels": named,
            "dispatches": dispatches,
            "memory_copies": self._copies(copies),
            **_host(calls),
            "clock_domains": clock_domains(CLOCK, 1, "the tracer's own clock; the file does not tie it to wall clock"),
        }
        self._say(source, tables, operations, kernels.height + copies.height)
        keys = kernels.select(
            dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32),
            source_dispatch_id=pl.col("id").cast(pl.UInt64, strict=False),
        )
        details = {"dispatch_keys": keys, "source_rows": self.findings.source_rows()}
        return CaptureTables(tables, tuple(self.findings.evidence), details)

    def _sound(self, kind: str, rows: pl.DataFrame, *further: str) -> pl.DataFrame:
        """Drop rows without times or other essentials, and report how many."""
        sound = rows.drop_nulls(["start_ns", "end_ns", *further])
        self.lost[kind] = rows.height - sound.height
        reason = f"{self.lost[kind]} rows without times or device; left out"
        self.findings.note(self.lost[kind], f"unusable rows of rocpd_{kind}", "invalid", reason)
        return sound

    def _calls(self) -> pl.DataFrame:
        """Read the host's calls: api_id, pid, tid, start_ns, end_ns, call (its name), arguments."""
        columns = {"api_id": "id", "pid": "pid", "tid": "tid", "start_ns": "start", "end_ns": "end"}
        rows = self.database.integers(self.tables, "api", {**columns, "name": "apiName_id", "args": "args_id"})
        # Later schemas store unique texts separately from repeated ones.
        once = self._strings("ustring") if "ustring" in self.tables.tables else self.strings
        texts = {"call": self.strings.applied(rows["name"]), "arguments": once.applied(rows["args"])}
        return rows.with_columns(**texts).drop("name", "args")

    def _operations(self) -> pl.DataFrame:
        """Read device operations: id, gpu, queue, start_ns, end_ns, kind, description, and the launching call."""
        columns = {"id": "id", "gpu": "gpuId", "queue": "queueId", "start_ns": "start", "end_ns": "end"}
        rows = self.database.integers(self.tables, "op", {**columns, "text": "description_id", "type": "opType_id"})
        texts = {"kind": self.strings.applied(rows["type"]), "description": self.strings.applied(rows["text"])}
        rows = rows.with_columns(**texts).drop("text", "type")
        links = self.database.integers(self.tables, "api_ops", {"api_id": "api_id", "id": "op_id"})
        links = links.with_columns(launched=pl.len().over("api_id")).unique("id", keep="first", maintain_order=True)
        return rows.join(links, on="id", how="left", maintain_order="left")

    def _dispatches(self, operations: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Build the tables `dispatches` and `kernels`."""
        launches = self.database.integers(self.tables, "kernelapi", _LAUNCH)
        launches = launches.with_columns(stated=self.strings.applied(launches["name_id"])).drop("name_id")
        launches = launches.unique("api_id", keep="first", maintain_order=True)
        # A call that launched several does not state which of the grids it gives.
        alone = pl.col("launched") == 1
        rows = operations.join(launches, on="api_id", how="left", maintain_order="left")
        rows = rows.join(self._streams(), on="api_id", how="left", maintain_order="left")
        rows = numbered(rows, ("process_id", "stream"), "stream_id")
        factor = pl.when(pl.col("call").is_in(_IN_ITEMS)).then(1)
        in_groups = alone & pl.col("call").is_in(_IN_GROUPS)
        described = pl.when(pl.col("description").fill_null("") != "").then("description")
        rows = rows.with_columns(
            name=pl.coalesce(described, pl.when(alone).then("stated"), pl.lit("kernel not stated")),
            **{
                f"grid_{axis}": pl.when(alone).then(f"grid_{axis}")
                * pl.when(in_groups).then(f"workgroup_{axis}").otherwise(factor)
                for axis in _AXES
            },
            **{f"workgroup_{axis}": pl.when(alone).then(f"workgroup_{axis}") for axis in _AXES},
        )
        rows = numbered(rows, ("name",), "kernel_id")
        dispatches = rows.select(
            *("process_id", "device_id", "queue_id", "stream_id", "kernel_id", "start_ns", "end_ns"),
            *(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in _AXES),
            thread_id="tid",
            correlation_id=_correlation(),
            dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32),
        )
        names = rows.select("name", "kernel_id").unique("kernel_id", maintain_order=True)
        return dispatch_table(dispatches), described_kernels(names)

    def _streams(self) -> pl.DataFrame:
        schema = {"api_id": pl.Int64, "stream": pl.String}
        if not self.tables.has("kernelapi", "api_ptr_id", "stream"):
            return pl.DataFrame(schema=schema)
        as_text = "CASE WHEN typeof(stream) = 'text' THEN stream END"
        return self._listed("kernelapi", schema, "api_ptr_id", as_text).unique("api_id", keep="first")

    def _copies(self, operations: pl.DataFrame) -> pl.DataFrame:
        schema = {"api_id": pl.Int64, "size_bytes": pl.Int64, "row_bytes": pl.Int64, "rows": pl.Int64}
        sizes = pl.DataFrame(schema=schema)
        if self.tables.has("copyapi", "api_ptr_id", "size", "width", "height"):
            whole = [f"CASE WHEN typeof({one}) = 'integer' THEN {one} END" for one in ("size", "width", "height")]
            sizes = self._listed("copyapi", schema, "api_ptr_id", *whole).unique("api_id", keep="first")
        rows = operations.join(sizes, on="api_id", how="left", maintain_order="left")
        way = pl.col("kind").str.extract("^Copy((?:Host|Device)To(?:Host|Device))", 1)
        direction = way.replace_strict(COPY_DIRECTIONS, default=None, return_dtype=pl.String)
        rows = rows.with_columns(direction=pl.when(pl.col("kind") == _FILL).then(pl.lit("fill")).otherwise(direction))
        moved = pl.when(pl.col("launched") == 1).then(pl.coalesce("size_bytes", pl.col("row_bytes") * pl.col("rows")))
        return to_contract(
            "memory_copies",
            rows.select(
                *("process_id", "device_id", "queue_id", "direction", "start_ns", "end_ns"),
                source_device_id=pl.when(pl.col("direction") == "device_to_host").then("device_id"),
                destination_device_id=pl.when(pl.col("direction").is_in(["host_to_device", "fill"])).then("device_id"),
                size_bytes=moved,
                correlation_id=_correlation(),
                copy_id=pl.int_range(pl.len(), dtype=pl.Int32),
            ),
        )

    def _say(self, source: str, tables: dict[str, pl.DataFrame], operations: pl.DataFrame, taken: int) -> None:
        findings, counts = self.findings, self.counts
        findings.took("rocpd_op", counts["op"], taken)
        findings.took("rocpd_api", counts["api"], counts["api"] - self.lost["api"])
        for name, lacking in (
            ("dispatches", "no operation is a kernel"),
            ("memory_copies", "no operation is a copy"),
            ("api_calls", "no calls were recorded"),
            ("markers", "the program set none that the tracer records"),
        ):
            findings.have(name, tables[name].height, lacking, source)
        others = operations.height - taken
        kinds = operations.filter(~pl.col("kind").fill_null("").str.contains("^(KernelExecution|Copy|FillBuffer)"))
        listed = ", ".join(sorted(set(kinds.get_column("kind").fill_null("not stated")))[:8])
        findings.note(others, "records rocpd_op", "partial", f"{others} operations of other kinds: {listed}; not taken")
        unlinked = operations.get_column("api_id").null_count()
        findings.note(unlinked, "launches", "partial", f"{unlinked} operations are tied to no call")
        if tables["memory_copies"].height:
            reason = "the tracer keeps 32 bits of a size: one of 4 GiB or more is stated modulo 4 GiB"
            findings.say("sizes of copies", "partial", reason, tables["memory_copies"].height, source)
        if counts.get("monitor"):
            reason = "clocks of devices that are numbered otherwise than those of operations; not taken"
            findings.took("rocpd_monitor", counts["monitor"], 0)
            findings.say("records rocpd_monitor", "absent", reason, counts["monitor"], source)
        findings.say("facts of devices", "absent", "only the numbers of the devices are stated", source=source)


def _host(calls: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Build the tables `api_calls` and `markers`: the tracer writes the program's annotations among the calls."""
    is_marker = (pl.col("call") == _MARKER).fill_null(False)
    is_hip = pl.col("call").str.starts_with("hip")
    common = {name: pl.col(name) for name in ("process_id", "start_ns", "end_ns")} | {"thread_id": pl.col("tid")}
    number = pl.int_range(pl.len(), dtype=pl.Int32)
    named = calls.filter(~is_marker).select(
        **common,
        domain=pl.when(is_hip).then(pl.lit("hip_runtime")).otherwise(pl.lit("rpd")),
        name=pl.col("call").fill_null("call not stated"),
        correlation_id=_correlation(),
        call_id=number,
    )
    markers = calls.filter(is_marker).select(**common, name=pl.col("arguments").fill_null(""), marker_id=number)
    return {"api_calls": to_contract("api_calls", named), "markers": to_contract("markers", markers)}


def _correlation() -> pl.Expr:
    return pl.col("api_id").cast(pl.UInt64, strict=False)
