"""Runs a program to its end or to a limit: wall clock, CPU time, memory, size of files. No shell stands between.

With the end, the limit or an interrupt, the program and all that it started in its process group are ended.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.confinement import landlock
from aaco_pipeline.resources.toolchains.installation import MACHINE, SYSTEM

_WAIT_SECONDS: Final = 0.5
#: Becomes the program within the limits: a fresh process, because threads forbid doing so between fork and exec.
_CONFINED: Final = Path(__file__).with_name("confined.py")


@dataclass(frozen=True)
class Limits:
    """What one process may take: address space, CPU time, and the largest file it may write."""

    memory_bytes: int
    cpu_seconds: int
    file_bytes: int


@dataclass(frozen=True)
class Reach:
    """The files that a confined process gets at beside the system's: what it may run or read, and what it may write.

    The folder that it runs in is written always.
    """

    runnable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


def run_limited(
    command: Sequence[str],
    folder: Path,
    *,
    log: Path,
    limit_seconds: float,
    limits: Limits | None = None,
    reach: Reach | None = None,
    environment: Mapping[str, str] | None = None,
) -> int | None:
    """The exit status of a command that runs in `folder` and prints to `log`; None when it took too long.

    With `limits` each of its processes is held to them, without new privileges and, where the machine grants that,
    without a network; `command` then names its program by an absolute path. With `reach`, too, they get at no other
    files where the kernel has Landlock (`landlock.lacking`). OSError when it cannot be started.
    """
    if limits is not None:
        stated = (limits.cpu_seconds, limits.memory_bytes, limits.file_bytes)
        rules = json.dumps(None if reach is None else _rules(reach, folder))
        command = [sys.executable, "-I", "-S", str(_CONFINED), *map(str, stated), rules, *command]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
        try:
            return _ended(process, limit_seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ending(status: int) -> str:
    """A status that is no success, in words."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def _rules(reach: Reach, folder: Path) -> dict[str, str | list[str]]:
    return {
        "landlock": landlock.__file__,
        "readable": [*map(str, MACHINE)],
        "writable": [str(folder), os.devnull, *map(str, reach.writable)],
        "runnable": [*map(str, (*SYSTEM, *reach.runnable))],
    }


def _ended(process: "subprocess.Popen[bytes]", limit_seconds: float) -> int | None:
    """The exit status, None at the limit. Waits in pieces: Polars keeps an interrupt from a long wait."""
    left = limit_seconds
    while left > 0:
        try:
            return process.wait(min(left, _WAIT_SECONDS))
        except subprocess.TimeoutExpired:
            left -= _WAIT_SECONDS
    return None
