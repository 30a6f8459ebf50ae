"""Messages between a program and its reader server, each prefixed by its length, and the limits of a request.

`client` sends requests and `reader_server` answers them. Limits on single files and texts are in
`aaco_pipeline.formats.capture_tables.Limits`.
"""

import json
import os
import re
import select
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.capture.discovery import Part, Run, Unread
from aaco_pipeline.errors import CaptureError, UsageError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import expanded_limit

#: Environment variables that override the limits derived from the capture's size: bytes, such as 6G, and seconds of CPU
#: time.
MEMORY_VARIABLE: Final = "AACO_READER_MEMORY"
SECONDS_VARIABLE: Final = "AACO_READER_SECONDS"
_LEAST_MEMORY: Final = 4 << 30
_MEMORY_PER_BYTE: Final = 8
_MOST_OF_MACHINE: Final = 0.75
_LEAST_SECONDS: Final = 120
_SECONDS_PER_GIB: Final = 240
#: Wall-clock seconds per second of CPU time: only ends processes that hang, however busy the machine is.
_PATIENCE: Final = 60
_LEAST_RESULTS: Final = 256 << 20
_RESULTS_PER_BYTE: Final = 32
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_UNITS: Final[Mapping[str, int]] = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Bounds:
    """Limits of one child. `file_bytes` is the largest file it may write, `result_bytes` the total of all tables."""

    memory_bytes: int
    cpu_seconds: int
    wall_seconds: float
    file_bytes: int
    result_bytes: int


def bounds_for(size: int) -> Bounds:
    """Return the limits for reading a capture of `size` bytes on disk. UsageError for an invalid variable."""
    seconds = _stated_seconds() or _LEAST_SECONDS + _SECONDS_PER_GIB * size // (1 << 30)
    memory = _stated_memory() or min(
        max(_LEAST_MEMORY, _MEMORY_PER_BYTE * size), int(_MOST_OF_MACHINE * machine_bytes())
    )
    results = max(_LEAST_RESULTS, _RESULTS_PER_BYTE * size)
    # A compressed file is unpacked next to its copy before it is searched.
    return Bounds(memory, seconds, float(_PATIENCE * seconds), max(results, expanded_limit(size, Limits())), results)


def size_on_disk(files: Iterable[Path]) -> int:
    """Return the bytes that files take on disk, without holes; 0 for missing files."""
    total = 0
    for file in files:
        try:
            status = file.lstat()
        except OSError:
            continue
        total += min(status.st_size, 512 * status.st_blocks)
    return total


def machine_bytes() -> int:
    """Return the memory of this machine, or of the container if that has less."""
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        stated = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return own
    return min(own, int(stated)) if stated.isdecimal() else own


def in_words(size: int) -> str:
    """Format a memory limit for display."""
    return f"{size / (1 << 30):.1f} GiB"


def _stated_memory() -> int | None:
    text = os.environ.get(MEMORY_VARIABLE, "").strip()
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None or not int(match[1]):
        raise UsageError(f"{MEMORY_VARIABLE} is {text!r}; give bytes, such as 6G")
    return int(match[1]) * _UNITS[match[2].upper()]


def _stated_seconds() -> int | None:
    text = os.environ.get(SECONDS_VARIABLE, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
        raise UsageError(f"{SECONDS_VARIABLE} is {text!r}; give whole seconds of CPU time, such as 600")
    return int(text)


_LENGTH: Final = struct.Struct("=Q")
#: Requests and answers are never longer; tables are passed as files.
MOST_BYTES: Final = 64 << 20


def send(channel: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one complete message."""
    content = json.dumps(message).encode()
    channel.sendall(_LENGTH.pack(len(content)) + content)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """Return the next message; None if the other end is closed."""
    head = _exactly(channel, _LENGTH.size)
    content = None if head is None else _exactly(channel, min(_LENGTH.unpack(head)[0], MOST_BYTES))
    if content is None:
        return None
    message: dict[str, Any] = json.loads(content)
    return message


def as_json(run: Run) -> dict[str, Any]:
    """Return a run in the form that `run_from` reads."""
    return {
        "folder": str(run.folder),
        "parts": [
            {
                **{"name": part.name, "format": part.format, "detail": part.detail, "reader": part.reader},
                "files": [str(file) for file in part.files],
                "path": None if part.path is None else str(part.path),
            }
            for part in run.parts
        ],
        "unread": unread_as_json(run.unread),
        "digest": run.digest,
    }


def unread_as_json(unread: "list[Unread] | tuple[Unread, ...]") -> list[list[str]]:
    """Return the files that are not read, in the form that `unread_from` reads."""
    return [[str(one.path), one.reason] for one in unread]


def run_from(document: Mapping[str, Any], top: Path) -> Run:
    """Return the run of an `as_json` document. CaptureError if a path in it is not below `top`."""
    parts = [
        Part(
            str(one["name"]),
            str(one["format"]),
            str(one["detail"]),
            tuple(_beneath(file, top) for file in one["files"]),
            str(one["reader"]),
            None if one["path"] is None else _beneath(one["path"], top),
        )
        for one in document["parts"]
    ]
    digest = None if document["digest"] is None else str(document["digest"])
    return Run(_beneath(document["folder"], top), parts, unread_from(document["unread"], top), digest)


def unread_from(listed: list[list[str]], top: Path) -> list[Unread]:
    """Return the files that are not read, with the reasons."""
    return [Unread(_beneath(path, top), str(reason)) for path, reason in listed]


def _beneath(text: str, top: Path) -> Path:
    path = Path(text)
    if not path.is_relative_to(top) or ".." in path.relative_to(top).parts:
        raise CaptureError(f"{top}: its reader named a file that is not in it; not taken")
    return path


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    pieces = bytearray()
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    while len(pieces) < count:
        try:
            # An interrupt ends this wait but not `recv`: once Polars is imported, such calls are restarted.
            waiting.poll()
            piece = channel.recv(min(count - len(pieces), 1 << 20))
        except ConnectionError:
            return None
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)
