"""Records the kernel's events of measured processes while passes run, through instances of tracefs of our own.

The pages of the kernel's ring buffers are kept as they are; making events of them is
`aaco_pipeline.formats.native.kernel_plane`. What cannot be recorded is said in the document and never fails the run.
"""

import fcntl
import gzip
import os
import platform
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from aaco_pipeline.resources.kernel_plane.events import OF_CPUS, OF_GPUS, OF_THREADS
from aaco_pipeline.resources.kernel_plane.instances import Instance, NotPossible, find_tracefs, remove_stale
from aaco_pipeline.resources.telemetry.clocks import clock_readings
from aaco_pipeline.resources.telemetry.own_threads import give_way, name_this_thread, next_instant
from aaco_pipeline.resources.telemetry.pid_namespace import numbered_as_by_the_kernel
from aaco_pipeline.resources.telemetry.scheduler_events import SchedulerTrace

FORMAT: Final = "aaco-kernel-plane"
FORMAT_VERSION: Final = 1
DOCUMENT_FILE: Final = "kernel_plane.json"
FOLDER: Final = "kernel_plane"
#: Of each CPU and instance: seconds of a busy host, so that the reader need not wake often beside what is measured.
_BUFFER_KB: Final = 16_384
_LEAST_BUFFER_KB: Final = 1_024
#: How often its thread wakes, and whoever samples beside it: it has every switch, and each waking takes a CPU.
PERIOD_NS: Final = 500_000_000
_PIPE_BYTES: Final = 1 << 20
#: A recording ends when it holds so much, about ten million switches, or so little is left on the disk.
_MOST_BYTES: Final = 1 << 30
_LEAST_FREE_BYTES: Final = 1 << 30
_OF_A_TOOL: Final = "{tool} tells switches and wake-ups alone: no faults, interrupts or system calls"


class KernelPlane:
    """Records from entry to exit into `folder`, or says in its document why it cannot.

    with KernelPlane(folder) as plane:
        plane.follow(process, "latency")
    document = plane.document()
    """

    def __init__(self, folder: Path, tools: Sequence[str] = ("perf", "bpftrace")) -> None:
        """`tools` record switches and wake-ups alone where tracefs cannot be read; who needs more names none."""
        self._folder = folder
        self._tools = tools
        self._document: dict[str, Any] = {
            **{"format": FORMAT, "format_version": FORMAT_VERSION, "state": "absent", "reason": None, "fix": None},
            **{"source": "tracefs", "machine": platform.machine(), "processes": {}, "events": {}, "buffers": []},
            **{"throttling": [], "remarks": []},
        }
        self._instances: dict[str, Instance] = {}
        self._reader: _Reader | None = None
        self._tool: SchedulerTrace | None = None

    def __enter__(self) -> Self:
        stale = remove_stale()
        if stale:
            self._document["remarks"].append(f"removed what a killed run had left in tracefs: {', '.join(stale)}")
        try:
            self._start()
        except NotPossible as refusal:
            self._refused(str(refusal), refusal.fix)
        except OSError as error:
            self._refused(f"{error.filename or 'tracefs'}: {error.strerror}", "run as root on a kernel with tracefs")
        except BaseException:
            self._remove()
            raise
        if self._reader is None and self._tools:
            self._start_a_tool()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._reader is not None and error is None:
                self._stop()
            if self._tool is not None:
                self._tool.__exit__(kind, error, traceback)
                self._take_from(self._tool)
        except OSError as broken:
            self._refused(f"the events could not be kept: {broken}", "free disk space, and record again")
        finally:
            self._remove()

    def follow(self, process: int, label: str) -> None:
        """Record the threads of a process that has just begun, and all that they start."""
        self._document["processes"][label] = process
        self.admit(process)
        if self._reader is not None:
            self._reader.process = process

    def admit(self, process: int) -> None:
        """Record a process that is to start one that is followed, so that nothing of that one is missed."""
        if self._reader is None:
            return
        with suppress(OSError):  # it has ended already
            for task in Path(f"/proc/{process}/task").iterdir():
                self._instances["threads"].set("set_event_pid", task.name)

    def document(self) -> dict[str, Any]:
        """What was recorded, or state `absent` with the reason and what to do."""
        return self._document

    def _start(self) -> None:
        tracefs = find_tracefs()
        if not numbered_as_by_the_kernel():
            raise NotPossible("a container numbers its threads otherwise than the kernel's events do", "--pid=host")
        for purpose in ("threads", "switches"):
            self._instances[purpose] = _made(tracefs, purpose)
        threads = self._instances["threads"]
        threads.set("options/event-fork", "1")
        threads.set("set_event_pid", str(_nobody()))
        # A driver that is not loaded has nothing to say, and lacks nothing.
        of_gpus = [event for event in OF_GPUS if (tracefs / "events" / event).parent.is_dir()]
        events = {event: threads.enable(event) for event in (*OF_THREADS, *of_gpus)}
        events |= {event: self._instances["switches"].enable(event) for event in OF_CPUS}
        if events["sched/sched_switch"]["format"] is None:
            raise NotPossible(f"sched/sched_switch: {events['sched/sched_switch']['reason']}", "use another kernel")
        (self._folder / FOLDER).mkdir()
        self._document["events"] = events
        self._document["header_page"] = (tracefs / "events/header_page").read_text()
        self._document["clock"] = {"name": "CLOCK_MONOTONIC", "before": clock_readings()}
        self._reader = _Reader(self._instances, self._folder / FOLDER)
        for one in self._instances.values():
            one.set("tracing_on", "1")

    def _stop(self) -> None:
        assert self._reader is not None
        for one in self._instances.values():
            one.set("tracing_on", "0")
        self._document["clock"]["after"] = clock_readings()
        self._document["buffers"] = self._reader.finish()
        self._reader.look_at_the_quota()
        self._document["throttling"] = self._reader.throttling
        if self._reader.ended_early is not None:
            self._document["remarks"].append(self._reader.ended_early)
        self._document["state"] = "present"

    def _start_a_tool(self) -> None:
        """Have perf or bpftrace record what they can: they tell neither faults nor interrupts nor calls."""
        (self._folder / FOLDER).mkdir()
        tool = SchedulerTrace(self._folder / FOLDER, self._tools)
        tool.__enter__()
        if tool.recording:
            self._tool = tool
        else:
            self._take_from(tool)

    def _take_from(self, tool: SchedulerTrace) -> None:
        """What the tool recorded, or why it could not either, with why tracefs could not before it."""
        told = tool.document()
        reasons = [f"tracefs: {self._document['reason']}", *([told["reason"]] if told["reason"] else [])]
        if told["state"] == "present":
            # What it says of its own file is what its reader needs, and no more.
            trace = {name: told[name] for name in ("file", "lost", "version", "clock")}
            remarks = [*self._document["remarks"], *told["remarks"], *reasons, _OF_A_TOOL.format(tool=told["tool"])]
            self._document |= {"state": "present", "reason": None, "fix": None, "source": told["tool"]}
            self._document |= {"trace": trace, "remarks": remarks, "clock": told["clock"]}
        else:
            self._refused("; ".join(reasons), self._document["fix"])

    def _refused(self, reason: str, fix: str) -> None:
        self._document |= {"state": "absent", "reason": reason, "fix": fix, "buffers": []}
        self._remove()
        shutil.rmtree(self._folder / FOLDER, ignore_errors=True)

    def _remove(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        for one in self._instances.values():
            one.remove()
        self._instances = {}


class _Reader:
    """Moves the kernel's pages into files, a thread for all CPUs that wakes seldom."""

    def __init__(self, instances: dict[str, Instance], folder: Path) -> None:
        self._buffers = [(name, one, cpu) for name, one in instances.items() for cpu in one.cpus()]
        self._folder = folder
        self._stopping = threading.Event()
        #: Whose control group is looked at, and what its quota was used up by, whenever that had changed.
        self.process: int | None = None
        self.throttling: list[dict[str, int | str]] = []
        self._group: Path | None = None
        #: Why it stopped to record before the run was over, and when.
        self.ended_early: str | None = None
        self._began = time.monotonic()
        self._moved_bytes = 0
        self._error: OSError | None = None
        self._sources: list[int] = []
        self._targets: list[int] = []
        self._pipe = os.pipe2(os.O_CLOEXEC)
        with suppress(OSError):  # more than the system lets a user have
            fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        for name, one, cpu in self._buffers:
            self._sources.append(one.pages(cpu))
            self._targets.append(os.open(self._file(name, cpu), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        self._thread = threading.Thread(target=self._run, name="kernel plane", daemon=True)
        self._thread.start()

    def finish(self) -> list[dict[str, Any]]:
        """Take what is left and compress it: each buffer with its file and what the kernel counted."""
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        page = os.sysconf("SC_PAGESIZE")
        for source, target in zip(self._sources, self._targets, strict=True):
            with suppress(BlockingIOError):  # a page that is not full comes by reading alone
                while content := os.read(source, page):
                    os.write(target, content.ljust(page, b"\0"))
        found = []
        for name, one, cpu in self._buffers:
            plain = self._file(name, cpu)
            packed = plain.with_name(f"{plain.name}.gz")
            with plain.open("rb") as source_file, gzip.open(packed, "wb", compresslevel=1) as target_file:
                shutil.copyfileobj(source_file, target_file, _PIPE_BYTES)
            size = plain.stat().st_size
            plain.unlink()
            stats = one.stats(cpu)
            found.append({"instance": name, "cpu": cpu, "file": packed.name, "bytes": size, "stats": stats})
        return found

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        for descriptor in (*self._sources, *self._targets, *self._pipe):
            with suppress(OSError):
                os.close(descriptor)
        self._sources, self._targets, self._pipe = [], [], (-1, -1)

    def _file(self, name: str, cpu: int) -> Path:
        return self._folder / f"{name}.cpu{cpu}.pages"

    def _run(self) -> None:
        name_this_thread("aaco plane")
        give_way()
        try:
            while not self._stopping.wait(_until_next_instant()):
                self._move()
                self.look_at_the_quota()
                if self.ended_early is None and (reason := self._over()) is not None:
                    for _, one, _ in self._buffers:
                        one.set("tracing_on", "0")
                    after = time.monotonic() - self._began
                    self.ended_early = f"{reason}: nothing was recorded from {after:.1f} s on"
            self._move()
        except OSError as error:
            self._error = error

    def _move(self) -> None:
        outlet, inlet = self._pipe
        for source, target in zip(self._sources, self._targets, strict=True):
            with suppress(BlockingIOError):
                while moved := os.splice(source, inlet, _PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK):
                    self._moved_bytes += moved
                    while moved:
                        moved -= os.splice(outlet, target, moved)

    def _over(self) -> str | None:
        if self._moved_bytes >= _MOST_BYTES:
            return f"the recording holds {_MOST_BYTES >> 20:,} MiB (measure fewer iterations)"
        disk = os.statvfs(self._folder)
        if disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
            return f"less than {_LEAST_FREE_BYTES >> 20:,} MiB are left on the disk"
        if not all(one.records() for one in {name: one for name, one, _ in self._buffers}.values()):
            return "another program has turned the recording off"
        return None

    def look_at_the_quota(self) -> None:
        """Keep what the group of the process counts now, where that is another count; of one that ended the last."""
        if self.process is not None:
            self._group = group_of(self.process) or self._group
        found = None if self._group is None else throttling_of(self._group)
        last = self.throttling[-1] if self.throttling else {}
        if found is not None and any(last.get(name) != value for name, value in found.items()):
            self.throttling.append({"monotonic_ns": time.monotonic_ns(), **found})


def _until_next_instant() -> float:
    now = time.monotonic_ns()
    return (next_instant(now, PERIOD_NS) - now) / 1e9


def group_of(process: int) -> Path | None:
    """The folder of the control group that may bound a process's CPU time; None where there is none, or no process."""
    try:
        lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        named = controllers.split(",")
        mounts = ("",) if not controllers else ("/cpu", "/cpu,cpuacct") if "cpu" in named else ()
        for mount in mounts:
            folder = Path(f"/sys/fs/cgroup{mount}{group}")
            if throttling_of(folder) is not None:
                return folder
    return None


def throttling_of(group: Path) -> dict[str, int | str] | None:
    """How often and for how long (ns) a control group had its quota used up; None where it does not say.

    cgroup v1 counts nanoseconds in `throttled_time`, v2 microseconds in `throttled_usec`.
    """
    try:
        values = {name: int(value) for name, value in map(str.split, (group / "cpu.stat").read_text().splitlines())}
    except (OSError, ValueError):
        return None
    if "nr_throttled" not in values:
        return None
    spent = values.get("throttled_time", values.get("throttled_usec", 0) * 1_000)
    return {"group": str(group), "throttled": values["nr_throttled"], "throttled_ns": spent}


def _made(tracefs: Path, purpose: str) -> Instance:
    """A fresh instance that records nothing yet, with the largest buffer that memory allows."""
    made = Instance(tracefs, purpose)
    made.set("tracing_on", "0")
    made.set("trace_clock", "mono")
    size = _BUFFER_KB
    while True:
        try:
            made.set("buffer_size_kb", str(size))
        except OSError:
            if size <= _LEAST_BUFFER_KB:
                raise
            size //= 2
        else:
            return made


def _nobody() -> int:
    """A number that no thread has: with it alone no thread is recorded until one is followed."""
    return int(Path("/proc/sys/kernel/pid_max").read_text()) - 1
