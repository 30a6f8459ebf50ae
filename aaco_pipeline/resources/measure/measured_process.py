"""Runs a measured process to its end: with the measurement slot, a deadline, and its progress reported line by line.

What it measures is the caller's; that it dies with this process is its own doing (`measure.inference_worker`).
"""

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

#: A line longer than this is not the project's own word, and only its end is kept.
_LONGEST_LINE_BYTES: Final = 4096
_LONGEST_WAIT_SECONDS: Final = 0.5


def run_measured(
    command: Sequence[str],
    slot: int,
    errors: Path,
    deadline: float,
    *,
    progress: Callable[[float, float], None],
    started: Callable[[int], object] = lambda _: None,
    environment: Mapping[str, str] | None = None,
) -> int | None:
    """The exit status of a fresh process, or None when it was ended at `deadline` of the monotonic clock.

    It inherits the descriptor `slot`; what it writes to standard error is left in `errors`; `started` is called with
    its number, and `progress` with how much is done and how much there is. Raises KeyboardInterrupt when the process
    was interrupted.
    """
    with errors.open("wb") as error_stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=error_stream,
            env=None if environment is None else {**os.environ, **environment},
            pass_fds=(slot,),
        )
        assert process.stdout is not None
        try:
            started(process.pid)
            if not follow(process.stdout, deadline, lambda line: _report(line, progress)):
                return None
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    if status == -signal.SIGINT:
        raise KeyboardInterrupt
    return status


def status_text(status: int) -> str:
    """How a process ended, for an error's line."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def last_line(errors: Path) -> str:
    """The last thing that a process wrote to standard error."""
    lines = errors.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it wrote no reason"


def _report(line: bytes, progress: Callable[[float, float], None]) -> None:
    """Pass on the worker's own lines; whatever else a runtime or a provider prints there is not ours."""
    try:
        step = json.loads(line)
        done, total = float(step["done"]), float(step["total"])
    except (ValueError, TypeError, KeyError):
        return
    progress(done, total)


def follow(stream: IO[bytes], deadline: float, take: Callable[[bytes], None]) -> bool:
    """Give every line to `take` until the stream closes; False when the monotonic clock reaches `deadline` first.

    Waits in pieces: Polars takes over the interrupt signal in such a way that a read would sleep through Ctrl-C.
    """
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(min(left, _LONGEST_WAIT_SECONDS)):
                continue
            piece = os.read(stream.fileno(), 1 << 16)
            if not piece:
                return True
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[-_LONGEST_LINE_BYTES:]
            for line in lines:
                take(line)
    return False
