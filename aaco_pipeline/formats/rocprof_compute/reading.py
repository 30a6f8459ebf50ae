"""The files of a rocprof-compute workload folder, joined into canonical tables.

What the folder says of the machine is `aaco_pipeline.formats.rocprof_compute.host`.
"""

from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits, presence
from aaco_pipeline.formats.parsing import counter_passes
from aaco_pipeline.formats.parsing.csv_header import header_of
from aaco_pipeline.formats.parsing.csv_text import TextTable, number, read_text
from aaco_pipeline.formats.parsing.regular_files import is_regular, readable_entries
from aaco_pipeline.formats.parsing.wide_tables import say_untaken, wide_table
from aaco_pipeline.formats.rocprof.signs import is_wide
from aaco_pipeline.formats.rocprof_compute import host as rocprof_compute_host
from aaco_pipeline.formats.rocprof_compute.roofline import measured_roofs
from aaco_pipeline.formats.rocprof_compute.signs import LONG, MAIN

_PASSES: Final = "SQ_*.csv"
_DURATIONS: Final = ("dispatch_id", "source_dispatch_id", "pass", "duration_ns", "times")


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.rocprof_compute.read`."""
    if not is_regular(path / MAIN):
        raise CaptureError(f"{path}: not a workload folder of rocprof-compute; it has no {MAIN}")
    gathered = _Gathered(path, limits)
    gathered.add(path / MAIN)
    passes = [one.path for one in readable_entries(path) if not one.is_folder and one.path.match(_PASSES)]
    for file in passes:
        gathered.add_pass(file)
    return gathered.reading()


class _Gathered:
    """What is gathered file by file of one folder."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self.limits = path, limits
        self.findings = Findings()
        self.executions: list[pl.DataFrame] = []
        self.counters: list[pl.DataFrame] = []
        self.count = 0
        self.clock = "monotonic"

    def add(self, file: Path) -> None:
        """Take the executions and counters of one file."""
        table, name, findings = self.table(file), file.name, self.findings
        names = frozenset(table.frame.columns)
        pass_name = file.stem
        if names >= LONG:
            self.clock = "boottime"  # only rocprofv3 gives long tables, and this is its clock
            long = counter_passes.long_table(table, pass_name)
            executions, counters, invalid = long.executions, long.counters, long.invalid
            findings.took(f"counter values ({name})", table.frame.height, counters.height)
            counter_passes.say_repeated(findings, long, name)
        else:
            table.require("a table of rocprof-compute", "kernel_name|kernelname", "dispatch_id|index", "gpu_id")
            wide = wide_table(table, pass_name)
            executions, counters, invalid = wide.executions.with_row_index("execution"), wide.counters, wide.invalid
            findings.took(f"executions ({name})", executions.height + invalid, executions.height)
            findings.took(f"counter values ({name})", counters.height + wide.empty, counters.height)
            reason = f"{wide.empty} fields of counters hold no number; left out"
            findings.note(wide.empty, f"empty counters of {name}", "invalid", reason, name)
        reason = f"{invalid} rows without dispatch number, kernel, counter or value; left out"
        findings.note(invalid, f"unusable rows of {name}", "invalid", reason, name)
        say_untaken(findings, table)
        findings.have(f"counters of {name}", counters.height, "no counters in this file", name)
        shift = pl.col("execution").cast(pl.UInt32) + self.count
        self.executions.append(executions.with_columns(shift, file=pl.lit(name)))
        self.counters.append(counters.with_columns(shift))
        self.count += executions.height

    def add_pass(self, file: Path) -> None:
        """Take one further pass; a file that is none, such as the profiler's own log, is told and refuses nothing."""
        names = frozenset(header_of(file) or ())
        if not (names >= LONG or is_wide(names)):
            self.findings.say(
                f"file {file.name}", "absent", "its header is no counter table's: not read", source=file.name
            )
            return
        try:
            self.add(file)
        except CaptureError as error:
            reason = str(error).removeprefix(f"{file}: ")
            self.findings.say(f"file {file.name}", "invalid", reason, source=file.name)

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
        main = pl.col("file") == MAIN
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
        reason = f"{strangers} executions of other passes have no dispatch of their number and kernel in {MAIN}"
        self.findings.note(strangers, "passes that do not match", "partial", reason)
        tables = {
            "kernels": kernels,
            "dispatches": counter_passes.dispatch_rows(new),
            "counters": counter_passes.counter_rows(pl.concat(self.counters), found),
            "clock_domains": counter_passes.clock_domains(self.clock, new.height),
        }
        details = {
            "counter_dispatches": counter_passes.counter_dispatches(found),
            "dispatch_durations": base.select(_DURATIONS),
            "dispatch_keys": new.select("dispatch_id", "source_dispatch_id"),
        }
        if stamps is not None:
            details["timestamps"] = stamps
        counter_passes.say_times(self.findings, f"times of {MAIN}", MAIN, base)
        lacking = f"{MAIN} holds no measured times; durations are in dispatch_durations"
        self.findings.have("dispatches", new.height, lacking, MAIN)
        self._host(tables, details, found)
        details["source_rows"] = self.findings.source_rows()
        return CaptureTables(tables, tuple(self.findings.evidence), details)

    def _timestamps(self) -> pl.DataFrame | None:
        """The executions of `timestamps.csv`; None without it."""
        file = self.path / "timestamps.csv"
        if not is_regular(file):
            self.findings.say("timestamps", "absent", f"no {file.name} in the folder")
            return None
        wide = wide_table(self.table(file), "timestamps")
        rows = wide.executions.height
        self.findings.took(f"executions ({file.name})", rows + wide.invalid, rows)
        self.findings.say("timestamps", presence(rows), f"{rows} rows", rows, file.name)
        return wide.executions

    def _with_times(self, executions: pl.DataFrame, stamps: pl.DataFrame | None) -> pl.DataFrame:
        """The executions; times that the main table lacks are those of `timestamps.csv`, if it has the same dispatches.

        The tool itself puts the times of that pass into the main table, where these then agree.
        """
        main = executions.filter(pl.col("file") == MAIN)
        if stamps is None or not stamps.height:
            return executions
        identity = ["source_dispatch_id", "kernel_name"]
        of_stamps = stamps.select(*identity, "start_ns", "end_ns", "duration_ns", "times").unique(identity, keep="none")
        joined = main.drop("start_ns", "end_ns", "duration_ns", "times").join(
            of_stamps, on=identity, how="left", maintain_order="left"
        )
        item = f"origin of times in {MAIN}"
        if (main.get_column("times") == "measured").any():
            same = int((joined.get_column("start_ns") == main.get_column("start_ns")).sum())
            reason = f"{same} dispatches have the times of the pass without counters, not of a counter pass"
            self.findings.note(same, item, "partial", reason, MAIN)
            return executions
        if joined.get_column("times").eq_missing("measured").all() and main.height == stamps.height:
            reason = f"{main.height} dispatches have the times of timestamps.csv, which agree in number and kernel"
            self.findings.say(item, "partial", reason, main.height, MAIN)
            return pl.concat([joined.select(executions.columns), executions.filter(pl.col("file") != MAIN)])
        return executions

    def _host(self, tables: dict[str, pl.DataFrame], details: dict[str, pl.DataFrame], found: pl.DataFrame) -> None:
        """What the folder says of machine and devices: `processes`, `devices`, `environment`, `ceilings`."""
        info = self._optional("sysinfo.csv", "facts of the machine")
        facts = rocprof_compute_host.facts(info) if info is not None else {}
        if info is not None:
            self.findings.took("facts of the machine (sysinfo.csv)", info.frame.height, min(info.frame.height, 1))
            if info.frame.height > 1:
                reason = f"{info.frame.height} rows; only the first was taken"
                self.findings.say("rows of sysinfo.csv", "partial", reason, source=info.path.name)
        handles = found.select("device_id", "device").unique("device_id", keep="first", maintain_order=True)
        tables["processes"] = rocprof_compute_host.process(facts)
        tables["devices"] = rocprof_compute_host.devices(handles, facts)
        configuration = rocprof_compute_host.configuration(self.path / "profiling_config.yaml", self.limits)
        if configuration is None:
            reason = "no readable profiling_config.yaml in the folder"
            self.findings.say("profiler's configuration", "absent", reason)
        else:
            self.findings.took("settings (profiling_config.yaml)", len(configuration))
        tables["environment"] = rocprof_compute_host.environment(facts, configuration or {})
        roofline = self._optional("roofline.csv", "measured ceilings")
        if roofline is None:
            return
        details["roofline"] = _numbers(roofline)
        self.findings.took("ceilings (roofline.csv)", roofline.frame.height)
        roofs = measured_roofs(details["roofline"], handles.get_column("device_id").to_list())
        if roofs.ceilings.height:
            tables["ceilings"] = roofs.ceilings
        if roofs.reason is not None:
            self.findings.say("ceilings by device", "partial", roofs.reason, source=roofline.path.name)

    def _optional(self, name: str, item: str) -> TextTable | None:
        file = self.path / name
        if not is_regular(file):
            self.findings.say(item, "absent", f"no {name} in the folder")
            return None
        table = self.table(file)
        self.findings.have(item, table.frame.height, "the table has no rows", name)
        return table

    def table(self, file: Path) -> TextTable:
        """The text of one file; a cut end is told."""
        table = read_text(file, self.limits)
        if table.cut:
            reason = "the file ends within a row; read up to it"
            self.findings.say(f"end of {file.name}", "partial", reason, source=file.name)
        return table


def _numbers(table: TextTable) -> pl.DataFrame:
    """The table under its own column names; columns that hold nothing but numbers as float64."""
    columns = []
    for written, name in zip(table.header, table.frame.columns, strict=True):
        text = table.frame.select(table.text(name).alias(written)).to_series()
        value = text.to_frame().select(number(pl.col(written))).to_series()
        columns.append(value if value.null_count() == text.null_count() else text)
    return pl.DataFrame(columns)
