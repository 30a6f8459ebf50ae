"""Server process that has imported every reader but runs none: it forks a confined child for each request.

A process in which Polars has run a query cannot be forked safely, so this one never runs any. The child writes Arrow
files and one JSON document, which `client` reads.
"""

import errno
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any, Final, get_args

import numpy.ma  # noqa: F401
import polars as pl

import aaco_pipeline.formats.cupti.reading
import aaco_pipeline.formats.gpu_metrics.reading
import aaco_pipeline.formats.kineto.reading
import aaco_pipeline.formats.nsys.reading
import aaco_pipeline.formats.ort_profile.reading
import aaco_pipeline.formats.prometheus.reading
import aaco_pipeline.formats.rocpd.process
import aaco_pipeline.formats.rocpd.reading
import aaco_pipeline.formats.rocprof.reading
import aaco_pipeline.formats.rocprof_compute.reading
import aaco_pipeline.formats.rocprof_db.reading
import aaco_pipeline.formats.rocprofv3_csv.reading
import aaco_pipeline.formats.rocprofv3_json.reading
import aaco_pipeline.formats.rpd.reading
import aaco_pipeline.formats.thread_trace.reading  # noqa: F401
from aaco_pipeline.capture import ingested, program
from aaco_pipeline.capture.discovery import Run, discover_runs
from aaco_pipeline.capture.face import Capture, Subject
from aaco_pipeline.capture.merging import row_accounts
from aaco_pipeline.errors import AacoError, CaptureError
from aaco_pipeline.lake.on_disk import write_pieces
from aaco_pipeline.resources import ingestion
from aaco_pipeline.resources.confinement import sandbox
from aaco_pipeline.resources.confinement.requests import Bounds, as_json, receive, run_from, send, unread_as_json

REPLY_FILE: Final = "reply.json"
#: Longest error message: a hostile file name must not flood the terminal.
_LONGEST_REASON: Final = 2_000
#: Captures up to this size are digested at discovery, in a tenth of a second; dry runs need no digest.
_SOON_READ_BYTES: Final = 64 << 20
#: These errors end the whole request; any other error affects one table only.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)

Request = Mapping[str, Any]


def perform(request: Request) -> None:
    """Perform a request and write the answer, or the capture's error, to the result folder."""
    results = Path(request["results"])
    try:
        answer = {**_WORK[request["work"]](request, results), "unconfined": request["unconfined"]}
    except BaseException as error:  # noqa: BLE001 - also Polars' panics, which are no Exception
        answer = {"error": _told(error, request)}
    (results / REPLY_FILE).write_text(json.dumps(answer))


def _told(error: BaseException, request: Request) -> dict[str, Any]:
    """Describe an error: its class, one line, and the number and file of the underlying system error, if any."""
    about = request["about"]
    kind: type[AacoError] = CaptureError
    if isinstance(error, MemoryError):
        return {"kind": "memory", "line": "", "cause": None}
    if isinstance(error, AacoError):
        kind, line = type(error), str(error)
    elif isinstance(error, OSError):
        line = f"{error.filename or about}: {error.strerror or error}"
    else:
        first = (str(error).splitlines() or [""])[0]
        line = f"{about}: its reader failed: {type(error).__name__}: {first}"
    line = "".join(letter if letter.isprintable() else " " for letter in line)
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.errno):
        cause = cause.__cause__
    return {
        "kind": kind.__name__,
        "line": " ".join(line.split())[:_LONGEST_REASON],
        "cause": cause and [cause.errno, str(cause.filename or "")],
    }


def _discover(request: Request, results: Path) -> dict[str, Any]:
    found = discover_runs(Path(request["path"]))
    runs = [as_json(replace(run, digest=_digest_along(run))) for run in found.runs]
    return {"runs": runs, "unread": unread_as_json(found.unread)}


def _digest_along(run: Run) -> str | None:
    """Return the digest of a small run, so that no other child needs to be forked for it.

    None for a larger run, and on failure: a separate request for the digest then reports the reason.
    """
    try:
        if sum(path.lstat().st_size for part in run.parts for path in part.files) > _SOON_READ_BYTES:
            return None
        return ingestion.capture_digest(run)
    except (AacoError, OSError):
        return None


def _digest(request: Request, results: Path) -> dict[str, Any]:
    return {"digest": ingestion.capture_digest(run_from(request["run"], Path(request["top"])))}


def _copy(request: Request, results: Path) -> dict[str, Any]:
    run = run_from(request["run"], Path(request["top"]))
    ingestion.copy_capture(
        run, Path(request["folder"]), request["workload"], keep_original=bool(request["keep_original"])
    )
    return _read({**request, "ingested": True}, results)


def _read(request: Request, results: Path) -> dict[str, Any]:
    """Read every table and fact of a capture; an unreadable part is replaced by its error."""
    capture = _opened(request)
    tables = capture.tables()
    files = _Files(results, int(request["result_bytes"]))
    answer: dict[str, Any] = {
        "facts": _or_error(request, lambda: asdict(capture.facts())),
        "tables": {name: _or_error(request, lambda one: files.keep(tables[one]), name) for name in tables},
        "evidence": {
            subject: _or_error(request, lambda one: [astuple(item) for item in capture.evidence(one)], subject)
            for subject in get_args(Subject)
        },
    }
    if isinstance(capture, ingested.IngestedCapture):
        return {**answer, "rows": row_accounts(capture.contents), "model": None}
    return {**answer, "rows": [], "model": _or_error(request, _model_facts, capture, files)}


def _model_facts(capture: Capture, files: "_Files") -> dict[str, Any] | None:
    model = capture.model()
    if model is None:
        return None
    shapes = model.kernel_shapes
    return {"file": str(model.file), "kernel_shapes": None if shapes is None else files.keep(shapes)}


def _model(request: Request, results: Path) -> dict[str, Any]:
    """Return the model's graph, the runtime's optimized graph, and the nodes of its partitions."""
    model = _opened(request).model()
    assert model is not None
    files = _Files(results, int(request["result_bytes"]))
    sets: dict[int, int] = {}
    attributes: list[Mapping[str, Any]] = []
    for one in model.graph.attributes.values():
        if sets.setdefault(id(one), len(sets)) == len(attributes):
            attributes.append(one)
    optimized = model.optimized
    return {
        "graph": _graph(model.graph, files),
        "attributes": attributes,
        "attributes_of": [(node, sets[id(one)]) for node, one in model.graph.attributes.items()],
        "optimized": None if optimized is None else _graph(optimized, files),
        "partitions": model.partitions,
    }


def _graph(graph: Any, files: "_Files") -> dict[str, Any]:
    return {"nodes": files.keep(graph.nodes), "edges": files.keep(graph.edges), "weights": graph.weights}


def _inferred(request: Request, results: Path) -> dict[str, Any]:
    """Return the model's tensor types, refined by those seen at run time, and the edges with all of them."""
    model = _opened(request).model()
    assert model is not None
    seen = {name: (dtype, None if shape is None else tuple(shape)) for name, (dtype, shape) in request["seen"].items()}
    found = model.inferred(seen)
    files = _Files(results, int(request["result_bytes"]))
    return {"types": dict(found.types), "reason": found.reason, "edges": files.keep(found.edges)}


def _opened(request: Request) -> Capture:
    folder = Path(request["folder"])
    if request["ingested"]:
        return program.read(folder)
    from aaco_pipeline.capture import measured  # already imported by the reader server

    return measured.read(folder)


def _or_error(request: Request, made: Callable[..., Any], *of: Any) -> dict[str, Any]:
    """Return a function's value, or the capture's error instead."""
    try:
        return {"value": made(*of)}
    except MemoryError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise
        return {"error": _told(error, request)}
    except BaseException as error:  # noqa: BLE001 - see `perform`
        return {"error": _told(error, request)}


class _Files:
    """Write tables as Arrow files to the result folder, up to a total number of bytes."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._left = folder, most
        self._kept: dict[int, tuple[str, pl.DataFrame]] = {}

    def keep(self, frame: pl.DataFrame) -> str:
        """Write the table and return its file name."""
        if id(frame) not in self._kept:
            name = f"{len(self._kept)}.arrow"
            self._left -= int(frame.estimated_size())
            if self._left < 0:
                raise CaptureError("its tables are many times larger than the capture; not read")
            with (self._folder / name).open("wb") as file:
                write_pieces(frame, file)
            self._kept[id(frame)] = name, frame
        return self._kept[id(frame)][0]


_WORK: Final[Mapping[str, Callable[[Request, Path], dict[str, Any]]]] = {
    "discover": _discover,
    "digest": _digest,
    "copy": _copy,
    "read": _read,
    "model": _model,
    "infer": _inferred,
}


# Imported here so that children do not pay for it; Polars imports `numpy.ma` when it first receives an array.


#: Bytes of a child's standard error that are examined, but never shown.
_LOOKED_AT: Final = 1 << 16
#: Out-of-memory messages of Rust and C++ before they abort.
_NO_MEMORY: Final = (b"memory allocation of", b"bad_alloc", b"MemoryError", b"Cannot allocate memory", b"out of memory")


def serve(channel: socket.socket) -> None:
    """Answer requests until the other end closes."""
    sandbox.without_privileges()
    network = sandbox.without_network()
    imported = sandbox.imported_from()
    gc.collect()
    gc.freeze()  # imported objects are exempt from garbage collection, so that children do not copy them
    send(channel, {"ready": True})
    while (request := receive(channel)) is not None:
        if request.get("ingested") is False:
            import aaco_pipeline.capture.measured  # noqa: F401 - with the reader of models, before anything is forked
        answer = _answer(channel, request, network, imported)
        if answer is None:
            return
        send(channel, answer)


def _answer(
    channel: socket.socket, request: Mapping[str, Any], network: str | None, imported: list[Path]
) -> dict[str, Any] | None:
    """Wait for the end of a request's child; None if nobody waits for it any longer."""
    own = os.getpid()
    said, saying = os.pipe()
    child = os.fork()
    if not child:
        try:
            sandbox.end_with_parent(own)
            channel.close()
            os.dup2(saying, 2)
            os.closerange(saying, saying + 1)
            _be_child(request, network, imported)
        finally:
            os._exit(1)
    os.close(saying)
    try:
        return _watched(channel, request, child, said)
    finally:
        os.close(said)


def _be_child(request: Mapping[str, Any], network: str | None, imported: list[Path]) -> None:
    os.chdir(request["cwd"])
    os.environ["TMPDIR"] = os.environ["SQLITE_TMPDIR"] = request["results"]
    readable, writable = ([Path(path) for path in request[key]] for key in ("readable", "writable"))
    bounds = Bounds(**request["bounds"])
    if network is not None:
        # An unprivileged process can do this only with one thread. This process has one; its parent, with its
        # libraries, does not.
        network = sandbox.without_network()
    files = sandbox.only_beneath([*imported, *readable], writable)
    sandbox.within(
        {
            resource.RLIMIT_DATA: bounds.memory_bytes,
            resource.RLIMIT_CPU: bounds.cpu_seconds,
            resource.RLIMIT_FSIZE: bounds.file_bytes,
            resource.RLIMIT_NOFILE: sandbox.MOST_FILES_OPEN,
        }
    )
    unconfined = [reason for reason in (files, network) if reason is not None]
    perform({**request, "unconfined": unconfined, "result_bytes": bounds.result_bytes})
    os._exit(0)


def _watched(channel: socket.socket, request: Mapping[str, Any], child: int, said: int) -> dict[str, Any] | None:
    """Wait for a child within its time limit, and only while its parent is alive."""
    deadline = time.monotonic() + request["bounds"]["wall_seconds"]
    ended = os.pidfd_open(child)
    watched = select.poll()
    for descriptor in (ended, said, channel.fileno()):
        watched.register(descriptor, select.POLLIN)
    heard = b""
    late = abandoned = False
    try:
        while True:
            ready = {descriptor for descriptor, _ in watched.poll(max(0, deadline - time.monotonic()) * 1_000)}
            if said in ready:
                piece = os.read(said, _LOOKED_AT)
                heard = (heard + piece)[-_LOOKED_AT:]
                if not piece:
                    watched.unregister(said)
            if ended in ready:
                break
            # Nothing is sent during the wait, so readable means closed.
            abandoned = channel.fileno() in ready
            late = not ready and time.monotonic() >= deadline
            if late or abandoned:
                os.kill(child, signal.SIGKILL)
                break
        _, status, used = os.wait4(child, 0)
        os.set_blocking(said, False)
        with suppress(BlockingIOError):
            heard += os.read(said, _LOOKED_AT)
    finally:
        os.close(ended)
    if abandoned:
        shutil.rmtree(request["results"], ignore_errors=True)
        return None
    return {
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "late": late,
        "no_memory": any(words in heard for words in _NO_MEMORY),
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss << 10,
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])))
