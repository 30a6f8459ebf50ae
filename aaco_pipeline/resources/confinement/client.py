"""Ask a confined child to identify, digest, copy or open a capture; start its reader server.

The functions match those of the same name in `aaco_pipeline.capture` and `aaco_pipeline.resources.ingestion`.
`reader_server` is the other end.
"""

import atexit
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn

import polars as pl

import aaco_pipeline
from aaco_pipeline import errors
from aaco_pipeline.capture import Identity, identity
from aaco_pipeline.capture.discovery import DiscoveredRuns, Run
from aaco_pipeline.capture.face import Facts, InferredTypes, LazyTables, Subject, TensorType
from aaco_pipeline.errors import AacoError, CaptureError, LakeError, UnavailableError
from aaco_pipeline.formats.parsing.regular_files import files_beneath, is_folder, open_regular, settled
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.on_disk import read_pieces
from aaco_pipeline.resources.confinement.reader_server import REPLY_FILE
from aaco_pipeline.resources.confinement.requests import (
    MOST_BYTES,
    Bounds,
    as_json,
    bounds_for,
    in_words,
    receive,
    run_from,
    send,
    size_on_disk,
    unread_from,
)

_MODULE: Final = "aaco_pipeline.resources.confinement.reader_server"
#: The variables that the server inherits; readers need no others.
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_PASSED_ON_FAMILIES: Final = ("LC_", "PYTHON", "POLARS_")
#: Longest time for an idle server to end after its socket is closed.
_FAREWELL_SECONDS: Final = 5
_LONGEST_COMPLAINT: Final = 400
#: Fields of a reported error.
_TOLD: Final = ("kind", "line", "cause")


@contextmanager
def answered(
    request: Mapping[str, Any], about: Path, readable: Sequence[Path], writable: Sequence[Path], bounds: Bounds
) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the answer to a request and the folder with its files, which exists during the context.

    Raises the error that the child reports, or CaptureError in one line naming `about` if the child did not survive.
    Raises UnavailableError if no server can be started, and LakeError if there is no room for results.
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
    """Raise a child's error with its class and message, on top of the system error if there was one."""
    if error["kind"] == "memory":
        raise CaptureError(_too_much(about, bounds))
    kind = getattr(errors, error["kind"], CaptureError)
    raised = kind if isinstance(kind, type) and issubclass(kind, AacoError) else CaptureError
    if error["cause"] is None:
        raise raised(error["line"])
    number, file = error["cause"]
    raise raised(error["line"]) from OSError(number, os.strerror(number), file or None)


def start() -> None:
    """Start the server if it is not running, so that it is ready for the first request."""
    with _LOCK:
        _running()


class _Server:
    """One server process and its socket."""

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
            # Threads that a numeric library starts on import would not survive the fork.
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
        """Wait for the end of a request's child. UnavailableError if the server did not survive."""
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
        """Kill the server; return the last line of its standard error."""
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
        _STARTED.pop().channel.close()  # belongs to the process that this one was forked from, which still uses it
    if not _STARTED:
        _STARTED.append(_Server())
    return _STARTED[0]


def _asked(message: Mapping[str, Any]) -> dict[str, Any]:
    with _LOCK:
        server = _running()
        try:
            return server.ask(message)
        except BaseException:
            # Its answer would be mistaken for the next request's; an interrupted child ends with the server.
            _STARTED.remove(server)
            server.close()
            raise


@atexit.register
def _farewell() -> None:
    while _STARTED:
        _STARTED.pop().close()


def _reply(ended: Mapping[str, Any], results: Path, about: Path, bounds: Bounds) -> dict[str, Any]:
    """Return the child's reply; CaptureError in one line if the child ended abnormally."""
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


CONFINEMENT: Final = "confinement"


@dataclass(frozen=True)
class Question:
    """A request about one raw folder: its path, its kind and its limits."""

    folder: Path
    is_ingested: bool
    bounds: Bounds

    def ask(self, work: str, **more: Any) -> "tuple[dict[str, Any], Frames]":
        """The answer, and its tables."""
        request = {"work": work, "folder": str(self.folder), "ingested": self.is_ingested, **more}
        with answered(request, self.folder, [self.folder], [], self.bounds) as (answer, results):
            return answer, Frames(results, self.folder)

    def value(self, told: Mapping[str, Any]) -> Any:
        """Return a value from the child's answer; raise the error that it reported instead."""
        if "error" in told:
            raise_told(told["error"], self.folder, self.bounds)
        return told["value"]


class Frames:
    """The tables in a result folder, each loaded once, on first use; `about` is their capture."""

    def __init__(self, results: Path, about: Path) -> None:
        self._about = about
        files = [file for file in files_beneath(results)[0] if file.suffix == ".arrow"]
        self._unread: dict[str, io.BufferedReader] = {file.name: open_regular(file) for file in files}
        self._read: dict[str, pl.DataFrame] = {}
        weakref.finalize(self, _close, self._unread)

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._read:
            try:
                with self._unread.pop(name) as stream:
                    self._read[name] = read_pieces(stream)
            except (KeyError, ValueError, pl.exceptions.PolarsError) as error:
                raise CaptureError(f"{self._about}: its reader left no such table, {name}; not read") from error
        return self._read[name]


def _close(files: Mapping[str, io.BufferedReader]) -> None:
    for file in files.values():
        file.close()


class ConfinedCapture:
    """A raw capture as read once by a confined child: its answer, and the tables that it left."""

    def __init__(self, question: Question, answer: Mapping[str, Any], frames: Frames) -> None:
        self._question, self._answer, self._frames = question, answer, frames

    def tables(self) -> Mapping[str, pl.DataFrame]:
        told = self._answer["tables"]

        def source(name: str) -> dict[str, pl.DataFrame]:
            return {name: self._frames[self._question.value(told[name])]}

        return LazyTables({name: lambda name=name: source(name) for name in told})  # type: ignore[misc]

    def require_whole(self) -> None:
        """Raise CaptureError for the first item that could not be read."""
        for told in (self._answer["facts"], *self._answer["tables"].values(), *self._answer["evidence"].values()):
            self._question.value(told)

    def facts(self) -> Facts:
        stated = self._question.value(self._answer["facts"])
        return Facts(**{**stated, "asked_to_trace": tuple(stated["asked_to_trace"])})

    def evidence(self, subject: Subject) -> tuple[Evidence, ...]:
        own = tuple(Evidence(*one) for one in self._question.value(self._answer["evidence"][subject]))
        return (*own, self._confinement) if subject == "files" else own

    def row_accounts(self) -> list[dict[str, object]]:
        """Return, for each record kind of each part, the source's rows, the rows taken, and why some are missing."""
        rows: list[dict[str, object]] = self._answer["rows"]
        return rows

    def model(self) -> "ConfinedModel | None":
        told = self._answer["model"]
        stated = None if told is None else self._question.value(told)
        if stated is None:
            return None
        shapes = stated["kernel_shapes"]
        return ConfinedModel(self._question, Path(stated["file"]), None if shapes is None else self._frames[shapes])

    @property
    def _confinement(self) -> Evidence:
        """Return the confinement of the readers, and its gaps."""
        missing = self._answer["unconfined"]
        return Evidence(CONFINEMENT, "partial" if missing else "present", "; ".join(missing) or None, "reader")


@dataclass(frozen=True)
class ConfinedGraph:
    """The parts of a model's graph that the analysis uses: see `aaco_pipeline.formats.onnx.ModelGraph`."""

    nodes: pl.DataFrame
    edges: pl.DataFrame
    weights: list[str]
    attributes: Mapping[int, Mapping[str, Any]]


class ConfinedModel:
    """The model of a capture, read by a confined child on first use."""

    def __init__(self, question: Question, file: Path, kernel_shapes: pl.DataFrame | None) -> None:
        self._question = question
        self.file, self.kernel_shapes = file, kernel_shapes

    @property
    def graph(self) -> ConfinedGraph:
        return self._pieces[0]

    @property
    def optimized(self) -> ConfinedGraph | None:
        return self._pieces[1]

    @property
    def partitions(self) -> dict[str, list[str]]:
        return self._pieces[2]

    def inferred(self, seen: Mapping[str, TensorType]) -> InferredTypes:
        answer, frames = self._question.ask("infer", seen=dict(seen))
        types = {name: (dtype, _tuples(shape)) for name, (dtype, shape) in answer["types"].items()}
        return InferredTypes(types, answer["reason"], frames[answer["edges"]])

    @cached_property
    def _pieces(self) -> tuple[ConfinedGraph, ConfinedGraph | None, dict[str, list[str]]]:
        answer, frames = self._question.ask("model")
        sets = [{name: _tuples(value) for name, value in one.items()} for one in answer["attributes"]]
        attributes = {node: sets[place] for node, place in answer["attributes_of"]}
        optimized = answer["optimized"]
        return (
            _graph(answer["graph"], frames, attributes),
            None if optimized is None else _graph(optimized, frames, {}),
            answer["partitions"],
        )


def _graph(told: Mapping[str, Any], frames: Frames, attributes: Mapping[int, Mapping[str, Any]]) -> ConfinedGraph:
    return ConfinedGraph(frames[told["nodes"]], frames[told["edges"]], told["weights"], attributes)


def _tuples(value: Any) -> Any:
    """Convert lists back to tuples at every depth."""
    return tuple(map(_tuples, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


#: SQLite's companion files of a database, which show that it was not closed properly.
_BESIDE: Final = ("-wal", "-journal")


def discover_runs(path: Path) -> DiscoveredRuns:
    """Identify everything under `path`: see `aaco_pipeline.capture.discovery.discover_runs`."""
    path = settled(path)
    whole = is_folder(path)
    files = files_beneath(path)[0] if whole else [path]
    top = path if whole else path.parent
    request = {"work": "discover", "path": str(path)}
    readable = [path] if whole else _with_beside([path])
    with answered(request, path, readable, [], bounds_for(size_on_disk(files))) as (answer, _):
        runs = tuple(run_from(one, top) for one in answer["runs"])
        return DiscoveredRuns(runs, tuple(unread_from(answer["unread"], top)))


def capture_digest(run: Run) -> str:
    """Return the SHA-256 over a run's files: see `aaco_pipeline.resources.ingestion.capture_digest`.

    For small runs `discover_runs` has already computed it. The copy notices a file that changes afterwards.
    """
    if run.digest is not None:
        return run.digest
    with _of_run("digest", run, []) as (answer, _):
        return str(answer["digest"])


def copy_capture(run: Run, folder: Path, workload: str | None, *, keep_original: bool = False) -> None:
    """Fill `folder` with the run's files, without secrets: see `aaco_pipeline.resources.ingestion.copy_capture`.

    The same child also reads the copy, so that `open_capture` need not start another one.
    """
    folder = settled(folder)
    asked = {"folder": str(folder), "workload": workload, "keep_original": keep_original}
    with _of_run("copy", run, [folder], **asked) as (answer, results):
        question = Question(folder, True, bounds_for(size_on_disk(files_beneath(folder)[0])))
        _remember(identity(folder), ConfinedCapture(question, answer, Frames(results, folder)))


def open_capture(raw: Path) -> ConfinedCapture:
    """Open the capture in a session's raw folder; the same content returns the same object.

    Only the newest one is cached. Raises CaptureError if the folder holds no capture, or a damaged one.
    """
    known = identity(raw)
    if known not in _OPENED:
        folder = settled(raw)
        bounds = bounds_for(size_on_disk(files_beneath(folder)[0]))
        question = Question(folder, known.place is None, bounds)
        _remember(known, ConfinedCapture(question, *question.ask("read")))
    return _OPENED[known]


_OPENED: Final[dict[Identity, ConfinedCapture]] = {}


def _remember(known: Identity, capture: ConfinedCapture) -> None:
    _OPENED.clear()
    _OPENED[known] = capture


@contextmanager
def _of_run(work: str, run: Run, writable: list[Path], **more: Any) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the answer about a run's files, and its result folder, which exists during the context."""
    files = [*(file for part in run.parts for file in part.files), *(one.path for one in run.unread)]
    whole = is_folder(run.folder)
    top = run.folder if whole else run.folder.parent
    request = {"work": work, "run": as_json(run), "top": str(top), **more}
    readable = [run.folder] if whole else _with_beside(files)
    with answered(request, run.folder, readable, writable, bounds_for(size_on_disk(files))) as given:
        yield given


def _with_beside(files: Iterable[Path]) -> list[Path]:
    return [file.with_name(file.name + ending) for file in files for ending in ("", *_BESIDE)]
