"""The kernel's own events of measured threads, recorded from tracefs by `aaco_pipeline.resources.kernel_plane`.

A capture contains `kernel_plane.json` and the raw ring-buffer pages of each CPU and instance; `ring_buffer` decodes
them.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired

import numpy as np
import polars as pl
import polars.selectors as cs
from pydantic import Field
from typing_extensions import TypedDict

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits
from aaco_pipeline.formats.native import scheduler
from aaco_pipeline.formats.native.ring_buffer import (
    ENTRY,
    EVENTS,
    EXIT,
    READERS,
    RESIDENT,
    MissingField,
    Some,
    layout_of,
    only,
    records_of,
)
from aaco_pipeline.formats.native.system_calls import names_of
from aaco_pipeline.formats.parsing.compression import DAMAGED, read_decompressed
from aaco_pipeline.formats.parsing.json_document import Whole, as_table, check_document, check_form
from aaco_pipeline.lake.validation import empty_table


class _Event(TypedDict):
    format: str | None
    reason: str | None


class _Buffer(TypedDict):
    instance: Literal["threads", "switches"]
    cpu: Annotated[int, Field(ge=0, lt=2**20)]
    file: str
    stats: dict[str, Whole]


class _Throttling(TypedDict):
    monotonic_ns: Whole
    throttled: Whole
    throttled_ns: Whole


class _Reading(TypedDict):
    monotonic_ns: Whole


class _Clocks(TypedDict):
    before: _Reading
    after: _Reading


class _Clock(TypedDict):
    to_monotonic_ns: Whole


class _Trace(TypedDict):
    file: str
    clock: _Clock
    lost: Whole


class Document(TypedDict):
    state: str
    source: Literal["tracefs", "perf", "bpftrace"]
    machine: str
    reason: str | None
    processes: dict[str, Whole]
    events: dict[str, _Event]
    buffers: list[_Buffer]
    throttling: list[_Throttling]
    remarks: list[str]
    #: Start and end of the recording.
    clock: NotRequired[_Clocks]
    #: Output of a source other than tracefs.
    trace: NotRequired[_Trace | None]


FORMAT: Final = "aaco-kernel-plane"
FORMAT_VERSION: Final = 1
DOCUMENT_FILE: Final = "kernel_plane.json"
FOLDER: Final = "kernel_plane"
_SWITCH: Final = "sched/sched_switch"
TABLES: Final = ("kernel_events", "kernel_threads", "kernel_losses")
_KEYS: Final = ("state", "source", "machine", "processes", "events", "buffers", "throttling", "remarks", "reason")
TRACEFS: Final = "tracefs"
#: Counts of a buffer's losses at unknown times, in addition to those in its pages.
_UNPLACED: Final = ("commit overrun", "dropped events")
#: Suffixes of event pairs that delimit an interval.
_ENDS: Final = (("/sys_enter", "/sys_exit"), ("_entry", "_exit"), ("_wait_start", "_wait_end"))
#: Per-CPU kernel thread that runs when the CPU goes offline or comes online.
_HOTPLUG: Final = re.compile(r"cpuhp/(\d{1,6})")
_FILE: Final = re.compile(r"[a-z]+\.cpu\d{1,6}\.pages\.gz")


@dataclass(frozen=True)
class _Known:
    """Events, measured threads and their process, thread names, losses, and reasons for omitting events."""

    events: pl.DataFrame
    own: dict[int, int]
    names: dict[int, str]
    losses: list[dict[str, Any]]
    left_out: dict[str, str]

    def hotplugged(self) -> list[int]:
        """List CPUs that went offline or came online."""
        return sorted(int(found[1]) for found in map(_HOTPLUG.fullmatch, self.names.values()) if found is not None)


def read(
    document: Mapping[str, Any] | None, folder: Path, axis_zero_monotonic_ns: int, limits: Limits | None = None
) -> CaptureTables:
    """Build `kernel_events`, `kernel_threads` and `kernel_losses` on the session's axis; details `throttling`.

    `document` is `kernel_plane.json`, None if the plane was not requested; `folder` is the capture's. Events are cut to
    the time from the first event of a measured thread to the last. CaptureError if anything is damaged.
    """
    findings = Findings(DOCUMENT_FILE)
    empty = {name: empty_table(name) for name in TABLES}
    if document is None:
        findings.say("kernel plane", "absent", "it was not asked for; --kernel-plane records it", 0)
        return CaptureTables(empty, tuple(findings.evidence), {"throttling": _throttling([], 0)})
    check_document(document, FORMAT, FORMAT_VERSION, _KEYS, DOCUMENT_FILE)
    check_form(document, Document, DOCUMENT_FILE)
    if document["state"] != "present":
        reason = document["reason"] or "no reason is given"
        fix = document.get("fix")
        findings.say("kernel plane", "absent", f"{reason}{f'; {fix}' if fix else ''}", 0)
        return CaptureTables(empty, tuple(findings.evidence), {"throttling": _throttling([], 0)})
    limits = limits or Limits()
    known = (_from_pages if document["source"] == TRACEFS else _from_tool)(document, folder, limits)
    own = known.own
    events = _cut(known.events, own)
    zero = axis_zero_monotonic_ns
    frames = {
        "kernel_events": lambda: _without_foreign(events, own),
        "kernel_threads": lambda: _threads(events, own, known.names),
        "kernel_losses": lambda: pl.DataFrame(known.losses, schema=_LOSSES),
    }
    tables = {name: as_table(name, partial(_moved, frame, zero), DOCUMENT_FILE) for name, frame in frames.items()}
    _say(findings, document, tables, known)
    return CaptureTables(tables, tuple(findings.evidence), {"throttling": _throttling(document["throttling"], zero)})


def _from_pages(document: Mapping[str, Any], folder: Path, limits: Limits) -> _Known:
    """Read the pages of the kernel's buffers."""
    files = [one["file"] for one in document["buffers"]]
    if len(set(files)) < len(files):
        raise CaptureError(f"{DOCUMENT_FILE}: names a file of the recording twice; the file is damaged")
    buffers = [(one, _content(folder, one["file"], limits), f"{FOLDER}/{one['file']}") for one in document["buffers"]]
    page_bytes = _page_bytes(document.get("header_page"))
    layouts = {
        found.number: found
        for found in (layout_of(name, one["format"]) for name, one in document["events"].items() if one["format"])
    }
    some: list[Some] = []
    losses: list[dict[str, Any]] = []
    began, ended = _span(document)
    for one, content, where in buffers:
        records = records_of(content, page_bytes, where)
        lost = {"cpu": one["cpu"], "buffer": one["instance"]}
        for before, after, count in records.losses:
            start = began if before is None else before
            losses.append({**lost, "start_ns": start, "end_ns": after, "events": count})
        if unplaced := sum(one["stats"].get(name, 0) for name in _UNPLACED):
            losses.append({**lost, "start_ns": began, "end_ns": ended, "events": unplaced})
        for number in np.unique(records.event).tolist():
            if number in layouts:
                some.append(Some(layouts[number], one["cpu"], content, only(records, records.event == number)))
    frames, left_out = defaultdict[str, list[pl.DataFrame]](list), dict[str, str]()
    for each in some:
        event = each.layout.event
        if (made := READERS.get(event)) is not None:
            try:
                frames[event].append(made(each))
            except MissingField as missing:
                if event == _SWITCH:
                    raise
                left_out[event] = f"left out: {missing}"
    for gone in sorted({*left_out, *(name for name, one in document["events"].items() if one["format"] is None)}):
        other = _other_end(gone)
        if other is not None and other in frames:
            left_out[other] = f"left out: without {gone} it has no extent"
    kept = [frame for event, made in frames.items() if event not in left_out for frame in made]
    events = pl.concat([pl.DataFrame(schema=EVENTS), *kept]).sort("time_ns", "cpu", "thread_id", "kind", "name")
    events = _named_calls(_paired(_ended(events)), names_of(document["machine"]))
    own = _own_threads(events, document["processes"])
    return _Known(events, own, _names(some), losses, left_out)


def _other_end(event: str) -> str | None:
    """Return the event at the other end of this one's interval; a single event would have no duration."""
    for begin, end in _ENDS:
        for one, other in ((begin, end), (end, begin)):
            if event.endswith(one):
                return event.removesuffix(one) + other
    return None


def _span(document: Mapping[str, Any]) -> tuple[int, int]:
    """Return start and end of the recording on CLOCK_MONOTONIC; losses before the first event count from the start."""
    if "clock" not in document:
        raise CaptureError(f"{DOCUMENT_FILE}: does not say when the recording began; the capture is incomplete")
    clock = document["clock"]
    return clock["before"]["monotonic_ns"], clock["after"]["monotonic_ns"]


def _from_tool(document: Mapping[str, Any], folder: Path, limits: Limits) -> _Known:
    """Read the output of perf or bpftrace: only switches and wake-ups. Losses without a location may be anywhere.

    perf events on a CPU stop when it goes offline, even if it comes back.
    """
    trace, tool = document.get("trace"), document["source"]
    if trace is None:
        raise CaptureError(f"{DOCUMENT_FILE}: says that {tool} recorded, and not where; the capture is incomplete")
    lines = scheduler.event_lines(folder / FOLDER, trace["file"], limits)
    told, lost = scheduler.events_of(tool, islice(lines, limits.events + 1), f"{FOLDER}/{trace['file']}")
    if told.height + lost.height > limits.events:
        raise CaptureError(f"{DOCUMENT_FILE}: more than {limits.events} events; raise the limit on events")
    began, ended = _span(document)
    to_ours = trace["clock"]["to_monotonic_ns"]
    events = told.with_columns(pl.col("time_ns") + to_ours)
    own, names = scheduler.own_threads(events, document["processes"]), scheduler.names_in(events)
    placed = lost.with_columns((pl.col("start_ns") + to_ours).fill_null(began), pl.col("end_ns") + to_ours)
    losses = [{"buffer": "switches", **row} for row in placed.iter_rows(named=True)]
    last = dict(events.group_by("cpu").agg(pl.col("time_ns").max()).sort("cpu").iter_rows())
    if trace["lost"] > placed.get_column("events").sum():
        whole = {"buffer": "switches", "start_ns": began, "end_ns": ended, "events": None}
        losses = [{"cpu": cpu, **whole} for cpu in last]
    empty = pl.DataFrame(schema=EVENTS)
    rows = events.with_columns(name=pl.lit(None, pl.String)).select(
        pl.col(name) if name in events.columns else pl.lit(None, dtype).alias(name) for name, dtype in EVENTS.items()
    )
    known = _Known(pl.concat([empty, rows]), own, names | {0: "idle"}, losses, {})
    since = {cpu: last.get(cpu, began) for cpu in known.hotplugged()} if tool == "perf" else {}
    silent = [
        {"cpu": cpu, "buffer": "switches", "start_ns": at, "end_ns": ended, "events": None} for cpu, at in since.items()
    ]
    return replace(known, losses=[*losses, *silent])


_LOSSES: Final = {
    **{"cpu": pl.Int32, "buffer": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64, "events": pl.Int64}
}


def _say(findings: Findings, document: Mapping[str, Any], tables: Mapping[str, pl.DataFrame], known: _Known) -> None:
    height, lost = tables["kernel_events"].height, tables["kernel_losses"].height
    reasons = list(document["remarks"])
    if lost:
        reasons.append(f"events were lost {lost} times; what threads did then is unknown")
    if any(one["buffer"] == "threads" for one in known.losses):
        reasons.append("threads that began meanwhile are missing where their beginning was lost")
    reasons += [f"CPU {cpu} went offline or came online during the recording" for cpu in known.hotplugged()]
    status: Any = "absent" if not height else "partial" if lost or document["source"] != TRACEFS else "present"
    if not height:
        reasons.append("the recording holds no event of the measured processes")
    findings.say("kernel plane", status, "; ".join(reasons) or None, height)
    missing: dict[str, list[str]] = {}
    refused = {name: one["reason"] for name, one in document["events"].items() if one["reason"] is not None}
    for name, reason in (refused | known.left_out).items():
        missing.setdefault(reason, []).append(name)
    for reason, names in sorted(missing.items()):
        findings.say("events of the kernel plane", "partial", f"{', '.join(sorted(names))}: {reason}")
    told = "CLOCK_MONOTONIC, which the axis is of; each CPU's own order is exact"
    findings.say("clock of the kernel plane", "present", told)


def _content(folder: Path, name: str, limits: Limits) -> bytes:
    if _FILE.fullmatch(name) is None:
        raise CaptureError(f"{folder / DOCUMENT_FILE}: names the file {name!r}; not one of the recording's")
    path = folder / FOLDER / name
    try:
        return read_decompressed(path, limits)
    except DAMAGED as error:
        raise CaptureError(f"{path}: cannot be read as compressed pages: {error}") from error


def _page_bytes(header: Any) -> int:
    """Return the size of a page's data and of the bytes before it, from the kernel's description of its header."""
    found = re.search(r"char data;\toffset:(\d{1,6});\tsize:(\d{1,8});", header) if isinstance(header, str) else None
    if found is None:
        raise CaptureError(
            f"{DOCUMENT_FILE}: does not say how the kernel's pages are laid out; the capture is incomplete"
        )
    return int(found[1]) + int(found[2])


def _ended(events: pl.DataFrame) -> pl.DataFrame:
    """Add to each fault the time until its process has the page; null if the thread's next event does not show it."""
    fault = pl.col("kind") == "page_fault"
    steps = events.filter(fault | (pl.col("kind") == RESIDENT) | pl.col("kind").str.starts_with("syscall"))
    following = [pl.col(name).shift(-1).over("thread_id", order_by="time_ns") for name in ("kind", "time_ns")]
    length = pl.when(following[0] == RESIDENT).then(following[1] - pl.col("time_ns"))
    faults = steps.with_columns(duration_ns=length).filter(fault)
    rest = events.filter(~fault & (pl.col("kind") != RESIDENT))
    return pl.concat([rest, faults]).sort("time_ns", "cpu", "thread_id", "kind", "name")


def _paired(events: pl.DataFrame) -> pl.DataFrame:
    """Add to each entry the time to its exit: the next with the same kind, name, thread and, for interrupts, CPU.

    A handler does not nest within its own kind and name; a system call's thread may return on another CPU. An exit
    without a recorded entry is dropped.
    """
    is_end = pl.col("kind").str.ends_with(ENTRY) | pl.col("kind").str.ends_with(EXIT)
    base = pl.col("kind").str.replace(f"({ENTRY}|{EXIT})$", "")
    ends = events.filter(is_end).with_columns(
        base=base,
        opens=pl.col("kind").str.ends_with(ENTRY),
        at=pl.when(base.is_in(["interrupt", "softirq"])).then("cpu").otherwise(-1),
        told=pl.when(base == "interrupt").then(pl.col("name").str.extract(r"^(irq \d+|\w+)")).otherwise("name"),
    )
    key = ["base", "thread_id", "at", pl.col("told").fill_null("")]
    ends = ends.with_columns(
        closes=~pl.col("opens").shift(-1).over(key, order_by="time_ns"),
        until=pl.col("time_ns").shift(-1).over(key, order_by="time_ns"),
    ).filter("opens")
    whole = ends.with_columns(
        kind="base", duration_ns=pl.when("closes").then(pl.col("until") - pl.col("time_ns"))
    ).select(events.columns)
    return pl.concat([events.filter(~is_end), whole]).sort("time_ns", "cpu", "thread_id", "kind", "name")


def _named_calls(events: pl.DataFrame, names: Mapping[int, str]) -> pl.DataFrame:
    is_call = pl.col("kind") == "syscall"
    number = pl.col("value")
    named = number.replace_strict(names, default=number.cast(pl.String), return_dtype=pl.String)
    return events.with_columns(
        name=pl.when(is_call).then(named).otherwise("name"), value=pl.when(is_call).then(None).otherwise(number)
    )


def _own_threads(events: pl.DataFrame, processes: Mapping[str, int]) -> dict[int, int]:
    """Return the measured threads with their process number: those followed, and all threads that they started."""
    own = {pid: number for number, pid in enumerate(processes.values())}
    forks = events.filter(pl.col("kind") == "fork").select("thread_id", "other_thread_id")
    for parent, child in forks.iter_rows():
        if parent in own and child not in own:
            own[child] = own[parent]
    return own


def _cut(events: pl.DataFrame, own: Mapping[int, int]) -> pl.DataFrame:
    """Keep events from the time in which a measured thread was seen."""
    mine = pl.col("thread_id").is_in(list(own)) | pl.col("other_thread_id").is_in(list(own))
    seen = events.filter(mine).get_column("time_ns")
    return events.filter(pl.col("time_ns").is_between(seen.min(), seen.max())) if len(seen) else events.clear()


def _without_foreign(events: pl.DataFrame, own: Mapping[int, int]) -> pl.DataFrame:
    """Drop events of unmeasured threads, except switches: the thread on each CPU is always known."""
    mine = pl.col("thread_id").is_in(list(own)) | (pl.col("kind").is_in(["switch", "cpu_frequency"]))
    return events.filter(mine)


def _threads(events: pl.DataFrame, own: Mapping[int, int], names: Mapping[int, str]) -> pl.DataFrame:
    """List every thread named in switches: measured ones, others, and the idle thread of each CPU."""
    switches = events.filter(pl.col("kind") == "switch")
    own_side = events.filter(pl.col("kind").is_in(["switch", "exit"])).select("time_ns", "thread_id")
    other_side = events.filter(pl.col("kind").is_in(["switch", "fork"])).select("time_ns", thread_id="other_thread_id")
    seen = pl.concat([own_side, other_side])
    over = switches.filter(pl.col("state") == "dead").get_column("thread_id").implode()
    each = seen.group_by("thread_id").agg(start_ns=pl.col("time_ns").min(), end_ns=pl.col("time_ns").max())
    end = pl.when(pl.col("thread_id").is_in(over)).then("end_ns").otherwise(events.get_column("time_ns").max())
    process = pl.col("thread_id").replace_strict(dict(own), default=None, return_dtype=pl.Int32)
    name = pl.col("thread_id").replace_strict(dict(names), default=None, return_dtype=pl.String)
    return each.with_columns(end_ns=end, process_id=process, name=name).sort("thread_id")


def _names(some: Iterable[Some]) -> dict[int, str]:
    """Return each thread's name at its last switch, on any CPU."""
    seen: list[tuple[int, int, str]] = []
    for one in some:
        if one.layout.event == "sched/sched_switch":
            for side in ("prev", "next"):
                # Only a thread's last switch in a buffer matters: there are few names but millions of switches.
                behind, last = np.unique(one.values(f"{side}_pid")[::-1], return_index=True)
                latest = replace(one, records=only(one.records, len(one.records.time_ns) - 1 - last))
                times = latest.records.time_ns.tolist()
                seen += zip(times, behind.tolist(), latest.texts(f"{side}_comm"), strict=True)
    return {thread: name for _, thread, name in sorted(seen)} | {0: "idle"}


def _moved(frame: Callable[[], pl.DataFrame], zero: int) -> pl.DataFrame:
    """Shift a frame's times onto the session's axis."""
    return frame().with_columns(cs.by_name("time_ns", "start_ns", "end_ns", require_all=False) - zero)


def _throttling(readings: Iterable[Mapping[str, Any]], zero: int) -> pl.DataFrame:
    """List how often a measured process's group had used up its quota, at each reading."""
    rows = [(one["monotonic_ns"] - zero, one["throttled"], one["throttled_ns"]) for one in readings]
    schema = {"time_ns": pl.Int64, "throttled": pl.Int64, "throttled_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


_PROBES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    **{"pass": pl.String, "before_iteration": pl.Int32, "cpu": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
    **{"gap_start_ns": pl.List(pl.Int64), "gap_end_ns": pl.List(pl.Int64)},
}
_COSTS: Final = {"pass": pl.String, "minor_fault_ns": pl.Float64}


def read_probes(passes: Mapping[str, Mapping[str, Any]], axis_zero_monotonic_ns: int) -> dict[str, pl.DataFrame]:
    """Build `kernel_probes`, a row per probe with the gaps between its clock readings, on the session's axis; and
    `kernel_costs`: the cost of a page fault in each pass's process. Passes without a kernel plane give no rows.
    """
    zero = axis_zero_monotonic_ns
    probes, costs = [], []
    for name, one in passes.items():
        if (probed := one.get("kernel_plane")) is None:
            continue
        costs.append((name, float(probed["minor_fault_ns"])))
        for probe in probed["probes"]:
            begins, ends = ([gap[side] - zero for gap in probe["gaps"]] for side in (0, 1))
            span = (probe["start_ns"] - zero, probe["end_ns"] - zero)
            probes.append((name, probe["before_iteration"], probe["cpu"], *span, begins, ends))
    return {
        "kernel_probes": pl.DataFrame(probes, schema=_PROBES, orient="row"),
        "kernel_costs": pl.DataFrame(costs, schema=_COSTS, orient="row"),
    }
