"""Recognize captures that are completely in the lake from the state of their files, without reading the files.

Unchanged names, sizes, times and inode numbers imply unchanged content, as in the index of a version control system. If
files, code or tables differ in any way, `ingestion` decides.
"""

import hashlib
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from aaco_pipeline.lake.journal import Journal
from aaco_pipeline.lake.layout import LakeFolder

_PACKAGE: Final = Path(__file__).parents[1]
#: Larger folders are always scanned again.
_MOST_FILES: Final = 20_000
#: A file that changed this recently may change again without a visible change of its timestamp.
_SETTLED_NS: Final = 100_000_000


class State(NamedTuple):
    """Digest over the state of all files under a path, and the time of the newest change in ns since 1970."""

    digest: str
    changed_ns: int


def state_of(path: Path) -> State | None:
    """Examine every file under `path` without opening files or following links; None if that fails."""
    digest, newest_ns, count, folders = hashlib.sha256(), 0, 0, [os.fspath(path)]
    try:
        if not path.is_dir():
            folders, newest_ns = [], _add(digest, "", path.lstat())
        while folders:
            with os.scandir(folders.pop()) as listing:
                for entry in sorted(listing, key=lambda one: one.name):
                    count += 1
                    if count > _MOST_FILES:
                        return None
                    status = entry.stat(follow_symlinks=False)
                    newest_ns = max(newest_ns, _add(digest, entry.path, status))
                    if entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                        folders.append(entry.path)
    except OSError:
        return None
    return State(digest.hexdigest(), newest_ns)


def settle(state: State | None) -> None:
    """Wait until any further change would alter the files' times; at most a tenth of a second."""
    left_ns = 0 if state is None else state.changed_ns + _SETTLED_NS - time.time_ns()
    if 0 < left_ns <= _SETTLED_NS:
        time.sleep(left_ns / 1e9)


def recall(lake: LakeFolder, path: Path, state: State | None) -> list[dict[str, Any]] | None:
    """Return the stored rows of all runs under `path`; None if anything has changed since."""
    if state is None:
        return None
    seen = Journal(lake).seen(path)
    if seen.get("files") != state.digest or seen.get("code") != _code_state():
        return None
    sessions = seen["sessions"]
    if any(_manifest_digest(lake, one) != digest or not lake.has_raw(one) for one, digest in sessions.items()):
        return None
    return [_placed(run, lambda text: str(path / text)) for run in seen["runs"]]


def remember(lake: LakeFolder, path: Path, state: State | None, runs: Sequence[Mapping[str, Any]]) -> None:
    """Store the rows of all runs under `path`, all of which are complete sessions, until something changes.

    `state` was determined before the files were read, after waiting for their times to settle.
    """
    if state is None or state.changed_ns > time.time_ns() - _SETTLED_NS:
        return  # the clock is wrong
    try:
        beneath = [_placed(run, lambda text: Path(text).relative_to(path).as_posix()) for run in runs]
    except ValueError:
        return  # the reported name differs from the given one
    sessions = {str(run["session_id"]): _manifest_digest(lake, str(run["session_id"])) for run in runs}
    content = {"files": state.digest, "code": _code_state(), "sessions": sessions, "runs": beneath}
    Journal(lake).keep_seen(path, content)


def _placed(run: Mapping[str, Any], place: Callable[[str], str]) -> dict[str, Any]:
    """Return a run with paths mapped by `place`: the lake only stores paths relative to the ingested folder."""
    unread = [{**one, "file": place(one["file"])} for one in run.get("unread", ())]
    return {**run, "folder": place(run["folder"]), "unread": unread}


def _add(digest: "hashlib._Hash", name: str, status: os.stat_result) -> int:
    """Add a file, or a folder by name only, to the digest; return when the file last changed."""
    if stat.S_ISDIR(status.st_mode):
        digest.update(os.fsencode(name) + b"\0")
        return 0
    facts = (status.st_mode, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    digest.update(f"{facts}\0".encode() + os.fsencode(name) + b"\0")
    return status.st_ctime_ns


def _manifest_digest(lake: LakeFolder, session: str) -> str | None:
    try:
        return hashlib.sha256(lake.manifest_path(session, "session").read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _code_state() -> str | None:
    """Digest this package's files, because changed code may find more in a capture."""
    state = state_of(_PACKAGE)
    return None if state is None else state.digest
