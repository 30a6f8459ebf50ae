"""What an export of Nsight Systems says of where it was made: processes, devices, clocks, versions and settings.

Its records are `aaco_pipeline.formats.kineto.nsys.reading`'s; what it says of losses is `messages`'s.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.formats.kineto.nsys.export import Export, whole
from aaco_pipeline.formats.parsing.redaction import safe_command, safe_environment, safe_value
from aaco_pipeline.formats.rocpd.lookup import integer, rank_of, text
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import empty_table, to_contract

#: The recording's own clock: ns since it began.
CLOCK: Final = "nsys"
#: Process number of a serialized identifier: bits 24 to 47; and what makes the process: all above the thread.
PID_BITS: Final = 0xFFFFFF
PID_SHIFT: Final = 24
#: Of `deviceId` and `streamId`: not known, or none.
NO_NUMBER: Final = 0xFFFFFFFF
_HERTZ_PER_MHZ: Final = 1e6
_ASSIGNED: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="?(.*?)"?', re.DOTALL)
_ARGUMENT: Final = re.compile(r"PROCESS_0:ARGUMENT_([0-9]{1,4})")
#: Facts of the machine that are kept, by the exporter's name: category and key.
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
    """What the recording was started with: the command, its environment, and everything else by name."""

    command: str | None
    environment: Mapping[str, str]
    export: Mapping[str, str]
    capture: Mapping[str, str]
    system: Mapping[str, str]


def settings(export: Export) -> Settings:
    """What the tables of settings say; empty where they are not there."""
    capture = export.settings("META_DATA_CAPTURE")
    arguments = [(int(found[1]), value) for name, value in capture if (found := _ARGUMENT.fullmatch(name))]
    by_name = dict(capture)
    words = [by_name["PROCESS_0:COMMAND"], *(value for _, value in sorted(arguments))] if _launched(by_name) else []
    assigned = (_ASSIGNED.fullmatch(value) for name, value in capture if name == "PROCESS_0:ENVIRONMENT_VARIABLE")
    environment = {found[1]: found[2] for found in assigned if found}
    exported = dict(export.settings("META_DATA_EXPORT") or export.settings("EXPORT_META_DATA"))
    system = dict(export.settings("TARGET_INFO_SYSTEM_ENV"))
    return Settings(safe_command(words) if words else None, environment, exported, by_name, system)


def _launched(capture: Mapping[str, str]) -> bool:
    return bool(capture.get("PROCESS_0:COMMAND"))


def processes(export: Export, keys: Sequence[int | None], known: Settings) -> pl.DataFrame:
    """The table `processes` of the processes that left records, by their serialized identifiers.

    The command is that of the process which the profiler started; of another it is the name of its program alone.
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
    return to_contract("processes", pl.DataFrame(rows, schema=_typed("processes", rows)))


def _key(identifier: object) -> int | None:
    number = integer(identifier)
    return None if number is None else number & ~PID_BITS


def _typed(table: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, pl.DataType]:
    return polars_types(table, *rows[0])


@dataclass(frozen=True)
class Gpu:
    """A device as the export describes it: `row` are columns of `devices`, `identity` its own identifier."""

    number: int | None
    cuda_number: int | None
    identity: str | None
    row: Mapping[str, Any]


def described(export: Export) -> list[Gpu]:
    """The devices that the export describes, of whatever release."""
    columns = (
        *("id", "name", "busLocation", "uuid", "smCount", "threadsPerWarp", "clockRate", "totalMemory"),
        *("l2CacheSize", "maxShmemPerSm", "computeMajor", "computeMinor", "cuDevice"),
    )
    found = [_gpu(row) for row in export.records("TARGET_INFO_GPU", *columns)]
    if found:
        return found
    # Until early 2021 the table had another name and another's columns; the unit of its clocks is not documented.
    former = {
        "deviceId": "id",
        "numMultiprocessors": "smCount",
        "numThreadsPerWarp": "threadsPerWarp",
        "computeCapabilityMajor": "computeMajor",
        "computeCapabilityMinor": "computeMinor",
    }
    rows = export.records("TARGET_INFO_CUDA_GPU", "name", "busLocation", *former)
    absent = dict.fromkeys(columns)
    return [_gpu({**absent, **{former.get(key, key): value for key, value in row.items()}}) for row in rows]


def _gpu(row: Mapping[str, Any]) -> Gpu:
    clock, major, minor = (whole(row["clockRate"]), whole(row["computeMajor"]), integer(row["computeMinor"]))
    identity = text(row["busLocation"]) or text(row["uuid"])
    return Gpu(
        integer(row["id"]),
        integer(row["cuDevice"]),
        identity,
        {
            "vendor": "NVIDIA",
            "arch": f"sm_{major}{minor}" if major is not None and minor is not None else None,
            "product": text(row["name"]) or None,
            "compute_units": whole(row["smCount"]),
            "wavefront_size": whole(row["threadsPerWarp"]),
            "max_clock_mhz": None if clock is None else clock / _HERTZ_PER_MHZ,
            "memory_bytes": whole(row["totalMemory"]),
            "l2_bytes": whole(row["l2CacheSize"]),
            "lds_bytes": whole(row["maxShmemPerSm"]),
        },
    )


def devices(export: Export, used: pl.DataFrame, findings: Findings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The table `devices`, and the device of each process's own number: process_id, device, device_id.

    `used` has process_id, pid and device (CUDA's number within the process, null where none is stated). Where the
    export says which GPU a process's number stands for, that GPU is the device; else equal numbers are one device.
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
            rows.append({**dict.fromkeys(_DEVICE), **facts, "device_id": len(rows), "handle": own or stated})
        numbers.append((process, number, places[key]))
    _say_devices(rows, numbers, bool(mapped), findings)
    frame = pl.DataFrame(rows, schema=polars_types("devices", *_DEVICE))
    schema = {"process_id": pl.Int32, "device": pl.Int64, "device_id": pl.Int32}
    placed = pl.DataFrame(numbers, schema=schema, orient="row")
    return to_contract("devices", frame) if rows else empty_table("devices"), placed


_DEVICE: Final = (
    *("device_id", "vendor", "arch", "product", "compute_units", "wavefront_size", "max_clock_mhz", "memory_bytes"),
    *("l2_bytes", "lds_bytes", "handle"),
)


def _alike(gpus: Iterable[Gpu], number: int | None) -> Gpu | None:
    """The GPU that a number may stand for, by CUDA's number or the profiler's, where all such have equal properties."""
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
    """The table `environment`: versions, the machine, and the allowed variables of the command's environment."""
    rows = [
        (category, key, safe_value(key, known.system[name]), True)
        for name, (category, key) in _FACTS.items()
        if known.system.get(name)
    ]
    version = known.export.get("EXPORT_PRODUCT_VERSION")
    if version:
        # The version that exported; the one that recorded is not stated.
        rows.append(("library", "nsight_systems_export", safe_value("version", version), False))
    graphs = known.capture.get("CUDA_GRAPH_TRACE_OPTIONS:MODE")
    if graphs:
        rows.append(("profiler", "cuda_graph_trace", safe_value("mode", graphs), False))
    rows += [("environment_variable", key, value, True) for key, value in safe_environment(known.environment).items()]
    frame = pl.DataFrame(rows, schema=polars_types("environment"), orient="row")
    return to_contract("environment", frame) if rows else empty_table("environment")


def clocks(export: Export, known: Settings, findings: Findings) -> pl.DataFrame:
    """The table `clock_domains`: the recording's clock, and wall-clock where its beginning is stated in it."""
    starts = [whole(row["utcEpochNs"]) for row in export.records("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")]
    moved = known.export.get(_NORMALIZED) == "true" or any(known.export.get(name, "0") != "0" for name in _SHIFTS)
    rows: list[tuple[str, int, int | None, str]] = []
    if moved:
        origin = "where the exporter was told to move them"
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
    return to_contract("clock_domains", pl.DataFrame(rows, schema=polars_types("clock_domains"), orient="row"))
