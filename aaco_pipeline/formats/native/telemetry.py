"""Convert the sampler's recordings to canonical tables; ratios are derived only here.

`aaco_pipeline.resources.telemetry.sampler` takes the readings; scheduler events are in
`aaco_pipeline.formats.native.scheduler`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
from pydantic import Field
from typing_extensions import TypedDict

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import gpu_metrics
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits
from aaco_pipeline.formats.native import nvml
from aaco_pipeline.formats.parsing.json_document import UNFIT, Said, Whole, check_document, check_form, json_document
from aaco_pipeline.formats.parsing.regular_files import open_regular, status_of
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

#: In a session that ran here, device 0 is the CPU, so the sampled GPUs follow it.
FIRST_GPU_ID: Final = 1
_PCI: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?")


def read_gpus(gpu: Mapping[str, Any], zero: int, source: str, device_ids: Mapping[str, int]) -> CaptureTables:
    """Build `gpu_samples` and `devices` of the sampled GPUs, and evidence of missing readings with reasons.

    `gpu` is the GPU part of the sampler's document. `device_ids` maps UUIDs or PCI addresses (in any spelling) to the
    device numbers of a trace: a GPU listed there has that number; others follow, AMD's first, in their driver's order.
    CaptureError if it does not have the sampler's format.
    """
    recordings = gpu["samples"]
    if not recordings:
        absent = Evidence("gpu samples", "absent", str(gpu["reason"]), ", ".join(gpu["sources"]) or None)
        return CaptureTables({"gpu_samples": empty_table("gpu_samples"), "devices": empty_table("devices")}, (absent,))
    nvidia = [one for one in recordings if one.get("library") == nvml.LIBRARY]
    amd = [one for one in recordings if one.get("library") != nvml.LIBRARY]
    readings = []
    if amd:
        readings.append(gpu_metrics.read_recorded(amd, zero, source, first_device_id=0))
    if nvidia:
        readings.append(nvml.read_recorded(nvidia, zero, source, first_device_id=len(amd)))
    numbers = _numbers([*amd, *nvidia], device_ids)
    evidence = list(readings[0].evidence)
    for reading in readings[1:]:
        said = {item.item for item in evidence}
        evidence += (
            replace(one, item=f"{one.item} of NVIDIA devices") if one.item in said else one for one in reading.evidence
        )
    if gpu["reason"]:
        evidence.append(Evidence("gpu samples of other devices", "absent", str(gpu["reason"]), source))
    tables = {name: _together([one.tables[name] for one in readings], numbers) for name in ("gpu_samples", "devices")}
    details = {
        name: _together([one.details[name] for one in readings if name in one.details], numbers)
        for name in dict.fromkeys(name for one in readings for name in one.details)
    }
    return CaptureTables(tables, tuple(evidence), details)


def _together(frames: Sequence[pl.DataFrame], numbers: Mapping[int, int]) -> pl.DataFrame:
    """Combine frames of several vendors, whose columns may differ, in device order."""
    whole = pl.concat(frames, how="diagonal") if len(frames) > 1 else frames[0]
    numbered = whole.with_columns(pl.col("device_id").replace_strict(numbers, return_dtype=pl.Int32))
    return numbered.sort("device_id", maintain_order=True)


def _numbers(recordings: Sequence[Mapping[str, Any]], device_ids: Mapping[str, int]) -> dict[int, int]:
    """Return the session's number of each recorded device, by its position in the recordings."""
    known = {_identity(name): number for name, number in device_ids.items()}
    following = max([FIRST_GPU_ID, *(number + 1 for number in known.values())])
    numbers: dict[int, int] = {}
    for place, one in enumerate(recordings):
        facts = one["facts"] if one.get("library") == nvml.LIBRARY else {}
        stated = (facts.get("uuid"), facts.get("pci_address"), one.get("address"))
        names = [_identity(name) for name in stated if isinstance(name, str)]
        number = next((known[name] for name in names if name in known), None)
        if number is None or number in numbers.values():
            number, following = following, following + 1
        numbers[place] = number
    return numbers


def _identity(name: str) -> str:
    """Normalize a UUID or PCI address: drivers differ in case, prefix and leading zeros."""
    plain = name.strip().lower().removeprefix("gpu-")
    found = _PCI.fullmatch(plain)
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}" if found is not None else plain


FORMAT: Final = "aaco-telemetry"
FORMAT_VERSION: Final = 2
TELEMETRY_FILE: Final = "telemetry.json"

_DOCUMENT_KEYS: Final = (
    *("clock", "interval_ns", "overruns", "thinned", "sampler_cpu_ns", "page_bytes", "columns", "segments"),
    *("periods_ns", "reasons", "gpu"),
)
_RAW_COLUMNS: Final = (
    *("time_ns", "took_ns", "segment", "host_busy_ticks", "host_idle_ticks", "pressure_some_us", "load_1m_hundredths"),
    *("clock_khz", "process_cpu_ns", "rss_pages", "major_faults", "run_delay_ns"),
    *("voluntary_switches", "involuntary_switches"),
)
#: Columns of `system_samples`, keyed by raw reading.
_AS_READ: Final = ("process_cpu_ns", "run_delay_ns", "voluntary_switches", "involuntary_switches", "major_faults")
_MADE_OF: Final[Mapping[str, str]] = {
    "cpu_ratio": "host_busy_ticks",
    **{name: name for name in _AS_READ[:2]},
    "rss_bytes": "rss_pages",
    **{name: name for name in _AS_READ[2:]},
    **{"load_1m": "load_1m_hundredths", "cpu_pressure_ratio": "pressure_some_us", "clock_mhz": "clock_khz"},
}
_MADE_INTO: Final = {origin: column for column, origin in _MADE_OF.items()}


class _Segment(TypedDict):
    label: str
    pid: Whole
    started_monotonic_ns: Whole
    ended_monotonic_ns: Whole | None
    ended_because: str | None
    overruns: Whole
    periods_ns: dict[str, Whole]
    reasons: dict[str, Said]


class _Gpu(TypedDict):
    sources: list[str]
    reason: str | None
    samples: list[dict[str, Any]]


class _Document(TypedDict):
    """The sampler's document, as needed for the tables; columns are checked when they become a frame."""

    clock: str
    interval_ns: Annotated[Whole, Field(gt=0)]
    overruns: Whole
    thinned: Whole
    sampler_cpu_ns: Whole
    page_bytes: Whole
    columns: dict[str, list[Any]]
    segments: list[_Segment]
    periods_ns: dict[str, Whole]
    reasons: dict[str, Said]
    gpu: _Gpu


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a sampler's document by its first words."""
    try:
        with open_regular(path) as stream:
            start = stream.read(256)
    except (OSError, CaptureError):
        return None
    return DetectedFormat(FORMAT, "samples of host and process") if f'"{FORMAT}"'.encode() in start else None


def load(path: Path, limits: Limits | None = None) -> dict[str, Any] | None:
    """Read the document at `path`; None if there is no such file. CaptureError if it is damaged."""
    if status_of(path) is None:
        return None
    document = json_document(path, limits)
    if not isinstance(document, dict):
        raise CaptureError(f"{path}: holds no JSON object")
    return document


def read(
    document: Mapping[str, Any] | None, axis_zero_monotonic_ns: int, device_ids: Mapping[str, int] | None = None
) -> CaptureTables:
    """Build `system_samples` and `gpu_samples` on the session's axis, with missing data and reasons.

    Counters stay cumulative. `cpu_ratio` and `cpu_pressure_ratio` are means over the time since the previous sample
    with that reading. Details: `segments` (label, pid, start_ns, end_ns of each watched process), `gpu_devices` (the
    devices of `gpu_samples`, as in the table `devices`) and the details of `read_gpus` with the prefix `gpu_`;
    `device_ids` as there. CaptureError if the document is not the sampler's.
    """
    if document is None:
        absent = "the capture has no telemetry: it was taken without the sampler"
        return CaptureTables(
            {"system_samples": empty_table("system_samples"), "gpu_samples": empty_table("gpu_samples")},
            (Evidence("system samples", "absent", absent), Evidence("gpu samples", "absent", absent)),
            {"segments": _segments([], 0)},
        )
    check_document(document, FORMAT, FORMAT_VERSION, _DOCUMENT_KEYS, TELEMETRY_FILE)
    check_form(document, _Document, TELEMETRY_FILE)
    raw = _raw_frame(document["columns"])
    if document["clock"] != "CLOCK_MONOTONIC":
        raise CaptureError(f"{TELEMETRY_FILE}: its clock is {document['clock']}, expected CLOCK_MONOTONIC")
    samples = _system_samples(raw, int(document["page_bytes"]), axis_zero_monotonic_ns)
    gpu = read_gpus(document["gpu"], axis_zero_monotonic_ns, TELEMETRY_FILE, device_ids or {})
    return CaptureTables(
        {"system_samples": to_contract("system_samples", samples), "gpu_samples": gpu.tables["gpu_samples"]},
        (*_evidence(document, raw, samples), *gpu.evidence),
        {
            "segments": _segments(document["segments"], axis_zero_monotonic_ns),
            "gpu_devices": gpu.tables["devices"],
            **{f"gpu_{name}": frame for name, frame in gpu.details.items()},
        },
    )


def _system_samples(raw: pl.DataFrame, page_bytes: int, zero: int) -> pl.DataFrame:
    busy, idle = _since_last("host_busy_ticks"), _since_last("host_idle_ticks")
    waited_ns = _since_last("pressure_some_us") * 1000
    elapsed_ns = _since_last("time_ns", where="pressure_some_us")
    # The kernel may take back idle time (while waiting on storage), which makes a reading meaningless.
    cpu_ratio = pl.when((busy >= 0) & (idle >= 0) & (busy + idle > 0)).then(busy / (busy + idle))
    # The kernel totals pressure slightly before or after the reading, so the ratio for a full interval can exceed 1.
    pressure = pl.when((waited_ns >= 0) & (elapsed_ns > 0)).then((waited_ns / elapsed_ns).clip(0.0, 1.0))
    return raw.select(
        pl.col("time_ns") - zero,
        *_AS_READ,
        cpu_ratio=cpu_ratio,
        rss_bytes=pl.col("rss_pages") * page_bytes,
        load_1m=pl.col("load_1m_hundredths") / 100,
        cpu_pressure_ratio=pressure,
        clock_mhz=pl.col("clock_khz") / 1000,
    )


def _since_last(column: str, where: str | None = None) -> pl.Expr:
    """Return the column's growth since the last row in which it (or `where`) was read; null if it was not read."""
    known = pl.when(pl.col(where or column).is_not_null()).then(pl.col(column))
    return known - known.forward_fill().shift(1)


def _evidence(document: Mapping[str, Any], raw: pl.DataFrame, samples: pl.DataFrame) -> Iterable[Evidence]:
    rows, overruns = raw.height, int(document["overruns"])
    remarks = []
    if overruns:
        longest = raw.get_column("time_ns").diff().max()
        remarks.append(
            f"{overruns} of {rows + overruns} readings were missed because the host was busy; the longest time "
            f"between two is {_ms(longest)}"
        )
    if document["thinned"]:
        remarks.append(f"every second row was dropped {document['thinned']} times to bound the memory")
    yield Evidence(
        "system samples",
        ("partial" if remarks else "present") if rows > 1 else "absent",
        "; ".join(remarks) if rows > 1 else "sampling ended before the first interval was over",
        TELEMETRY_FILE,
        rows,
    )
    cost = int(document["sampler_cpu_ns"]) / rows / 1e3 if rows else 0.0
    took = raw.get_column("took_ns").quantile(0.99)
    yield Evidence(
        "clock of the system samples",
        "present",
        f"the axis itself: CLOCK_MONOTONIC, read before each row; reading a row took up to {_ms(took)} in 99 of 100; "
        f"the sampler used {cost:.0f} us of CPU time a row",
        "CLOCK_MONOTONIC",
    )
    segments = document["segments"]
    host_reasons = dict(document["reasons"])
    periods = dict(document["periods_ns"])
    for segment in segments:
        for name, period in segment["periods_ns"].items():
            periods[name] = max(period, periods.get(name, 0))
    for column, origin in _MADE_OF.items():
        reason = host_reasons.get(origin)
        found = samples.height - samples.get_column(column).null_count()
        if reason is not None:
            yield Evidence(f"system_samples.{column}", "partial" if found else "absent", reason, TELEMETRY_FILE, found)
        elif periods.get(origin, 0) > int(document["interval_ns"]):
            reason = f"read every {_ms(periods[origin])} instead of every {_ms(document['interval_ns'])}: {_DEAR}"
            yield Evidence(f"system_samples.{column}", "present", reason, TELEMETRY_FILE, found)
    for number, segment in enumerate(segments):
        yield from _segment_evidence(number, segment, raw)
    if not segments:
        yield Evidence("samples of the measured process", "absent", "no process was watched", TELEMETRY_FILE)


_DEAR: Final = "one reading is dear or hardly changes sooner"


def _segment_evidence(number: int, segment: Mapping[str, Any], raw: pl.DataFrame) -> Iterable[Evidence]:
    label = segment["label"]
    rows = raw.filter(pl.col("segment") == number).height
    missed = int(segment["overruns"])
    if not rows:
        because = segment["ended_because"] or "sampling ended first"
        yield Evidence(
            f"samples of the {label} process", "absent", f"no reading was taken: {because}", TELEMETRY_FILE, 0
        )
    else:
        yield Evidence(
            f"samples of the {label} process",
            "partial" if missed else "present",
            f"{missed} of {rows + missed} readings were missed because the host was busy" if missed else None,
            TELEMETRY_FILE,
            rows,
        )
    for origin, reason in segment["reasons"].items():
        if origin not in _MADE_INTO:
            raise CaptureError(f"{TELEMETRY_FILE}: {origin!r} is no column of the sampler's; the file is damaged")
        column = _MADE_INTO[origin]
        found = raw.filter((pl.col("segment") == number) & pl.col(origin).is_not_null()).height
        status: Any = "partial" if found else "absent"
        yield Evidence(f"system_samples.{column} of the {label} process", status, reason, TELEMETRY_FILE, found)


def _segments(segments: list[Mapping[str, Any]], zero: int) -> pl.DataFrame:
    keys = ("label", "pid", "started_monotonic_ns", "ended_monotonic_ns")
    schema = {"label": pl.String, "pid": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    rows = pl.DataFrame([[one[key] for key in keys] for one in segments], schema=schema, orient="row")
    return rows.with_columns(pl.col("start_ns", "end_ns") - zero)


def _raw_frame(columns: Mapping[str, Any]) -> pl.DataFrame:
    missing = [name for name in _RAW_COLUMNS if name not in columns]
    if missing:
        raise CaptureError(f"{TELEMETRY_FILE}: {', '.join(missing)} is missing; the capture is incomplete")
    if len({len(columns[name]) for name in _RAW_COLUMNS}) != 1:
        raise CaptureError(f"{TELEMETRY_FILE}: its columns differ in length; the file is damaged")
    try:
        schema = dict.fromkeys(_RAW_COLUMNS, pl.Int64())
        raw = pl.DataFrame({name: columns[name] for name in _RAW_COLUMNS}, schema=schema)
    except UNFIT as error:
        reason = str(error).split("\n", 1)[0]
        raise CaptureError(f"{TELEMETRY_FILE}: a column holds something else than integers: {reason}") from error
    times = raw.get_column("time_ns")
    if times.null_count() or (times.diff().drop_nulls() <= 0).any():
        raise CaptureError(f"{TELEMETRY_FILE}: its times do not increase; the file is damaged")
    return raw


def _ms(nanoseconds: Any) -> str:
    return "unknown" if nanoseconds is None else f"{float(nanoseconds) / 1e6:.3g} ms"
