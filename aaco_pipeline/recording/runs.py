"""Run a program once: a keeper process starts it, its output is forwarded as it arrives, and its end is awaited.

`aaco_pipeline.recording.keeper` takes the times and leaves nothing running.
"""

import json
import os
import pkgutil
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from aaco_pipeline.errors import Terminated, UnavailableError, UsageError
from aaco_pipeline.recording.keeper import TERMINATE

#: Bytes kept from the end of each stream.
TAIL_BYTES: Final = 64 << 10
_PIECE: Final = 1 << 16
_WAIT_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Written:
    """Number of bytes of one stream, and its tail."""

    total_bytes: int
    tail: bytes


class Pump:
    """Forward one stream from a pipe to a descriptor, in its own thread, until the pipe closes or `finish` is called.

    If the reader is gone, the pipe is closed too, so the program sees what it would see without a recorder. Without a
    `target`, the stream is only counted and its tail kept.
    """

    def __init__(self, source: int, target: int | None, name: str) -> None:
        self._source, self._target = source, target
        self._total = 0
        self._tail = bytearray()
        self._program_is_gone = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"output-{name}", daemon=True)
        self._thread.start()

    def finish(self) -> Written:
        """Forward the rest of the pipe's content and stop: another process may hold the pipe open."""
        self._program_is_gone.set()
        self._thread.join()
        return Written(self._total, bytes(self._tail[-TAIL_BYTES:]))

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        try:
            while True:
                last_look = self._program_is_gone.is_set()
                if not poll.poll(0 if last_look else _WAIT_SECONDS * 1000):
                    if last_look:
                        return
                    continue
                piece = os.read(self._source, _PIECE)
                if not piece:
                    return
                self._total += len(piece)
                self._tail += piece
                if len(self._tail) > 2 * TAIL_BYTES:
                    del self._tail[:-TAIL_BYTES]
                if self._target is not None:
                    _write(self._target, piece)
        except OSError:
            return  # no reader: a closed pipe, a disconnected terminal, or a full disk behind a redirection
        finally:
            os.close(self._source)


def _write(target: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # a terminal or pipe in non-blocking mode
            select.select([], [target], [])


#: Waits are split up: Polars takes over SIGINT in a way that would let a single long read miss Ctrl-C.
_REPORT_WAIT_SECONDS: Final = 0.5
#: Pipe capacity before the program waits for its reader; the largest size any user may request.
_PIPE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Program:
    """A program to run: its file, complete command line and environment."""

    path: str
    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Run:
    """The result of one run: the keeper's report (see `keeper.main`) and the output."""

    ended: Mapping[str, Any]
    stdout: Written
    stderr: Written

    @property
    def failure(self) -> str | None:
        """Describe the failure; None on success."""
        if self.ended["timed_out"]:
            return "did not end within its time limit"
        if self.ended["signal"] is not None:
            return f"was ended by {self.ended['signal']}"
        if self.ended["status"] is None:
            return "could not be waited for"
        return None if self.ended["status"] == 0 else f"ended with status {self.ended['status']}"


def run_program(
    program: Program,
    *,
    timeout_seconds: float | None,
    held: Sequence[int],
    quiet: bool,
    keeper_started: Callable[[int], object],
    started: Callable[[int], object],
) -> Run:
    """Run a program once, to its end or its time limit; none of its processes is running when this returns.

    Its standard input is /dev/null.

    Args:
        program: the program to run.
        timeout_seconds: its time limit.
        held: descriptors that its keeper holds as long as any of its processes lives.
        quiet: count its output and keep the tail, without passing it on.
        keeper_started: called with the keeper's process number before the keeper starts the program.
        started: called with the program's process number once it runs.

    Raises:
        UsageError: the system does not start it.
        UnavailableError: its keeper died.
        KeyboardInterrupt: this process was interrupted (Terminated: terminated), and the program with it.
    """
    with ExitStack() as opened:
        outputs = [_output_pipe(opened, 1, "stdout", quiet=quiet), _output_pipe(opened, 2, "stderr", quiet=quiet)]
        control_read, control = os.pipe()
        reports, reports_write = os.pipe()
        opened.callback(os.close, reports)
        handed = (control_read, reports_write, *held)
        source = (pkgutil.get_data(__package__, "keeper.py") or b"").decode()
        try:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", source, *map(str, handed)],
                stdin=subprocess.DEVNULL,
                stdout=outputs[0][0],
                stderr=outputs[1][0],
                pass_fds=handed,
                start_new_session=True,
            )
        except BaseException:
            os.close(control)
            raise
        finally:
            for descriptor in (control_read, reports_write, outputs[0][0], outputs[1][0]):
                os.close(descriptor)
        job = {**asdict(program), "timeout_seconds": timeout_seconds}
        keeper_started(keeper.pid)
        ended = _followed(keeper, control, reports, job, started)
        if "refused" in ended:
            raise UsageError(f"{program.path}: cannot be started: {ended['refused']}; {_remedy(program)}")
        stdout, stderr = (pump.finish() for _, pump in outputs)
    return Run(ended, stdout, stderr)


def _output_pipe(opened: ExitStack, target: int, name: str, *, quiet: bool) -> tuple[int, Pump]:
    """Open a pipe: return its write end and the pump on its read end."""
    read, write = os.pipe()
    pump = Pump(read, None if quiet else target, name)
    opened.callback(pump.finish)
    return write, pump


def _followed(
    keeper: "subprocess.Popen[bytes]",
    control: int,
    reports: int,
    job: Mapping[str, Any],
    started: Callable[[int], object],
) -> dict[str, Any]:
    """Send the keeper its job and read its reports up to the last; return them merged."""
    said: dict[str, Any] = {}
    try:
        _write(control, json.dumps(job).encode() + b"\n")
        for report in _lines(reports):
            if "start_monotonic_ns" in report:
                started(report["process_id"])
            said.update(report)
    except KeyboardInterrupt as error:
        with suppress(BrokenPipeError):
            os.write(control, TERMINATE if isinstance(error, Terminated) else b"!")
        keeper.wait()
        raise
    except BrokenPipeError:
        pass  # reported below
    finally:
        os.close(control)  # whatever went wrong here, the keeper then ends the program
        keeper.wait()
    if "end_monotonic_ns" not in said and "refused" not in said:
        raise UnavailableError(
            f"{job['command'][0]}: the process that keeps it was killed, and the program with it; record it again"
        )
    return said


def _lines(descriptor: int) -> Iterator[dict[str, Any]]:
    rest = b""
    while True:
        if not select.select([descriptor], [], [], _REPORT_WAIT_SECONDS)[0]:
            continue
        piece = os.read(descriptor, _PIECE)
        if not piece:
            return
        *whole, rest = (rest + piece).split(b"\n")
        yield from map(json.loads, whole)


def _remedy(program: Program) -> str:
    return f"is it a script without a first line `#!`? then name its interpreter, as in `sh {program.command[0]}`"
