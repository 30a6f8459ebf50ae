"""Read a rocprof-compute workload folder: its counters and executions, its host, and measured ceilings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import polars as pl
import polars.selectors as cs
import yaml

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits, presence, table_of
from aaco_pipeline.formats.parsing import counter_passes
from aaco_pipeline.formats.parsing.compression import read_decompressed
from aaco_pipeline.formats.parsing.counter_passes import say_untaken, wide_table
from aaco_pipeline.formats.parsing.csv_text import TextTable, header_of, number, read_text
from aaco_pipeline.formats.parsing.redaction import safe_command, safe_value
from aaco_pipeline.formats.parsing.regular_files import is_regular, readable_entries
from aaco_pipeline.formats.rocprof import is_wide
from aaco_pipeline.formats.rocprof_compute import LONG, MAIN
from aaco_pipeline.hardware.ceilings import measured_ceilings
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Older names of facts in `sysinfo.csv`, by plain name.
_OLDER: Final = {
    **{"host_name": "hostname", "host_cpu": "cpu_model", "host_distro": "linux_distro", "date": "timestamp"},
    **{"host_kernel": "linux_kernel_version", "host_rocmver": "rocm_version", "gpu_soc": "gpu_arch"},
    **{"name": "gpu_model", "numse": "se_per_gpu", "numcu": "cu_per_gpu", "numsimd": "simd_per_cu"},
    **{"wavesize": "wave_size", "maxwavespercu": "max_waves_per_cu", "maxworkgroupsize": "workgroup_max_size"},
    **{"l1": "gpu_l1", "l2": "gpu_l2", "sclk": "max_sclk", "mclk": "max_mclk", "l2banks": "total_l2_chan"},
    **{"numsqc": "sqc_per_gpu", "numpipes": "pipes_per_gpu", "hbmbw": "hbm_bw"},
}
_CATEGORIES: Final = {
    **{"rocm_version": "rocm", "amd_gpu_kernel_version": "driver", "linux_kernel_version": "kernel"},
    **dict.fromkeys(("vbios", "sbios"), "firmware"),
}
#: Columns of `devices`, by the current names of facts.
_NUMBERS: Final = {
    **{"compute_units": "cu_per_gpu", "xcc_count": "num_xcd", "simd_per_cu": "simd_per_cu"},
    **{"wavefront_size": "wave_size", "max_clock_mhz": "max_sclk", "memory_clock_mhz": "max_mclk"},
}
#: The tool writes two levels.
_DEEPEST_NESTING: Final = 32
_OPENING: Final = (
    *(yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken),
    *(yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken),
)
_CLOSING: Final = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
_UNSTATED: Final = ("", "NA", "N/A", "nan", "None")
_LONGEST_CONFIGURATION: Final = 1 << 20
_LONGEST_LIST: Final = 100


def facts(info: TextTable) -> dict[str, str]:
    """Read the facts in `sysinfo.csv` by their current names, omitting those not stated."""
    if not info.frame.height:
        return {}
    row = info.frame.row(0, named=True)
    stated = {name: value.strip() for name, value in row.items() if value is not None}
    return {_OLDER.get(name, name): value for name, value in stated.items() if value not in _UNSTATED}


def process(known: Mapping[str, str]) -> pl.DataFrame:
    """Build the row of `processes`; it has no number, because each pass was another process of the same command."""
    command = known.get("command")
    shown = None if command is None else safe_command(command)
    return table_of("processes", [{"process_id": 0, "host": known.get("hostname"), "command": shown}])


def devices(handles: pl.DataFrame, known: Mapping[str, str]) -> pl.DataFrame:
    """Build `devices`: one row per device that ran kernels, each with the facts, which apply to all of a kind."""
    partition = [known[name] for name in ("compute_partition", "memory_partition") if name in known]
    l2_kilobytes = _whole(known, "gpu_l2")
    arch = known.get("gpu_arch")
    row = {
        "vendor": "AMD" if arch is not None and arch.startswith("gfx") else None,
        "arch": arch,
        "product": known.get("gpu_model"),
        **{column: _whole(known, name) for column, name in _NUMBERS.items()},
        "l2_bytes": None if l2_kilobytes is None else l2_kilobytes * 1024,
        "partition_mode": "/".join(partition) or None,
    }
    facts = {column: pl.lit(value) for column, value in row.items()}
    return to_contract("devices", handles.select("device_id", handle="device", **facts))


def environment(known: Mapping[str, str], settings: Mapping[str, str]) -> pl.DataFrame:
    """Build `environment`: the machine's facts, and the profiler's settings in the category `profiler`."""
    rows = [
        (_CATEGORIES.get(name, "machine"), name, _safe(name, value), name in _CATEGORIES)
        for name, value in known.items()
    ]
    rows += [("profiler", name, _safe(name, value), False) for name, value in settings.items()]
    return pl.DataFrame(rows, schema=polars_types("environment"), orient="row")


def configuration(path: Path, limits: Limits) -> dict[str, str] | None:
    """Read settings in `profiling_config.yaml` that are scalars or lists of scalars; None if unreadable."""
    if not is_regular(path):
        return None
    try:
        content = read_decompressed(path, replace(limits, whole_bytes=_LONGEST_CONFIGURATION))
        if not _is_plain(content):
            return None
        settings = yaml.safe_load(content)
    except (CaptureError, yaml.YAMLError, ValueError, RecursionError):
        return None
    if not isinstance(settings, dict):
        return None
    texts = {str(name): _text(value) for name, value in settings.items() if isinstance(name, str)}
    return {name: text for name, text in texts.items() if text is not None}


def _is_plain(content: bytes) -> bool:
    """Return whether a file is flat, as the tool writes it, without merged mappings, which may grow exponentially.

    With thousands of levels, the parser takes seconds until its stack overflows.
    """
    depth = 0
    for token in yaml.scan(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > _DEEPEST_NESTING or (isinstance(token, yaml.ScalarToken) and token.value == "<<"):
            return False
    return True


def _whole(known: Mapping[str, str], name: str) -> int | None:
    """Return a positive integer; the tool writes 0 for values it could not determine."""
    text = known.get(name, "").removesuffix(".0")
    return int(text) if text.isascii() and text.isdecimal() and int(text[:18]) > 0 and len(text) <= 18 else None


def _safe(name: str, value: str) -> str:
    return safe_command(value) if name in ("command", "remaining") else safe_value(name, value)


def _text(value: object) -> str | None:
    """Convert a scalar, or a list of scalars, to text; None for anything deeper, and for nothing."""
    if isinstance(value, list) and len(value) <= _LONGEST_LIST:
        items = [_text(item) if not isinstance(item, list) else None for item in value]
        return None if None in items or not items else " ".join(item for item in items if item is not None)
    return str(value) if isinstance(value, (str, int, float)) else None


#: Devices agree if their figures differ by at most this fraction of their mean. In such files, the bounds of a single
#: device's figures differ by up to 2.5 % (matrix BF16 of an MI200).
AGREEMENT: Final = 0.01
_BOUNDS: Final = ("low", "high")


@dataclass(frozen=True)
class MeasuredRoofs:
    """The table `ceilings`, and the reason if some of the file's figures are missing; None if all are present."""

    ceilings: pl.DataFrame
    reason: str | None


def measured_roofs(roofline: pl.DataFrame, device_ids: Sequence[int]) -> MeasuredRoofs:
    """Assign the file's ceilings to the devices that ran kernels.

    With several measured devices, a figure is their mean if they agree; otherwise it is omitted.
    """
    nothing = empty_table("ceilings")
    name = next((one for one in roofline.columns if one.lower() == "device"), None)
    numbers = pl.Series(dtype=pl.String) if name is None else roofline.get_column(name)
    is_numbered = numbers.dtype.is_float() and len(numbers) and not numbers.null_count()
    if name is None or not is_numbered or not numbers.is_between(0, 2**31).all():
        return MeasuredRoofs(nothing, "the file does not number its devices; they are kept in roofline only")
    stated = roofline.select(cs.float())  # columns with non-numeric values were not measured
    if len(device_ids) > roofline.height:
        reason = f"{roofline.height} devices were measured and {len(device_ids)} ran kernels"
        which = "the file does not say which is which, so they are kept in roofline only"
        return MeasuredRoofs(nothing, f"{reason}; {which}")
    if roofline.height == 1:
        return MeasuredRoofs(_of_devices(stated, int(numbers[0]), device_ids, ""), None)
    spreads = {
        column: spread
        for column in stated.columns
        if column != name and not column.lower().endswith(_BOUNDS)
        if (spread := _spread(stated.get_column(column))) is not None
    }
    agreed = [column for column, spread in spreads.items() if spread <= AGREEMENT]
    apart = [column for column in spreads if column not in agreed]
    largest = max((spreads[column] for column in agreed), default=0.0)
    means = stated.select(pl.col(name).first(), *(pl.col(column).mean() for column in agreed))
    how = f"; mean of {roofline.height} devices that agree within {largest:.2%}"
    found = _of_devices(means, int(numbers[0]), device_ids, how) if agreed else nothing
    reason = f"{', '.join(apart)} differ between the {roofline.height} measured devices, and the file does not say "
    return MeasuredRoofs(found, f"{reason}which of them ran kernels; they are kept in roofline only" if apart else None)


def _of_devices(row: pl.DataFrame, number: int, device_ids: Sequence[int], how: str) -> pl.DataFrame:
    """Repeat the single row's figures for each device."""
    frames = [measured_ceilings(row, {number: device}).with_columns(pl.col("reference") + how) for device in device_ids]
    return pl.concat([empty_table("ceilings"), *(to_contract("ceilings", frame) for frame in frames)])


def _spread(values: pl.Series) -> float | None:
    """Return the spread of the values relative to their mean; None if one of them was not measured."""
    if values.null_count() or not (values > 0).all() or not values.is_finite().all():
        return None
    low, high, mean = (float(values.min()), float(values.max()), float(values.mean()))  # type: ignore[arg-type]
    return (high - low) / mean


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
    """The contents of one folder, collected file by file."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self.limits = path, limits
        self.findings = Findings()
        self.executions: list[pl.DataFrame] = []
        self.counters: list[pl.DataFrame] = []
        self.count = 0
        self.clock = "monotonic"

    def add(self, file: Path) -> None:
        """Add the executions and counters of one file."""
        table, name, findings = self.table(file), file.name, self.findings
        names = frozenset(table.frame.columns)
        pass_name = file.stem
        if names >= LONG:
            self.clock = "boottime"  # only rocprofv3 produces long tables, and this is its clock
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
        """Add one further pass; any other file, such as the profiler's log, is reported without an error."""
        names = frozenset(header_of(file) or ())
        item, source = f"file {file.name}", file.name
        if not (names >= LONG or is_wide(names)):
            self.findings.say(item, "absent", "its header is no counter table's: not read", source=source)
            return
        try:
            self.add(file)
        except CaptureError as error:
            self.findings.say(item, "invalid", str(error).removeprefix(f"{file}: "), source=source)

    def reading(self) -> CaptureTables:
        """Build the tables from all files."""
        executions = pl.concat(self.executions, how="diagonal").with_columns(process_id=pl.lit(0, pl.Int32))
        stamps = self._timestamps()
        executions = self._with_times(executions, stamps)
        executions = executions.with_columns(place=pl.struct("device"))
        executions = counter_passes.numbered(executions, ("place",), "device_id")
        executions = counter_passes.numbered(executions, ("process_id", "queue"), "queue_id")
        kernels, executions = counter_passes.kernels_of(executions)
        none_known = executions.select(
            pl.col("execution").cast(pl.Int32).alias("dispatch_id"), "process_id", "source_dispatch_id", "kernel_name"
        ).clear()
        main = pl.col("file") == MAIN
        # The other passes are separate executions with their own times: only the main table's become dispatches.
        base = counter_passes.matched(executions.filter(main), none_known)
        known = base.unique("dispatch_id", keep="first", maintain_order=True).select(none_known.columns)
        other = executions.filter(~main)
        others = counter_passes.matched(other.with_columns(times=pl.lit("other pass")), known)
        others = others.with_columns(other.get_column("times"), is_new=pl.lit(False))
        in_dispatches = base.filter("in_dispatches").get_column("dispatch_id").unique().implode()
        found = pl.concat([base, others]).with_columns(in_dispatches=pl.col("dispatch_id").is_in(in_dispatches))
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
        """Read the executions in `timestamps.csv`; None if it is missing."""
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
        """Fill times missing in the main table from `timestamps.csv`, if it has the same dispatches.

        The tool itself copies the times of that pass into the main table, so the two then agree.
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
        """Read facts about the machine and its devices: `processes`, `devices`, `environment`, `ceilings`."""
        info = self._optional("sysinfo.csv", "facts of the machine")
        machine = facts(info) if info is not None else {}
        if info is not None:
            self.findings.took("facts of the machine (sysinfo.csv)", info.frame.height, min(info.frame.height, 1))
            if info.frame.height > 1:
                reason = f"{info.frame.height} rows; only the first was taken"
                self.findings.say("rows of sysinfo.csv", "partial", reason, source=info.path.name)
        handles = found.select("device_id", "device").unique("device_id", keep="first", maintain_order=True)
        tables["processes"] = process(machine)
        tables["devices"] = devices(handles, machine)
        settings = configuration(self.path / "profiling_config.yaml", self.limits)
        if settings is None:
            reason = "no readable profiling_config.yaml in the folder"
            self.findings.say("profiler's configuration", "absent", reason)
        else:
            self.findings.took("settings (profiling_config.yaml)", len(settings))
        tables["environment"] = environment(machine, settings or {})
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
        """Read the text of one file; report a truncated end."""
        table = read_text(file, self.limits)
        if table.cut:
            reason = "the file ends within a row; read up to it"
            self.findings.say(f"end of {file.name}", "partial", reason, source=file.name)
        return table


def _numbers(table: TextTable) -> pl.DataFrame:
    """Return the table with its original column names and with numeric columns as float64."""
    columns = []
    for written, name in zip(table.header, table.frame.columns, strict=True):
        text = table.frame.select(table.text(name).alias(written)).to_series()
        value = text.to_frame().select(number(pl.col(written))).to_series()
        columns.append(value if value.null_count() == text.null_count() else text)
    return pl.DataFrame(columns)
