"""The process between the recorder and a program: starts it, times it, and ends all of its processes.

It is a separate program, passed to a fresh interpreter as text, and imports nothing from this package. As a subreaper
it adopts orphaned descendants of the program. If the recorder is killed, its end of the control pipe closes and the
keeper ends everything: a parent-death signal would reach neither grandchildren nor programs with other privileges.
Arguments: the descriptors of the control pipe and of the reports, then descriptors that it only holds (the measurement
slot, the recording's lock) and closes when no process of the program is left.
"""

import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

_SET_PDEATHSIG: Final = 1
_SET_CHILD_SUBREAPER: Final = 36
#: Grace period for helper processes, which exit once they notice that the program has ended successfully.
_STRAGGLERS_SECONDS: Final = 0.2
#: The control byte that terminates the program; any other byte, or the end of the pipe, interrupts it.
TERMINATE: Final = b"t"
#: Delay between SIGTERM, or Ctrl-C, and SIGKILL.
_GRACE_SECONDS: Final = 5.0
#: A process still alive this long after SIGKILL belongs to another user or hangs in the kernel.
_KILL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
_LONGEST_COMMAND: Final = 4096
#: Message from the new process before exec: its memory in pages, the time, its CPU time.
_BEGUN: Final = struct.Struct("<qqdd")
_ERROR: Final = struct.Struct("<i")


def main(control: int, reports: int, held: Sequence[int]) -> None:
    """Do one run: read the job as a line of JSON, and report start and end as one line each."""
    for descriptor in (control, reports, *held):
        os.set_inheritable(descriptor, False)
    # The recorder forwards signals itself, as bytes on the control pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing would wake the wait below
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    job = json.loads(_line(control))
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    before = _clocks()
    started = _start(job, libc)
    if isinstance(started, str):
        _report(reports, {"refused": started})
        return
    pid, start_ns, floor_bytes, spent_ns = started
    _report(reports, {"process_id": pid, "start_monotonic_ns": start_ns})
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # otherwise the recorder would never see the end of the output
        os.dup2(null, descriptor)
    run = _Run(pid, control, woken)
    ended = run.until_its_end(start_ns, job["timeout_seconds"])
    for name, spent in spent_ns.items():  # used before exec
        ended[name] = None if ended[name] is None else max(0, ended[name] - spent)
    clocks = {"clocks_before": before, "clocks_after": _clocks(), "max_rss_floor_bytes": floor_bytes}
    _report(reports, {**ended, **clocks, **run.leave_nothing()})


def _line(descriptor: int) -> bytes:
    """Read the job: one line of any length."""
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(descriptor, 1 << 20)
        if not piece:
            os._exit(1)  # the recorder was killed before it sent a job
        text += piece
    return text


def _report(descriptor: int, document: dict[str, Any]) -> None:
    data = json.dumps(document).encode() + b"\n"
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        pass  # the recorder is gone


def _clocks() -> dict[str, int]:
    """Relate CLOCK_MONOTONIC to CLOCK_REALTIME and CLOCK_BOOTTIME: the tightest of several bracketed readings."""
    readings = []
    for _ in range(9):
        before = time.monotonic_ns()
        real = time.time_ns()
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        readings.append((time.monotonic_ns() - before, before, real, boot))
    bracket, before, real, boot = min(readings)
    return {
        "monotonic_ns": before + bracket // 2,
        "realtime_ns": real,
        "boottime_ns": boot,
        "uncertainty_ns": (bracket + 1) // 2,
    }


def _start(job: dict[str, Any], libc: ctypes.CDLL) -> tuple[int, int, int, dict[str, int]] | str:
    """Fork and exec. Returns the process with its time, memory in bytes and CPU time just before exec, or the reason
    why it did not start.

    The kernel counts memory held before exec towards a process's peak, so a lower peak of the program is not visible.
    """
    heard, tells = os.pipe()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            # A separate session: terminal signals go to the recorder, and nothing waits for a password there.
            os.setsid()
            libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != keeper:
                os._exit(1)
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)  # settings changed by Python and this process
            pages = int(_read("/proc/self/statm").split()[1])
            own = resource.getrusage(resource.RUSAGE_SELF)
            os.write(tells, _BEGUN.pack(pages, time.monotonic_ns(), own.ru_utime, own.ru_stime))
            os.execve(job["path"], job["command"], job["environment"])
        except OSError as error:
            os.write(tells, _ERROR.pack(error.errno or 0))
        finally:
            os._exit(127)
    os.close(tells)
    answer = b""
    while piece := os.read(heard, 64):
        answer += piece
    os.close(heard)
    if len(answer) == _BEGUN.size:
        pages, start_ns, user, system = _BEGUN.unpack(answer)
        spent_ns = {"user_ns": round(user * 1e9), "system_ns": round(system * 1e9)}
        return pid, start_ns, pages * os.sysconf("SC_PAGE_SIZE"), spent_ns
    os.waitpid(pid, 0)
    return os.strerror(_ERROR.unpack(answer[-_ERROR.size :])[0]) if answer else "it was killed before it began"


class _Run:
    """The running program and all processes that it started."""

    def __init__(self, pid: int, control: int, woken: int) -> None:
        self._pid = pid
        self._control = control
        self._woken = woken
        self._ended: tuple[int, resource.struct_rusage, int] | None = None
        #: Set when this process has no descendants left; until then it would become the parent of orphans.
        self._all_gone = False

    def until_its_end(self, start_ns: int, timeout_seconds: float | None) -> dict[str, Any]:
        """Report how the program ended: by itself, by its time limit, by Ctrl-C or because the recorder ended."""
        deadline = None if timeout_seconds is None else start_ns / 1e9 + timeout_seconds
        timed_out = interrupted = False
        while self._ended is None and not timed_out and not interrupted:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._control, self._woken], [], [], left)
            self._reap()
            if self._ended is not None:
                break
            interrupted = self._control in ready
            timed_out = not ready and left is not None
        if interrupted or timed_out:
            passed_on = interrupted and os.read(self._control, 1) != TERMINATE
            self._end_all(signal.SIGINT if passed_on else signal.SIGTERM)
        ended: dict[str, Any] = {"timed_out": timed_out, "interrupted": interrupted}
        if self._ended is None:  # survived SIGKILL: its usage is unknown, and it must not block the recorder
            times = dict.fromkeys(("user_ns", "system_ns", "max_rss_bytes", "status", "signal"))
            return {"end_monotonic_ns": time.monotonic_ns(), **times, **ended}
        status, usage, end_ns = self._ended
        return {
            "end_monotonic_ns": end_ns,
            "user_ns": round(usage.ru_utime * 1e9),
            "system_ns": round(usage.ru_stime * 1e9),
            "max_rss_bytes": usage.ru_maxrss * 1024,
            "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": _signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None,
            **ended,
        }

    def leave_nothing(self) -> dict[str, Any]:
        """End the processes that the program left running; report them and any that could not be ended."""
        self._wait_for_all(_STRAGGLERS_SECONDS)
        left = [] if self._all_gone else [{"pid": pid, "command": _command(pid)} for pid in descendants(os.getpid())]
        if not self._all_gone:
            self._end_all(signal.SIGTERM)
        living = [] if self._all_gone else descendants(os.getpid())
        return {"left_running": left, "not_ended": [{"pid": pid, "command": _command(pid)} for pid in living]}

    def _end_all(self, first: int) -> None:
        """Send `first` to every process, and SIGKILL after the grace period, until all are gone or cannot be ended."""
        self._signal(first)
        self._wait_for_all(_GRACE_SECONDS)
        deadline = time.monotonic() + _KILL_SECONDS
        while not self._all_gone and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)  # repeated, because new processes may just have been started
            self._wait_for_all(_POLL_SECONDS)

    def _wait_for_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._reap()
        while not self._all_gone and (left := deadline - time.monotonic()) > 0:
            select.select([self._woken], [], [], min(left, _POLL_SECONDS))
            self._reap()

    def _signal(self, number: int) -> None:
        for pid in descendants(os.getpid()):
            for one in (number, signal.SIGCONT):  # a stopped process handles only SIGKILL
                with suppress(OSError):  # it has ended, or belongs to another user and is then reported as left running
                    os.kill(pid, one)

    def _reap(self) -> None:
        try:
            while os.read(self._woken, 512):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._all_gone = True
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._ended = (status, usage, time.monotonic_ns())


def descendants(root: int) -> list[int]:
    """List all living descendants of the process `root`, from one pass over /proc."""
    children: dict[int, list[tuple[int, bytes]]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted
        if not name.isdigit():
            continue
        try:
            state, parent = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has just ended
        children.setdefault(int(parent), []).append((int(name), state))
    found, parents = [], [root]
    while parents:
        for pid, state in children.get(parents.pop(), ()):
            parents.append(pid)
            if state not in (b"Z", b"X"):
                found.append(pid)
    return sorted(found)


def _command(pid: int) -> str:
    try:
        words = _read(f"/proc/{pid}/cmdline")[:_LONGEST_COMMAND]
    except OSError:
        return ""
    return words.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib takes longer to import than this process to start
        return file.read()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"  # only the first and the last real-time signal have names


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [int(number) for number in sys.argv[3:]])
