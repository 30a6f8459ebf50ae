"""Decode pages of the kernel's trace ring buffer: records, event layouts, and event fields as columns.

The format is the kernel's: `Documentation/trace/ring-buffer-design.rst`, `include/linux/ring_buffer.h` and
`kernel/trace/ring_buffer.c`. Each event's layout is given by its own `format` text, stored in the document.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.errors import CaptureError

Numbers = npt.NDArray[np.int64]
Loss = tuple[int | None, int, int | None]
#: A page begins with the time of its first record and the size of its records.
HEADER_BYTES: Final = 16
_SIZE_BITS: Final = 0xFFFFFFF
#: Bits of the size word: records were lost before this page, and their number follows its records.
_MISSED: Final = 1 << 31
_COUNT_STORED: Final = 1 << 30
#: Special values of the low five bits of a record's first word; other values are its number of data words.
_LONG, _PADDING, _EXTEND, _STAMP = 0, 29, 30, 31
_DELTA_SHIFT: Final = 27


@dataclass(frozen=True)
class _Heads:
    """Page headers: start time, size word, size, and offset of the records."""

    began_ns: Numbers
    commit: Numbers
    sizes: Numbers
    begins: Numbers


@dataclass(frozen=True)
class Records:
    """Records of one buffer in order: `time_ns`, event number `event`, and offset and size of their data.

    `losses`: the time of the last record before each loss (None without one), of the first after it, and the number of
    lost records (None if unknown).
    """

    time_ns: Numbers
    event: Numbers
    offset: Numbers
    size: Numbers
    losses: tuple[Loss, ...]


def records_of(content: bytes, page_bytes: int, where: str) -> Records:
    """Read all pages at once: the first record of every page, then the second, and so on.

    CaptureError, with `where`, for an invalid page.
    """
    if page_bytes < 2 * HEADER_BYTES or page_bytes % 8 or len(content) % page_bytes:
        raise CaptureError(f"{where}: {len(content)} bytes are no whole number of pages of {page_bytes}; copy it again")
    pages = len(content) // page_bytes
    words = np.frombuffer(content, "<u4")
    heads = np.frombuffer(content, "<u8").reshape(pages, page_bytes // 8)[:, :2].astype(np.uint64)
    commit = heads[:, 1].astype(np.int64)
    sizes = commit & _SIZE_BITS & ~(_MISSED | _COUNT_STORED)
    if pages and int(sizes.max()) > page_bytes - HEADER_BYTES:
        raise CaptureError(f"{where}: a page claims more bytes than it has; the file is damaged")
    begins = np.arange(pages, dtype=np.int64) * page_bytes + HEADER_BYTES
    ends, at = begins + sizes, begins.copy()
    clock = heads[:, 0].astype(np.int64)
    head_of = _Heads(clock.copy(), commit, sizes, begins)
    found: list[tuple[Numbers, ...]] = []
    live = np.flatnonzero(at < ends)
    while len(live):
        place = at[live]
        head = words[place >> 2].astype(np.int64)
        kind, delta = head & 31, head >> 5
        room = ends[live] - place
        second = words[np.minimum(place + 4, len(content) - 4) >> 2].astype(np.int64)
        is_data = kind < _PADDING
        length = np.where(kind == _LONG, second, kind * 4) + 4
        length = np.where(kind == _PADDING, np.where(delta > 0, second + 4, room), length)
        length = np.where(kind >= _EXTEND, 8, length)
        if (length < 4).any() or (length > room).any() or (length & 3).any():
            raise CaptureError(f"{where}: a record reaches beyond its page; the file is damaged")
        stamp = (second << _DELTA_SHIFT) + delta
        # A timestamp has 59 bits; the upper ones are taken from the preceding time.
        absolute = (clock[live] & ~((1 << 59) - 1)) | (stamp & ((1 << 59) - 1))
        moved = np.where(kind == _EXTEND, clock[live] + stamp, clock[live] + delta)
        moved = np.where(kind == _STAMP, absolute, moved)
        # Padding at the end of a page has no time; discarded records keep their time increment.
        clock[live] = np.where((kind == _PADDING) & (delta == 0), clock[live], moved)
        data = np.where(kind == _LONG, place + 8, place + 4)
        kept = is_data & (place + length - data >= 2)
        found.append((live[kept], clock[live][kept], data[kept], (place + length - data)[kept]))
        at[live] = place + length
        live = live[at[live] < ends[live]]
    if not found:
        nothing = np.zeros(0, np.int64)
        return Records(nothing, nothing, nothing, nothing, ())
    page, time_ns, offset, size = (np.concatenate(one) for one in zip(*found, strict=True))
    order = np.lexsort((offset, page))
    page, time_ns, offset, size = page[order], time_ns[order], offset[order], size[order]
    event = numbers(content, offset, 0, 2, signed=False)
    return Records(time_ns, event, offset, size, _losses(content, head_of, page, time_ns))


def numbers(content: bytes, offset: Numbers, at: int, size: int, *, signed: bool) -> Numbers:
    """Read a number of `size` bytes at this offset of each record's data."""
    raw = np.frombuffer(content, np.uint8)[(offset[:, None] + at + np.arange(size))]
    dtype = np.dtype(f"<{'i' if signed else 'u'}{size}")
    return np.ascontiguousarray(raw).view(dtype)[:, 0].astype(np.int64)


def texts(content: bytes, offset: Numbers, at: int, size: int) -> npt.NDArray[Any]:
    """Read a zero-terminated text of at most `size` bytes at this offset of each record's data, as bytes."""
    raw = np.frombuffer(content, np.uint8)[(offset[:, None] + at + np.arange(size))]
    over = np.cumsum(raw == 0, axis=1) > 0
    return np.ascontiguousarray(np.where(over, 0, raw)).astype(np.uint8).view(f"S{size}")[:, 0]


def _losses(content: bytes, heads: _Heads, page: Numbers, time_ns: Numbers) -> tuple[Loss, ...]:
    losses = list[Loss]()
    missed = np.flatnonzero(heads.commit & _MISSED)
    # Pages are in order: start of each page's records, and of the next page's.
    since, until = np.searchsorted(page, missed, side="left"), np.searchsorted(page, missed, side="right")
    for one, first, last in zip(missed.tolist(), since.tolist(), until.tolist(), strict=True):
        after = int(time_ns[first]) if first < last else int(heads.began_ns[one])
        behind = int(heads.begins[one] + heads.sizes[one])
        count = int.from_bytes(content[behind : behind + 8], "little") if heads.commit[one] & _COUNT_STORED else None
        losses.append((int(time_ns[first - 1]) if first else None, after, count))
    return tuple(losses)


_NUMBER: Final = re.compile(r"^ID: (\d{1,9})$", re.MULTILINE)
_FIELD: Final = re.compile(
    r"^\tfield:([^;]{1,200}?)(?:\[\d*\])?;\toffset:(\d{1,6});\tsize:(\d{1,6});\tsigned:([01]);$", re.MULTILINE
)
_LONGEST_TEXT: Final = 64


class MissingField(CaptureError):
    """This kernel's event lacks a requested field."""


@dataclass(frozen=True)
class _Field:
    offset: int
    size: int
    is_signed: bool


@dataclass(frozen=True)
class Layout:
    """An event's layout: its number in this capture, and its fields by name."""

    event: str
    number: int
    fields: Mapping[str, _Field]

    def values(self, content: bytes, records: Records, name: str) -> Numbers:
        """Read a numeric field. MissingField if the event lacks it, CaptureError if a record is too short."""
        field = self._field(records, name)
        if field.size not in (1, 2, 4, 8):
            raise CaptureError(f"kernel_plane.json: {name} of {self.event} is no number of {field.size} bytes")
        return numbers(content, records.offset, field.offset, field.size, signed=field.is_signed)

    def texts(self, content: bytes, records: Records, name: str) -> npt.NDArray[Any]:
        """Read a text field of fixed size, as bytes without trailing zeros. CaptureError if the event lacks it."""
        field = self._field(records, name)
        if not field.size:
            raise CaptureError(f"kernel_plane.json: {name} of {self.event} is a text without bytes")
        return texts(content, records.offset, field.offset, min(field.size, _LONGEST_TEXT))

    def _field(self, records: Records, name: str) -> _Field:
        field = self.fields.get(name)
        if field is None:
            raise MissingField(
                f"kernel_plane.json: {self.event} has no field {name}; the file is from another kernel, or damaged"
            )
        if len(records.size) and int(records.size.min()) < field.offset + field.size:
            raise CaptureError(
                f"kernel_plane: a record of {self.event} is shorter than its fields; the file is damaged"
            )
        return field


def layout_of(event: str, text: str) -> Layout:
    """Parse the kernel's description of an event. CaptureError if it is not one."""
    number = _NUMBER.search(text)
    if number is None:
        raise CaptureError(f"kernel_plane.json: what it says of {event} is no description of an event")
    fields = {
        declared.rpartition(" ")[2]: _Field(int(offset), int(size), signed == "1")
        for declared, offset, size, signed in _FIELD.findall(text)
    }
    return Layout(event, int(number[1]), fields)


def with_text(content: bytes, records: Records, location: Numbers) -> list[str]:
    """Read texts located by a `__data_loc` field (offset in the record, length in the upper half)."""
    begins, lengths = location & 0xFFFF, (location >> 16) & 0xFFFF
    found = []
    for offset, size, begin, length in zip(records.offset, records.size, begins, lengths, strict=True):
        if begin + length > size:
            raise CaptureError("kernel_plane: a text reaches beyond its record; the file is damaged")
        found.append(content[offset + begin : offset + begin + length].partition(b"\0")[0].decode("utf-8", "replace"))
    return found


#: The softirqs by number (`include/linux/interrupt.h`).
_SOFTIRQS: Final = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
#: Flags of a record written by an interrupt handler or by a softirq.
_IN_INTERRUPT: Final = 0x08 | 0x10
#: The low byte of a thread's state gives its reason for waiting (`include/linux/sched.h`). A parked or idle kernel
#: thread is sleeping; neither counts towards the load.
_SLEEPING, _DISK_SLEEP, _STOPPED, _DEAD = 0x1 | 0x40 | 0x80, 0x2, 0x4 | 0x8, 0x10 | 0x20
_WAITS_FOR: Final = 0xFF
#: Columns of `kernel_events` as read.
EVENTS: Final = {
    **{"time_ns": pl.Int64, "cpu": pl.Int32, "thread_id": pl.Int64, "kind": pl.String, "name": pl.String},
    **{"duration_ns": pl.Int64, "other_thread_id": pl.Int64, "state": pl.String, "value": pl.Int64},
}


@dataclass(frozen=True)
class Some:
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
        """Build rows of `EVENTS`; omitted columns are null, and the default thread is the running one."""
        given = {"time_ns": self.records.time_ns, "cpu": self.cpu, "kind": kind, **columns}
        if "thread_id" not in given:
            given["thread_id"] = self.values("common_pid")
        height = len(self.records.time_ns)
        series = []
        for name, dtype in EVENTS.items():
            value = given.get(name)
            many = isinstance(value, np.ndarray | list | pl.Series)
            each = pl.Series(value, dtype=dtype) if many else pl.repeat(value, height, dtype=dtype, eager=True)
            series.append(each.alias(name))
        return pl.DataFrame(series)


def only(records: Records, chosen: Any) -> Records:
    """Select records by a mask or by positions."""
    columns = {name: getattr(records, name)[chosen] for name in ("time_ns", "event", "offset", "size")}
    return replace(records, **columns)


def _switch(one: Some) -> pl.DataFrame:
    state = one.values("prev_state")
    waits, previous = state & _WAITS_FOR, one.values("prev_pid")
    named = np.select(
        [previous == 0, waits & _DEAD > 0, waits & _STOPPED > 0, waits & _DISK_SLEEP > 0, waits & _SLEEPING > 0],
        ["idle", "dead", "stopped", "disk_sleep", "sleeping"],
        "runnable",
    )
    return one.frame("switch", thread_id=previous, other_thread_id=one.values("next_pid"), state=named.tolist())


def _waking(one: Some) -> pl.DataFrame:
    by = pl.Series(one.values("common_pid"))
    handled = pl.Series(one.values("common_flags") & _IN_INTERRUPT > 0)
    waker, name = pl.select(
        pl.when(handled).then(None).otherwise(by), pl.when(handled).then(pl.lit("interrupt")).alias("name")
    ).get_columns()
    woken_for = one.values("target_cpu")
    return one.frame("waking", thread_id=one.values("pid"), other_thread_id=waker, name=name, value=woken_for)


def _ran(one: Some) -> pl.DataFrame:
    """Read how long a thread had the CPU by the kernel's accounting: since its last accounting or switch-in."""
    length = one.values("runtime")
    return one.frame("ran", thread_id=one.values("pid"), duration_ns=length).with_columns(
        pl.col("time_ns") - pl.col("duration_ns")
    )


def _fork(one: Some) -> pl.DataFrame:
    return one.frame("fork", thread_id=one.values("parent_pid"), other_thread_id=one.values("child_pid"))


def _resident(one: Some) -> pl.DataFrame:
    """Read memory gained or lost by the thread's own process, not by one whose memory it reclaims."""
    own = replace(one, records=only(one.records, one.values("curr") != 0))
    return own.frame(RESIDENT)


def _handler(one: Some, kind: str) -> pl.DataFrame:
    names: Any = [f"irq {number}" for number in one.values("irq").tolist()]
    if "name" in one.layout.fields:
        named = with_text(one.content, one.records, one.values("name"))
        names = [f"{name} {text}".strip() for name, text in zip(names, named, strict=True)]
    return one.frame(kind, name=names)


def _softirq(one: Some, kind: str) -> pl.DataFrame:
    names = [_SOFTIRQS[n] if 0 <= n < len(_SOFTIRQS) else str(n) for n in one.values("vec").tolist()]
    return one.frame(kind, name=names)


#: Marker of the end of a page fault; it produces no row in `kernel_events`.
RESIDENT: Final = "resident"
#: Suffixes of the two ends of an interval until they are paired.
ENTRY, EXIT = " entry", " exit"
#: Functions that read each event into rows.
READERS: Final[Mapping[str, Callable[[Some], pl.DataFrame]]] = {
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
    "kmem/rss_stat": _resident,
    "irq/irq_handler_entry": lambda one: _handler(one, "interrupt" + ENTRY),
    "irq/irq_handler_exit": lambda one: _handler(one, "interrupt" + EXIT),
    "irq/softirq_entry": lambda one: _softirq(one, "softirq" + ENTRY),
    "irq/softirq_exit": lambda one: _softirq(one, "softirq" + EXIT),
    **{
        f"irq_vectors/{vector}_{side}": lambda one, vector=vector, side=side: one.frame(  # type: ignore[misc]
            f"interrupt {side}", name=vector
        )
        for vector in ("local_timer", "reschedule", "call_function", "call_function_single", "irq_work", "thermal_apic")
        for side in ("entry", "exit")
    },
    "raw_syscalls/sys_enter": lambda one: one.frame("syscall" + ENTRY, value=one.values("id")),
    "raw_syscalls/sys_exit": lambda one: one.frame("syscall" + EXIT, value=one.values("id")),
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
    "dma_fence/dma_fence_wait_start": lambda one: one.frame("fence_wait" + ENTRY),
    "dma_fence/dma_fence_wait_end": lambda one: one.frame("fence_wait" + EXIT),
}
