"""A reader server whose readers do what a request says, instead of reading: what hostile bytes might make them do.

Everything else of it is the real one, also how its children are shut in. It has no more rights than a user's process,
whoever runs the tests. Run as a module in its place.
"""

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aaco_pipeline.resources.confinement import reader_server

_perform = reader_server.perform


def misbehave(request: reader_server.Request) -> None:
    """Do what the request says, and answer with what came of it."""
    what, results = request["does"], Path(request["results"])
    if what == "die":
        os.kill(os.getpid(), request["signal"])
    elif what == "chat":
        os.write(2, b"secret of a reader\n" * 100_000)
        os._exit(7)
    elif what == "abort":
        os.write(2, b"memory allocation of 99999999999 bytes failed\n")
        os.abort()
    elif what == "sleep":
        time.sleep(3600)
    elif what == "spin":
        while True:
            pass
    elif what == "write":
        (results / "large").write_bytes(bytes(request["bytes"]))
    elif what == "be silent":
        os._exit(0)
    elif what == "babble":
        (results / reader_server.REPLY_FILE).write_text(request["says"])
        os._exit(0)
    reader_server._WORK = {"try": lambda asked, _: {"came": tried(asked)}}  # type: ignore[misc]
    _perform({**request, "work": "try"})


def tried(request: reader_server.Request) -> Any:
    """The result of the requested action: a text, or the name of the error."""
    tries: dict[str, Callable[[], Any]] = {
        "read": lambda: Path(request["path"]).read_text(),
        "write at": lambda: Path(request["path"]).write_text("x"),
        "call": lambda: socket.create_connection(("127.0.0.1", request["port"]), 5).close(),
        "run": lambda: subprocess.run(["/bin/sh", "-c", "echo ran"], capture_output=True, check=True).returncode,
        "swell": lambda: len([bytearray(16 << 20) for _ in range(request["times"])]),
        "environment": lambda: dict(os.environ),
        "server": os.getppid,
    }
    try:
        return tries.get(request["does"], lambda: "done")()
    except OSError as error:
        return type(error).__name__


def become_anybody() -> None:
    """Give up what a superuser's process may do beyond others (capset, version 3 of its header)."""
    ctypes.CDLL(None).capset(struct.pack("=Ii", 0x20080522, 0), bytes(24))


if __name__ == "__main__":
    become_anybody()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reader_server.perform = misbehave
    reader_server.serve(socket.socket(fileno=int(sys.argv[1])))
