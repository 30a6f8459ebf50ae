"""Write files that survive a kill at any time, locks that are released when their process ends, and file digests.

Temporary files carry their writer's name, so that leftovers of a dead process can be recognised.
`aaco_pipeline.lake.store` decides what is written where.
"""

import errno
import fcntl
import hashlib
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Final

from aaco_pipeline.errors import LakeError, PassingLakeError

#: Prefix of files under construction; readers never open one, and a leftover belongs to a dead writer.
TEMPORARY_PREFIX: Final = ".tmp-"
#: The writer of another host's (or container's) file is presumed dead if the file is this old.
STALE_DAYS: Final = 7
_STALE_SECONDS: Final = STALE_DAYS * 86_400
_ID_DIGITS: Final = 8
#: Host, boot, process and a random number; earlier versions omitted the first two.
_NAME: Final = re.compile(r"\.tmp-(?:([0-9a-f]{8})-([0-9a-f]{8})-)?([0-9]+)-[0-9a-f]+")


def temporary_beside(path: Path) -> Path:
    """Return a new temporary name in the folder of `path`, so that the final rename stays on one file system."""
    parts = (_host(), _boot(), str(os.getpid()), secrets.token_hex(4))
    return path.with_name(TEMPORARY_PREFIX + "-".join(parts))


def writer_is_gone(temporary: Path) -> bool:
    """Return whether the writer of a temporary file has ended.

    Processes on another host are invisible; such a writer is presumed dead after `STALE_DAYS` without a change.
    """
    named = _NAME.fullmatch(temporary.name)
    if named is None:
        return True
    host, boot, process = named.groups()
    if host is None or (host, boot) == (_host(), _boot()):
        return not Path(f"/proc/{process}").is_dir()
    return host == _host() or time.time() - max(_changes(temporary), default=0.0) > _STALE_SECONDS


def _changes(path: Path) -> Iterator[float]:
    """Return the modification times of a file, or of everything in a folder."""
    for one in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            yield one.lstat().st_mtime


@cache
def _host() -> str:
    """Identify the group of processes that see each other: the host, or the container with its own process ids."""
    facts = [platform.node()]
    with suppress(OSError):
        facts.append(Path("/etc/machine-id").read_text("ascii"))
    with suppress(OSError):
        facts.append(str(Path("/proc/self/ns/pid").readlink()))
    return _short("\n".join(facts))


@cache
def _boot() -> str:
    try:
        return _short(Path("/proc/sys/kernel/random/boot_id").read_text("ascii"))
    except OSError:
        return _short("")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]


_LOCK_POLL_SECONDS: Final = 0.02
#: Errors from flock on a mount without locks.
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
#: Most tables are far smaller than the buffer that `hashlib.file_digest` allocates.
_AT_ONCE_BYTES: Final = 1 << 20
#: Temporary errors of a disk or file server: retrying may succeed.
_PASSING: Final = frozenset(
    (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY, errno.EAGAIN, errno.ENOLCK)
)


@contextmanager
def lake_errors(path: Path) -> Iterator[None]:
    """Turn an operating-system error into a one-line LakeError that names the file and the next step.

    Temporary errors become a PassingLakeError.
    """
    try:
        yield
    except OSError as error:
        where = error.filename if error.filename is not None else path
        reason = error.strerror or str(error)
        kind = PassingLakeError if error.errno in _PASSING else LakeError
        raise kind(f"{where}: {reason}; check that the lake's disk is writable and has space") from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to operating-system errors that lack one, such as those of open files."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def file_digest(path: Path) -> str:
    """Return the SHA-256 of the file's bytes in hexadecimal."""
    with path.open("rb", buffering=0) as stream:
        return stream_digest(stream)


def stream_digest(stream: IO[bytes]) -> str:
    """Like `file_digest`, for an open file at its beginning."""
    if os.fstat(stream.fileno()).st_size <= _AT_ONCE_BYTES:
        return hashlib.sha256(stream.read()).hexdigest()
    return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's bytes, creating missing folders of `target`; nothing is synced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents durably, by syncing each parent folder."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir()
    except FileExistsError as error:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Flush the file's bytes to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: Syncing a folder makes the names in it durable; the system calls are the same as for a file.
sync_folder = sync_file


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; even after a crash it holds either the old or the new bytes in full."""
    with writing_atomically(path) as stream:
        stream.write(content)


@contextmanager
def writing_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream whose content replaces `path` if the block succeeds and is discarded otherwise."""
    make_folder(path.parent)
    temporary = temporary_beside(path)
    try:
        with naming(path), temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def exclusive_lock(path: Path, *, timeout_seconds: float, purpose: str) -> Iterator[None]:
    """Hold the operating system's lock on `path`; others wait, and a dead holder's lock is released at once.

    PassingLakeError after `timeout_seconds`, naming the holder recorded in the lock file.
    """
    make_folder(path.parent)
    deadline = time.monotonic() + timeout_seconds
    while (descriptor := _take_lock(path, os.O_CREAT)) is None or not _still_names(path, descriptor):
        if descriptor is not None:
            _let_go(descriptor)  # the file was removed between open and lock, so this lock protects nothing
        elif time.monotonic() >= deadline:
            holder = path.read_text("ascii", "replace")[:64].strip() or "unknown"
            raise PassingLakeError(
                f"{path}: {purpose} is locked by process {holder} for more than {timeout_seconds:g} s; "
                "wait for it to end, then run again"
            )
        else:
            time.sleep(_LOCK_POLL_SECONDS)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        yield
    finally:
        _let_go(descriptor)


def lock_is_free(path: Path) -> bool:
    """Return whether the lock on the existing file `path` is free right now."""
    descriptor = _take_lock(path)
    if descriptor is not None:
        _let_go(descriptor)
    return descriptor is not None


def remove_free_lock(path: Path) -> bool:
    """Remove the lock file `path` while holding its lock, so that no holder loses it. False if it is held."""
    try:
        descriptor = _take_lock(path)
    except FileNotFoundError:
        return True
    if descriptor is not None:
        try:
            if _still_names(path, descriptor):
                path.unlink()
        finally:
            _let_go(descriptor)
    return descriptor is not None


def _take_lock(path: Path, flags: int = 0) -> int | None:
    """Return the descriptor that holds the lock on `path`, or None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        _let_go(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        if isinstance(error, OSError) and error.errno in _NO_LOCKS:
            raise LakeError(
                f"{path}: this file system has no working locks ({error.strerror}), and writers would undo "
                "each other's work; put the lake on a local disk or on one that is mounted with locks"
            ) from error
        raise
    return descriptor


def _let_go(descriptor: int) -> None:
    """Close a lock's file and so release the lock, ignoring write errors: its content no longer matters."""
    with suppress(OSError):
        os.close(descriptor)


def _still_names(path: Path, descriptor: int) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
