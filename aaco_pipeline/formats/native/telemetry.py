"""What the sampler and the scheduler trace left behind, as canonical tables: ratios are derived here, and nowhere else.

Taking the readings is `aaco_pipeline.resources.telemetry.sampler` and
`aaco_pipeline.resources.telemetry.scheduler_events`.
"""

import gzip
import json
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import gpu_metrics
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

FORMAT: Final = "aaco-telemetry"
FORMAT_VERSION: Final = 1
SCHEDULER_FORMAT: Final = "aaco-scheduler-events"
SCHEDULER_FORMAT_VERSION: Final = 1
TELEMETRY_FILE: Final = "telemetry.json"
SCHEDULER_FILE: Final = "scheduler.json"

_DOCUMENT_KEYS: Final = (
    *("clock", "interval_ns", "overruns", "thinned", "sampler_cpu_ns", "page_bytes", "columns", "segments"),
    *("periods_ns", "reasons", "gpu"),
)
_SCHEDULER_KEYS: Final = ("state", "tool", "reason", "fix", "file", "clock")
_RECORDED_KEYS: Final = ("lost", "remarks")
_RAW_COLUMNS: Final = (
    *("time_ns", "took_ns", "segment", "host_busy_ticks", "host_idle_ticks", "pressure_some_us", "load_1m_hundredths"),
    *("clock_khz", "process_cpu_ns", "rss_pages", "major_faults", "run_delay_ns"),
    *("voluntary_switches", "involuntary_switches"),
)
#: Which raw readings a column of `system_samples` is made of.
_MADE_OF: Final[Mapping[str, str]] = {
    "cpu_ratio": "host_busy_ticks",
    "process_cpu_ns": "process_cpu_ns",
    "run_delay_ns": "run_delay_ns",
    "rss_bytes": "rss_pages",
    "voluntary_switches": "voluntary_switches",
    "involuntary_switches": "involuntary_switches",
    "major_faults": "major_faults",
    "load_1m": "load_1m_hundredths",
    "cpu_pressure_ratio": "pressure_some_us",
    "clock_mhz": "clock_khz",
}


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a sampler's document by its first words."""
    try:
        with path.open("rb") as stream:
            start = stream.read(256)
    except OSError:
        return None
    return DetectedFormat(FORMAT, "samples of host and process") if f'"{FORMAT}"'.encode() in start else None


def load(path: Path, limits: Limits | None = None) -> dict[str, Any] | None:
    """The document in the file at `path`; None when there is no such file. CaptureError when it is damaged."""
    limits = limits or Limits()
    try:
        if path.stat().st_size > limits.file_bytes:
            raise CaptureError(f"{path}: larger than the limit of {limits.file_bytes} bytes")
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise CaptureError(f"{path}: holds no JSON object")
    return document


def read(document: Mapping[str, Any] | None, axis_zero_monotonic_ns: int) -> CaptureTables:
    """`system_samples` and `gpu_samples` on the session's axis, with what was missed and why.

    Counters stay cumulative. `cpu_ratio` and `cpu_pressure_ratio` are means over the time since the sample before
    which holds that reading. Details: `segments` (label, pid, start_ns, end_ns of each watched process), `gpu_devices`
    (the devices of `gpu_samples`, as in the table `devices`) and those of `gpu_metrics.read_recorded`, named `gpu_…`.
    CaptureError when the document is not the sampler's.
    """
    if document is None:
        absent = "the capture has no telemetry: it was taken without the sampler"
        return CaptureTables(
            {"system_samples": empty_table("system_samples"), "gpu_samples": empty_table("gpu_samples")},
            (Evidence("system samples", "absent", absent), Evidence("gpu samples", "absent", absent)),
            {"segments": _segments([], 0)},
        )
    _check(document, FORMAT, FORMAT_VERSION, _DOCUMENT_KEYS, TELEMETRY_FILE)
    raw = _raw_frame(document["columns"])
    if document["clock"] != "CLOCK_MONOTONIC":
        raise CaptureError(f"{TELEMETRY_FILE}: its clock is {document['clock']}, expected CLOCK_MONOTONIC")
    samples = _system_samples(raw, int(document["page_bytes"]), axis_zero_monotonic_ns)
    gpu = _gpu(document["gpu"], axis_zero_monotonic_ns)
    return CaptureTables(
        {"system_samples": to_contract("system_samples", samples), "gpu_samples": gpu.tables["gpu_samples"]},
        (*_evidence(document, raw, samples), *gpu.evidence),
        {
            "segments": _segments(document["segments"], axis_zero_monotonic_ns),
            "gpu_devices": gpu.tables["devices"],
            **{f"gpu_{name}": frame for name, frame in gpu.details.items()},
        },
    )


#: In a session that was run here device 0 is the CPU, so the GPUs that were read come after it.
FIRST_GPU_ID: Final = 1


def _gpu(gpu: Mapping[str, Any], zero: int) -> CaptureTables:
    """`gpu_samples` and `devices` of the GPUs that were read; what was not read, and why, as evidence."""
    if not gpu["samples"]:
        absent = Evidence("gpu samples", "absent", str(gpu["reason"]), ", ".join(gpu["sources"]) or None)
        return CaptureTables({"gpu_samples": empty_table("gpu_samples"), "devices": empty_table("devices")}, (absent,))
    reading = gpu_metrics.read_recorded(gpu["samples"], zero, TELEMETRY_FILE, first_device_id=FIRST_GPU_ID)
    if gpu["reason"]:
        unread = Evidence("gpu samples of other devices", "absent", str(gpu["reason"]), TELEMETRY_FILE)
        return CaptureTables(reading.tables, (*reading.evidence, unread), reading.details)
    return reading


def _system_samples(raw: pl.DataFrame, page_bytes: int, zero: int) -> pl.DataFrame:
    busy, idle = _since_last("host_busy_ticks"), _since_last("host_idle_ticks")
    waited_ns = _since_last("pressure_some_us") * 1000
    elapsed_ns = _since_last("time_ns", where="pressure_some_us")
    # Idle time that the kernel takes back (it may, for waiting on storage) leaves a reading without meaning.
    cpu_ratio = pl.when((busy >= 0) & (idle >= 0) & (busy + idle > 0)).then(busy / (busy + idle))
    # The kernel sums pressure up a little before or after the reading, so a full interval can come out above 1.
    pressure = pl.when((waited_ns >= 0) & (elapsed_ns > 0)).then((waited_ns / elapsed_ns).clip(0.0, 1.0))
    return raw.select(
        pl.col("time_ns") - zero,
        cpu_ratio.alias("cpu_ratio"),
        "process_cpu_ns",
        "run_delay_ns",
        (pl.col("rss_pages") * page_bytes).alias("rss_bytes"),
        "voluntary_switches",
        "involuntary_switches",
        "major_faults",
        (pl.col("load_1m_hundredths") / 100).alias("load_1m"),
        pressure.alias("cpu_pressure_ratio"),
        (pl.col("clock_khz") / 1000).alias("clock_mhz"),
    )


def _since_last(column: str, where: str | None = None) -> pl.Expr:
    """The column's growth since the last row in which it (or `where`) was read; null where it was not read."""
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
        column = next(name for name, made_of in _MADE_OF.items() if made_of == origin)
        found = raw.filter((pl.col("segment") == number) & pl.col(origin).is_not_null()).height
        status: Any = "partial" if found else "absent"
        yield Evidence(f"system_samples.{column} of the {label} process", status, reason, TELEMETRY_FILE, found)


def _segments(segments: list[Mapping[str, Any]], zero: int) -> pl.DataFrame:
    schema = {"label": pl.String(), "pid": pl.Int64(), "start_ns": pl.Int64(), "end_ns": pl.Int64()}
    rows = [
        {
            "label": one["label"],
            "pid": one["pid"],
            "start_ns": one["started_monotonic_ns"] - zero,
            "end_ns": None if one["ended_monotonic_ns"] is None else one["ended_monotonic_ns"] - zero,
        }
        for one in segments
    ]
    return pl.DataFrame(rows, schema=schema)


def _raw_frame(columns: Mapping[str, Any]) -> pl.DataFrame:
    missing = [name for name in _RAW_COLUMNS if name not in columns]
    if missing:
        raise CaptureError(f"{TELEMETRY_FILE}: {', '.join(missing)} is missing; the capture is incomplete")
    if len({len(columns[name]) for name in _RAW_COLUMNS}) != 1:
        raise CaptureError(f"{TELEMETRY_FILE}: its columns differ in length; the file is damaged")
    try:
        raw = pl.DataFrame(
            {name: columns[name] for name in _RAW_COLUMNS}, schema=dict.fromkeys(_RAW_COLUMNS, pl.Int64())
        )
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise CaptureError(f"{TELEMETRY_FILE}: a column holds something else than integers: {error}") from error
    times = raw.get_column("time_ns")
    if times.null_count() or (times.diff().drop_nulls() <= 0).any():
        raise CaptureError(f"{TELEMETRY_FILE}: its times do not increase; the file is damaged")
    return raw


def _check(document: Mapping[str, Any], wanted: str, version: int, keys: tuple[str, ...], file: str) -> None:
    found, found_version = document.get("format"), document.get("format_version")
    if found != wanted or not isinstance(found_version, int) or found_version > version:
        raise CaptureError(
            f"{file}: format {found} {found_version}, and this aaco_pipeline reads {wanted} up to {version}; "
            "upgrade aaco_pipeline"
        )
    missing = [key for key in keys if key not in document]
    if missing:
        raise CaptureError(f"{file}: {', '.join(missing)} is missing; the capture is incomplete")


def _ms(nanoseconds: Any) -> str:
    return "unknown" if nanoseconds is None else f"{float(nanoseconds) / 1e6:.3g} ms"


# --- Scheduler events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Switch:
    """One CPU goes from one thread to another."""

    time_ns: int
    cpu: int
    previous: int
    previous_process: int
    previous_runnable: bool
    previous_dead: bool
    following: int


@dataclass(frozen=True)
class _Waking:
    """A blocked thread becomes runnable."""

    time_ns: int
    cpu: int
    thread: int


@dataclass
class _Off:
    """Since when a thread is off the CPU, and since when it could run again."""

    since_ns: int
    cpu: int
    runnable_since_ns: int | None = None
    woken_for_cpu: int | None = None


@dataclass
class _Events:
    time_ns: list[int] = field(default_factory=list)
    cpu: list[int] = field(default_factory=list)
    thread_id: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    duration_ns: list[int | None] = field(default_factory=list)

    def add(self, time_ns: int, cpu: int, thread_id: int, kind: str, duration_ns: int | None) -> None:
        self.time_ns.append(time_ns)
        self.cpu.append(cpu)
        self.thread_id.append(thread_id)
        self.kind.append(kind)
        self.duration_ns.append(duration_ns)


def read_scheduler(
    document: Mapping[str, Any] | None,
    lines: Iterable[str],
    process_ids: Collection[int],
    axis_zero_monotonic_ns: int,
    limits: Limits | None = None,
) -> CaptureTables:
    """`scheduler_events` of the threads of `process_ids`, from the trace's document and the lines of its events file.

    `running`: the thread got the CPU (no duration: it was not kept from running). `off_cpu`: it gave up the CPU to
    wait, until it was woken. `run_delay`: it could run and waited for a CPU, until it got one. CaptureError when
    document or lines are not the trace's.
    """
    table = "scheduler_events"
    if document is None:
        reason = "scheduler events are recorded only when asked for (--scheduler)"
        return CaptureTables({table: empty_table(table)}, (Evidence("scheduler events", "absent", reason),))
    _check(document, SCHEDULER_FORMAT, SCHEDULER_FORMAT_VERSION, _SCHEDULER_KEYS, SCHEDULER_FILE)
    tool = document["tool"]
    if document["state"] != "present":
        reason = f"{document['reason']}; {document['fix']}" if document["fix"] else str(document["reason"])
        return CaptureTables({table: empty_table(table)}, (Evidence("scheduler events", "absent", reason, tool),))
    _check(document, SCHEDULER_FORMAT, SCHEDULER_FORMAT_VERSION, _RECORDED_KEYS, SCHEDULER_FILE)
    if tool not in _PARSERS:
        raise CaptureError(f"{SCHEDULER_FILE}: recorded by {tool}, and events of {', '.join(_PARSERS)} can be read")
    limits = limits or Limits()
    offset = int(document["clock"]["to_monotonic_ns"]) - axis_zero_monotonic_ns
    records: list[_Switch | _Waking] = []
    for number, line in enumerate(lines, 1):
        if number > limits.events:
            raise CaptureError(f"{document['file']}: more than {limits.events} events; raise the limit on events")
        record = _PARSERS[tool](line)
        if record is not None:
            records.append(record)
    records.sort(key=lambda record: record.time_ns)  # each CPU's events come in order, those of two CPUs need not
    events = _scheduler_events(records, frozenset(process_ids))
    frame = pl.DataFrame(
        {
            "time_ns": pl.Series(events.time_ns, dtype=pl.Int64) + offset,
            "cpu": events.cpu,
            "thread_id": events.thread_id,
            "kind": events.kind,
            "duration_ns": pl.Series(events.duration_ns, dtype=pl.Int64),
        }
    ).sort("time_ns", "cpu", "thread_id", "kind")
    reasons = list(document["remarks"])
    if document["lost"]:
        reasons.append(f"the tool lost {document['lost']} events")
    if not frame.height:
        reasons.append("the trace holds no event of the measured processes")
    status: Any = "absent" if not frame.height else "partial" if reasons else "present"
    items = [Evidence("scheduler events", status, "; ".join(reasons) or None, tool, frame.height)]
    clock = document["clock"]
    items.append(
        Evidence(
            "clock of the scheduler events",
            "present",
            f"{clock['name']} by comparing its first event with both clocks; uncertain by {clock['uncertainty_ns']} ns "
            "against CLOCK_MONOTONIC",
            tool,
        )
    )
    return CaptureTables({table: to_contract(table, frame)}, tuple(items))


def scheduler_lines(path: Path) -> Iterator[str]:
    """The lines of a trace's compressed events file. CaptureError when it is damaged or not there."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as stream:
            yield from stream
    except (OSError, EOFError, zlib.error) as error:
        raise CaptureError(f"{path}: cannot be read as compressed text: {error}") from error


def _scheduler_events(records: list[_Switch | _Waking], process_ids: frozenset[int]) -> _Events:
    """What each thread of the processes was kept from running by; a wait whose end was not seen has no duration."""
    mine = {
        record.previous for record in records if isinstance(record, _Switch) and record.previous_process in process_ids
    }
    events, off, seen = _Events(), dict[int, _Off](), set[int]()
    for record in records:
        if isinstance(record, _Waking):
            waiting = off.get(record.thread)
            if waiting is not None and waiting.runnable_since_ns is None:
                waiting.runnable_since_ns, waiting.woken_for_cpu = record.time_ns, record.cpu
            elif record.thread in mine and record.thread not in seen:
                seen.add(record.thread)
                off[record.thread] = _Off(record.time_ns, record.cpu, record.time_ns, record.cpu)
            continue
        if record.following in mine:
            seen.add(record.following)
            waiting = off.pop(record.following, None)
            if waiting is not None:
                _close(events, record.following, waiting, record.time_ns)
            events.add(record.time_ns, record.cpu, record.following, "running", None)
        if record.previous in mine and not record.previous_dead:
            seen.add(record.previous)
            since = record.time_ns
            off[record.previous] = _Off(since, record.cpu, since if record.previous_runnable else None, record.cpu)
    for thread, waiting in off.items():
        _close(events, thread, waiting, None)
    return events


def _close(events: _Events, thread: int, waiting: _Off, end_ns: int | None) -> None:
    """The one or two events of a time off the CPU: blocked until woken, then delayed until it runs."""
    runnable = waiting.runnable_since_ns
    blocked_until = end_ns if runnable is None else runnable
    if runnable is None or runnable > waiting.since_ns:
        blocked = None if blocked_until is None else blocked_until - waiting.since_ns
        events.add(waiting.since_ns, waiting.cpu, thread, "off_cpu", blocked)
    if runnable is not None:
        cpu = waiting.cpu if waiting.woken_for_cpu is None else waiting.woken_for_cpu
        events.add(runnable, cpu, thread, "run_delay", None if end_ns is None else end_ns - runnable)


#: The low byte of a thread's state names what it waits for; the bit above it says that it was pushed off.
_WAITS_FOR: Final = 0xFF
#: The two states of a thread that has ended; it is not kept from anything any more.
_DEAD: Final = 0x30


_BPFTRACE_LINE: Final = re.compile(r"@([sw])\[([\d, -]+)\]")


def _bpftrace_record(line: str) -> _Switch | _Waking | None:
    """`@s[TIME, CPU, PREVIOUS, PROCESS, STATE, FOLLOWING]: 1` or `@w[TIME, CPU, THREAD]: 1`; None for empty lines."""
    if not line.strip():
        return None
    found = _BPFTRACE_LINE.match(line)
    if found is None:
        raise _bad_line(line)
    try:
        numbers = [int(part) for part in found[2].split(",")]
        if found[1] == "w":
            return _Waking(*numbers)
        time_ns, cpu, previous, process, state, following = numbers
    except (ValueError, TypeError) as error:
        raise _bad_line(line) from error
    return _Switch(time_ns, cpu, previous, process, not state & _WAITS_FOR, bool(state & _DEAD), following)


def _bad_line(line: str) -> CaptureError:
    return CaptureError(f"scheduler events: a line is not in the expected form: {line.strip()[:100]!r}")


_PERF_LINE: Final = re.compile(r"\s*(-?\d+)/-?\d+\s+\[(\d+)\]\s+(\d+)\.(\d{9}):\s+sched:sched_(switch|waking):\s(.*)")
_PERF_SWITCH: Final = re.compile(r".*prev_pid=(\d+) .*prev_state=(\S+) ==> .*next_pid=(\d+) ")
_PERF_WAKING: Final = re.compile(r".*\bpid=(\d+) .*target_cpu=(\d+)")


def _perf_record(line: str) -> _Switch | _Waking | None:
    """A line of `perf script -F pid,tid,cpu,time,event,trace --ns`; None for its comments and empty lines."""
    if not line.strip() or line.startswith("#"):
        return None
    found = _PERF_LINE.match(line)
    inner = found and (_PERF_SWITCH if found[5] == "switch" else _PERF_WAKING).match(found[6])
    if not found or not inner:
        raise _bad_line(line)
    time_ns = int(found[3]) * 1_000_000_000 + int(found[4])
    if found[5] == "waking":
        return _Waking(time_ns, int(inner[2]), int(inner[1]))
    state = inner[2]
    previous, process, following = int(inner[1]), int(found[1]), int(inner[3])
    return _Switch(time_ns, int(found[2]), previous, process, state[0] == "R", state[0] in "XZ", following)


_PARSERS: Final = {"bpftrace": _bpftrace_record, "perf": _perf_record}
