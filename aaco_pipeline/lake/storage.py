"""Where a lake's files lie: the one interface between the lake and what keeps its bytes, and its one implementation.

Everything else in this package says what is written, in which order and under which name; only here, and in the
mechanics of files that this rests on (`aaco_pipeline.lake.files`, `aaco_pipeline.lake.files`), is anything renamed,
synced, locked, listed or removed. Another kind of storage is another class with these methods.
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

#: What an address in object storage, or of another host, begins with; pathlib makes one slash of two.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Listed(NamedTuple):
    """A file or folder as a listing of the folder it lies in has it: `name` is its last part.

    `version` is another whenever the content is: an opaque text, of object storage its ETag. `changed_at` is in
    seconds since 1970, by the clock of whoever keeps the file.
    """

    name: str
    version: str
    bytes: int
    changed_at: float
    is_folder: bool


class Storage(Protocol):
    """What a lake needs of what keeps its files. Every path is one within the lake.

    All of it raises OSError where the storage fails; FileNotFoundError where there is no such file, except as said.
    """

    def read(self, path: Path) -> bytes:
        """A file's content."""

    def local(self, path: Path) -> Path:
        """A file, or a folder that is complete, where this host's readers can open it; it may not exist."""

    def state(self, path: Path) -> Listed | None:
        """What a listing has of one file or folder; None when there is none."""

    def names(self, folder: Path) -> list[str]:
        """The names of what lies directly in a folder, sorted; none when there is no such folder."""

    def listed(self, folder: Path) -> list[Listed]:
        """What lies directly in a folder, sorted by name, for little more than `names`: no file is opened."""

    def bytes_below(self, folder: Path) -> int:
        """Bytes of all files in a folder, and in those in it; 0 when there is no such folder."""

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file: afterwards, and after a crash, it holds the old bytes or the new, whole."""

    def create(self, folder: Path, names: Collection[str]) -> None:
        """Make empty files in a folder, durably; those that are there stay as they are."""

    def append(self, path: Path, content: bytes) -> None:
        """Add whole lines to a file, durably; a last line that a kill cut off is ended before them."""

    def new_file(self, path: Path) -> AbstractContextManager[Path]:
        """A block with a local path of a file to write, which `place` gives its name; else it goes with the block."""

    def new_folder(self, path: Path) -> AbstractContextManager[Path]:
        """A block with a local path of an empty folder to fill, as with `new_file`."""

    def place(self, temporary: Path, path: Path) -> None:
        """Give what a block of `new_file` or `new_folder` wrote its name, at once and whole and durably.

        It takes the place of a file. OSError where a folder of that name is there already.
        """

    def touch(self, path: Path) -> None:
        """Have a file or folder count as changed now."""

    def remove(self, path: Path) -> None:
        """Remove a file, durably, if there is one."""

    def clear(self, folder: Path, names: Collection[str]) -> None:
        """Remove files of a folder, and the folder when it is empty then; what a crash brings back is no harm."""

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder, if there is one: it vanishes at once, and what a kill leaves is found by `unfinished`."""

    def unfinished(self, folder: Path) -> list[Path]:
        """What writers that died left directly in a folder; `discard` removes it. Sorted."""

    def discard(self, unfinished: Path) -> None:
        """Remove what `unfinished` found."""

    def hold(self, path: Path, timeout_seconds: float, purpose: str) -> AbstractContextManager[None]:
        """A block in which nobody else holds this lock; it dies with its holder.

        LakeError after the wait, which names the holder.
        """

    def is_held(self, path: Path) -> bool:
        """Whether anybody holds this lock at this instant."""

    def drop_lock(self, path: Path) -> None:
        """Forget a lock: by its holder, or one that nobody will ask for again."""

    def drop_free_lock(self, path: Path) -> bool:
        """Forget a lock that nobody holds; False when somebody does."""


class LocalStorage:
    """A lake on a file system with working locks, of this host or mounted on it. Paths are used as they are."""

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
                except FileNotFoundError:  # removed since
                    continue
        return sorted(found)

    def bytes_below(self, folder: Path) -> int:
        found = 0
        for within, _, names in os.walk(folder):
            for name in names:
                with suppress(FileNotFoundError):  # removed since
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
        with suppress(OSError):  # whoever waits for it makes a new one
            path.unlink()

    def drop_free_lock(self, path: Path) -> bool:
        return remove_free_lock(path)


def lake_path(address: str | Path) -> Path:
    """The folder that a lake's address names. UsageError for an address with a scheme, such as `s3://lake`."""
    text = str(address)
    if _SCHEME.match(text) is not None:
        raise UsageError(
            f"{text}: a lake lies in a folder; give its path, as addresses with a scheme are not supported"
        )
    return Path(text).expanduser().absolute()


#: What keeps the files of every lake.
STORAGE: Final[Storage] = LocalStorage()


def _listed(name: str, status: os.stat_result) -> Listed:
    version = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
    return Listed(name, version, status.st_size, status.st_mtime, stat.S_ISDIR(status.st_mode))
