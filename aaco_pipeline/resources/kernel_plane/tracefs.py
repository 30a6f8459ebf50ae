"""An instance of the kernel's tracing of our own: its tracepoints, made, read and removed without touching any other.

What is recorded, and for how long, is decided in `recording`. The files are documented in the kernel's
Documentation/trace/ftrace.rst.
"""

import errno
import itertools
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.telemetry.clocks import NotPossible, why_apart

#: The last step of a fault changes a process's memory; the kernel has no event for the return from it.
FAULT_END: Final = "kmem/rss_stat"
#: Kernels before this one count memory in batches, at the beginning of a later fault.
_COUNTS_AT_ONCE: Final = (6, 2)
#: Events of the measured threads alone, and of what interrupts them.
OF_THREADS: Final = (
    *(
        "sched/sched_stat_runtime",
        "sched/sched_waking",
        "sched/sched_migrate_task",
        "sched/sched_process_fork",
        "sched/sched_process_exit",
    ),
    *("exceptions/page_fault_user", "exceptions/page_fault_kernel", FAULT_END),
    *("irq/irq_handler_entry", "irq/irq_handler_exit", "irq/softirq_entry", "irq/softirq_exit"),
    *(
        f"irq_vectors/{vector}_{side}"
        for vector in ("local_timer", "reschedule", "call_function", "call_function_single", "irq_work", "thermal_apic")
        for side in ("entry", "exit")
    ),
    *("raw_syscalls/sys_enter", "raw_syscalls/sys_exit"),
    *("block/block_rq_issue", "signal/signal_deliver"),
)
#: Events of all CPUs: every switch, for who had the CPU, and changes of their clocks.
OF_CPUS: Final = ("sched/sched_switch", "power/cpu_frequency")
#: Events of loaded GPU drivers: jobs, page tables, buffers, waits for fences.
OF_GPUS: Final = (
    *("amdgpu/amdgpu_cs_ioctl", "amdgpu/amdgpu_sched_run_job", "amdgpu/amdgpu_vm_bo_update"),
    *("amdgpu/amdgpu_vm_flush", "amdgpu/amdgpu_bo_move", "amdgpu/amdgpu_iv"),
    *("gpu_scheduler/drm_sched_job_queue", "gpu_scheduler/drm_sched_job_run", "gpu_scheduler/drm_sched_job_done"),
    *("dma_fence/dma_fence_wait_start", "dma_fence/dma_fence_wait_end"),
)


def misleading(release: str) -> dict[str, str]:
    """Events that mean something else on a kernel of this release (as in `uname -r`), with the reason."""
    known = re.match(r"(\d+)\.(\d+)", release)
    if known is not None and (int(known[1]), int(known[2])) >= _COUNTS_AT_ONCE:
        return {}
    return {FAULT_END: "not asked for: only since Linux 6.2 it says when a fault is over"}


#: Mount points of tracefs, newer kernels first.
_MOUNTS: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_NAME: Final = re.compile(r"aaco_(\d+)_(\d+)_\w+")
_NUMBERS: Final = itertools.count(1)
#: Remedies by the kernel's error.
_FIXES: Final = {
    errno.ENOENT: "use Linux 4.7 or later",
    errno.ENOMEM: "free memory, and record again",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENOSPC: "free disk space, and record again",
}


def refused_by(error: OSError) -> NotPossible:
    """Word the refusal of the kernel or the disk, with what to do about it."""
    if error.errno in (errno.EACCES, errno.EPERM):
        fix = "run as root" if os.geteuid() != 0 else "boot the kernel without lockdown"
    else:
        fix = _FIXES.get(error.errno or 0, "record again")
    return NotPossible(f"{error.filename or 'tracefs'}: {error.strerror}", fix)


class Instance:
    """One instance in a tracefs; it records nothing until `turn`ed on. OSError where the kernel refuses something."""

    def __init__(self, tracefs: Path, purpose: str) -> None:
        # Numbered, as one that another program has open stays until our process has ended.
        whose = f"aaco_{os.getpid()}_{_start_of(os.getpid())}"
        self.path = tracefs / "instances" / f"{whose}_{next(_NUMBERS)}_{purpose}"
        self.path.mkdir()

    def set(self, file: str, value: str) -> None:
        """Write a setting; the kernel takes it with one write or refuses it."""
        descriptor = os.open(self.path / file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / file)) from error
        finally:
            os.close(descriptor)

    def enable(self, event: str) -> dict[str, object]:
        """Have an event recorded, alone: how its records are laid out, or why there are none."""
        folder = f"events/{event}"
        try:
            text = (self.path / folder / "format").read_text()
            self.set(f"{folder}/enable", "1")
        except FileNotFoundError:
            return {"format": None, "reason": "this kernel does not have the event"}
        except OSError as error:
            return {"format": None, "reason": f"refused: {error.strerror}"}
        return {"format": text, "reason": None}

    def wakes_when_full(self, percent: int) -> bool:
        """Have who waits for a CPU's pages woken when so much of its buffer is full; False on kernels before 5.0."""
        try:
            self.set("buffer_percent", str(percent))
        except OSError:
            return False
        return True

    def cpus(self) -> list[int]:
        """The CPUs that have a buffer."""
        return sorted(int(one.name.removeprefix("cpu")) for one in (self.path / "per_cpu").iterdir())

    def pages(self, cpu: int) -> int:
        """An open descriptor that gives a CPU's pages as they fill, and never waits."""
        return os.open(self.path / f"per_cpu/cpu{cpu}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def stats(self, cpu: int) -> dict[str, int]:
        """The kernel's counts for a CPU's buffer: `overrun` and `dropped events` are losses."""
        lines = (self.path / f"per_cpu/cpu{cpu}/stats").read_text().splitlines()
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        return {name: int(value) for name, value in pairs if value.strip().isdecimal()}

    def is_on(self) -> bool:
        """Return whether it records; anyone who may write to tracefs can turn it off."""
        return (self.path / "tracing_on").read_text().strip() != "0"

    def remove(self) -> bool:
        """Stop recording and remove the instance; all its descriptors have to be closed before.

        False where another program has a file of it open: then it stays, and records nothing.
        """
        try:
            with suppress(OSError):
                self.set("tracing_on", "0")
            self.path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def find_tracefs() -> Path:
    """Find the folder in which instances can be made. NotPossible in one line where there is none."""
    for one in _MOUNTS:
        try:
            if not (one / "instances").is_dir():
                continue
        except PermissionError:
            raise NotPossible(f"{one} is not open to this user", "run as root") from None
        if not os.access(one / "instances", os.W_OK):
            if os.geteuid() != 0:
                raise NotPossible(f"{one} is not writable for this user", "run as root")
            raise NotPossible(f"{one} is mounted read-only", f"mount -o remount,rw {one}")
        return one
    if os.geteuid() != 0:
        raise NotPossible("tracefs is not mounted, or not for this user", "run as root")
    raise NotPossible("tracefs is not mounted", "mount -t tracefs nodev /sys/kernel/tracing")


def remove_stale() -> list[str]:
    """Remove instances of ours whose process is gone, as a kill leaves them; return their names.

    Nothing is written to one before: whether it is still recorded with is for the kernel to say, which does not remove
    an instance with an open file. From a namespace of its own a process does not see whose an instance is.
    """
    removed = []
    for mount in _MOUNTS if why_apart() is None else ():
        with suppress(OSError):
            for one in stale_of(sorted((mount / "instances").iterdir())):
                with suppress(OSError):
                    one.rmdir()
                    removed.append(one.name)
    return removed


def stale_of(instances: Iterable[Path]) -> list[Path]:
    """Select our instances whose process is gone: no process has the number, or one that began at another time."""
    named = ((one, _NAME.fullmatch(one.name)) for one in instances)
    return [one for one, name in named if name is not None and _start_of(int(name[1])) != name[2]]


def _start_of(process: int) -> str:
    """Start of a process in ticks since boot; empty where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
