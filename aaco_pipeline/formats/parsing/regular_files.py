"""The only way to open a capture's files: regular files only, following no link below the current folder.

Every reader opens, lists and checks files through this module. A path is walked descriptor by descriptor, and links in
it are refused; `settled` resolves links above a path named by the user. `compression` unpacks files opened here.
"""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError

#: A folder with more entries (over all depths), or a deeper one, is not a capture.
MOST_FILES: Final = 20_000
DEEPEST_FOLDER: Final = 16
_PART: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: Kinds of entries that are neither files nor folders, and why they are not read.
_REFUSALS: Final = {
    stat.S_IFLNK: "a link; links are not followed, copy the file itself",
    stat.S_IFIFO: "a named pipe, not a regular file",
    stat.S_IFSOCK: "a socket, not a regular file",
    stat.S_IFCHR: "a device, not a regular file",
    stat.S_IFBLK: "a device, not a regular file",
}


@dataclass(frozen=True)
class Entry:
    """An entry of a folder: a folder, a regular file, or an entry rejected for the given reason."""

    path: Path
    is_folder: bool
    refused: str | None = None


def settled(path: Path) -> Path:
    """Resolve links above a path's last part. CaptureError if that part is a link or neither file nor folder."""
    if path.name in ("", ".."):  # the current folder, its parent, or the root
        path = path.resolve()
    try:
        above = path.parent.resolve(strict=True)
        mode = os.lstat(above / path.name).st_mode
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, PermissionError):
            raise CaptureError(f"{path}: cannot be looked at: {error.strerror}; check its permissions") from error
        raise CaptureError(f"{path}: no such file or folder; check the path") from error
    if (reason := refused(mode)) is not None:
        raise CaptureError(f"{path}: {reason}")
    return path if above == path.parent.absolute() else above / path.name


def refused(mode: int) -> str | None:
    """Return why a file of this mode is not read; None for a regular file or a folder."""
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else _REFUSALS.get(stat.S_IFMT(mode), "not a regular file")


def open_regular(path: Path) -> io.BufferedReader:
    """Open the regular file at `path` for reading. OSError if it is missing or unreadable, CaptureError for a link at
    any depth and for a pipe, socket or device; none of these ever blocks.
    """
    with _parent(path) as folder:
        # Checked before opening, because opening some devices has side effects.
        _require_regular(path, os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
        descriptor = os.open(path.name, _FILE, dir_fd=folder)
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_regular(path: Path) -> bool:
    """Return whether `path` is a regular file and no part of it is a link."""
    status = status_of(path)
    return status is not None and stat.S_ISREG(status.st_mode)


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder and no part of it is a link."""
    status = status_of(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def status_of(path: Path) -> os.stat_result | None:
    """Return the status of `path`, which may itself be a link; None if it is missing or a link leads to it."""
    if path.name in ("", ".."):
        return path.stat()
    try:
        with _parent(path) as folder:
            return os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError, CaptureError):
        return None


def entries(folder: Path) -> list[Entry]:
    """List a folder by name. OSError if it is unreadable, CaptureError if a link leads to it."""
    try:
        with _parent(folder / "entry") as descriptor:
            # A separate descriptor: the one held by the walk is only for walking.
            listing = os.open(".", _FOLDER, dir_fd=descriptor)
    except OSError as error:
        error.filename = str(folder)
        raise
    found = []
    try:
        with os.scandir(listing) as listed:
            for entry in listed:
                mode = entry.stat(follow_symlinks=False).st_mode
                found.append(Entry(folder / entry.name, stat.S_ISDIR(mode), refused(mode)))
    finally:
        os.close(listing)
    return sorted(found, key=lambda one: one.path.name)


def files_beneath(folder: Path) -> tuple[list[Path], list[Entry]]:
    """List the regular files beneath a folder and the rejected entries among them, each in order of path.

    CaptureError for a folder that has too many entries, is too deep or is unreadable.
    """
    files, others, seen = list[Path](), list[Entry](), 0
    pending = [(folder, 0)]
    while pending:
        at, depth = pending.pop()
        found = readable_entries(at)
        seen += len(found)
        require_bounded(folder, at, seen, depth)
        for entry in found:
            if entry.is_folder:
                pending.append((entry.path, depth + 1))
            elif entry.refused is None:
                files.append(entry.path)
            else:
                others.append(entry)
    return sorted(files), sorted(others, key=lambda one: one.path)


def readable_entries(folder: Path) -> list[Entry]:
    """List a folder as `entries` does; CaptureError if it is unreadable."""
    try:
        return entries(folder)
    except OSError as error:
        raise CaptureError(f"{folder}: cannot be looked through: {error.strerror}; check its permissions") from error


def require_bounded(top: Path, folder: Path, seen: int, depth: int) -> None:
    """Raise CaptureError for too many entries below `top`, or for a folder nested too deep in it."""
    if seen > MOST_FILES:
        raise CaptureError(f"{top}: more than {MOST_FILES} files; name the folder of one capture")
    if depth > DEEPEST_FOLDER:
        raise CaptureError(f"{folder}: nested deeper than {DEEPEST_FOLDER} folders; not a capture")


@contextmanager
def _parent(path: Path) -> Iterator[int]:
    """Open a descriptor of the folder that contains `path`, following no link."""
    try:
        descriptor = os.open(path.anchor or ".", _PART)
    except ValueError as error:  # pragma: no cover - a path typed by a user cannot contain NUL
        raise CaptureError(f"{path}: not a path") from error
    try:
        for part in path.parts[bool(path.anchor) : -1]:
            try:
                inner = os.open(part, _PART, dir_fd=descriptor)
            except NotADirectoryError as error:
                mode = os.stat(part, dir_fd=descriptor, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    raise CaptureError(f"{path}: a link, {part}, leads to it; links are not followed") from error
                raise
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    except OSError as error:
        error.filename = str(path)  # the full path, not just its last part
        raise
    finally:
        os.close(descriptor)


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise CaptureError(f"{path}: {refused(mode) or 'cannot be read: a folder, not a file'}")
