"""Read the tables of rocprof version 1's database into canonical tables.

`aaco_pipeline.formats.rocprof_db` documents the writer's columns.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl
from polars.datatypes import DataTypeClass

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
from aaco_pipeline.formats.parsing.csv_text import TextTable, plain_name
from aaco_pipeline.formats.parsing.sqlite_database import Database, opened
from aaco_pipeline.formats.rocprof.reading import CLOCK, executions_of
from aaco_pipeline.formats.rocprof_db import KERNELS, SIGNATURE
from aaco_pipeline.lake.validation import empty_table, to_contract

_TABLES: Final = ("rocTX", "HSA", "HIP", "OPS", "COPY", KERNELS)
_TIMES: Final = {"start_ns": "BeginNs", "end_ns": "EndNs"}
_HOST: Final = {**_TIMES, "pid": "pid", "thread_id": "tid", "index": "Index"}
_DEVICE: Final = {**_HOST, "device": "dev-id", "queue": "queue-id", "stream": "stream-id"}
#: Added by the writer: calls derived from dispatches to draw dependencies, and packets without work.
_MADE_CALL: Final = "hsa_dispatch"
_BARRIER: Final = "<barrier packet>"
_CHUNK_ROWS: Final = 65_536


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.rocprof_db.read`."""
    with opened(path, limits) as database:
        columns = {name: database.columns(name) for name in _TABLES}
        if not columns[KERNELS] >= SIGNATURE:
            raise CaptureError(f"{path}: not rocprof's database: no table {KERNELS} of kernels; profile again")
        rows = {name: int(database.rows(f'SELECT count(*) FROM "{name}"')[0][0]) for name in _TABLES if columns[name]}
        if sum(rows.values()) > limits.events or len(columns[KERNELS]) > limits.columns:
            raise CaptureError(f"{path}: {sum(rows.values())} rows, more than the limits allow; not read")
        given = {name: _rows(database, name, columns[name], _DEVICE) for name in _TABLES[:-1]}
        kernels = _kernel_text(database, path, columns[KERNELS])
    return _Reading(path, given, kernels, rows).tables()


def _rows(database: Database, table: str, columns: frozenset[str], wanted: Mapping[str, str]) -> pl.DataFrame:
    """Read the wanted columns as int64 and the name as text, in the table's order; null for anything else."""
    schema: dict[str, DataTypeClass] = {**dict.fromkeys(wanted, pl.Int64), "name": pl.String}
    typed = [(column, "integer") for column in wanted.values()] + [("Name", "text")]
    listed = ", ".join(
        f'CASE WHEN typeof("{column}") = \'{kind}\' THEN "{column}" END' if column in columns else "NULL"
        for column, kind in typed
    )
    return _chunks(database, table, listed, schema) if columns else pl.DataFrame(schema=schema)


def _kernel_text(database: Database, path: Path, columns: frozenset[str]) -> TextTable:
    """Return the table of kernels as text in the format of `results.csv`."""
    header = [str(row[1]) for row in database.rows(f'PRAGMA table_info("{KERNELS}")')]
    names = [plain_name(name) for name in header]
    if len(set(names)) < len(names) or len(columns) < len(header):
        raise CaptureError(f"{path}: {KERNELS} has a column twice; profile again")
    quoted = [name.replace('"', '""') for name in header]
    listed = ", ".join(f'CASE WHEN typeof("{name}") <> \'blob\' THEN CAST("{name}" AS TEXT) END' for name in quoted)
    frame = _chunks(database, KERNELS, listed, dict.fromkeys(names, pl.String))
    # The writer keeps the quotes that `results.csv` needs.
    frame = frame.with_columns(pl.col("kernelname").str.strip_chars('"'))
    return TextTable(path, tuple(header), frame, cut=False)


def _chunks(database: Database, table: str, listed: str, schema: Mapping[str, DataTypeClass]) -> pl.DataFrame:
    whole: dict[str, DataTypeClass] = {"rowid": pl.Int64, **schema}
    frames = [pl.DataFrame(schema=whole)]
    after = -(2**63)
    while found := database.rows(
        f'SELECT rowid, {listed} FROM "{table}" WHERE rowid > {after} ORDER BY rowid LIMIT {_CHUNK_ROWS}'
    ):
        frames.append(pl.DataFrame(found, schema=whole, orient="row"))
        after = int(found[-1][0])
    return pl.concat(frames).drop("rowid")


class _Reading:
    """The contents of a database being converted to tables."""

    def __init__(self, path: Path, given: Mapping[str, pl.DataFrame], kernels: TextTable, rows: Mapping[str, int]):
        self.given, self.kernels, self.rows = given, kernels, rows
        self.source = path.name
        self.findings = Findings(path.name)

    def tables(self) -> CaptureTables:
        """Build all tables and their evidence."""
        given = {name: self._sound(name, frame) for name, frame in self.given.items()}
        barriers = (pl.col("name").str.strip_chars('"') == _BARRIER).fill_null(False)
        kernels = given["OPS"].filter(~barriers)
        counted = executions_of(self.kernels, "KERN") if not kernels.height else None
        processes = _processes([counted.tables["processes"]] if counted else [], list(given.values()))
        placed = {
            name: frame.join(processes.select("pid", "process_id"), on="pid", how="left", nulls_equal=True)
            for name, frame in {**given, "OPS": kernels}.items()
        }
        tables = {"processes": to_contract("processes", processes)}
        if counted is not None:
            tables |= {name: counted.tables[name] for name in ("kernels", "dispatches", "counters", "devices")}
        else:
            tables |= _operations(placed["OPS"])
        tables |= self._host(placed)
        tables["memory_copies"] = _copies(placed["COPY"], tables["devices"])
        timed = sum(tables[name].height for name in ("dispatches", "api_calls", "memory_copies", "markers"))
        tables["clock_domains"] = clock_domains(CLOCK, timed)
        self._say(tables, given, kernels, counted)
        details = {**(counted.details if counted else {}), "source_rows": self.findings.source_rows()}
        # The database has more information about calls than the table of kernels.
        of_kernels = (one for one in (counted.evidence if counted else ()) if one.item != "api calls")
        return CaptureTables(tables, (*self.findings.evidence, *of_kernels), details)

    def _sound(self, table: str, frame: pl.DataFrame) -> pl.DataFrame:
        needed = ["start_ns", "end_ns", *(("device",) if table == "OPS" else ())]
        sound = frame.drop_nulls(needed)
        lost = frame.height - sound.height
        reason = f"{lost} rows without times or device; left out"
        self.findings.note(lost, f"unusable rows of {table}", "invalid", reason)
        return sound

    def _host(self, placed: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Build calls and markers. Both interfaces number their calls from 1, so only HIP's numbers can be links."""
        hip = placed["HIP"].with_columns(domain=pl.lit("hip_runtime"))
        hsa = placed["HSA"].filter((pl.col("name") != _MADE_CALL).fill_null(True))
        hsa = hsa.with_columns(domain=pl.lit("hsa"), index=pl.lit(None, pl.Int64))
        calls = pl.concat([hip, hsa])
        marks = placed["rocTX"]
        # The writer ends a mark 1 ns after its start.
        end = pl.when(pl.col("end_ns") == pl.col("start_ns") + 1).then("start_ns").otherwise("end_ns")
        number = pl.int_range(pl.len(), dtype=pl.Int32)
        named = calls.select(
            *("process_id", "thread_id", "domain", "start_ns", "end_ns"),
            name=pl.col("name").fill_null("call not stated"),
            correlation_id=pl.col("index").cast(pl.UInt64, strict=False),
            call_id=number,
        )
        text = pl.col("name").fill_null("")
        markers = marks.select("process_id", "thread_id", "start_ns", end_ns=end, name=text, marker_id=number)
        return {"api_calls": to_contract("api_calls", named), "markers": to_contract("markers", markers)}

    def _say(
        self,
        tables: Mapping[str, pl.DataFrame],
        given: Mapping[str, pl.DataFrame],
        kernels: pl.DataFrame,
        counted: CaptureTables | None,
    ) -> None:
        findings = self.findings
        made = given["HSA"].filter(pl.col("name") == _MADE_CALL).height
        taken = {name: frame.height for name, frame in given.items()}
        whole = 0 if counted is None else counted.details["counter_dispatches"].height
        taken |= {"HSA": taken["HSA"] - made, "OPS": kernels.height, KERNELS: whole}
        for name, rows in self.rows.items():
            findings.took(name, rows, taken[name])
        reason = f"{made} rows that the writer made of dispatches for its picture; no calls"
        findings.note(made, "records HSA", "partial", reason)
        barriers = given["OPS"].height - kernels.height
        findings.note(barriers, "records OPS", "partial", f"{barriers} barrier packets; no kernels")
        if counted is None and self.rows[KERNELS]:
            reason = "kernels are those of OPS; which of these the rows of KERN are is not stated"
            findings.say(f"records {KERNELS}", "partial", reason, self.rows[KERNELS])
        for name, lacking in (
            ("dispatches", "neither OPS nor KERN holds a kernel with times"),
            ("api_calls", "no calls were recorded"),
            ("memory_copies", "no copies were recorded"),
            ("markers", "none were recorded (--roctx-trace)"),
        ):
            findings.have(name, tables[name].height, lacking)
        if tables["memory_copies"].height:
            findings.say("sizes of copies", "absent", "the writer leaves them out")
        if counted is None:
            findings.say("grids", "absent", "OPS states none")


def _processes(known: list[pl.DataFrame], frames: list[pl.DataFrame]) -> pl.DataFrame:
    """List process_id and pid: those of the kernels first, then those of all other rows."""
    first = [frame.select("pid") for frame in known]
    every = pl.concat([pl.DataFrame(schema={"pid": pl.Int64}), *first, *(frame.select("pid") for frame in frames)])
    return every.unique(maintain_order=True).with_columns(process_id=pl.int_range(pl.len(), dtype=pl.Int32))


def _operations(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Build the tables of executed operations: kernels, dispatches, devices; no counters."""
    rows = numbered(rows, ("device",), "device_id")
    rows = numbered(rows, ("process_id", "device", "queue"), "queue_id")
    rows = numbered(rows, ("process_id", "stream"), "stream_id")
    rows = rows.with_columns(name=pl.col("name").str.strip_chars('"').fill_null("kernel not stated"))
    rows = numbered(rows, ("name",), "kernel_id")
    devices = rows.select("device_id", handle=pl.col("device").cast(pl.String)).unique("device_id", keep="first")
    dispatches = rows.select(
        *("process_id", "thread_id", "device_id", "queue_id", "stream_id", "kernel_id", "start_ns", "end_ns"),
        correlation_id=pl.col("index").cast(pl.UInt64, strict=False),
        dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32),
    )
    return {
        "kernels": described_kernels(rows.select("name", "kernel_id").unique("kernel_id", maintain_order=True)),
        "devices": to_contract("devices", devices.sort("device_id")),
        "counters": empty_table("counters"),
        "dispatches": dispatch_table(dispatches),
    }


def _copies(rows: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Build `memory_copies`; a device without kernels is unknown, and copies of HSA name none."""
    name = pl.col("name").str.strip_chars('"')
    way = name.str.extract("((?:Host|Device)To(?:Host|Device))", 1)
    direction = way.replace_strict(COPY_DIRECTIONS, default=None, return_dtype=pl.String)
    known = devices.select("device_id", device=pl.col("handle").cast(pl.Int64, strict=False)).drop_nulls()
    placed = rows.join(known.unique("device", keep="first"), on="device", how="left", maintain_order="left")
    of_hip = pl.col("device").is_not_null()
    return to_contract(
        "memory_copies",
        placed.select(
            *("process_id", "device_id", "start_ns", "end_ns"),
            direction=pl.when(name.str.contains("(?i)fill|memset")).then(pl.lit("fill")).otherwise(direction),
            correlation_id=pl.when(of_hip).then("index").cast(pl.UInt64, strict=False),
            copy_id=pl.int_range(pl.len(), dtype=pl.Int32),
        ),
    )
