"""A process that has imported every reader and runs none: it forks a confined child for each request.

A process in which Polars has run a query cannot be forked, so this one never does. Run as a module with the number of
its socket; it ends when the other end is closed, and its child with it. What a child does is `work`, how it is
shut in `sandbox`.
"""

import gc
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

# Only so that no child pays for them; Polars imports `numpy.ma` when it is first given an array.
import numpy.ma  # noqa: F401

import aaco_pipeline.formats.gpu_metrics.prometheus.reading
import aaco_pipeline.formats.gpu_metrics.reading
import aaco_pipeline.formats.kineto.nsys.reading
import aaco_pipeline.formats.kineto.reading
import aaco_pipeline.formats.nvidia.cupti.reading
import aaco_pipeline.formats.ort_profile.tables
import aaco_pipeline.formats.rocpd.reading
import aaco_pipeline.formats.rocpd.rpd.reading
import aaco_pipeline.formats.rocpd.statement
import aaco_pipeline.formats.rocprof.reading
import aaco_pipeline.formats.rocprof.rocprof_db.reading
import aaco_pipeline.formats.rocprof_compute.reading
import aaco_pipeline.formats.rocprofv3_csv.reading
import aaco_pipeline.formats.rocprofv3_json.reading
import aaco_pipeline.formats.thread_trace.reading  # noqa: F401
from aaco_pipeline.resources.confinement import landlock, sandbox
from aaco_pipeline.resources.confinement.bounds import Bounds
from aaco_pipeline.resources.confinement.requests import receive, send
from aaco_pipeline.resources.confinement.work import perform

#: What is looked at of what a child writes to its standard error, and never shown.
_LOOKED_AT: Final = 1 << 16
#: How Rust and C++ say that there was no memory, before they abort.
_NO_MEMORY: Final = (b"memory allocation of", b"bad_alloc", b"MemoryError", b"Cannot allocate memory", b"out of memory")


def serve(channel: socket.socket) -> None:
    """Answer requests until the other end is gone."""
    sandbox.without_privileges()
    network = sandbox.without_network()
    imported = sandbox.imported_from()
    gc.collect()
    gc.freeze()  # what is imported is not looked through, and so not copied, by a child's collector
    send(channel, {"ready": True})
    while (request := receive(channel)) is not None:
        if request.get("ingested") is False:
            import aaco_pipeline.capture.profiled  # noqa: F401 - with the reader of models, before anything is forked
        answer = _answer(channel, request, network, imported)
        if answer is None:
            return
        send(channel, answer)


def _answer(
    channel: socket.socket, request: Mapping[str, Any], network: str | None, imported: list[Path]
) -> dict[str, Any] | None:
    """How the child for a request ended; None when nobody waits for it any longer."""
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
        # Without privileges only a process of one thread may, as this one is and its parent with its libraries is not.
        network = sandbox.without_network()
    files = landlock.only_beneath([*imported, *readable], writable)
    sandbox.within(bounds)
    unconfined = [reason for reason in (files, network) if reason is not None]
    perform({**request, "unconfined": unconfined, "result_bytes": bounds.result_bytes})
    os._exit(0)


def _watched(channel: socket.socket, request: Mapping[str, Any], child: int, said: int) -> dict[str, Any] | None:
    """Wait for a child within its time, and for its parent no longer than that is there."""
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
            # Nobody sends anything while waiting: what can be read is the end.
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
