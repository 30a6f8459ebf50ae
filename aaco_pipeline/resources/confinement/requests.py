"""What goes between a program and its reader server: JSON with its length before it, and a run as JSON.

What is asked is `doors`, how it is answered `work`. What comes back was made by a process that read a stranger's bytes:
`run_from` takes no path outside the capture.
"""

import json
import select
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.capture.discovery import Part, Run, Unread
from aaco_pipeline.errors import CaptureError

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
    """The run of which `as_json` was sent. CaptureError when a path in it is not beneath `top`."""
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
