"""What each event of the kernel says, as rows: its fields are found by the kernel's own description of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.formats.native.kernel_plane.layouts import Layout, with_text
from aaco_pipeline.formats.native.kernel_plane.pages import Records

#: The softirqs in the order of their numbers (`include/linux/interrupt.h`).
_SOFTIRQS: Final = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
#: Bits of a record's flags: written by an interrupt's handler, by a softirq.
_IN_INTERRUPT: Final = 0x08 | 0x10
#: The low byte of a thread's state says what it waits for (`include/linux/sched.h`).
#: A parked or idle thread is one of the kernel's that sleeps: neither counts towards the load.
_SLEEPING, _DISK_SLEEP, _STOPPED, _DEAD = 0x1 | 0x40 | 0x80, 0x2, 0x4 | 0x8, 0x10 | 0x20
_WAITS_FOR: Final = 0xFF
#: Columns of `kernel_events` as they are read.
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
        """Rows of `EVENTS`; columns that are not given are null, and the thread is the one that was running."""
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
    """The chosen ones of the records: by a mask or by places."""
    return replace(
        records,
        time_ns=records.time_ns[chosen],
        event=records.event[chosen],
        offset=records.offset[chosen],
        size=records.size[chosen],
    )


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
    """How long a thread had had the CPU, as the kernel settles its account: from the last time or its switching in."""
    length = one.values("runtime")
    return one.frame("ran", thread_id=one.values("pid"), duration_ns=length).with_columns(
        pl.col("time_ns") - pl.col("duration_ns")
    )


def _fork(one: Some) -> pl.DataFrame:
    return one.frame("fork", thread_id=one.values("parent_pid"), other_thread_id=one.values("child_pid"))


def _resident(one: Some) -> pl.DataFrame:
    """Where the thread's own process has got or lost memory, and not another's whose memory it takes back."""
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


#: What a fault's row ends with where it is seen, and no row of its own in `kernel_events`.
RESIDENT: Final = "resident"
#: How the two ends of what has an extent are marked until they are paired.
ENTRY, EXIT = " entry", " exit"
#: What makes rows of each event.
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
