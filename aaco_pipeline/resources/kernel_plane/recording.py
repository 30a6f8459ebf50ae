"""Record Linux kernel events of measured processes during passes, through private tracefs instances.

The kernel's ring-buffer pages are stored unchanged; `aaco_pipeline.formats.native.kernel_plane` turns them into events.
The document states what could not be recorded; this never fails the run.
"""

import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from aaco_pipeline.resources.kernel_plane.page_reader import PageReader, why_full
from aaco_pipeline.resources.kernel_plane.tracefs import (
    OF_CPUS,
    OF_GPUS,
    OF_THREADS,
    Instance,
    find_tracefs,
    misleading,
    refused_by,
    remove_stale,
)
from aaco_pipeline.resources.telemetry.clocks import NotPossible, clock_readings, suspended_ns, why_apart
from aaco_pipeline.resources.telemetry.scheduler_events import SchedulerTrace

FORMAT: Final = "aaco-kernel-plane"
FORMAT_VERSION: Final = 1
DOCUMENT_FILE: Final = "kernel_plane.json"
FOLDER: Final = "kernel_plane"
#: Per CPU and instance: several seconds of a busy host, so that the reader rarely wakes during the measurement.
_BUFFER_KB: Final = 16_384
_LEAST_BUFFER_KB: Final = 1_024
#: Total for all buffers: limits the kernel memory on hosts with hundreds of CPUs.
_BUFFERS_KB: Final = 1 << 20
_PURPOSES: Final = ("threads", "switches")
_OF_A_TOOL: Final = "{tool} tells switches and wake-ups alone: no faults, interrupts or system calls"


class KernelPlane:
    """Record into `folder` from entry to exit, or state in the document why nothing was recorded.

    with KernelPlane(folder) as plane:
        plane.follow(process, "latency")
    document = plane.document()
    """

    def __init__(self, folder: Path, tools: Sequence[str] = ("perf", "bpftrace")) -> None:
        """`tools` record only switches and wake-ups if tracefs is unreadable; pass none if you need more events."""
        self._folder = folder
        self._tools = tools
        self._document: dict[str, Any] = {
            **{"format": FORMAT, "format_version": FORMAT_VERSION, "state": "absent", "reason": None, "fix": None},
            **{"source": "tracefs", "machine": platform.machine(), "processes": {}, "events": {}, "buffers": []},
            **{"throttling": [], "remarks": []},
        }
        self._instances: dict[str, Instance] = {}
        self._reader: PageReader | None = None
        self._tool: SchedulerTrace | None = None

    def __enter__(self) -> Self:
        # First check for conditions that would make all events useless or fill the disk.
        if (apart := why_apart()) is not None:
            self._refused(*apart)
            return self
        stale = remove_stale()
        if stale:
            self._document["remarks"].append(f"removed what a killed run had left in tracefs: {', '.join(stale)}")
        if (full := why_full(self._folder)) is not None:
            self._refused(full, "free disk space, and record again")
            return self
        try:
            self._start()
        except NotPossible as refusal:
            self._refused(str(refusal), refusal.fix)
        except OSError as error:
            answer = refused_by(error)
            self._refused(str(answer), answer.fix)
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
            refusal = refused_by(broken)
            self._refused(f"the events could not be kept: {refusal}", refusal.fix)
        finally:
            self._remove()

    def follow(self, process: int, label: str) -> None:
        """Record the threads of a process that has just started, and all that they start."""
        self._document["processes"][label] = process
        self.admit(process)
        if self._reader is not None:
            self._reader.process = process

    def admit(self, process: int) -> None:
        """Record a process that will start a followed one, so that none of its events are missed."""
        if self._reader is None:
            return
        try:
            tasks = [task.name for task in Path(f"/proc/{process}/task").iterdir()]
        except OSError:
            return  # already ended
        try:
            for task in tasks:
                self._instances["threads"].set("set_event_pid", task)
        except OSError as error:
            self._document["remarks"].append(f"process {process} is not followed: {refused_by(error)}")

    def document(self) -> dict[str, Any]:
        """Return the recording, or state `absent` with the reason and the remedy."""
        return self._document

    def _start(self) -> None:
        tracefs = find_tracefs()
        for purpose in _PURPOSES:
            self._instances[purpose] = Instance(tracefs, purpose)
            _prepare(self._instances[purpose])
        threads = self._instances["threads"]
        threads.set("options/event-fork", "1")
        threads.set("set_event_pid", str(_nobody()))
        # A driver that is not loaded emits no events, so nothing is missing.
        of_gpus = [event for event in OF_GPUS if (tracefs / "events" / event).parent.is_dir()]
        left_out = misleading(platform.release())
        events = {event: threads.enable(event) for event in (*OF_THREADS, *of_gpus) if event not in left_out}
        events |= {event: {"format": None, "reason": reason} for event, reason in left_out.items()}
        events |= {event: self._instances["switches"].enable(event) for event in OF_CPUS}
        if events["sched/sched_switch"]["format"] is None:
            raise NotPossible(f"sched/sched_switch: {events['sched/sched_switch']['reason']}", "use another kernel")
        (self._folder / FOLDER).mkdir()
        self._document["events"] = events
        self._document["header_page"] = (tracefs / "events/header_page").read_text()
        self._document["clock"] = {"name": "CLOCK_MONOTONIC", "before": clock_readings()}
        self._reader = PageReader(self._instances, self._folder / FOLDER)
        for one in self._instances.values():
            one.set("tracing_on", "1")

    def _stop(self) -> None:
        assert self._reader is not None
        for one in self._instances.values():
            one.set("tracing_on", "0")
        clock = self._document["clock"]
        clock["after"] = clock_readings()
        if suspended := suspended_ns(clock["before"], clock["after"]):
            self._document["remarks"].append(f"the host was suspended for {suspended / 1e9:.3f} s during the recording")
        self._document["buffers"] = self._reader.finish()
        self._reader.look_at_the_quota()
        self._document["throttling"] = self._reader.throttling
        if self._reader.ended_early is not None:
            self._document["remarks"].append(self._reader.ended_early)
        self._document["state"] = "present"

    def _start_a_tool(self) -> None:
        """Record the events that perf or bpftrace can capture, which exclude faults, interrupts and system calls."""
        (self._folder / FOLDER).mkdir()
        tool = SchedulerTrace(self._folder / FOLDER, self._tools)
        tool.__enter__()
        if tool.recording:
            self._tool = tool
        else:
            self._take_from(tool)

    def _take_from(self, tool: SchedulerTrace) -> None:
        """Return the tool's recording, or why it failed, together with the reason why tracefs failed before."""
        told = tool.document()
        reason, fix = self._document["reason"], self._document["fix"]
        others = [told["reason"]] if told["reason"] else []
        if told["state"] == "present":
            # Keep only the entries about its file that its reader needs.
            trace = {name: told[name] for name in ("file", "lost", "version", "clock")}
            why = [f"{reason} ({fix})", *others, _OF_A_TOOL.format(tool=told["tool"])]
            remarks = [*self._document["remarks"], *told["remarks"], *why]
            self._document |= {"state": "present", "reason": None, "fix": None, "source": told["tool"]}
            self._document |= {"trace": trace, "remarks": remarks, "clock": told["clock"]}
        else:
            self._refused("; ".join([reason, *others]), fix)

    def _refused(self, reason: str, fix: str) -> None:
        self._document |= {"state": "absent", "reason": reason, "fix": fix, "buffers": []}
        self._remove()
        shutil.rmtree(self._folder / FOLDER, ignore_errors=True)

    def _remove(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        for one in self._instances.values():
            if not one.remove():
                told = f"{one.path} stays while another program has it open; the first command after that removes it"
                self._document["remarks"].append(told)
        self._instances = {}


def _prepare(fresh: Instance) -> None:
    """Set up an instance, still switched off, with our clock and the largest buffer that memory allows."""
    fresh.set("tracing_on", "0")
    fresh.set("trace_clock", "mono")
    size = buffer_kb(os.cpu_count() or 1)
    while True:
        try:
            fresh.set("buffer_size_kb", str(size))
        except OSError:
            if size <= _LEAST_BUFFER_KB:
                raise
            size //= 2
        else:
            return


def buffer_kb(cpus: int) -> int:
    """Return the buffer size in KiB per CPU and instance, on a host with this many CPUs."""
    return max(_LEAST_BUFFER_KB, min(_BUFFER_KB, _BUFFERS_KB // (len(_PURPOSES) * cpus)))


def _nobody() -> int:
    """Return an unused thread number: with only this one in the filter, no thread is recorded until one is followed."""
    return int(Path("/proc/sys/kernel/pid_max").read_text()) - 1
