"""Captures that the lake holds whole, recognized by the state of their files without reading them again.

Names, sizes, times and inode numbers of all files tell that nothing has changed since they were taken in, as in the
index of a version control system. Anything else than the very same state, code and tables is for `ingestion` to judge.
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
#: A larger folder is scanned again each time.
_MOST_FILES: Final = 20_000
#: A file that changed so shortly before it was looked at may change again within one tick of its file system's clock.
_SETTLED_NS: Final = 100_000_000


class State(NamedTuple):
    """A digest over the state of all files under a path, and when the newest of them changed, in ns since 1970."""

    digest: str
    changed_ns: int


def state_of(path: Path) -> State | None:
    """Look at every file under `path` without opening or following any; None where that is not possible."""
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
    """Wait until a change of the files from now on would show in their times; at most a tenth of a second."""
    left_ns = 0 if state is None else state.changed_ns + _SETTLED_NS - time.time_ns()
    if 0 < left_ns <= _SETTLED_NS:
        time.sleep(left_ns / 1e9)


def recall(lake: LakeFolder, path: Path, state: State | None) -> list[dict[str, Any]] | None:
    """Return the remembered rows of all runs under `path`; None when anything has changed since."""
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
    """Remember the rows of all runs under `path`, all whole sessions, for as long as nothing changes.

    `state` is from before the files were read, and was settled then.
    """
    if state is None or state.changed_ns > time.time_ns() - _SETTLED_NS:
        return  # a clock that is wrong tells nothing
    try:
        beneath = [_placed(run, lambda text: Path(text).relative_to(path).as_posix()) for run in runs]
    except ValueError:
        return  # told of by another name than it was given
    sessions = {str(run["session_id"]): _manifest_digest(lake, str(run["session_id"])) for run in runs}
    content = {"files": state.digest, "code": _code_state(), "sessions": sessions, "runs": beneath}
    Journal(lake).keep_seen(path, content)


def _placed(run: Mapping[str, Any], place: Callable[[str], str]) -> dict[str, Any]:
    """Give a run with its paths as `place` makes them: the lake keeps none but those below what was handed over."""
    unread = [{**one, "file": place(one["file"])} for one in run.get("unread", ())]
    return {**run, "folder": place(run["folder"]), "unread": unread}


def _add(digest: "hashlib._Hash", name: str, status: os.stat_result) -> int:
    """Take one file, or a folder by its name alone, into the digest; return when the file last changed."""
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
    """Digest this package's files: other code may find more in a capture."""
    state = state_of(_PACKAGE)
    return None if state is None else state.digest
