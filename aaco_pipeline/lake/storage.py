"""The storage interface of a lake, and its implementation on a file system.

Only this module and `aaco_pipeline.lake.files` rename, sync, lock, list or remove files; the rest of the package
decides what is written, in which order and under which name. Another kind of storage would be another class.
"""

import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.files import (
    TEMPORARY_PREFIX,
    exclusive_lock,
    lock_is_free,
    make_folder,
    remove_free_lock,
    sync_file,
    sync_folder,
    temporary_beside,
    write_atomically,
    writer_is_gone,
)

#: The scheme of an address; pathlib turns `//` into one slash.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Listed(NamedTuple):
    """One file or folder in a listing; `name` is the last part of its path.

    `version` is an opaque text that changes with the content (an ETag in object storage). `changed_at` is in seconds
    since 1970 on the storage's clock.
    """

    name: str
    version: str
    bytes: int
    changed_at: float
    is_folder: bool


class Storage(Protocol):
    """Everything a lake needs from its storage. Every path is inside the lake.

    Methods raise OSError if the storage fails, and FileNotFoundError for a missing file unless stated otherwise.
    """

    def read(self, path: Path) -> bytes:
        """Return a file's content."""

    def local(self, path: Path) -> Path:
        """Return a local path of a file or complete folder, for readers on this host; it may not exist."""

    def state(self, path: Path) -> Listed | None:
        """Return the listing of one file or folder, or None."""

    def names(self, folder: Path) -> list[str]:
        """Return sorted names directly in a folder; empty if the folder does not exist."""

    def listed(self, folder: Path) -> list[Listed]:
        """Return the listing of a folder, sorted by name, at little more cost than `names`: no file is opened."""

    def bytes_below(self, folder: Path) -> int:
        """Return the bytes of all files in a folder, recursively; 0 if the folder does not exist."""

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file; even after a crash it holds either the old or the new bytes in full."""

    def create(self, folder: Path, names: Collection[str]) -> None:
        """Create empty files in a folder durably; existing files are not changed."""

    def append(self, path: Path, content: bytes) -> None:
        """Append complete lines to a file durably, first terminating a last line that a kill cut off."""

    def new_file(self, path: Path) -> AbstractContextManager[Path]:
        """Yield a local path to write a file to. `place` gives it its name; otherwise it is removed after the block."""

    def new_folder(self, path: Path) -> AbstractContextManager[Path]:
        """Yield a local path of an empty folder to fill, like `new_file`."""

    def place(self, temporary: Path, path: Path) -> None:
        """Rename the result of `new_file` or `new_folder` atomically and durably.

        An existing file is replaced. OSError if a folder of that name exists.
        """

    def touch(self, path: Path) -> None:
        """Set the modification time of a file or folder to now."""

    def remove(self, path: Path) -> None:
        """Remove a file durably if it exists."""

    def clear(self, folder: Path, names: Collection[str]) -> None:
        """Remove files of a folder, and the folder if it is then empty; not durable, because leftovers are harmless."""

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder atomically if it exists; `unfinished` finds leftovers of a kill."""

    def unfinished(self, folder: Path) -> list[Path]:
        """Return sorted leftovers of dead writers directly in a folder; `discard` removes them."""

    def discard(self, unfinished: Path) -> None:
        """Remove a leftover that `unfinished` found."""

    def hold(self, path: Path, timeout_seconds: float, purpose: str) -> AbstractContextManager[None]:
        """Hold a lock for the block; it is released when its holder dies.

        LakeError if the wait times out, naming the holder.
        """

    def is_held(self, path: Path) -> bool:
        """Return whether any process holds this lock right now."""

    def drop_lock(self, path: Path) -> None:
        """Remove a lock that the caller holds, or that nobody will request again."""

    def drop_free_lock(self, path: Path) -> bool:
        """Remove a lock unless a process holds it; False if one does."""


class LocalStorage:
    """A lake on a local or mounted file system with working locks. Paths are used as they are."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def local(self, path: Path) -> Path:
        return path

    def state(self, path: Path) -> Listed | None:
        try:
            return _listed(path.name, path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: Path) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
        return []

    def listed(self, folder: Path) -> list[Listed]:
        found = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found.append(_listed(entry.name, entry.stat()))
                except FileNotFoundError:  # removed in the meantime
                    continue
        return sorted(found)

    def bytes_below(self, folder: Path) -> int:
        found = 0
        for within, _, names in os.walk(folder):
            for name in names:
                with suppress(FileNotFoundError):  # removed in the meantime
                    found += Path(within, name).stat().st_size
        return found

    def write(self, path: Path, content: bytes) -> None:
        write_atomically(path, content)

    def create(self, folder: Path, names: Collection[str]) -> None:
        make_folder(folder)
        made = False
        for name in names:
            with suppress(FileExistsError):
                os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
                made = True
        if made:
            sync_folder(folder)

    def append(self, path: Path, content: bytes) -> None:
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            file.write(b"\n" * torn + content)
            file.flush()
            os.fsync(descriptor)

    @contextmanager
    def new_file(self, path: Path) -> Iterator[Path]:
        make_folder(path.parent)
        temporary = temporary_beside(path)
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def new_folder(self, path: Path) -> Iterator[Path]:
        make_folder(path.parent)
        temporary = temporary_beside(path)
        temporary.mkdir()
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def place(self, temporary: Path, path: Path) -> None:
        if temporary.is_dir():
            for one in sorted(temporary.rglob("*")):
                sync_file(one)
            sync_folder(temporary)
            temporary.rename(path)
        else:
            sync_file(temporary)
            temporary.replace(path)
        sync_folder(path.parent)

    def touch(self, path: Path) -> None:
        os.utime(path)

    def remove(self, path: Path) -> None:
        try:
            path.unlink()
        except FileNotFoundError:
            return
        sync_folder(path.parent)

    def clear(self, folder: Path, names: Collection[str]) -> None:
        for name in names:
            (folder / name).unlink(missing_ok=True)
        if not self.names(folder):
            with suppress(FileNotFoundError):
                folder.rmdir()

    def remove_folder(self, folder: Path) -> None:
        if folder.is_dir():
            doomed = temporary_beside(folder)
            folder.rename(doomed)
            sync_folder(folder.parent)
            shutil.rmtree(doomed)

    def unfinished(self, folder: Path) -> list[Path]:
        return sorted(path for path in folder.glob(f"{TEMPORARY_PREFIX}*") if writer_is_gone(path))

    def discard(self, unfinished: Path) -> None:
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        else:
            unfinished.unlink(missing_ok=True)

    def hold(self, path: Path, timeout_seconds: float, purpose: str) -> AbstractContextManager[None]:
        return exclusive_lock(path, timeout_seconds=timeout_seconds, purpose=purpose)

    def is_held(self, path: Path) -> bool:
        try:
            return not lock_is_free(path)
        except FileNotFoundError:
            return False

    def drop_lock(self, path: Path) -> None:
        with suppress(OSError):  # a waiting process creates a new one
            path.unlink()

    def drop_free_lock(self, path: Path) -> bool:
        return remove_free_lock(path)


def lake_path(address: str | Path) -> Path:
    """Return the folder at a lake's address. UsageError for an address with a scheme, such as `s3://lake`."""
    text = str(address)
    if _SCHEME.match(text) is not None:
        raise UsageError(
            f"{text}: a lake lies in a folder; give its path, as addresses with a scheme are not supported"
        )
    return Path(text).expanduser().absolute()


#: The storage of every lake.
STORAGE: Final[Storage] = LocalStorage()


def _listed(name: str, status: os.stat_result) -> Listed:
    version = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
    return Listed(name, version, status.st_size, status.st_mtime, stat.S_ISDIR(status.st_mode))
