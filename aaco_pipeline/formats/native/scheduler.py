"""Scheduler events of the measured process, as printed by perf and bpftrace: waits of its threads, and losses.

`aaco_pipeline.resources.telemetry.scheduler_events` records them; `kernel_plane` reads the kernel's own binary events.
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
from aaco_pipeline.formats.parsing.compression import DAMAGED, Unpacked, open_decompressed
from aaco_pipeline.formats.parsing.json_document import Whole, as_table, check_document, check_form
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
    **dict.fromkeys(("time_ns", "cpu", "thread_id"), pl.Int64),
    **{"kind": pl.String, "duration_ns": pl.Int64},
}
#: A row of `_EVENTS`.
_Event = tuple[int, int, int, str, int | None]


@dataclass(frozen=True)
class _Switch:
    """A CPU switches from one thread to another."""

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
    """Times at which a thread left the CPU, and at which it became runnable again."""

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
    """Build `scheduler_events` for the threads of `process_ids` from the trace's document and event lines.

    `running`: the thread got the CPU (no duration, because it was not kept from running). `off_cpu`: it gave up the CPU
    to wait, until it was woken. `run_delay`: it was runnable and waited for a CPU, until it got one. CaptureError if
    the document or the lines are invalid.
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
    records.sort(key=lambda record: record.time_ns)  # each CPU's events are in order, but not those of different CPUs
    events, missed = _scheduler_events(records, frozenset(process_ids))

    def rows() -> pl.DataFrame:
        frame = pl.DataFrame(events, schema=_EVENTS, orient="row").with_columns(pl.col("time_ns") + offset)
        return frame.sort("time_ns", "cpu", "thread_id", "kind")

    frame = as_table(table, rows, document["file"])
    reasons = list(document["remarks"])
    if document["lost"]:
        reasons.append(f"the tool lost {document['lost']} events")
    if missed:
        unseen = f"{missed} times a thread left a CPU that the trace does not say it had got"
        lost = "the tool missed events and did not count them, and how long the thread was away is unknown"
        reasons.append(f"{unseen}: {lost}")
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


def read_from(
    folder: Path, document: Mapping[str, Any] | None, process_ids: Collection[int], axis_zero_monotonic_ns: int
) -> CaptureTables:
    """Read the events file that the document names in a capture's folder; see `read`."""
    file = None if document is None else document.get("file")
    lines = () if file is None else event_lines(folder, str(file))
    return read(document, lines, process_ids, axis_zero_monotonic_ns)


def event_lines(folder: Path, name: str, limits: Limits | None = None) -> Iterator[str]:
    """Read the lines of a trace's compressed events file in a capture's folder. CaptureError if it is damaged, missing
    or outside the folder.
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
    """List the waits of each thread of the processes, and count returns to a CPU that were not recorded.

    A wait whose end was not recorded has no duration.
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
    """Add the one or two events of a time off the CPU: blocked until woken, then delayed until it runs."""
    runnable = waiting.runnable_since_ns
    blocked_until = end_ns if runnable is None else runnable
    if runnable is None or runnable > waiting.since_ns:
        blocked = None if blocked_until is None else blocked_until - waiting.since_ns
        events.append((waiting.since_ns, waiting.cpu, thread, "off_cpu", blocked))
    if runnable is not None:
        cpu = waiting.cpu if waiting.woken_for_cpu is None else waiting.woken_for_cpu
        events.append((runnable, cpu, thread, "run_delay", None if end_ns is None else end_ns - runnable))


#: The low byte of a thread's state gives its reason for waiting; the next bit means that it was preempted.
_WAITS_FOR: Final = 0xFF
#: The two states of a thread that has ended and therefore no longer waits.
_DEAD: Final = 0x30


_BPFTRACE_LINE: Final = re.compile(r"@([sw])\[([\d, -]+)\]")


def _bpftrace_record(line: str) -> _Switch | _Waking | None:
    """Parse `@s[TIME, CPU, PREVIOUS, PROCESS, STATE, FOLLOWING]: 1` or `@w[TIME, CPU, THREAD]: 1`; None for empty
    lines.
    """
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


#: Number of events that a CPU lost before this line, which precedes the next recorded event.
PERF_LOST: Final = (
    r"^\s*-?\d+/-?\d+\s+\[(?P<cpu>\d{1,6})\]\s+(?P<seconds>\d{1,9})\.(?P<ns>\d{9}): "
    r"PERF_RECORD_LOST lost (?P<events>\d{1,18})\s*$"
)
_PERF_LINE: Final = re.compile(r"\s*(-?\d+)/-?\d+\s+\[(\d+)\]\s+(\d+)\.(\d{9}):\s+sched:sched_(switch|waking):\s(.*)")
_PERF_SWITCH: Final = re.compile(r".*prev_pid=(\d+) .*prev_state=(\S+) ==> .*next_pid=(\d+) ")
_PERF_WAKING: Final = re.compile(r".*\bpid=(\d+) .*target_cpu=(\d+)")


def _perf_record(line: str) -> _Switch | _Waking | None:
    """Parse a line of `perf script -F pid,tid,cpu,time,event,trace --ns`; None for comments, empty lines and losses."""
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
    except ValueError as error:  # more digits than a number can have
        raise _bad_line(line) from error
    return _Switch(time_ns, int(found[2]), previous, process, state[0] == "R", state[0] in "XZ", following)


_PARSERS: Final = {"bpftrace": _bpftrace_record, "perf": _perf_record}


#: Reasons why a thread leaves a CPU, by the first letter of its state in perf's output.
_PERF_STATES: Final = {
    **{"R": "runnable", "S": "sleeping", "I": "sleeping", "P": "sleeping", "D": "disk_sleep", "T": "stopped"},
    **{"t": "stopped", "X": "dead", "Z": "dead"},
}
_PERF_EVENT: Final = (
    r"^\s*(?P<process>-?\d{1,18})/-?\d+\s+\[(?P<cpu>\d{1,6})\]\s+(?P<seconds>\d{1,9})\.(?P<ns>\d{9}):"
    r"\s+sched:sched_(?P<event>switch|waking):\s(?P<rest>.*)$"
)
_SWITCH_FIELDS: Final = (
    r"^prev_comm=(?P<name>.*) prev_pid=(?P<thread>\d{1,18}) .*prev_state=(?P<state>\S+) ==> "
    r"next_comm=(?P<other_name>.*) next_pid=(?P<other>\d{1,18}) "
)
_WAKING_FIELDS: Final = r"^.*\bpid=(?P<thread>\d{1,18}) .*target_cpu=(?P<value>\d{1,6})"
_BPFTRACE_SWITCH: Final = (
    r"^@s\[(?P<time>\d{1,18}), (?P<cpu>\d{1,6}), (?P<thread>\d{1,18}), (?P<process>\d{1,18}), (?P<bits>\d{1,18}), "
    r"(?P<other>\d{1,18})\]"
)
_BPFTRACE_WAKING: Final = r"^@w\[(?P<time>\d{1,18}), (?P<value>\d{1,6}), (?P<thread>\d{1,18})\]"
_NUMBERS: Final = ("process", "cpu", "thread", "other", "value")
_COLUMNS: Final = {
    **{"time_ns": pl.Int64, "cpu": pl.Int32, "thread_id": pl.Int64, "kind": pl.String, "other_thread_id": pl.Int64},
    **{"state": pl.String, "value": pl.Int64, "process": pl.Int64, "name": pl.String, "other_name": pl.String},
}


def events_of(tool: str, lines: Iterable[str], file: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read `switch` and `waking` rows as in `kernel_events`, in the tool's clock, and losses.

    A switch also has the process of the leaving thread and both names, if the tool prints them. Losses, if the tool
    prints them: cpu, start_ns (the CPU's previous event; null without one), end_ns, events. CaptureError for a line
    that the tool would not print.
    """
    text = pl.Series("line", [line.rstrip("\n") for line in lines], dtype=pl.String)
    text = text.filter((text.str.strip_chars() != "") & ~text.str.starts_with("#"))
    is_loss = text.str.contains(PERF_LOST) if tool == "perf" else pl.repeat(False, len(text), eager=True)
    lost, text = text.filter(is_loss), text.filter(~is_loss)
    made = _of_perf(text) if tool == "perf" else _of_bpftrace(text)
    bad = made.filter(pl.any_horizontal(pl.col("time_ns", "thread_id", "kind").is_null()))
    if bad.height:
        raise CaptureError(f"{file}: a line is not one of {tool}'s: {bad.item(0, 'line')[:100]!r}")
    events = made.select(pl.col(name).cast(dtype) for name, dtype in _COLUMNS.items())
    return (events := events.sort("time_ns", "cpu", "thread_id")), _losses(lost, events)


def _losses(text: pl.Series, events: pl.DataFrame) -> pl.DataFrame:
    """Place perf's losses of a CPU between its previous event and the one after the line."""
    end = pl.col("seconds").cast(pl.Int64) * 1_000_000_000 + pl.col("ns").cast(pl.Int64)
    told = text.to_frame("line").with_columns(_groups("line", PERF_LOST)).with_columns(end_ns=end)
    told = told.select(pl.col("cpu").cast(pl.Int32), "end_ns", pl.col("events").cast(pl.Int64)).sort("end_ns")
    whole = events.select("cpu", start_ns="time_ns").sort("start_ns")
    return told.join_asof(
        whole, left_on="end_ns", right_on="start_ns", by="cpu", allow_exact_matches=False, check_sortedness=False
    ).select("cpu", "start_ns", "end_ns", "events")


def _of_perf(text: pl.Series) -> pl.DataFrame:
    outer = text.to_frame().with_columns(_groups("line", _PERF_EVENT))
    made = outer.with_columns(_groups("rest", _SWITCH_FIELDS, "s_"), _groups("rest", _WAKING_FIELDS, "w_"))
    is_switch = pl.col("event") == "switch"
    letter = pl.col("s_state").str.slice(0, 1)
    state = letter.replace_strict(_PERF_STATES, default="sleeping", return_dtype=pl.String)
    thread = pl.when(is_switch).then("s_thread").otherwise("w_thread").cast(pl.Int64)
    return made.with_columns(
        time_ns=pl.col("seconds").cast(pl.Int64) * 1_000_000_000 + pl.col("ns").cast(pl.Int64),
        kind="event",
        thread_id=pl.when(is_switch & pl.col("s_other").is_null()).then(None).otherwise(thread),
        other_thread_id=pl.when(is_switch).then("s_other"),
        state=_idle_or(pl.when(is_switch).then(state), thread),
        value=pl.when(~is_switch).then("w_value"),
        process=pl.when(is_switch).then("process"),
        name=pl.when(is_switch).then("s_name"),
        other_name=pl.when(is_switch).then("s_other_name"),
    )


def _of_bpftrace(text: pl.Series) -> pl.DataFrame:
    made = text.to_frame().with_columns(
        _groups("line", _BPFTRACE_SWITCH, "s_"), _groups("line", _BPFTRACE_WAKING, "w_")
    )
    is_switch = pl.col("s_thread").is_not_null()
    bits, thread = pl.col("s_bits").cast(pl.Int64), pl.coalesce("s_thread", "w_thread").cast(pl.Int64)
    state = (
        pl.when(bits & 0x30 > 0)
        .then(pl.lit("dead"))
        .when(bits & 0x0C > 0)
        .then(pl.lit("stopped"))
        .when(bits & 0x02 > 0)
        .then(pl.lit("disk_sleep"))
        .when(bits & 0xFF > 0)
        .then(pl.lit("sleeping"))
        .otherwise(pl.lit("runnable"))
    )
    return made.with_columns(
        time_ns=pl.coalesce("s_time", "w_time").cast(pl.Int64),
        # For a wake-up, bpftrace only gives the CPU that the thread is woken for.
        cpu=pl.coalesce("s_cpu", "w_value"),
        kind=pl.when(is_switch).then(pl.lit("switch")).when(pl.col("w_thread").is_not_null()).then(pl.lit("waking")),
        thread_id=thread,
        other_thread_id="s_other",
        state=_idle_or(pl.when(is_switch).then(state), thread),
        value="w_value",
        process="s_process",
        name=pl.lit(None, pl.String),
        other_name=pl.lit(None, pl.String),
    )


def _groups(column: str, pattern: str, prefix: str = "") -> pl.Expr:
    """Extract the pattern's named groups as columns."""
    return pl.col(column).str.extract_groups(pattern).name.map_fields(lambda name: prefix + name).struct.unnest()


def _idle_or(state: pl.Expr, thread: pl.Expr) -> pl.Expr:
    return pl.when(state.is_not_null() & (thread == 0)).then(pl.lit("idle")).otherwise(state)


def own_threads(events: pl.DataFrame, processes: Mapping[str, int]) -> dict[int, int]:
    """Return the threads of measured processes, with the number of their process."""
    number = {pid: place for place, pid in enumerate(processes.values())}
    mine = events.filter(pl.col("process").is_in(list(number)) & (pl.col("thread_id") > 0))
    return {thread: number[process] for thread, process in mine.select("thread_id", "process").unique().iter_rows()}


def names_in(events: pl.DataFrame) -> dict[int, str]:
    """Return the last name of each thread."""
    sides = [
        events.select("time_ns", thread_id=thread, name=name).drop_nulls()
        for thread, name in (("thread_id", "name"), ("other_thread_id", "other_name"))
    ]
    last = pl.concat(sides).sort("time_ns", "thread_id", "name").group_by("thread_id").agg(pl.col("name").last())
    return dict(last.iter_rows())
