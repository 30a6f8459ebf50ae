"""The program's end of its reader server: started with the first request, asked under a lock, replaced when it broke.

What the other end does is `reader_server`; what is asked is `doors`.
"""

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

import aaco_pipeline
from aaco_pipeline import errors
from aaco_pipeline.errors import AacoError, CaptureError, LakeError, UnavailableError
from aaco_pipeline.formats.parsing.regular_files import open_regular
from aaco_pipeline.resources.confinement.bounds import Bounds, in_words
from aaco_pipeline.resources.confinement.requests import MOST_BYTES, receive, send
from aaco_pipeline.resources.confinement.work import REPLY_FILE

_MODULE: Final = "aaco_pipeline.resources.confinement.reader_server"
#: All that the server is told of this program's environment; a reader has no use for more.
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_PASSED_ON_FAMILIES: Final = ("LC_", "PYTHON", "POLARS_")
#: How long an idle server may take to end once its socket is closed.
_FAREWELL_SECONDS: Final = 5
_LONGEST_COMPLAINT: Final = 400
#: What is told of an error.
_TOLD: Final = ("kind", "line", "cause")


@contextmanager
def answered(
    request: Mapping[str, Any], about: Path, readable: Sequence[Path], writable: Sequence[Path], bounds: Bounds
) -> Iterator[tuple[dict[str, Any], Path]]:
    """The answer to a request, and the folder with its files while the context lasts.

    Raises what the child says is wrong, and CaptureError in one line naming `about` when the child did not survive.
    UnavailableError when no server can be started, LakeError when there is no room for results.
    """
    try:
        results = Path(tempfile.mkdtemp(prefix="aaco_read_")).resolve()
    except OSError as error:
        raise LakeError(f"{tempfile.gettempdir()}: {error.strerror}; make room, or set TMPDIR") from error
    message = {
        **request,
        "about": str(about),
        "results": str(results),
        "readable": [str(path) for path in readable],
        "writable": [str(results), *map(str, writable)],
        "bounds": asdict(bounds),
        "cwd": str(Path.cwd()),
    }
    try:
        ended = _asked(message)
        yield _reply(ended, results, about, bounds), results
    finally:
        shutil.rmtree(results, ignore_errors=True)


def raise_told(error: Mapping[str, Any], about: Path, bounds: Bounds) -> NoReturn:
    """Raise what a child said was wrong: its class and its line, from the system's error where it was one."""
    if error["kind"] == "memory":
        raise CaptureError(_too_much(about, bounds))
    kind = getattr(errors, error["kind"], CaptureError)
    raised = kind if isinstance(kind, type) and issubclass(kind, AacoError) else CaptureError
    if error["cause"] is None:
        raise raised(error["line"])
    number, file = error["cause"]
    raise raised(error["line"]) from OSError(number, os.strerror(number), file or None)


def start() -> None:
    """Start the server, unless it runs, so that it is ready when it is first asked."""
    with _LOCK:
        _running()


class _Server:
    """One server process and the socket to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.channel, theirs = socket.socketpair()
        with theirs:
            root = str(Path(aaco_pipeline.__file__).parents[1])
            kept = {
                name: value
                for name, value in os.environ.items()
                if name in _PASSED_ON or name.startswith(_PASSED_ON_FAMILIES)
            }
            path = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH")]))
            # A thread that a numeric library starts on import would not survive the fork.
            environment = {**kept, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                self.channel.close()
                raise UnavailableError(f"the reader of captures cannot be started: {error}") from error
        self._greeted = False

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """How the child for a request ended. UnavailableError when the server did not survive."""
        try:
            if not self._greeted:
                self._greeted = receive(self.channel) is not None
            if self._greeted:
                send(self.channel, message)
                if (answer := receive(self.channel)) is not None:
                    return answer
        except ConnectionError:
            pass
        complaint = self._end()
        raise UnavailableError(f"the reader of captures ended by itself: {complaint or 'without a word'}; try again")

    def close(self) -> None:
        """Let the server end, and wait for it."""
        self.channel.close()
        if self.owner == os.getpid():
            self._end()

    def _end(self) -> str:
        """The last line of what the server said, once it has ended."""
        self.channel.close()
        try:
            _, said = self.process.communicate(timeout=_FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, said = self.process.communicate()
        lines = said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:_LONGEST_COMPLAINT] if lines else ""


_LOCK: Final = threading.Lock()
_STARTED: Final[list[_Server]] = []
"""The server, once it is started: one, or none."""


def _running() -> _Server:
    if _STARTED and _STARTED[0].owner != os.getpid():
        _STARTED.pop().channel.close()  # of the process that this one was forked from, which goes on using it
    if not _STARTED:
        _STARTED.append(_Server())
    return _STARTED[0]


def _asked(message: Mapping[str, Any]) -> dict[str, Any]:
    with _LOCK:
        server = _running()
        try:
            return server.ask(message)
        except BaseException:
            # Its answer would be taken for that to the next request; an interrupted child ends with the server.
            _STARTED.remove(server)
            server.close()
            raise


@atexit.register
def _farewell() -> None:
    while _STARTED:
        _STARTED.pop().close()


def _reply(ended: Mapping[str, Any], results: Path, about: Path, bounds: Bounds) -> dict[str, Any]:
    """What the child left; CaptureError in one line when it came to another end."""
    if ended["late"]:
        raise CaptureError(f"{about}: reading it took more than {bounds.wall_seconds:.0f} s; not read")
    if ended["signal"] == signal.SIGXCPU or ended["cpu_seconds"] >= bounds.cpu_seconds:
        raise CaptureError(f"{about}: reading it took more than {bounds.cpu_seconds} s of CPU time; not read")
    if ended["no_memory"]:
        raise CaptureError(_too_much(about, bounds))
    if ended["signal"] is not None:
        name = signal.strsignal(ended["signal"]) or f"signal {ended['signal']}"
        raise CaptureError(f"{about}: reading it crashed the reader ({name}); not read")
    try:
        with open_regular(results / REPLY_FILE) as stream:
            content = stream.read(MOST_BYTES + 1)
        answer = dict(json.loads(content if len(content) <= MOST_BYTES else ""))
        error = None if answer.get("error") is None else {key: answer["error"][key] for key in _TOLD}
    except (OSError, ValueError, TypeError, LookupError, CaptureError, RecursionError) as none:
        raise CaptureError(f"{about}: its reader left no answer (ended with {ended['code']}); not read") from none
    if error is not None:
        raise_told(error, about, bounds)
    return answer


def _too_much(about: Path, bounds: Bounds) -> str:
    return f"{about}: reading it took more than {in_words(bounds.memory_bytes)} of memory; not read"
