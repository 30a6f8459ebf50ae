"""Watch the inbox, the drop folder for captures made elsewhere: detect finished captures, and move them afterwards.

Nothing in the inbox is opened and no link is followed: names, sizes and times are sufficient.
`aaco_pipeline.automation.inbox_runs` requests and retries runs; `aaco_pipeline.pipeline.ingestion` ingests captures.
"""

import hashlib
import json
import os
import stat
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.files import lake_errors

INBOX_VARIABLE: Final = "AACO_INBOX"
#: Empty marker file of a finished capture.
DONE_FILE: Final = ".done"
TAKEN_FOLDER: Final = "taken"
REJECTED_FOLDER: Final = "rejected"
#: Without the marker, a capture is finished if it is unchanged for this long and over this many looks.
STILL_SECONDS: Final = 120.0
STILL_LOOKS: Final = 3
#: Without the marker, a capture stays in place this long after ingestion, because copying may only have paused.
STAYS_SECONDS: Final = 3600.0
#: Larger folders are not examined further.
_MOST_ENTRIES: Final = 20_000
#: Entries per look at the inbox, with a folder counting as ten more; the next look resumes after them.
_ENTRIES_A_LOOK: Final = 6_000
_FOLDER_COUNTS: Final = 10
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Seen(NamedTuple):
    """Last look at one entry: its state, since when (host's monotonic clock), and the number of looks.

    `settled` is the outcome for this state, "" while it is open. After `failures` failed attempts the next one is due
    at `again`.
    """

    state: str
    since: float
    looks: int = 1
    settled: str = ""
    failures: int = 0
    again: float = 0.0


@dataclass
class Memory:
    """State kept between looks: every entry seen, and the entry at which the next look begins."""

    entries: dict[str, Seen] = field(default_factory=dict)
    next: str = ""

    def to_text(self) -> str:
        return json.dumps({"next": self.next, "entries": self.entries}, sort_keys=True)

    @staticmethod
    def from_text(text: str | None) -> "Memory":
        """Read the state from a cursor; empty if there is none or its format is unknown."""
        try:
            document = json.loads(text or "{}")
            entries = {name: Seen._make(row) for name, row in document["entries"].items()}
            return Memory(entries, document["next"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return Memory()


@dataclass(frozen=True)
class Arrival:
    """A finished capture in the inbox; `key` changes with its content."""

    path: Path
    state: str
    is_done: bool

    @property
    def key(self) -> str:
        return hashlib.sha256(os.fsencode(self.path.name) + b"\0" + self.state.encode()).hexdigest()[:32]


def inbox_of(lake: Path) -> Path:
    """Return the inbox of a lake: `$AACO_INBOX`, or the folder `inbox` next to the lake. It need not exist."""
    named = os.environ.get(INBOX_VARIABLE)
    return Path(named).expanduser().absolute() if named else lake.parent / "inbox"


def look(inbox: Path, memory: Memory, now: float) -> list[Arrival]:
    """Find finished captures, by name, among the entries to be examined now, and update `memory`.

    A capture is a file or folder in the inbox. It is finished if it contains `.done` (for a file: if `NAME.done` is
    next to it), or if nothing in it has changed for STILL_SECONDS. `now` is the host's monotonic clock. Links, pipes,
    devices and unprintable names are ignored.
    """
    entries, marks = _listed(inbox)
    memory.entries = {name: seen for name, seen in memory.entries.items() if name in entries}
    names = sorted(entries)
    begin = bisect_left(names, memory.next)
    memory.next = ""
    found, left = [], _ENTRIES_A_LOOK
    for name in (*names[begin:], *names[:begin]):
        if left <= 0:
            memory.next = name
            break
        state, count, is_marked = _state(entries[name])
        left -= count
        before = memory.entries.get(name)
        if before is None or before.state != state or now < before.since:
            seen = memory.entries[name] = Seen(state, now)
        elif before.looks < STILL_LOOKS:
            seen = memory.entries[name] = before._replace(looks=before.looks + 1)
        else:
            seen = before
        is_finished = is_marked or name + DONE_FILE in marks
        if is_finished or (now - seen.since >= STILL_SECONDS and seen.looks >= STILL_LOOKS):
            found.append(Arrival(inbox / name, state, is_finished))
    return sorted(found, key=lambda arrival: arrival.path.name)


def entry_of(inbox: Path, path: Path) -> Path:
    """Return `path` as an inbox entry; UsageError for anything that `look` would not find.

    An entry is a file or folder directly in the inbox, however the inbox's path is spelled; links are not entries.
    """
    try:
        is_inside = path.parent.samefile(inbox)
        mode = os.lstat(inbox / path.name).st_mode if is_inside and _may_be_capture(path.name) else 0
    except (OSError, ValueError):
        mode = 0
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(
            f"{str(path)!r} is no entry of the inbox {inbox} and is not moved; give a file or folder in it, set "
            f"{INBOX_VARIABLE} to its folder, or leave from_inbox out"
        )
    return inbox / path.name


def says_done(path: Path) -> bool:
    """Return whether an inbox entry is marked as finished."""
    return os.path.lexists(path / DONE_FILE if path.is_dir() else path.with_name(path.name + DONE_FILE))


def set_aside(path: Path, reason: str) -> Path:
    """Move an unreadable capture to `rejected`, with the reason in a text file; return its new path."""
    return _moved(path, REJECTED_FOLDER, reason)


def put_away(path: Path, not_taken: Sequence[str] = ()) -> Path:
    """Move an ingested capture to `taken`, with its refused parts listed in a text file; return its new path."""
    return _moved(path, TAKEN_FOLDER, "\n".join(not_taken))


def _moved(path: Path, name: str, reason: str) -> Path:
    """Move relative to folder descriptors, so that a folder replaced by a link in the meantime is not followed."""
    folder = path.parent / name
    with lake_errors(folder), ExitStack() as opened:
        inbox = _descriptor(opened, path.parent)
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=inbox)
        try:
            aside = _descriptor(opened, name, inbox)
        except NotADirectoryError as error:
            raise LakeError(f"{folder}: a link or a file; links in the inbox are not followed, remove it") from error
        with os.scandir(aside) as listed:
            taken = {one.name for one in listed}
        target, number = path.name, 1
        while target in taken:
            number += 1
            target = f"{path.name}.{number}"
        if reason:
            descriptor = os.open(f"{target}.reason.txt", _NEW_FILE, 0o666, dir_fd=aside)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{reason}\n")
        os.rename(path.name, target, src_dir_fd=inbox, dst_dir_fd=aside)
        with suppress(FileNotFoundError):
            os.unlink(path.name + DONE_FILE, dir_fd=inbox)
    return folder / target


def _descriptor(opened: ExitStack, path: Path | str, folder: int | None = None) -> int:
    descriptor = os.open(path, _FOLDER if folder is None else _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    opened.callback(os.close, descriptor)
    return descriptor


def _listed(inbox: Path) -> tuple[dict[str, os.DirEntry[str]], set[str]]:
    """List possible captures by name, and the names of markers. A missing inbox is empty."""
    found: dict[str, os.DirEntry[str]] = {}
    marks: set[str] = set()
    with lake_errors(inbox):
        try:
            listing = os.scandir(inbox)
        except (FileNotFoundError, NotADirectoryError):
            return {}, set()
        with listing:
            for entry in listing:
                name = entry.name
                if not _may_be_capture(name):
                    continue
                if entry.is_file(follow_symlinks=False):
                    if name.endswith(DONE_FILE):
                        marks.add(name)
                    else:
                        found[name] = entry
                elif entry.is_dir(follow_symlinks=False):
                    found[name] = entry
    return found, marks


def _may_be_capture(name: str) -> bool:
    return not name.startswith(".") and name not in ("", TAKEN_FOLDER, REJECTED_FOLDER) and name.isprintable()


def _state(entry: os.DirEntry[str]) -> tuple[str, int, bool]:
    """Digest all names, sizes and times; also return the number of entries, and whether one is the marker.

    The digest changes while files are being copied, even if the copy preserves the original times.
    """
    if not entry.is_dir(follow_symlinks=False):
        return _facts(entry), 1, False
    digest = hashlib.sha256()
    count, is_marked, folders = 0, False, [entry.path]
    while folders and count < _MOST_ENTRIES:
        folder = folders.pop()
        try:
            with os.scandir(folder) as listing:
                listed = sorted(listing, key=lambda one: one.name)
        except OSError as error:
            digest.update(f"{error.errno}".encode())
            continue
        for one in listed:
            count += 1
            if one.name == DONE_FILE and folder == entry.path:
                is_marked = True
                continue
            digest.update(os.fsencode(one.path) + f"\0{_facts(one)}\0".encode())
            if one.is_dir(follow_symlinks=False):
                folders.append(one.path)
    return digest.hexdigest()[:16], count + _FOLDER_COUNTS, is_marked


def _facts(entry: os.DirEntry[str]) -> str:
    """Return a file's size and times; empty for anything else, which is never ingested."""
    if not entry.is_file(follow_symlinks=False):
        return ""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return f"{error.errno}"
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
