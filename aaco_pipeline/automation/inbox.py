"""The inbox: where captures made elsewhere are dropped, when one is finished, and where a bad one goes.

Taking a capture in is `aaco_pipeline.automation.ingestion`; asking regularly is the sensor `capture_inbox`.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INBOX_VARIABLE: Final = "AACO_INBOX"
#: Marks a capture as finished; it holds nothing.
DONE_FILE: Final = ".done"
REJECTED_FOLDER: Final = "rejected"
_MOST_ENTRIES: Final = 20_000


@dataclass(frozen=True)
class Arrival:
    """A finished capture in the inbox; `key` changes with its content, so that the same one is taken once."""

    path: Path
    key: str


def inbox_of(lake: Path) -> Path:
    """The inbox of a lake: `$AACO_INBOX`, else the folder `inbox` beside the lake. It need not exist."""
    named = os.environ.get(INBOX_VARIABLE)
    return Path(named).expanduser().absolute() if named else lake.parent / "inbox"


def arrivals(inbox: Path, seen: Mapping[str, str]) -> tuple[list[Arrival], dict[str, str]]:
    """The finished captures, and what was seen of every one, to be given back the next time.

    A capture is a file or a folder in the inbox. It is finished when `.done` lies in it (for a file: `NAME.done` beside
    it), or when nothing of it has changed since the last time.
    """
    if not inbox.is_dir():
        return [], {}
    found: list[Arrival] = []
    now: dict[str, str] = {}
    for path in sorted(inbox.iterdir()):
        if path.name.startswith(".") or path.name == REJECTED_FOLDER or path.suffix == DONE_FILE or path.is_symlink():
            continue
        state = _state(path)
        now[path.name] = state
        done = (path / DONE_FILE).exists() if path.is_dir() else path.with_name(path.name + DONE_FILE).exists()
        if done or seen.get(path.name) == state:
            key = hashlib.sha256(f"{path.name}\0{state}".encode()).hexdigest()[:32]
            found.append(Arrival(path, key))
    return found, now


def set_aside(path: Path, reason: str) -> Path:
    """Move a capture that cannot be read into `rejected`, with the reason in a text file beside it; its new place."""
    folder = path.parent / REJECTED_FOLDER
    folder.mkdir(exist_ok=True)
    target = folder / path.name
    number = 1
    while target.exists():
        number += 1
        target = folder / f"{path.name}.{number}"
    path.rename(target)
    target.with_name(f"{target.name}.reason.txt").write_text(f"{reason}\n")
    return target


def _state(path: Path) -> str:
    """How many files there are, how large together and how new: what changes while somebody still copies."""
    count = size = newest = 0
    entries = [path] if path.is_file() else path.rglob("*")
    for entry in entries:
        if entry.is_symlink() or not entry.is_file() or entry.name == DONE_FILE:
            continue
        status = entry.stat()
        count, size, newest = count + 1, size + status.st_size, max(newest, status.st_mtime_ns)
        if count > _MOST_ENTRIES:
            break
    return f"{count}:{size}:{newest}"
