"""The one measurement slot of a host: an operating-system lock, so that nothing measured runs beside anything else.

Dagster's pool of one orders the runs of one instance; this lock also holds between instances, lakes and users, and the
kernel frees it when its holder dies. Freeing the pool's slot of a dead run is `aaco_pipeline.automation.runs`.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.resources.measure.slot_holder import SlotWait, holder_of, sign

#: Folders that every process of the host sees as one, whatever its environment says; the first of use has the lock.
PLACES: Sequence[Path] = (Path("/run/lock"), Path("/dev/shm"))
_NAME: Final = "aaco-measurement.lock"
_POLL_SECONDS: Final = 0.1
#: Not to follow a link, and not to wait for the other end of a pipe.
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
#: For every user of the host, whoever was the first to measure.
_MODE: Final = 0o666
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"


def slot_path() -> Path:
    """The lock file, one per host: the one that is there, else where it would be made first."""
    return next((place for place in _places() if os.path.lexists(place)), _places()[0])


@contextmanager
def measurement_slot(path: Path | None = None, on_wait: Callable[[str], None] | None = None) -> Iterator[int]:
    """Wait for the slot and hold it; yields the lock's file descriptor, to be inherited by the measured process.

    While another process holds the slot, call `on_wait` with its holder at once and each minute. While the measured
    process lives, the slot is taken, even if the process that started it has been killed. UnavailableError when there
    can be no lock, or when it was not free for as long as the command waits (`slot_patience`).
    """
    places = _places() if path is None else [path]
    wait = SlotWait(on_wait, lambda: holder_of(descriptor))
    while True:
        place, descriptor = _open(places)
        try:
            while not _locked(descriptor):
                wait.go_on()
                time.sleep(_POLL_SECONDS)
            if _is_at(descriptor, place):
                sign(descriptor)
                yield descriptor
                return
        finally:
            os.close(descriptor)


def slot_is_free(path: Path | None = None) -> bool:
    """Whether no process on this host is measuring right now. UnavailableError when the lock cannot be opened."""
    found = _existing(_places() if path is None else [path])
    if found is None:
        return True
    _, descriptor = found
    try:
        return _locked(descriptor)
    finally:
        os.close(descriptor)


def slot_holder() -> str:
    """Who holds the slot of this host now, in words."""
    found = _existing(_places())
    if found is None:
        return "nobody is measuring by now"
    _, descriptor = found
    try:
        return "nobody is measuring by now" if _locked(descriptor) else holder_of(descriptor)
    finally:
        os.close(descriptor)


def own_container(kind: str | None) -> str | None:
    """What tells that this process is in a container, whose lock others need not share; None when nothing does.

    `kind` is what the host's facts say of it, null or `none` where they tell of no container.
    """
    if kind not in (None, "none"):
        return kind
    try:
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return None
    return None if str(namespace) == _FIRST_PID_NAMESPACE else "own process numbers"


def _places() -> list[Path]:
    return [folder / _NAME for folder in PLACES]


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, place: Path) -> bool:
    """Whether the file is still where the next process will look: one that was removed keeps nobody apart."""
    try:
        return os.path.samestat(os.fstat(descriptor), place.lstat())
    except FileNotFoundError:
        return False


def _open(places: Sequence[Path]) -> tuple[Path, int]:
    """The lock file of the first place that has one, else made in the first place that takes it."""
    while True:
        found = _existing(places)
        if found is not None:
            return found
        refused = []
        for place in places:
            try:
                descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, _MODE)
            except FileExistsError:
                break  # another process was quicker: its file it is
            except OSError as error:
                refused.append(f"{place}: {error.strerror}")
                continue
            os.fchmod(descriptor, _MODE)  # whatever this process's mask takes away
            return place, descriptor
        else:
            raise UnavailableError(
                f"{'; '.join(refused)}: the measurement lock can be made in no place that all processes of this host "
                "share; make one of these folders writable"
            )


def _existing(places: Sequence[Path]) -> tuple[Path, int] | None:
    """The first lock file that is there, opened as it is; None where there is none.

    It may be another user's. To open that with O_CREAT is refused in a folder that all may write to
    (fs.protected_regular), and reading is all that a lock needs.
    """
    for place in places:
        try:
            descriptor = os.open(place, os.O_RDONLY | _FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            reason = "is a link" if error.errno == errno.ELOOP else error.strerror
            raise UnavailableError(_unusable(place, str(reason))) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise UnavailableError(_unusable(place, "is no regular file"))
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != _MODE:
            os.fchmod(descriptor, _MODE)  # its maker was killed before it came to that
        return place, descriptor
    return None


def _unusable(place: Path, reason: str) -> str:
    return f"{place}: the measurement lock cannot be opened: {reason}; have its owner remove it, or `chmod 666` it"
