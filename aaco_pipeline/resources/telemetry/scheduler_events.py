"""Record when threads of the measured processes get, lose and wait for a CPU, with bpftrace or else perf.

It runs only on request and starts before anything is timed, so that no process starts during a measurement. The tool's
output is stored unchanged; `aaco_pipeline.formats.native.telemetry` turns it into events.
"""

import contextlib
import gzip
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from aaco_pipeline.resources.telemetry.clocks import NotPossible, clock_readings, suspended_ns, which_clock, why_apart

FORMAT: Final = "aaco-scheduler-events"
FORMAT_VERSION: Final = 1
EVENTS_FILE: Final = "scheduler_events.txt.gz"
TOOLS: Final = ("bpftrace", "perf")
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 60.0
#: A tool that used less CPU time than this, within that time after an interrupt, has missed the interrupt.
_IDLE_SECONDS: Final = 2.0
_IDLE_CPU_NS: Final = 5_000_000
#: From this version on, bpftrace spells the fields of a tracepoint `args.name`.
_DOTTED_FIELDS: Final = (0, 18)

#: Traces all descendants of the tracing process, but not its own threads. Events stay in a kernel map until the end,
#: as printing would wake bpftrace, which takes a CPU and causes another event. BEGIN runs before the other
#: probes are attached, so each probe reports when it first sees one of our events.
_PROGRAM: Final = """
BEGIN { printf("b %llu\\n", nsecs); }
tracepoint:sched:sched_process_fork /pid == $1 || @mine[tid]/ {
  @mine[args->child_pid] = 1;
  if (@fork_seen == 0) { @fork_seen = 1; printf("ready fork\\n"); }
}
tracepoint:sched:sched_waking /@mine[args->pid] || (pid == $1 && @waking_seen == 0)/ {
  if (@waking_seen == 0) { @waking_seen = 1; printf("ready waking\\n"); }
  if (@mine[args->pid]) { @n = count(); @w[nsecs, args->target_cpu, args->pid] = 1; }
}
tracepoint:sched:sched_switch /@mine[args->prev_pid] || @mine[args->next_pid] || (pid == $1 && @switch_seen == 0)/ {
  if (pid == $1) { delete(@mine[tid]); }
  if (@switch_seen == 0) { @switch_seen = 1; printf("ready switch\\n"); }
  if (@mine[args->prev_pid] || @mine[args->next_pid]) {
    @n = count();
    @s[nsecs, cpu, args->prev_pid, pid, args->prev_state, args->next_pid] = 1;
  }
}
tracepoint:sched:sched_process_exit /@mine[tid]/ { delete(@mine[tid]); }
END { clear(@mine); }
"""
_PROBES_READY: Final = frozenset({b"ready fork", b"ready waking", b"ready switch"})
#: Entries per bpftrace map: several minutes of a model that waits a thousand times a second, in about 30 MB.
_MAP_ENTRIES: Final = 1 << 18
#: perf's buffer per CPU: some tenths of a second of the busiest host, while perf itself waits for a CPU.
_BUFFER: Final = "4M"
#: Largest file, if perf has the option: a full disk would disturb the measured program.
_MOST: Final = "1G"
_BOUNDED: Final = (5, 5)
#: Asks the kernel to interrupt it when its parent dies, then becomes the tool: no tool may outlive the run.
_LAUNCHER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGINT, 0, 0, 0)
os.getppid() == int(sys.argv[1]) or os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class SchedulerTrace:
    """Record into `folder` from entry to exit, or state why nothing was recorded; never fail the run.

    with SchedulerTrace(folder) as trace:
        ...
    document = trace.document()
    """

    def __init__(self, folder: Path, tools: Sequence[str] = TOOLS) -> None:
        self._folder = folder
        self._tools = tuple(tools)
        self._recorder: _Bpftrace | _Perf | None = None
        self._failures: list[tuple[str, NotPossible]] = []
        self._document: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        for tool in self._tools:
            recorder = (_Bpftrace if tool == "bpftrace" else _Perf)(self._folder)
            try:
                if (apart := why_apart()) is not None:
                    raise NotPossible(*apart)
                try:
                    recorder.start()
                except (OSError, subprocess.SubprocessError) as error:
                    raise NotPossible(f"cannot be started: {error}", "record again") from error
            except NotPossible as failure:
                recorder.give_up()
                self._failures.append((tool, failure))
            except BaseException:
                recorder.give_up()
                raise
            else:
                self._recorder = recorder
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._recorder is None:
            return
        if error is not None:
            self._recorder.give_up()
            return
        try:
            self._document = self._recorder.stop()
        except NotPossible as failure:
            self._failures.append((self._recorder.tool, failure))
        except (OSError, subprocess.SubprocessError) as broken:
            unkept = NotPossible(f"its events could not be kept: {broken}", "record again")
            self._failures.append((self._recorder.tool, unkept))
        finally:
            self._recorder.give_up()

    @property
    def recording(self) -> bool:
        """True while a tool records."""
        return self._recorder is not None

    def document(self) -> dict[str, Any]:
        """Return the recording, its tool and its clock; or state `absent` with the reason and the remedy."""
        empty = {"format": FORMAT, "format_version": FORMAT_VERSION, "file": None, "clock": None, "tool": None}
        reason = "; ".join(f"{tool}: {failure}" for tool, failure in self._failures) or None
        if self._document is not None:
            return {**empty, "state": "present", "reason": reason, "fix": None, **self._document}
        fix = self._failures[0][1].fix if self._failures else "record again"
        return {**empty, "state": "absent", "reason": reason or "the recording was given up", "fix": fix}


class _Recorder:
    """A tool running in the background that writes its output to files."""

    tool = ""
    package = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / f".{self.tool}"
        self._target = folder / EVENTS_FILE
        self._output = self._folder / "output"
        self._errors = self._folder / "errors"
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[str, int] = {}
        self._version = ""
        self._path = self.tool

    def give_up(self) -> None:
        """End the tool if it still runs, and remove its resources."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _find(self) -> None:
        """Take the tool's path and version, and a folder for its output."""
        path = shutil.which(self.tool)
        if path is None:
            raise NotPossible("not installed", f"apt-get install {self.package}, and run as root")
        self._path = path
        self._folder.mkdir()
        asking = [path, "--version"]
        answer = subprocess.run(
            asking, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_START_SECONDS, check=False
        )
        self._version = answer.stdout.strip().rpartition(" ")[2]

    def _launch(self, arguments: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
        self._before = clock_readings()
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), self._path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=tuple(pass_fds),
                env={**os.environ, "BPFTRACE_MAP_KEYS_MAX": str(_MAP_ENTRIES)},
            )

    def _refused(self) -> NotPossible:
        """Return the tool's message if it ended instead of recording."""
        lines = [line.strip() for line in self._errors.read_text(errors="replace").splitlines() if line.strip()]
        if not lines and not os.statvfs(self._folder).f_bavail:
            return NotPossible("the disk is full", "free disk space, and record again")
        lines = [line for line in lines if "RLIMIT_MEMLOCK" not in line] or ["it ended without a reason"]
        what = next((line for line in lines if "tracepoint not found" in line), None)
        # perf prints its error in the middle of usage advice.
        places = [place for place, line in enumerate(lines) if line.startswith("Error:")]
        said = next((line for line in lines[places[0] :] if line != "Error:"), "") if places else lines[-1]
        said = (said.removeprefix("Error:").strip() or lines[-1])[:300]
        if what is not None or any("tracefs" in line or "debugfs" in line for line in lines):
            return NotPossible(what or said, "mount -t tracefs nodev /sys/kernel/tracing, and run as root")
        return NotPossible(said, "run as root, or with the capabilities CAP_BPF and CAP_PERFMON")

    def _interrupt(self) -> list[str]:
        """Have the tool finish; return remarks about problems."""
        assert self._process is not None
        if self._process.poll() is not None:
            return ["the tool ended before the run did"]
        deadline = time.monotonic() + _STOP_SECONDS
        idle_since: tuple[int, int] | None = None
        while time.monotonic() < deadline:
            # bpftrace may miss an interrupt just before it waits for events. It is repeated only after a period without
            # progress, because a second one would end it while it writes its events.
            progress = (self._output.stat().st_size, _cpu_time_ns(self._process.pid) // _IDLE_CPU_NS)
            if progress == idle_since or idle_since is None:
                self._process.send_signal(signal.SIGINT)
            idle_since = progress
            try:
                self._process.wait(_IDLE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            return []
        self._process.kill()
        self._process.wait()
        return [f"the tool did not finish within {_STOP_SECONDS:g} s"]

    def _clock_of(self, event_ns: int, after: dict[str, int]) -> dict[str, Any]:
        try:
            return which_clock(event_ns, self._before, after)
        except ValueError as error:
            raise NotPossible(str(error), "use another version of the tool") from error

    def _document(self, clock: dict[str, Any], after: dict[str, int], lost: int, remarks: list[str]) -> dict[str, Any]:
        if suspended := suspended_ns(self._before, after):
            remarks = [*remarks, f"the host was suspended for {suspended / 1e9:.3f} s during the recording"]
        return {
            "tool": self.tool,
            "version": self._version,
            "file": EVENTS_FILE,
            "clock": {**clock, "before": self._before, "after": after},
            "lost": lost,
            "remarks": remarks,
            "tracing_pid": os.getpid(),
        }


class _Bpftrace(_Recorder):
    """bpftrace: the kernel itself drops the events of other processes."""

    tool = package = "bpftrace"

    def start(self) -> None:
        self._find()
        (self._folder / "program.bt").write_text(_program_for(self._version))
        self._launch((str(self._folder / "program.bt"), str(os.getpid())))
        deadline = time.monotonic() + _START_SECONDS
        while (began := self._began()) is None:
            # One event per probe: a thread of ours starts, blocks, and wakes the waiting one.
            thread = threading.Thread(target=time.sleep, args=(0.02,))
            thread.start()
            thread.join()
            assert self._process is not None
            if self._process.poll() is not None:
                raise self._refused()
            if time.monotonic() > deadline:
                raise NotPossible(f"did not start to record within {_START_SECONDS:g} s", "record again")
        self._clock = self._clock_of(began, clock_readings())

    def stop(self) -> dict[str, Any]:
        after = clock_readings()
        remarks = self._interrupt()
        events = kept = 0
        with self._output.open("rb") as plain, _packed(self._target) as packed:
            for line in plain:
                if line.startswith((b"@s[", b"@w[")):
                    kept += 1
                    packed.write(line)
                elif line.startswith(b"@n:"):
                    events = int(line.split()[1])
        lost = max(0, events - kept)  # events that no longer fit in the map
        return self._document(self._clock, after, lost, remarks)

    def _began(self) -> int | None:
        """Return when the program started, once all of its probes are attached; None before."""
        lines = self._output.read_bytes().split(b"\n")[:-1]
        if not _PROBES_READY.issubset(lines):
            return None
        return next(int(line.split()[1]) for line in lines if line.startswith(b"b "))


def _program_for(version: str) -> str:
    return _PROGRAM.replace("args->", "args.") if _numbers(version) >= _DOTTED_FIELDS else _PROGRAM


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


class _Perf(_Recorder):
    """perf: records all threads of the host; events of other processes are dropped when they are read."""

    tool = "perf"
    package = "linux-perf (or linux-tools-generic)"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._data = self._folder / "perf.data"
        self._orders = self._answers = -1

    def start(self) -> None:
        self._find()
        orders_out, self._orders = os.pipe()
        self._answers, answers_in = os.pipe()
        try:
            self._launch(
                (
                    *("record", "-q", "-a", "-k", "CLOCK_MONOTONIC", "-o", str(self._data)),
                    *("-D", "-1", "--control", f"fd:{orders_out},{answers_in}"),
                    *(("--max-size", _MOST) if _numbers(self._version) >= _BOUNDED else ()),
                    *(("-m", _BUFFER) if os.geteuid() == 0 else ()),  # other users may not lock that much memory
                    *("-e", "sched:sched_switch,sched:sched_waking"),
                ),
                (orders_out, answers_in),
            )
        finally:
            os.close(orders_out)  # perf has its own copies; when it ends, so does the wait for its answer
            os.close(answers_in)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, b"enable\n")
        ready, _, _ = select.select([self._answers], [], [], _START_SECONDS)
        if not ready:
            raise NotPossible(f"did not start to record within {_START_SECONDS:g} s", "record again")
        if not os.read(self._answers, 16).startswith(b"ack"):
            assert self._process is not None
            self._process.wait(_STOP_SECONDS)
            raise self._refused()

    def give_up(self) -> None:
        # Closed only now: perf leaves its file incomplete if its pipes close before it ends.
        for descriptor in (self._orders, self._answers):
            if descriptor >= 0:
                os.close(descriptor)
        self._orders = self._answers = -1
        super().give_up()

    def stop(self) -> dict[str, Any]:
        after = clock_readings()
        remarks = self._interrupt()
        command = (
            *(self._path, "script", "-i", str(self._data)),
            *("-F", "pid,tid,cpu,time,event,trace", "--ns", "--show-lost-events"),
        )
        first: int | None = None
        lost = 0
        with (
            self._errors.open("ab") as errors,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as printing,
            _packed(self._target) as packed,
        ):
            assert printing.stdout is not None
            for line in printing.stdout:
                # Kept, because it shows from when on the events of a CPU are complete again.
                if dropped := re.search(rb"PERF_RECORD_LOST lost (\d+)", line):
                    lost += int(dropped[1])
                elif first is None and (found := re.search(rb"\]\s+(\d+)\.(\d{9}):", line)):
                    first = int(found[1]) * 1_000_000_000 + int(found[2])
                packed.write(line)
        if printing.returncode != 0:
            raise self._refused()
        if first is None:
            raise NotPossible("recorded no event at all", "run as root")
        return self._document(self._clock_of(first, after), after, lost, remarks)


def _cpu_time_ns(pid: int) -> int:
    """Return the CPU time that the process has used; 0 if it is gone."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # the kernel's number for the CPU clock of a process
    except OSError:
        return 0


def _packed(path: Path) -> gzip.GzipFile:
    return gzip.GzipFile(path, "wb", compresslevel=1, mtime=0)
