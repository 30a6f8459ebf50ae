"""Workload folders of rocprof-compute (formerly Omniperf): counters of many passes, joined by that tool.

`pmc_perf.csv` holds the counters, wide (one row per dispatch, one column per counter, per channel where its name ends
in `[n]`) or long (one row per dispatch and counter); `SQ_*.csv` are passes of their own with accumulated counters.
`timestamps.csv`, `sysinfo.csv`, `roofline.csv` and `profiling_config.yaml` may lie beside them.

The times in `pmc_perf.csv` are true in some releases only. Others average them over the passes, or set the start to 0
and the end to a median duration; some published folders went through a spreadsheet that cut their digits. Such times
make no dispatches: what remains is the detail `dispatch_durations`.
"""

from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import rocprof as rocprof_v1
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits
from aaco_pipeline.formats.parsing import counter_passes
from aaco_pipeline.formats.parsing.csv_text import TextTable, header_of, number, read_text
from aaco_pipeline.formats.rocprof_compute import host as rocprof_compute_host
from aaco_pipeline.hardware.ceilings import measured_ceilings
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import to_contract

_MAIN: Final = "pmc_perf.csv"
_PASSES: Final = "SQ_*.csv"
_LONG: Final = frozenset(("dispatch_id", "kernel_name", "counter_name", "counter_value"))
_DURATIONS: Final = ("dispatch_id", "source_dispatch_id", "pass", "duration_ns", "times")


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a workload folder by the header of its `pmc_perf.csv`; None for anything else."""
    main = path / _MAIN
    names = frozenset(header_of(main) or ()) if main.is_file() else frozenset[str]()
    if names >= _LONG and "gpu_id" in names:
        return DetectedFormat("rocprof-compute", "rocprof-compute workload (long counters)")
    if rocprof_v1.is_wide(names):
        return DetectedFormat("rocprof-compute", "rocprof-compute workload (wide counters)")
    return None


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read a workload folder.

    Tables: `processes`, `devices`, `kernels`, `dispatches` (only where the times are measured), `counters`,
    `clock_domains`, `environment`, `ceilings` (only where it is certain whose they are). Details:
    `counter_dispatches` (see `aaco_pipeline.formats.parsing.counter_passes`; one row per dispatch and pass);
    `dispatch_durations` (`dispatch_id`, `source_dispatch_id`, `pass`, `duration_ns`, `times`) with what
    `pmc_perf.csv` says each dispatch took, whether its times are true or not; `dispatch_keys`; `timestamps` (that
    file's executions, in columns of `counter_dispatches` without numbers); `roofline` (that file, numbers as float64);
    `source_rows`. Raises CaptureError for a folder that is none or whose files are damaged.
    """
    bounds = limits or Limits()
    if not (path / _MAIN).is_file():
        raise CaptureError(f"{path}: not a workload folder of rocprof-compute; it has no {_MAIN}")
    gathered = _Gathered(path, bounds)
    for file in [path / _MAIN, *sorted(path.glob(_PASSES))]:
        gathered.add(file)
    return gathered.reading()


class _Gathered:
    """What is gathered file by file of one folder."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self.limits = path, limits
        self.evidence: list[Evidence] = []
        self.rows: list[tuple[str, int, int]] = []
        self.executions: list[pl.DataFrame] = []
        self.counters: list[pl.DataFrame] = []
        self.count = 0
        self.clock = rocprof_v1.CLOCK

    def add(self, file: Path) -> None:
        """Take the executions and counters of one file."""
        table, name = self.table(file), file.name
        names = frozenset(table.frame.columns)
        pass_name = file.stem
        if names >= _LONG:
            self.clock = "boottime"  # only rocprofv3 gives long tables, and this is its clock
            long = counter_passes.long_table(table, pass_name)
            executions, counters, invalid = long.executions, long.counters, long.invalid
            self.rows.append((f"counter values ({name})", table.frame.height, counters.height))
            if long.repeated:
                reason = f"{long.repeated} rows state a counter of a dispatch again; their values were summed"
                self.evidence.append(Evidence(f"repeated counters ({name})", "partial", reason, name, long.repeated))
        else:
            table.require("a table of rocprof-compute", "kernel_name|kernelname", "dispatch_id|index", "gpu_id")
            wide = rocprof_v1.wide_table(table, pass_name)
            executions, counters, invalid = wide.executions.with_row_index("execution"), wide.counters, wide.invalid
            self.rows.append((f"executions ({name})", executions.height + invalid, executions.height))
            self.rows.append((f"counter values ({name})", counters.height + wide.empty, counters.height))
            if wide.empty:
                reason = f"{wide.empty} fields of counters hold no number; left out"
                self.evidence.append(Evidence(f"empty counters of {name}", "invalid", reason, name, wide.empty))
        if invalid:
            reason = f"{invalid} rows without dispatch number, kernel, counter or value; left out"
            self.evidence.append(Evidence(f"unusable rows of {name}", "invalid", reason, name, invalid))
        self.evidence += rocprof_v1.untaken(table)
        lacking = None if counters.height else "no counters in this file"
        status = rocprof_v1.presence(counters.height)
        self.evidence.append(Evidence(f"counters of {name}", status, lacking, name, counters.height))
        shift = pl.col("execution").cast(pl.UInt32) + self.count
        self.executions.append(executions.with_columns(shift, file=pl.lit(name)))
        self.counters.append(counters.with_columns(shift))
        self.count += executions.height

    def reading(self) -> CaptureTables:
        """The reading of all that was gathered."""
        executions = pl.concat(self.executions, how="diagonal").with_columns(process_id=pl.lit(0, pl.Int32))
        stamps = self._timestamps()
        executions = self._with_times(executions, stamps)
        executions = counter_passes.numbered(
            executions.with_columns(place=pl.struct("device")), ("place",), "device_id"
        )
        executions = counter_passes.numbered(executions, ("process_id", "queue"), "queue_id")
        kernels, executions = counter_passes.kernels_of(executions)
        none_known = executions.select(
            pl.col("execution").cast(pl.Int32).alias("dispatch_id"), "process_id", "source_dispatch_id", "kernel_name"
        ).clear()
        main = pl.col("file") == _MAIN
        # The other passes are executions of their own, with times of their own: only the main table's make dispatches.
        base = counter_passes.matched(executions.filter(main), none_known)
        known = base.unique("dispatch_id", keep="first", maintain_order=True).select(none_known.columns)
        other = executions.filter(~main).with_columns(times=pl.lit("other pass"))
        others = counter_passes.matched(other, known).with_columns(
            executions.filter(~main).get_column("times"), is_new=pl.lit(False)
        )
        in_dispatches = base.filter("in_dispatches").get_column("dispatch_id").unique()
        found = pl.concat([base, others]).with_columns(
            in_dispatches=pl.col("dispatch_id").is_in(in_dispatches.implode())
        )
        new = found.filter("is_new").sort("dispatch_id")
        strangers = others.filter(~pl.col("dispatch_id").is_in(base.get_column("dispatch_id").implode())).height
        if strangers:
            reason = f"{strangers} executions of other passes have no dispatch of their number and kernel in {_MAIN}"
            self.evidence.append(Evidence("passes that do not match", "partial", reason, rows=strangers))
        counters = pl.concat(self.counters).join(
            found.select("execution", "dispatch_id", "duration_ns"), on="execution", how="left", maintain_order="left"
        )
        tables = {
            "kernels": kernels,
            "dispatches": counter_passes.dispatch_rows(new),
            "counters": rocprof_v1.counter_rows(counters),
            "clock_domains": rocprof_v1.clock_domains(self.clock, new.height),
        }
        details = {
            "counter_dispatches": counter_passes.counter_dispatches(found),
            "dispatch_durations": base.select(_DURATIONS),
            "dispatch_keys": new.select("dispatch_id", "source_dispatch_id"),
        }
        if stamps is not None:
            details["timestamps"] = stamps
        self.evidence += rocprof_v1.times_evidence(f"times of {_MAIN}", _MAIN, base)
        status = rocprof_v1.presence(new.height)
        lacking = None if new.height else f"{_MAIN} holds no measured times; durations are in dispatch_durations"
        self.evidence.append(Evidence("dispatches", status, lacking, _MAIN, new.height))
        self._host(tables, details, found)
        details["source_rows"] = counter_passes.source_rows(self.rows)
        return CaptureTables(tables, tuple(self.evidence), details)

    def _timestamps(self) -> pl.DataFrame | None:
        """The executions of `timestamps.csv`; None without it."""
        file = self.path / "timestamps.csv"
        if not file.is_file():
            self.evidence.append(Evidence("timestamps", "absent", f"no {file.name} in the folder"))
            return None
        wide = rocprof_v1.wide_table(self.table(file), "timestamps")
        rows = wide.executions.height
        self.rows.append((f"executions ({file.name})", rows + wide.invalid, rows))
        self.evidence.append(Evidence("timestamps", rocprof_v1.presence(rows), f"{rows} rows", file.name, rows))
        return wide.executions

    def _with_times(self, executions: pl.DataFrame, stamps: pl.DataFrame | None) -> pl.DataFrame:
        """The executions; times that the main table lacks are those of `timestamps.csv`, if it has the same dispatches.

        The tool itself puts the times of that pass into the main table, where these then agree.
        """
        main = executions.filter(pl.col("file") == _MAIN)
        if stamps is None or not stamps.height:
            return executions
        identity = ["source_dispatch_id", "kernel_name"]
        of_stamps = stamps.select(*identity, "start_ns", "end_ns", "duration_ns", "times").unique(identity, keep="none")
        joined = main.drop("start_ns", "end_ns", "duration_ns", "times").join(
            of_stamps, on=identity, how="left", maintain_order="left"
        )
        measured = (main.get_column("times") == "measured").any()
        if measured:
            same = (joined.get_column("start_ns") == main.get_column("start_ns")).sum()
            if same:
                reason = f"{same} dispatches have the times of the pass without counters, not of a counter pass"
                self.evidence.append(Evidence(f"origin of times in {_MAIN}", "partial", reason, _MAIN, int(same)))
            return executions
        if joined.get_column("times").eq_missing("measured").all() and main.height == stamps.height:
            reason = f"{main.height} dispatches have the times of timestamps.csv, which agree in number and kernel"
            self.evidence.append(Evidence(f"origin of times in {_MAIN}", "partial", reason, _MAIN, main.height))
            rest = executions.filter(pl.col("file") != _MAIN)
            return pl.concat([joined.select(executions.columns), rest])
        return executions

    def _host(self, tables: dict[str, pl.DataFrame], details: dict[str, pl.DataFrame], found: pl.DataFrame) -> None:
        """What the folder says of machine and devices: `processes`, `devices`, `environment`, `ceilings`."""
        info = self._optional("sysinfo.csv", "facts of the machine")
        facts = rocprof_compute_host.facts(info) if info is not None else {}
        if info is not None:
            self.rows.append(("facts of the machine (sysinfo.csv)", info.frame.height, min(info.frame.height, 1)))
            if info.frame.height > 1:
                reason = f"{info.frame.height} rows; only the first was taken"
                self.evidence.append(Evidence("rows of sysinfo.csv", "partial", reason, info.path.name))
        handles = found.select("device_id", "device").unique("device_id", keep="first", maintain_order=True)
        tables["processes"] = rocprof_compute_host.process(facts)
        tables["devices"] = rocprof_compute_host.devices(handles, facts)
        configuration = rocprof_compute_host.configuration(self.path / "profiling_config.yaml", self.limits)
        if configuration is None:
            reason = "no readable profiling_config.yaml in the folder"
            self.evidence.append(Evidence("profiler's configuration", "absent", reason))
        else:
            self.rows.append(("settings (profiling_config.yaml)", len(configuration), len(configuration)))
        tables["environment"] = rocprof_compute_host.environment(facts, configuration or {})
        roofline = self._optional("roofline.csv", "measured ceilings")
        if roofline is None:
            return
        details["roofline"] = _numbers(roofline)
        self.rows.append(("ceilings (roofline.csv)", roofline.frame.height, roofline.frame.height))
        if "device" not in roofline.frame.columns or details["roofline"].get_column("device").null_count():
            reason = "the file does not number its devices; they are kept in roofline only"
            self.evidence.append(Evidence("ceilings by device", "partial", reason, roofline.path.name))
        elif roofline.frame.height == 1 and handles.height == 1:
            number, device = (int(one.item(0, 0)) for one in (details["roofline"].select("device"), handles))
            tables["ceilings"] = to_contract("ceilings", measured_ceilings(details["roofline"], {number: device}))
        else:
            reason = (
                f"{roofline.frame.height} devices were measured and {handles.height} ran kernels; the file does not "
                "say which is which, so they are kept in roofline only"
            )
            self.evidence.append(Evidence("ceilings by device", "partial", reason, roofline.path.name))

    def _optional(self, name: str, item: str) -> TextTable | None:
        file = self.path / name
        if not file.is_file():
            self.evidence.append(Evidence(item, "absent", f"no {name} in the folder"))
            return None
        table = self.table(file)
        reason = None if table.frame.height else "the table has no rows"
        self.evidence.append(Evidence(item, rocprof_v1.presence(table.frame.height), reason, name, table.frame.height))
        return table

    def table(self, file: Path) -> TextTable:
        """The text of one file; a cut end is told."""
        table = read_text(file, self.limits)
        if table.cut:
            reason = "the file ends within a row; read up to it"
            self.evidence.append(Evidence(f"end of {file.name}", "partial", reason, file.name))
        return table


def _numbers(table: TextTable) -> pl.DataFrame:
    """The table under its own column names; columns that hold nothing but numbers as float64."""
    columns = []
    for written, name in zip(table.header, table.frame.columns, strict=True):
        text = table.frame.select(table.text(name).alias(written)).to_series()
        value = text.to_frame().select(number(pl.col(written))).to_series()
        columns.append(value if value.null_count() == text.null_count() else text)
    return pl.DataFrame(columns)
