"""The messages between a program and its reader server, each with its length before it, and the bounds of a request.

Who asks is `client`, who answers `reader_server`. Bounds on single files and texts are
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

#: Bytes such as 6G, and seconds of CPU time, in place of what follows from the capture's size.
MEMORY_VARIABLE: Final = "AACO_READER_MEMORY"
SECONDS_VARIABLE: Final = "AACO_READER_SECONDS"
_LEAST_MEMORY: Final = 4 << 30
_MEMORY_PER_BYTE: Final = 8
_MOST_OF_MACHINE: Final = 0.75
_LEAST_SECONDS: Final = 120
_SECONDS_PER_GIB: Final = 240
#: Wall-clock seconds for each second of CPU time: ends only what waits forever, however busy the machine is.
_PATIENCE: Final = 60
_LEAST_RESULTS: Final = 256 << 20
_RESULTS_PER_BYTE: Final = 32
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_UNITS: Final[Mapping[str, int]] = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Bounds:
    """Limits of one child. `file_bytes` is the largest file it may write, `result_bytes` all tables together."""

    memory_bytes: int
    cpu_seconds: int
    wall_seconds: float
    file_bytes: int
    result_bytes: int


def bounds_for(size: int) -> Bounds:
    """The bounds on reading a capture of `size` bytes on the disk. UsageError for a variable that is no such number."""
    seconds = _stated_seconds() or _LEAST_SECONDS + _SECONDS_PER_GIB * size // (1 << 30)
    memory = _stated_memory() or min(
        max(_LEAST_MEMORY, _MEMORY_PER_BYTE * size), int(_MOST_OF_MACHINE * machine_bytes())
    )
    results = max(_LEAST_RESULTS, _RESULTS_PER_BYTE * size)
    # A packed file is unpacked beside its copy before it is looked through.
    return Bounds(memory, seconds, float(_PATIENCE * seconds), max(results, expanded_limit(size, Limits())), results)


def size_on_disk(files: Iterable[Path]) -> int:
    """Bytes that files take on the disk, without holes; 0 for missing ones."""
    total = 0
    for file in files:
        try:
            status = file.lstat()
        except OSError:
            continue
        total += min(status.st_size, 512 * status.st_blocks)
    return total


def machine_bytes() -> int:
    """The memory of this machine, or of the container where it has less."""
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        stated = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return own
    return min(own, int(stated)) if stated.isdecimal() else own


def in_words(size: int) -> str:
    """A bound on memory, for display."""
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
#: Neither a request nor an answer is longer; tables go as files.
MOST_BYTES: Final = 64 << 20


def send(channel: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message whole."""
    content = json.dumps(message).encode()
    channel.sendall(_LENGTH.pack(len(content)) + content)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message; None when the other end is gone."""
    head = _exactly(channel, _LENGTH.size)
    content = None if head is None else _exactly(channel, min(_LENGTH.unpack(head)[0], MOST_BYTES))
    if content is None:
        return None
    message: dict[str, Any] = json.loads(content)
    return message


def as_json(run: Run) -> dict[str, Any]:
    """A run as `run_from` takes it."""
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
    """Files that are not read, as `unread_from` takes them."""
    return [[str(one.path), one.reason] for one in unread]


def run_from(document: Mapping[str, Any], top: Path) -> Run:
    """The run of an `as_json` document. CaptureError when a path in it is not beneath `top`."""
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
    """The files that are not read, with why."""
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
            # An interrupt ends this wait. It does not end `recv`: Polars, once imported, has such calls begun again.
            waiting.poll()
            piece = channel.recv(min(count - len(pieces), 1 << 20))
        except ConnectionError:
            return None
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)
