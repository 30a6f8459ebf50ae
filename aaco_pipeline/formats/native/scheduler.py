"""What the scheduler trace left behind: when each measured thread ran, waited, or was kept from running.

Taking the trace is `aaco_pipeline.resources.telemetry.scheduler_events`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from typing_extensions import TypedDict

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits
from aaco_pipeline.formats.native.checks import Whole, as_table, check_document, check_form
from aaco_pipeline.formats.parsing.compression import DAMAGED, Unpacked, open_decompressed
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table

FORMAT: Final = "aaco-scheduler-events"
FORMAT_VERSION: Final = 1
SCHEDULER_FILE: Final = "scheduler.json"
_SCHEDULER_KEYS: Final = ("state", "tool", "reason", "fix", "file", "clock")
_RECORDED_KEYS: Final = ("lost", "remarks")


class _Described(TypedDict):
    state: str
    tool: str | None
    reason: str | None
    fix: str | None
    file: str | None


class _Clock(TypedDict):
    name: str
    to_monotonic_ns: Whole
    uncertainty_ns: Whole


class _Recorded(TypedDict):
    clock: _Clock
    lost: Whole
    remarks: list[str]


_EVENTS: Final = {
    "time_ns": pl.Int64,
    "cpu": pl.Int64,
    "thread_id": pl.Int64,
    "kind": pl.String,
    "duration_ns": pl.Int64,
}
#: A row of `_EVENTS`.
_Event = tuple[int, int, int, str, int | None]


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


def read(
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
        reason = "they are part of the kernel plane (--kernel-plane), among its kernel events"
        return CaptureTables({table: empty_table(table)}, (Evidence("scheduler events", "absent", reason),))
    check_document(document, FORMAT, FORMAT_VERSION, _SCHEDULER_KEYS, SCHEDULER_FILE)
    check_form(document, _Described, SCHEDULER_FILE)
    tool = document["tool"]
    if document["state"] != "present":
        reason = f"{document['reason']}; {document['fix']}" if document["fix"] else str(document["reason"])
        return CaptureTables({table: empty_table(table)}, (Evidence("scheduler events", "absent", reason, tool),))
    check_document(document, FORMAT, FORMAT_VERSION, _RECORDED_KEYS, SCHEDULER_FILE)
    check_form(document, _Recorded, SCHEDULER_FILE)
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
    events, missed = _scheduler_events(records, frozenset(process_ids))

    def rows() -> pl.DataFrame:
        frame = pl.DataFrame(events, schema=_EVENTS, orient="row").with_columns(pl.col("time_ns") + offset)
        return frame.sort("time_ns", "cpu", "thread_id", "kind")

    frame = as_table(table, rows, document["file"])
    reasons = list(document["remarks"])
    if document["lost"]:
        reasons.append(f"the tool lost {document['lost']} events")
    if missed:
        reasons.append(
            f"{missed} times a thread left a CPU that the trace does not say it had got: the tool missed events and "
            "did not count them, and how long the thread was away is unknown"
        )
    if not frame.height:
        reasons.append("the trace holds no event of the measured processes")
    status: Any = "absent" if not frame.height else "partial" if reasons else "present"
    findings = Findings(tool)
    findings.say("scheduler events", status, "; ".join(reasons) or None, frame.height)
    clock = document["clock"]
    told = (
        f"{clock['name']} by comparing its first event with both clocks; uncertain by {clock['uncertainty_ns']} ns "
        "against CLOCK_MONOTONIC"
    )
    findings.say("clock of the scheduler events", "present", told)
    return CaptureTables({table: frame}, tuple(findings.evidence))


def event_lines(folder: Path, name: str, limits: Limits | None = None) -> Iterator[str]:
    """The lines of a trace's compressed events file in a capture's folder. CaptureError when it is damaged, not there,
    or elsewhere.
    """
    limits = limits or Limits()
    path = folder / name
    if path.parent != folder or name in ("", ".", ".."):
        raise CaptureError(f"{folder / SCHEDULER_FILE}: names the events file {name!r}; not a place within the capture")
    try:
        with open_decompressed(path, limits) as stream:
            if not isinstance(stream, Unpacked):
                raise CaptureError(f"{path}: not compressed text; copy the file again")
            while line := stream.readline(limits.text_bytes):
                yield line.decode("utf-8", "replace")
    except DAMAGED as error:
        raise CaptureError(f"{path}: cannot be read as compressed text: {error}") from error


def _scheduler_events(records: list[_Switch | _Waking], process_ids: frozenset[int]) -> tuple[list[_Event], int]:
    """What each thread of the processes was kept from running by, and how often its way back to a CPU is not there.

    A wait whose end was not seen has no duration.
    """
    mine = {
        record.previous for record in records if isinstance(record, _Switch) and record.previous_process in process_ids
    }
    events, off, seen, missed = list[_Event](), dict[int, _Off](), set[int](), 0
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
            events.append((record.time_ns, record.cpu, record.following, "running", None))
        if record.previous in mine and not record.previous_dead:
            seen.add(record.previous)
            if (lost := off.pop(record.previous, None)) is not None:
                missed += 1
                _close(events, record.previous, lost, None)
            since = record.time_ns
            off[record.previous] = _Off(since, record.cpu, since if record.previous_runnable else None, record.cpu)
    for thread, waiting in off.items():
        _close(events, thread, waiting, None)
    return events, missed


def _close(events: list[_Event], thread: int, waiting: _Off, end_ns: int | None) -> None:
    """The one or two events of a time off the CPU: blocked until woken, then delayed until it runs."""
    runnable = waiting.runnable_since_ns
    blocked_until = end_ns if runnable is None else runnable
    if runnable is None or runnable > waiting.since_ns:
        blocked = None if blocked_until is None else blocked_until - waiting.since_ns
        events.append((waiting.since_ns, waiting.cpu, thread, "off_cpu", blocked))
    if runnable is not None:
        cpu = waiting.cpu if waiting.woken_for_cpu is None else waiting.woken_for_cpu
        events.append((runnable, cpu, thread, "run_delay", None if end_ns is None else end_ns - runnable))


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


#: How many events a CPU lost before this line, which stands before the first that it did not lose.
PERF_LOST: Final = (
    r"^\s*-?\d+/-?\d+\s+\[(?P<cpu>\d{1,6})\]\s+(?P<seconds>\d{1,9})\.(?P<ns>\d{9}): "
    r"PERF_RECORD_LOST lost (?P<events>\d{1,18})\s*$"
)
_PERF_LINE: Final = re.compile(r"\s*(-?\d+)/-?\d+\s+\[(\d+)\]\s+(\d+)\.(\d{9}):\s+sched:sched_(switch|waking):\s(.*)")
_PERF_SWITCH: Final = re.compile(r".*prev_pid=(\d+) .*prev_state=(\S+) ==> .*next_pid=(\d+) ")
_PERF_WAKING: Final = re.compile(r".*\bpid=(\d+) .*target_cpu=(\d+)")


def _perf_record(line: str) -> _Switch | _Waking | None:
    """A line of `perf script -F pid,tid,cpu,time,event,trace --ns`; None for comments, empty lines and lost events."""
    if not line.strip() or line.startswith("#") or re.match(PERF_LOST, line):
        return None
    found = _PERF_LINE.match(line)
    inner = found and (_PERF_SWITCH if found[5] == "switch" else _PERF_WAKING).match(found[6])
    if not found or not inner:
        raise _bad_line(line)
    state = inner[2]
    try:
        time_ns = int(found[3]) * 1_000_000_000 + int(found[4])
        if found[5] == "waking":
            return _Waking(time_ns, int(inner[2]), int(inner[1]))
        previous, process, following = int(inner[1]), int(found[1]), int(inner[3])
    except ValueError as error:  # more digits than any number has
        raise _bad_line(line) from error
    return _Switch(time_ns, int(found[2]), previous, process, state[0] == "R", state[0] in "XZ", following)


_PARSERS: Final = {"bpftrace": _bpftrace_record, "perf": _perf_record}
