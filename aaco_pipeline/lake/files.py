"""Write files that survive a kill at any instant, locks that die with their process, and file digests.

Temporary files carry the name of their writer, so that leftovers of a dead process can be recognised. What is written
where is decided in `aaco_pipeline.lake.store`.
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

#: Files under construction carry this prefix; a reader never opens one, and a leftover is a dead writer's.
TEMPORARY_PREFIX: Final = ".tmp-"
#: What another host, or a container with processes of its own, has not touched for so long is a dead writer's.
STALE_DAYS: Final = 7
_STALE_SECONDS: Final = STALE_DAYS * 86_400
_ID_DIGITS: Final = 8
#: Host, boot, process and chance; in names of earlier versions the first two are missing.
_NAME: Final = re.compile(r"\.tmp-(?:([0-9a-f]{8})-([0-9a-f]{8})-)?([0-9]+)-[0-9a-f]+")


def temporary_beside(path: Path) -> Path:
    """A fresh temporary name in the folder of `path`, so that the final rename stays on one file system."""
    parts = (_host(), _boot(), str(os.getpid()), secrets.token_hex(4))
    return path.with_name(TEMPORARY_PREFIX + "-".join(parts))


def writer_is_gone(temporary: Path) -> bool:
    """Whether nobody goes on writing to a temporary.

    A process of another host cannot be looked for; it is gone when nothing has changed for `STALE_DAYS`.
    """
    named = _NAME.fullmatch(temporary.name)
    if named is None:
        return True
    host, boot, process = named.groups()
    if host is None or (host, boot) == (_host(), _boot()):
        return not Path(f"/proc/{process}").is_dir()
    return host == _host() or time.time() - max(_changes(temporary), default=0.0) > _STALE_SECONDS


def _changes(path: Path) -> Iterator[float]:
    """When a file, or anything in a folder, changed last."""
    for one in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            yield one.lstat().st_mtime


@cache
def _host() -> str:
    """By what processes that see each other know each other: the host, and the container where it has its own."""
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
#: What flock says where a mount does not lock.
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
#: Most tables are far smaller than the buffer that hashlib makes for each file that it reads in parts.
_AT_ONCE_BYTES: Final = 1 << 20
#: What a disk, or a server behind it, says in a bad moment: the same call may succeed in a while.
_PASSING: Final = frozenset(
    (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY, errno.EAGAIN, errno.ENOLCK)
)


@contextmanager
def lake_errors(path: Path) -> Iterator[None]:
    """Turn an operating-system error into a LakeError of one line that names the file and the next step.

    It is a PassingLakeError where the system's error is one that may pass by itself.
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
    """Name the file in an error of the system that names none, as those of open files do."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def file_digest(path: Path) -> str:
    """The SHA-256 of the file's bytes in hexadecimal digits."""
    with path.open("rb", buffering=0) as stream:
        return stream_digest(stream)


def stream_digest(stream: IO[bytes]) -> str:
    """As `file_digest`, of an open file from its beginning."""
    if os.fstat(stream.fileno()).st_size <= _AT_ONCE_BYTES:
        return hashlib.sha256(stream.read()).hexdigest()
    return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's bytes, making the folders of `target` that are missing; nothing is synced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def make_folder(path: Path) -> None:
    """Make a folder and those missing above it, each durable: its name is synced into the folder that holds it."""
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
    """Have the kernel put the file's bytes on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: Syncing a folder makes the names in it durable; the calls are the same as for a file.
sync_folder = sync_file


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: afterwards, and after a crash, it holds the old bytes or the new, whole."""
    with writing_atomically(path) as stream:
        stream.write(content)


@contextmanager
def writing_atomically(path: Path) -> Iterator[IO[bytes]]:
    """What is written to the stream replaces `path` when the block ends well, and otherwise leaves no trace."""
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
    """Hold the operating system's lock on `path`; a later holder waits, and a dead holder's lock is free at once.

    Raises PassingLakeError after `timeout_seconds`, naming the process that wrote itself into the lock file.
    """
    make_folder(path.parent)
    deadline = time.monotonic() + timeout_seconds
    while (descriptor := _take_lock(path, os.O_CREAT)) is None or not _still_names(path, descriptor):
        if descriptor is not None:
            _let_go(descriptor)  # the file was removed between open and lock: that lock keeps no one out
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
    """Whether the lock on the existing file `path` is free at this instant."""
    descriptor = _take_lock(path)
    if descriptor is not None:
        _let_go(descriptor)
    return descriptor is not None


def remove_free_lock(path: Path) -> bool:
    """Remove the lock file `path` while holding its lock, so that no holder loses it. False when somebody holds it."""
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
    """The descriptor that holds the lock on `path`; None when somebody else holds it."""
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
    """Close a lock's file. The lock is free then, whatever the disk says of the file's content, which nobody needs."""
    with suppress(OSError):
        os.close(descriptor)


def _still_names(path: Path, descriptor: int) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
