"""Programs that run together until one of them, or the process that started them, ends: then all are ended.

A supervisor, which is this module run as a program, runs between this process and the programs. A pipe that closes
tells it when this process ends for any reason, and it adopts orphaned descendants of its programs. If the supervisor
itself is killed, this process adopts and ends them in the same way.

Standard error of the programs passes through the supervisor, which drops their messages about being interrupted once
they are to end.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

_SET_CHILD_SUBREAPER: Final = 36
#: Delay from SIGINT to SIGKILL, and from the first SIGKILL to giving up on processes that hang in the kernel.
_GRACE_SECONDS: Final = 10.0
_KILL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
_STANDARD_ERROR: Final = 2
_PIECE_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Service:
    """A program that runs until the others end. Messages use its `name`."""

    name: str
    command: Sequence[str]
    #: A Unix socket on which it answers once it is ready; the next service is started then.
    ready: str | None = None
    #: Descriptors that it inherits.
    descriptors: tuple[int, ...] = ()


def run_together(services: Sequence[Service], folder: Path, working_folder: Path) -> signal.Signals | str:
    """Run `services`, starting each once the previous one is ready, until SIGINT or SIGTERM arrives or one ends.

    Returns the signal, even one that this process was started to ignore, or a line that says which service ended and
    how. No process of the services is left running. `folder`, for their sockets, is removed at the end, even if this
    process is killed.
    """
    _adopt_orphans()
    plan = json.dumps({"services": [asdict(one) for one in services], "folder": str(folder)}).encode()
    inherited = [number for one in services for number in one.descriptors]
    commands, given = os.pipe()
    told, tells = os.pipe()
    with _passed_on() as (received, running):
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(tells)],
            stdin=commands,
            pass_fds=(tells, *inherited),
            cwd=working_folder,
            start_new_session=True,  # this process handles the terminal's Ctrl-C
        )
        running.append(supervisor)
        if received:
            supervisor.terminate()
        os.close(commands)
        os.close(tells)
        with suppress(BrokenPipeError):  # it has already ended; this is detected below
            os.write(given, plan + b"\n")
        why = b"".join(iter(lambda: os.read(told, 4096), b"")).decode()
        supervisor.wait()
        _end_children(supervisor.pid)
        os.close(given)
        os.close(told)
    if received:
        return received[0]
    return why or f"the supervisor of its services {_in_words(supervisor.returncode)}"


@contextmanager
def _passed_on() -> Iterator[tuple[list[signal.Signals], list["subprocess.Popen[bytes]"]]]:
    """Within the block, record SIGINT and SIGTERM in the first list, and end the processes of the second."""
    received: list[signal.Signals] = []
    running: list[subprocess.Popen[bytes]] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(signal.Signals(number))
        for process in running:
            process.terminate()

    # Handlers rather than "ignore", so that the programs start with the default even if this process started with
    # "ignore".
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received, running
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(tells: int) -> None:
    """Supervise the services in the first line of standard input until it closes, SIGTERM comes or a program ends."""
    os.set_inheritable(tells, False)
    _adopt_orphans()
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: None)  # sent to the whole group at the end, for the others
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing would wake the wait below
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    plan = json.loads(sys.stdin.buffer.readline() or "{}")
    if not plan:
        return
    said, errors = os.pipe()
    ending = threading.Event()
    passing_on = threading.Thread(target=_pass_on, args=(said, ending), daemon=True)
    passing_on.start()
    why = _supervise(plan["services"], woken, stopped, errors)
    if not why:
        ending.set()
    _end_children(os.getpid())
    os.close(errors)
    passing_on.join(_KILL_SECONDS)
    shutil.rmtree(plan["folder"], ignore_errors=True)
    with suppress(BrokenPipeError):  # nobody is left to receive the report
        os.write(tells, why.encode())


def _pass_on(said: int, ending: threading.Event) -> None:
    """Forward the services' standard error until they are to end; read their pipe to the end."""
    while piece := os.read(said, _PIECE_BYTES):
        with suppress(OSError):  # nobody reads it any more, but the services continue
            while piece and not ending.is_set():
                piece = piece[os.write(_STANDARD_ERROR, piece) :]


def _supervise(services: list[dict[str, Any]], woken: int, stopped: list[int], errors: int) -> str:
    """Start services and wait; return a line about the one that ended, or nothing if they are to be ended.

    `errors` becomes their standard error.
    """
    waiting, ready = list(services), None
    running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
    while True:
        if waiting and (ready is None or _answers(ready)):
            one = waiting.pop(0)
            process = subprocess.Popen(
                one["command"], stdin=subprocess.DEVNULL, stderr=errors, pass_fds=one["descriptors"]
            )
            running[process.pid] = one["name"], process
            ready = one["ready"]
        readable, _, _ = select.select([sys.stdin, woken], [], [], _POLL_SECONDS if waiting else None)
        if woken in readable:
            os.read(woken, 512)
        for pid, status in _reaped():
            if pid in running:
                return f"{running[pid][0]} {_in_words(os.waitstatus_to_exitcode(status))}"
        if stopped or sys.stdin in readable:
            return ""


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(path)
        except OSError:
            return False
        return True


def _in_words(code: int | None) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"


def _adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_children(group: int) -> None:
    """Send SIGINT to the process group, as Ctrl-C does; later SIGKILL to all remaining processes in any group."""
    if _gone(0.0):
        return
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGINT)
    deadline = time.monotonic() + _GRACE_SECONDS + _KILL_SECONDS
    gone = _gone(_GRACE_SECONDS)
    while not gone and time.monotonic() < deadline:
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        gone = _gone(_POLL_SECONDS)  # orphans of a killed process are now our children


def _gone(seconds: float) -> bool:
    """Reap until no child is left, for at most this long."""
    deadline = time.monotonic() + seconds
    while True:
        list(_reaped())
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS / 2)


def _reaped() -> Iterator[tuple[int, int]]:
    """Return the process ids and statuses of children that have ended, including orphans."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _children() -> list[int]:
    return [int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]


if __name__ == "__main__":
    main(int(sys.argv[1]))
