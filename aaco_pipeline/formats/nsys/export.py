"""An open Nsight Systems export: its tables by kind, names, processes, devices, settings and messages.

`reading` reads activities and ranges.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Findings, Limits, table_of
from aaco_pipeline.formats.nsys import newest
from aaco_pipeline.formats.parsing.lookup import Lookup, integer, rank_of, text
from aaco_pipeline.formats.parsing.redaction import safe_command, safe_environment, safe_prose, safe_value
from aaco_pipeline.formats.parsing.sqlite_database import Database, TableSet
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.evidence import DROPPED

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
WAITS: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS: Final = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
RANGES: Final = "NVTX_EVENTS"
NAMES: Final = "StringIds"
#: Required columns of a table of records.
_ESSENTIAL: Final = {
    **dict.fromkeys((KERNELS, GRAPHS, COPIES, FILLS), ("start", "end", "deviceId", "streamId")),
    CALLS: ("start", "end", "nameId"),
    WAITS: ("start", "end", "syncType"),
    RANGES: ("start", "end"),
    NAMES: ("id", "value"),
}
_REMEDY: Final = "export the report again: nsys export --type sqlite REPORT"
#: Tables without activity records.
_NO_RECORDS: Final = ("ENUM_", "TARGET_INFO_", "META_DATA_", "sqlite_", "EXPORT_META_DATA", "NVTX_PAYLOAD_SCHEMA")
_LOOKED_UP: Final = (NAMES, "PROCESSES", "ThreadNames", "MPI_RANKS", "ANALYSIS_DETAILS", "ANALYSIS_FILE")
_LOOKED_UP_TOO: Final = ("DIAGNOSTIC_EVENT", "ProcessStreams", "UnwindMethodType", EVENTS)
_CHUNK_ROWS: Final = 65_536
#: Maximum number of rows read from tables of processes, settings and messages.
_MOST_SMALL_ROWS: Final = 200_000


class Export:
    """The tables of an export. Every method raises CaptureError if the file is damaged."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self.database, self.limits = database, limits
        listed = database.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        if len(listed) > limits.tables:
            raise CaptureError(f"{database.path}: more than {limits.tables} tables; not a profiler's database")
        self.kinds = newest(str(name) for (name,) in listed)
        columns = {}
        for several in self.kinds.values():
            for name in several:
                columns[name] = database.columns(name)
        self.set = TableSet("", None, {}, columns, prefix="")
        self._check()
        self.counts = {
            name: database.count(self.set, name)
            for several in self.kinds.values()
            for name in several
            if columns[name] and not name.startswith(_NO_RECORDS)
        }
        if sum(self.counts.values()) > limits.events:
            raise CaptureError(f"{database.path}: more than {limits.events} rows; not read")
        self.names = self._strings()

    def _check(self) -> None:
        for kind, wanted in _ESSENTIAL.items():
            if kind not in self.kinds:
                continue
            lacking = [name for name in wanted if not self.has(kind, name)]
            if lacking:
                reason = (
                    f"not an Nsight Systems export that is known: {self.kinds[kind][0]} has no {', '.join(lacking)}"
                )
                raise CaptureError(f"{self.database.path}: {reason}; {_REMEDY}")
        if NAMES not in self.kinds:
            reason = f"no table {NAMES}: the export was interrupted, nothing in it has a name"
            raise CaptureError(f"{self.database.path}: {reason}; {_REMEDY}")

    def has(self, kind: str, *columns: str) -> bool:
        """Return whether there is a table of this kind with these columns."""
        return kind in self.kinds and self.set.has(self.kinds[kind][0], *columns)

    def count(self, kind: str) -> int:
        """Count the rows of a kind's table, 0 if there is none."""
        return self.counts.get(self.kinds[kind][0], 0) if kind in self.kinds else 0

    def others(self) -> dict[str, int]:
        """Count rows in record tables that this reader does not use, including older versions of a table."""
        taken = {several[0] for kind, several in self.kinds.items() if kind in (*_ESSENTIAL, *_LOOKED_UP)}
        taken |= {several[0] for kind, several in self.kinds.items() if kind in _LOOKED_UP_TOO}
        return {name: rows for name, rows in self.counts.items() if rows and name not in taken}

    def integers(self, kind: str, columns: Mapping[str, str]) -> pl.DataFrame:
        """Read integer columns of a kind's table by name, in the table's order; null if missing."""
        if kind not in self.kinds:
            return pl.Schema(dict.fromkeys(columns, pl.Int64())).to_frame()
        return self.database.integers(self.set, self.kinds[kind][0], columns)

    def texts(self, kind: str, column: str) -> pl.Series:
        """Read a text column in the table's order; null for anything but text, and for text beyond the limit."""
        series = [pl.Series(column, [], pl.String)]
        if self.has(kind, column):
            table, after = self.set.table(self.kinds[kind][0]), -(2**63)
            longest = self.limits.text_bytes
            value = f"CASE WHEN typeof({column}) = 'text' AND length({column}) <= {longest} THEN {column} END"
            while rows := self.database.rows(
                f"SELECT rowid, {value} FROM {table} WHERE rowid > {after} ORDER BY rowid LIMIT {_CHUNK_ROWS}"
            ):
                series.append(pl.Series(column, [row[1] for row in rows], pl.String))
                after = int(rows[-1][0])
        found = pl.concat(series)
        return found if len(found) else found.clear(self.count(kind))

    def records(self, kind: str, *columns: str) -> list[dict[str, Any]]:
        """Read a small table as dictionaries; the values of a missing column are None."""
        if kind not in self.kinds:
            return []
        where = f"rowid IN (SELECT rowid FROM {self.set.table(self.kinds[kind][0])} LIMIT {_MOST_SMALL_ROWS})"
        return self.database.records(self.set, self.kinds[kind][0], *columns, where=where)

    def settings(self, kind: str) -> list[tuple[str, str]]:
        """Read a table of names and values as text; other rows are skipped."""
        rows = ((text(row["name"]), text(row["value"])) for row in self.records(kind, "name", "value"))
        return [(name, value) for name, value in rows if name is not None and value is not None]

    def _strings(self) -> Lookup:
        values = self.texts(NAMES, "value")
        ids = self.integers(NAMES, {"id": "id"}).get_column("id")
        if len(ids) != len(values):
            raise CaptureError(f"{self.database.path}: {NAMES} is damaged; export the report again")
        known = pl.DataFrame({"id": ids, "value": values}).drop_nulls()
        return Lookup(known.get_column("id").to_list(), known.get_column("value"))


def whole(value: object) -> int | None:
    """Return a positive number from a small table; the exporter writes 0 or less for unknown values."""
    number = integer(value)
    return number if number is not None and number > 0 else None


#: The recording's own clock: ns since it began.
CLOCK: Final = "nsys"
#: In a serialized identifier, bits 24 to 47 are the process number; all bits above the thread identify a process.
PID_BITS: Final = 0xFFFFFF
PID_SHIFT: Final = 24
#: An unknown or missing `deviceId` or `streamId`.
NO_NUMBER: Final = 0xFFFFFFFF
_HERTZ_PER_MHZ: Final = 1e6
_ASSIGNED: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="?(.*?)"?', re.DOTALL)
_ARGUMENT: Final = re.compile(r"PROCESS_0:ARGUMENT_([0-9]{1,4})")
#: Facts about the machine that are kept, by the exporter's name: category and key.
_FACTS: Final = {
    "NvDriverVersion": ("driver", "nvidia"),
    "CudaDriverVersion": ("driver", "cuda"),
    "SoftwareReleaseVersion": ("kernel", "release"),
    "OsDescription": ("system", "os"),
    "CpuDescription": ("system", "cpu"),
}
_NORMALIZED: Final = "EXPORT_PARAM_TIME_NORMALIZE"
_SHIFTS: Final = ("EXPORT_PARAM_TIME_SHIFT", "EXPORT_CONFIG_TIME_SHIFT")


@dataclass(frozen=True)
class Settings:
    """Settings of the recording: the command, its environment, and everything else by name."""

    command: str | None
    environment: Mapping[str, str]
    export: Mapping[str, str]
    capture: Mapping[str, str]
    system: Mapping[str, str]


def settings(export: Export) -> Settings:
    """Read the settings tables; empty if they are missing."""
    capture = export.settings("META_DATA_CAPTURE")
    arguments = [(int(found[1]), value) for name, value in capture if (found := _ARGUMENT.fullmatch(name))]
    by_name = dict(capture)
    command = by_name.get("PROCESS_0:COMMAND")
    words = [command, *(value for _, value in sorted(arguments))] if command else []
    assigned = (_ASSIGNED.fullmatch(value) for name, value in capture if name == "PROCESS_0:ENVIRONMENT_VARIABLE")
    environment = {found[1]: found[2] for found in assigned if found}
    exported = dict(export.settings("META_DATA_EXPORT") or export.settings("EXPORT_META_DATA"))
    system = dict(export.settings("TARGET_INFO_SYSTEM_ENV"))
    return Settings(safe_command(words) if words else None, environment, exported, by_name, system)


def processes(export: Export, keys: Sequence[int | None], known: Settings) -> pl.DataFrame:
    """Build the table `processes` for the processes with records, by their serialized identifiers.

    Only the process started by the profiler has its full command; others have their program's name.
    """
    named = {row["globalPid"]: text(row["name"]) for row in export.records("PROCESSES", "globalPid", "name")}
    started = {row["globalPid"] for row in export.records("ProcessStreams", "globalPid")}
    ranks = {_key(row["globalTid"]): integer(row["rank"]) for row in export.records("MPI_RANKS", "globalTid", "rank")}
    host = known.system.get("Hostname")
    rows = []
    for number, key in enumerate(keys):
        name = named.get(key)
        is_started = key in started or (len(keys) == 1 and not started)
        stated = ranks.get(key)
        rank = stated if stated is not None else rank_of(known.environment) if len(keys) == 1 else None
        rows.append(
            {
                "process_id": number,
                "host": safe_value("host", host) if host else None,
                "pid": None if key is None else key >> PID_SHIFT & PID_BITS,
                "rank": rank if rank is not None and 0 <= rank < 2**31 else None,
                "command": known.command if is_started and known.command else safe_command(name) if name else None,
            }
        )
    return table_of("processes", rows)


def _key(identifier: object) -> int | None:
    number = integer(identifier)
    return None if number is None else number & ~PID_BITS


@dataclass(frozen=True)
class Gpu:
    """A device as described in the export: `row` are columns of `devices`, `identity` its own identifier."""

    number: int | None
    cuda_number: int | None
    identity: str | None
    row: Mapping[str, Any]


def described(export: Export) -> list[Gpu]:
    """List the devices that the export describes, in any release."""
    columns = (
        *("id", "name", "busLocation", "uuid", "smCount", "threadsPerWarp", "clockRate", "totalMemory"),
        *("l2CacheSize", "maxShmemPerSm", "computeMajor", "computeMinor", "cuDevice"),
    )
    found = [_gpu(row) for row in export.records("TARGET_INFO_GPU", *columns)]
    if found:
        return found
    # Until early 2021 the table had another name and other columns, and the unit of its clocks is undocumented.
    former = {
        **{"deviceId": "id", "numMultiprocessors": "smCount", "numThreadsPerWarp": "threadsPerWarp"},
        **{"computeCapabilityMajor": "computeMajor", "computeCapabilityMinor": "computeMinor"},
    }
    rows = export.records("TARGET_INFO_CUDA_GPU", "name", "busLocation", *former)
    absent = dict.fromkeys(columns)
    return [_gpu({**absent, **{former.get(key, key): value for key, value in row.items()}}) for row in rows]


def _gpu(row: Mapping[str, Any]) -> Gpu:
    clock, major, minor = (whole(row["clockRate"]), whole(row["computeMajor"]), integer(row["computeMinor"]))
    facts = {
        "vendor": "NVIDIA",
        "arch": f"sm_{major}{minor}" if major is not None and minor is not None else None,
        "product": text(row["name"]) or None,
        "max_clock_mhz": None if clock is None else clock / _HERTZ_PER_MHZ,
        **{column: whole(row[name]) for column, name in _DEVICE_NUMBERS.items()},
    }
    return Gpu(integer(row["id"]), integer(row["cuDevice"]), text(row["busLocation"]) or text(row["uuid"]), facts)


def devices(export: Export, used: pl.DataFrame, findings: Findings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Build the table `devices`, and map each process's own device numbers: process_id, device, device_id.

    `used` has process_id, pid and device (CUDA's number within the process, null if not stated). If the export maps a
    process's number to a GPU, that GPU is the device; otherwise equal numbers are one device.
    """
    gpus = described(export)
    by_number = {gpu.number: gpu for gpu in gpus}
    mapped = {
        (integer(row["pid"]), integer(row["cudaId"])): by_number[number]
        for row in export.records("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
        if (number := integer(row["gpuId"])) in by_number
    }
    places: dict[tuple[str, object], int] = {}
    rows: list[dict[str, Any]] = []
    numbers: list[tuple[int, int | None, int]] = []
    for process, pid, number in used.sort("device", "process_id", nulls_last=True).rows():
        gpu = mapped.get((pid, number))
        certain = gpu is not None
        gpu = gpu or (gpus[0] if len(gpus) == 1 and number is not None else _alike(gpus, number))
        key = ("gpu", gpu.number) if certain and gpu is not None else ("number", number)
        if key not in places:
            places[key] = len(rows)
            own = gpu.identity if gpu is not None and (certain or len(gpus) == 1) else None
            stated = f"CUDA device {number}" if number is not None else "device not stated"
            facts = gpu.row if gpu is not None else {"vendor": "NVIDIA"}
            rows.append({"product": None, **facts, "device_id": len(rows), "handle": own or stated})
        numbers.append((process, number, places[key]))
    _say_devices(rows, numbers, bool(mapped), findings)
    schema = {"process_id": pl.Int32, "device": pl.Int64, "device_id": pl.Int32}
    return table_of("devices", rows), pl.DataFrame(numbers, schema=schema, orient="row")


_DEVICE_NUMBERS: Final = {
    **{"compute_units": "smCount", "wavefront_size": "threadsPerWarp", "memory_bytes": "totalMemory"},
    **{"l2_bytes": "l2CacheSize", "lds_bytes": "maxShmemPerSm"},
}


def _alike(gpus: Iterable[Gpu], number: int | None) -> Gpu | None:
    """Find the GPU with this CUDA or profiler number, if all candidates have equal properties."""
    candidates = [gpu for gpu in gpus if number is not None and number in (gpu.cuda_number, gpu.number)]
    equal = all(gpu.row == candidates[0].row for gpu in candidates)
    return candidates[0] if candidates and equal else None


def _say_devices(
    rows: Sequence[Mapping[str, Any]], numbers: Sequence[tuple[int, int | None, int]], mapped: bool, findings: Findings
) -> None:
    unknown = ", ".join(str(row["handle"]) for row in rows if row["product"] is None)
    reason = f"the export does not describe these, or not which GPU they are: {unknown}"
    findings.note(sum(row["product"] is None for row in rows), "device properties", "partial", reason)
    shared = len({number for _, number, _ in numbers}) < len(numbers)
    if shared and not mapped:
        reason = (
            "several processes use devices of equal numbers, and the export does not say which GPU each number is: "
            "equal numbers count as one device, which CUDA_VISIBLE_DEVICES may belie"
        )
        findings.say("devices of processes", "partial", reason)


def environment(known: Settings) -> pl.DataFrame:
    """Build the table `environment`: versions, the machine, and allowed variables of the command's environment."""
    rows = [
        (category, key, safe_value(key, known.system[name]), True)
        for name, (category, key) in _FACTS.items()
        if known.system.get(name)
    ]
    version = known.export.get("EXPORT_PRODUCT_VERSION")
    if version:
        # The exporting version; the recording version is not stated.
        rows.append(("library", "nsight_systems_export", safe_value("version", version), False))
    graphs = known.capture.get("CUDA_GRAPH_TRACE_OPTIONS:MODE")
    if graphs:
        rows.append(("profiler", "cuda_graph_trace", safe_value("mode", graphs), False))
    rows += [("environment_variable", key, value, True) for key, value in safe_environment(known.environment).items()]
    return pl.DataFrame(rows, schema=polars_types("environment"), orient="row")


def clocks(export: Export, known: Settings, findings: Findings) -> pl.DataFrame:
    """Build `clock_domains`: the recording's clock, and the wall clock if its start is given in wall-clock time."""
    starts = [whole(row["utcEpochNs"]) for row in export.records("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")]
    moved = known.export.get(_NORMALIZED) == "true" or any(known.export.get(name, "0") != "0" for name in _SHIFTS)
    rows: list[tuple[str, int, int | None, str]] = []
    if moved:
        origin = "as the exporter moved them"
        reason = "the exporter moved the times (--ts-shift or --ts-normalize): they are not tied to wall-clock"
        findings.say("wall-clock", "absent", reason)
    else:
        origin = "the beginning of the recording"
        if len(starts) == 1 and starts[0] is not None:
            anchor = f"the recording began {starts[0]} ns after the Unix epoch, by TARGET_INFO_SESSION_START_TIME"
            rows.append(("realtime", -starts[0], None, anchor))
        else:
            findings.say("wall-clock", "absent", "the export does not say when the recording began")
    rows.insert(0, (CLOCK, 0, 0, f"the export's own times, counted from {origin}"))
    return pl.DataFrame(rows, schema=polars_types("clock_domains"), orient="row")


#: Severities of a warning and an error.
_WARNED: Final = (2, 3)
_LOST: Final = re.compile(r"Not all CUDA events might have been collected|\b(?:dropped|lost|discarded|overflow\w*)\b")
_COUNT: Final = re.compile(r"\b(\d{1,15})\b[^.]{0,60}\b(?:dropped|lost|discarded)\b")
_LISTED: Final = 6
_LONGEST: Final = 300


def say_messages(export: Export, processes: Collection[int | None], findings: Findings) -> None:
    """Report losses stated by the tool, and its other warnings, except for processes without records.

    The tool warns about every process that it followed, including shells and compilers that never used a GPU.
    """
    rows = export.records("DIAGNOSTIC_EVENT", "severity", "text", "globalPid")
    followed = {integer(row["globalPid"]) for row in export.records("PROCESSES", "globalPid")}
    warned = [
        said
        for row in rows
        if row["severity"] in _WARNED and (said := text(row["text"]))
        if (key := integer(row["globalPid"])) in processes or key not in followed
    ]
    lost = list(dict.fromkeys(said for said in warned if _LOST.search(said)))
    if lost:
        counts = [int(found[1]) for said in lost if (found := _COUNT.search(said))]
        findings.say(DROPPED, "partial", _quoted(lost), sum(counts) if counts else None)
    others = list(dict.fromkeys(said for said in warned if said not in lost))
    if others:
        findings.say("warnings of the tool", "partial", _quoted(others), len(others))


def say_end(export: Export, findings: Findings) -> None:
    """Report how long the recording was, or that the export does not state its end."""
    rows = export.records("ANALYSIS_DETAILS", "duration", "startTime", "stopTime")
    lengths = [length for row in rows if (length := whole(row["duration"]))]
    if lengths:
        findings.say("end of the recording", "present", f"it lasted {max(lengths) / 1e9:,.3f} s", len(rows))
    elif "ANALYSIS_DETAILS" in export.kinds:
        reason = "its end is missing: ANALYSIS_DETAILS is empty, as after an export that was interrupted"
        findings.say("end of the recording", "partial", f"{reason}; export the report again", 0)
    else:
        findings.say("end of the recording", "absent", "the export does not say how long it was: no ANALYSIS_DETAILS")


def _quoted(messages: list[str]) -> str:
    told = "; ".join(" ".join(safe_prose(one[:_LONGEST]).split()).rstrip(".") for one in messages[:_LISTED])
    further = len(messages) - _LISTED
    return f"{told}; and {further} more" if further > 0 else told
