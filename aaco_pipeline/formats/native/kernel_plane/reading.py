"""The kernel plane of a capture as canonical tables: events, threads, and when events were lost.

Taking it is `aaco_pipeline.resources.kernel_plane`; what the events say of a thread's states is
`aaco_pipeline.analysis.delays.thread_states`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits
from aaco_pipeline.formats.native.checks import as_table, check_document, check_form
from aaco_pipeline.formats.native.kernel_plane.document import Document
from aaco_pipeline.formats.native.kernel_plane.layouts import Layout, layout_of, with_text
from aaco_pipeline.formats.native.kernel_plane.pages import Records, records_of
from aaco_pipeline.formats.native.kernel_plane.system_calls import names_of
from aaco_pipeline.formats.parsing.compression import DAMAGED, read_decompressed
from aaco_pipeline.lake.validation import empty_table

FORMAT: Final = "aaco-kernel-plane"
FORMAT_VERSION: Final = 1
DOCUMENT_FILE: Final = "kernel_plane.json"
FOLDER: Final = "kernel_plane"
TABLES: Final = ("kernel_events", "kernel_threads", "kernel_losses")
_KEYS: Final = ("state", "source", "machine", "processes", "events", "buffers", "throttling", "remarks", "reason")
_FILE: Final = re.compile(r"[a-z]+\.cpu\d{1,6}\.pages\.gz")
#: The softirqs in the order of their numbers (`include/linux/interrupt.h`).
_SOFTIRQS: Final = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
#: Bits of a record's flags: written by an interrupt's handler, by a softirq.
_IN_INTERRUPT: Final = 0x08 | 0x10
#: The low byte of a thread's state says what it waits for (`include/linux/sched.h`).
#: A parked or idle thread is one of the kernel's that sleeps: neither counts towards the load.
_SLEEPING, _DISK_SLEEP, _STOPPED, _DEAD = 0x1 | 0x40 | 0x80, 0x2, 0x4 | 0x8, 0x10 | 0x20
_WAITS_FOR: Final = 0xFF
_EVENTS: Final = {
    **{"time_ns": pl.Int64, "cpu": pl.Int32, "thread_id": pl.Int64, "kind": pl.String, "name": pl.String},
    **{"duration_ns": pl.Int64, "other_thread_id": pl.Int64, "state": pl.String, "value": pl.Int64},
}


@dataclass(frozen=True)
class _Some:
    """The records of one event in one buffer."""

    layout: Layout
    cpu: int
    content: bytes
    records: Records

    def values(self, name: str) -> Any:
        return self.layout.values(self.content, self.records, name)

    def texts(self, name: str) -> list[str]:
        return [one.decode("utf-8", "replace") for one in self.layout.texts(self.content, self.records, name).tolist()]

    def frame(self, kind: str, **columns: Any) -> pl.DataFrame:
        """Rows of `_EVENTS`; columns that are not given are null, and the thread is the one that was running."""
        given = {"time_ns": self.records.time_ns, "cpu": self.cpu, "kind": kind, **columns}
        if "thread_id" not in given:
            given["thread_id"] = self.values("common_pid")
        height = len(self.records.time_ns)
        series = []
        for name, dtype in _EVENTS.items():
            value = given.get(name)
            many = isinstance(value, np.ndarray | list | pl.Series)
            each = pl.Series(value, dtype=dtype) if many else pl.repeat(value, height, dtype=dtype, eager=True)
            series.append(each.alias(name))
        return pl.DataFrame(series)


def read(
    document: Mapping[str, Any] | None, folder: Path, axis_zero_monotonic_ns: int, limits: Limits | None = None
) -> CaptureTables:
    """`kernel_events`, `kernel_threads` and `kernel_losses` on the session's axis; details `throttling`.

    `document` is `kernel_plane.json`, None where the plane was not asked for; `folder` is the capture's. Events are cut
    to the time from the first event of a measured thread to the last. CaptureError when something is damaged.
    """
    findings = Findings(DOCUMENT_FILE)
    empty = {name: empty_table(name) for name in TABLES}
    if document is None:
        findings.say("kernel plane", "absent", "it was not asked for; `aaco run --kernel-plane` records it", 0)
        return CaptureTables(empty, tuple(findings.evidence), {"throttling": _throttling([], 0)})
    check_document(document, FORMAT, FORMAT_VERSION, _KEYS, DOCUMENT_FILE)
    check_form(document, Document, DOCUMENT_FILE)
    if document["state"] != "present":
        reason = document["reason"] or "no reason is given"
        fix = document.get("fix")
        findings.say("kernel plane", "absent", f"{reason}{f'; {fix}' if fix else ''}", 0)
        return CaptureTables(empty, tuple(findings.evidence), {"throttling": _throttling([], 0)})
    files = [one["file"] for one in document["buffers"]]
    if len(set(files)) < len(files):
        raise CaptureError(f"{DOCUMENT_FILE}: names a file of the recording twice; the file is damaged")
    buffers = [
        (one, _content(folder, one["file"], limits or Limits()), f"{FOLDER}/{one['file']}")
        for one in document["buffers"]
    ]
    page_bytes = _page_bytes(document.get("header_page"))
    layouts = {
        found.number: found
        for found in (layout_of(name, one["format"]) for name, one in document["events"].items() if one["format"])
    }
    some: list[_Some] = []
    losses: list[dict[str, Any]] = []
    for one, content, where in buffers:
        records = records_of(content, page_bytes, where)
        for before, after, count in records.losses:
            lost = {"cpu": one["cpu"], "buffer": one["instance"], "start_ns": before, "end_ns": after}
            losses.append({**lost, "events": None if count < 0 else count})
        for number in np.unique(records.event).tolist():
            if number in layouts:
                some.append(_Some(layouts[number], one["cpu"], content, _only(records, records.event == number)))
    frames = [frame for one in some if (made := _READERS.get(one.layout.event)) is not None for frame in [made(one)]]
    events = pl.concat([pl.DataFrame(schema=_EVENTS), *frames]).sort("time_ns", "cpu", "thread_id", "kind", "name")
    events = _named_calls(_paired(events), names_of(document["machine"]))
    own = _own_threads(events, document["processes"])
    events = _cut(events, own)
    events, threads = _without_foreign(events, own), _threads(events, own, some)
    zero = axis_zero_monotonic_ns
    tables = {
        "kernel_events": as_table("kernel_events", lambda: _moved(events, ("time_ns",), zero), DOCUMENT_FILE),
        "kernel_threads": as_table(
            "kernel_threads", lambda: _moved(threads, ("start_ns", "end_ns"), zero), DOCUMENT_FILE
        ),
        "kernel_losses": as_table(
            "kernel_losses",
            lambda: _moved(pl.DataFrame(losses, schema=_LOSSES), ("start_ns", "end_ns"), zero),
            DOCUMENT_FILE,
        ),
    }
    _say(findings, document, tables)
    return CaptureTables(tables, tuple(findings.evidence), {"throttling": _throttling(document["throttling"], zero)})


_LOSSES: Final = {
    **{"cpu": pl.Int32, "buffer": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64, "events": pl.Int64},
}


def _say(findings: Findings, document: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
    height, lost = tables["kernel_events"].height, tables["kernel_losses"].height
    reasons = list(document["remarks"])
    if lost:
        reasons.append(f"the kernel lost events {lost} times; what threads did then is unknown")
    status: Any = "absent" if not height else "partial" if lost else "present"
    if not height:
        reasons.append("the recording holds no event of the measured processes")
    findings.say("kernel plane", status, "; ".join(reasons) or None, height)
    missing: dict[str, list[str]] = {}
    for name, one in document["events"].items():
        if one["reason"] is not None:
            missing.setdefault(one["reason"], []).append(name)
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
    """How long a page is, by the kernel's description of its header: the data with what stands before them."""
    found = re.search(r"char data;\toffset:(\d{1,6});\tsize:(\d{1,8});", header) if isinstance(header, str) else None
    if found is None:
        raise CaptureError(
            f"{DOCUMENT_FILE}: does not say how the kernel's pages are laid out; the capture is incomplete"
        )
    return int(found[1]) + int(found[2])


def _only(records: Records, chosen: Any) -> Records:
    return replace(
        records,
        time_ns=records.time_ns[chosen],
        event=records.event[chosen],
        offset=records.offset[chosen],
        size=records.size[chosen],
    )


def _switch(one: _Some) -> pl.DataFrame:
    state = one.values("prev_state")
    waits, previous = state & _WAITS_FOR, one.values("prev_pid")
    named = np.select(
        [previous == 0, waits & _DEAD > 0, waits & _STOPPED > 0, waits & _DISK_SLEEP > 0, waits & _SLEEPING > 0],
        ["idle", "dead", "stopped", "disk_sleep", "sleeping"],
        "runnable",
    )
    return one.frame("switch", thread_id=previous, other_thread_id=one.values("next_pid"), state=named.tolist())


def _waking(one: _Some) -> pl.DataFrame:
    by = pl.Series(one.values("common_pid"))
    handled = pl.Series(one.values("common_flags") & _IN_INTERRUPT > 0)
    waker = pl.select(pl.when(handled).then(None).otherwise(by)).to_series()
    return one.frame("waking", thread_id=one.values("pid"), other_thread_id=waker, value=one.values("target_cpu"))


def _ran(one: _Some) -> pl.DataFrame:
    """How long a thread had had the CPU, as the kernel settles its account: from the last time or its switching in."""
    length = one.values("runtime")
    return one.frame("ran", thread_id=one.values("pid"), duration_ns=length).with_columns(
        pl.col("time_ns") - pl.col("duration_ns")
    )


def _fork(one: _Some) -> pl.DataFrame:
    return one.frame("fork", thread_id=one.values("parent_pid"), other_thread_id=one.values("child_pid"))


def _handler(one: _Some, kind: str) -> pl.DataFrame:
    names: Any = [f"irq {number}" for number in one.values("irq").tolist()]
    if "name" in one.layout.fields:
        named = with_text(one.content, one.records, one.values("name"))
        names = [f"{name} {text}".strip() for name, text in zip(names, named, strict=True)]
    return one.frame(kind, name=names)


def _softirq(one: _Some, kind: str) -> pl.DataFrame:
    names = [_SOFTIRQS[n] if 0 <= n < len(_SOFTIRQS) else str(n) for n in one.values("vec").tolist()]
    return one.frame(kind, name=names)


#: How the two ends of what has an extent are marked until they are paired.
_ENTRY, _EXIT = " entry", " exit"
_READERS: Final[Mapping[str, Callable[[_Some], pl.DataFrame]]] = {
    "sched/sched_switch": _switch,
    "sched/sched_waking": _waking,
    "sched/sched_stat_runtime": _ran,
    "sched/sched_process_fork": _fork,
    "sched/sched_migrate_task": lambda one: one.frame(
        "migrate", thread_id=one.values("pid"), value=one.values("dest_cpu")
    ),
    "sched/sched_process_exit": lambda one: one.frame("exit", thread_id=one.values("pid")),
    "exceptions/page_fault_user": lambda one: one.frame("page_fault", name="user", value=one.values("address")),
    "exceptions/page_fault_kernel": lambda one: one.frame("page_fault", name="kernel", value=one.values("address")),
    "irq/irq_handler_entry": lambda one: _handler(one, "interrupt" + _ENTRY),
    "irq/irq_handler_exit": lambda one: _handler(one, "interrupt" + _EXIT),
    "irq/softirq_entry": lambda one: _softirq(one, "softirq" + _ENTRY),
    "irq/softirq_exit": lambda one: _softirq(one, "softirq" + _EXIT),
    **{
        f"irq_vectors/{vector}_{side}": lambda one, vector=vector, side=side: one.frame(  # type: ignore[misc]
            f"interrupt {side}", name=vector
        )
        for vector in ("local_timer", "reschedule", "call_function", "call_function_single", "irq_work", "thermal_apic")
        for side in ("entry", "exit")
    },
    "raw_syscalls/sys_enter": lambda one: one.frame("syscall" + _ENTRY, value=one.values("id")),
    "raw_syscalls/sys_exit": lambda one: one.frame("syscall" + _EXIT, value=one.values("id")),
    "block/block_rq_issue": lambda one: one.frame("block_io", name="issue", value=one.values("bytes")),
    "signal/signal_deliver": lambda one: one.frame("signal", value=one.values("sig")),
    "power/cpu_frequency": lambda one: one.frame("cpu_frequency", thread_id=None, value=one.values("state")),
    **{
        name: lambda one, name=name: one.frame("gpu_job", name=name.rpartition("/")[2])  # type: ignore[misc]
        for name in (
            *("amdgpu/amdgpu_cs_ioctl", "amdgpu/amdgpu_sched_run_job", "amdgpu/amdgpu_vm_bo_update"),
            *("amdgpu/amdgpu_vm_flush", "amdgpu/amdgpu_bo_move", "amdgpu/amdgpu_iv"),
            *("gpu_scheduler/drm_sched_job_queue", "gpu_scheduler/drm_sched_job_run"),
            "gpu_scheduler/drm_sched_job_done",
        )
    },
    "dma_fence/dma_fence_wait_start": lambda one: one.frame("fence_wait" + _ENTRY),
    "dma_fence/dma_fence_wait_end": lambda one: one.frame("fence_wait" + _EXIT),
}


def _paired(events: pl.DataFrame) -> pl.DataFrame:
    """Each entry with the time to its exit: the next one of its kind, name, thread, and for an interrupt its CPU.

    A handler does not nest in its own kind and name; a call's thread may come back on another CPU. An exit whose entry
    was not seen says nothing.
    """
    is_end = pl.col("kind").str.ends_with(_ENTRY) | pl.col("kind").str.ends_with(_EXIT)
    base = pl.col("kind").str.replace(f"({_ENTRY}|{_EXIT})$", "")
    ends = events.filter(is_end).with_columns(
        base=base,
        opens=pl.col("kind").str.ends_with(_ENTRY),
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
    """The measured threads with the number of their process: those followed, and all that they have started."""
    own = {pid: number for number, pid in enumerate(processes.values())}
    forks = events.filter(pl.col("kind") == "fork").select("thread_id", "other_thread_id")
    for parent, child in forks.iter_rows():
        if parent in own and child not in own:
            own[child] = own[parent]
    return own


def _cut(events: pl.DataFrame, own: Mapping[int, int]) -> pl.DataFrame:
    """What happened while a measured thread was seen."""
    mine = pl.col("thread_id").is_in(list(own)) | pl.col("other_thread_id").is_in(list(own))
    seen = events.filter(mine).get_column("time_ns")
    return events.filter(pl.col("time_ns").is_between(seen.min(), seen.max())) if len(seen) else events.clear()


def _without_foreign(events: pl.DataFrame, own: Mapping[int, int]) -> pl.DataFrame:
    """Without events of threads that are not measured, but for switches: who had the CPU is known of all."""
    mine = pl.col("thread_id").is_in(list(own)) | (pl.col("kind").is_in(["switch", "cpu_frequency"]))
    return events.filter(mine)


def _threads(events: pl.DataFrame, own: Mapping[int, int], some: Iterable[_Some]) -> pl.DataFrame:
    """Every thread that switches name: the measured ones, others, and the idle one of each CPU."""
    switches = events.filter(pl.col("kind") == "switch")
    seen = pl.concat(
        [
            switches.select("time_ns", "thread_id"),
            switches.select("time_ns", thread_id="other_thread_id"),
            events.filter(pl.col("kind") == "exit").select("time_ns", "thread_id"),
        ]
    )
    over = switches.filter(pl.col("state") == "dead").get_column("thread_id").implode()
    each = seen.group_by("thread_id").agg(start_ns=pl.col("time_ns").min(), end_ns=pl.col("time_ns").max())
    end = pl.when(pl.col("thread_id").is_in(over)).then("end_ns").otherwise(events.get_column("time_ns").max())
    process = pl.col("thread_id").replace_strict(dict(own), default=None, return_dtype=pl.Int32)
    name = pl.col("thread_id").replace_strict(_names(some), default=None, return_dtype=pl.String)
    return each.with_columns(end_ns=end, process_id=process, name=name).sort("thread_id")


def _names(some: Iterable[_Some]) -> dict[int, str]:
    """What each thread was called when it last switched, on whichever CPU that was."""
    seen: list[tuple[int, int, str]] = []
    for one in some:
        if one.layout.event == "sched/sched_switch":
            for side in ("prev", "next"):
                # Only the last of a thread's switches in a buffer tells: its names are few, switches are millions.
                behind, last = np.unique(one.values(f"{side}_pid")[::-1], return_index=True)
                latest = replace(one, records=_only(one.records, len(one.records.time_ns) - 1 - last))
                times = latest.records.time_ns.tolist()
                seen += zip(times, behind.tolist(), latest.texts(f"{side}_comm"), strict=True)
    return {thread: name for _, thread, name in sorted(seen)} | {0: "idle"}


def _moved(frame: pl.DataFrame, columns: tuple[str, ...], zero: int) -> pl.DataFrame:
    return frame.with_columns(pl.col(name) - zero for name in columns)


def _throttling(readings: Iterable[Mapping[str, Any]], zero: int) -> pl.DataFrame:
    """When a measured process's group had its quota used up how often, as far as that was looked at."""
    rows = [(one["monotonic_ns"] - zero, one["throttled"], one["throttled_ns"]) for one in readings]
    schema = {"time_ns": pl.Int64, "throttled": pl.Int64, "throttled_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")
