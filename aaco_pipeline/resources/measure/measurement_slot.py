"""The one measurement slot of a host: an operating-system lock, so that nothing measured runs beside anything else.

Dagster's pool of one orders the runs of one instance; this lock also holds between instances and lakes, and the
kernel frees it when its holder dies. Freeing the pool's slot of a dead run is `aaco_pipeline.automation.dead_runs`.
"""

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError

_POLL_SECONDS: Final = 0.1


def slot_path() -> Path:
    """The lock file, one per host: in the shared temporary folder, which every user of the host can open."""
    return Path(tempfile.gettempdir()) / "aaco-measurement.lock"


@contextmanager
def measurement_slot(path: Path | None = None, on_wait: Callable[[], None] | None = None) -> Iterator[int]:
    """Wait for the slot and hold it; yields the lock's file descriptor, to be inherited by the measured process.

    `on_wait` is called once if another process holds the slot. While the measured process lives, the slot is taken,
    even if the process that started it has been killed. UnavailableError when the lock file cannot be opened.
    """
    descriptor = _open(path or slot_path())
    try:
        waiting = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting and on_wait is not None:
                    on_wait()
                waiting = True
                time.sleep(_POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def slot_is_free(path: Path | None = None) -> bool:
    """Whether no process on this host is measuring right now."""
    descriptor = _open(path or slot_path())
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _open(path: Path) -> int:
    """Open the lock file without following a link; another user's file is opened read-only, which locks as well."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # not to wait for the other end of a pipe
    try:
        for _ in range(2):
            try:
                return _regular(os.open(path, os.O_RDONLY | flags), path)
            except FileNotFoundError:
                pass
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o666)
            except FileExistsError:
                continue
            os.fchmod(descriptor, 0o666)
            return descriptor
        raise FileNotFoundError(errno.ENOENT, "vanishes as often as it is made", str(path))
    except OSError as error:
        raise UnavailableError(f"{path}: the measurement lock cannot be opened: {error.strerror}; remove it") from error


def _regular(descriptor: int, path: Path) -> int:
    """The descriptor itself if it is a regular file's; anything else at that place is no lock."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor
