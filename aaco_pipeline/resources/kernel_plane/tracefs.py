"""A private tracing instance of the Linux kernel: creates, reads and removes it without touching any other.

`recording` decides which events are recorded, and for how long. The files are documented in the kernel's
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

#: The last step of a fault changes a process's memory counter; the kernel has no event for the return from a fault.
FAULT_END: Final = "kmem/rss_stat"
#: Kernels before this version count memory in batches, at the beginning of a later fault.
_COUNTS_AT_ONCE: Final = (6, 2)
#: Events recorded only for the measured threads and their interruptions.
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
#: Events recorded for all CPUs: every switch, to see which thread had the CPU, and clock-frequency changes.
OF_CPUS: Final = ("sched/sched_switch", "power/cpu_frequency")
#: Events of loaded GPU drivers: jobs, page tables, buffers, waits for fences.
OF_GPUS: Final = (
    *("amdgpu/amdgpu_cs_ioctl", "amdgpu/amdgpu_sched_run_job", "amdgpu/amdgpu_vm_bo_update"),
    *("amdgpu/amdgpu_vm_flush", "amdgpu/amdgpu_bo_move", "amdgpu/amdgpu_iv"),
    *("gpu_scheduler/drm_sched_job_queue", "gpu_scheduler/drm_sched_job_run", "gpu_scheduler/drm_sched_job_done"),
    *("dma_fence/dma_fence_wait_start", "dma_fence/dma_fence_wait_end"),
)


def misleading(release: str) -> dict[str, str]:
    """Return the events with a different meaning on this kernel release (as in `uname -r`), with the reason."""
    known = re.match(r"(\d+)\.(\d+)", release)
    if known is not None and (int(known[1]), int(known[2])) >= _COUNTS_AT_ONCE:
        return {}
    return {FAULT_END: "not asked for: only since Linux 6.2 it says when a fault is over"}


#: Mount points of tracefs, those of newer kernels first.
_MOUNTS: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_NAME: Final = re.compile(r"aaco_(\d+)_(\d+)_\w+")
_NUMBERS: Final = itertools.count(1)
#: Remedies by error of the kernel.
_FIXES: Final = {
    errno.ENOENT: "use Linux 4.7 or later",
    errno.ENOMEM: "free memory, and record again",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENOSPC: "free disk space, and record again",
}


def refused_by(error: OSError) -> NotPossible:
    """Word an error of the kernel or the disk, with the remedy."""
    if error.errno in (errno.EACCES, errno.EPERM):
        fix = "run as root" if os.geteuid() != 0 else "boot the kernel without lockdown"
    else:
        fix = _FIXES.get(error.errno or 0, "record again")
    return NotPossible(f"{error.filename or 'tracefs'}: {error.strerror}", fix)


class Instance:
    """One tracefs instance; it records nothing until it is `turn`ed on. OSError if the kernel refuses a setting."""

    def __init__(self, tracefs: Path, purpose: str) -> None:
        # Numbered, because an instance opened by another program persists until our process has ended.
        whose = f"aaco_{os.getpid()}_{_start_of(os.getpid())}"
        self.path = tracefs / "instances" / f"{whose}_{next(_NUMBERS)}_{purpose}"
        self.path.mkdir()

    def set(self, file: str, value: str) -> None:
        """Write a setting in a single write, which the kernel accepts or refuses."""
        descriptor = os.open(self.path / file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / file)) from error
        finally:
            os.close(descriptor)

    def enable(self, event: str) -> dict[str, object]:
        """Enable one event: return its record layout, or why it is unavailable."""
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
        """Wake readers of a CPU's pages once this percentage of its buffer is full; False on kernels before 5.0."""
        try:
            self.set("buffer_percent", str(percent))
        except OSError:
            return False
        return True

    def cpus(self) -> list[int]:
        """Return the CPUs that have a buffer."""
        return sorted(int(one.name.removeprefix("cpu")) for one in (self.path / "per_cpu").iterdir())

    def pages(self, cpu: int) -> int:
        """Return a non-blocking descriptor that returns a CPU's pages as they fill up."""
        return os.open(self.path / f"per_cpu/cpu{cpu}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def stats(self, cpu: int) -> dict[str, int]:
        """Return the kernel's counters of a CPU's buffer: `overrun` and `dropped events` are losses."""
        lines = (self.path / f"per_cpu/cpu{cpu}/stats").read_text().splitlines()
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        return {name: int(value) for name, value in pairs if value.strip().isdecimal()}

    def is_on(self) -> bool:
        """Return whether it is recording; anyone with write access to tracefs can turn it off."""
        return (self.path / "tracing_on").read_text().strip() != "0"

    def remove(self) -> bool:
        """Stop recording and remove the instance; all its descriptors must be closed first.

        Returns False if another program has one of its files open: the instance then remains, but records nothing.
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
    """Find the folder in which instances can be created. NotPossible in one line if there is none."""
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
    """Remove instances that a killed process of ours left behind; return their names.

    Nothing is written to an instance first: the kernel does not remove one with an open file, so it decides whether one
    is in use. In its own namespace, a process cannot see who owns an instance.
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
    """Select our instances whose process is gone: its number is unused, or reused by a later process."""
    named = ((one, _NAME.fullmatch(one.name)) for one in instances)
    return [one for one, name in named if name is not None and _start_of(int(name[1])) != name[2]]


def _start_of(process: int) -> str:
    """Return a process's start in ticks since boot; empty if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
