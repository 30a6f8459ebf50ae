"""The host's single measurement slot, an operating-system lock, and running a measured process that inherits it.

Dagster's pool of size one orders the runs of one instance; this lock also works across instances and commands. The
caller decides what is measured; a measured process ends itself when this one ends.
"""

import errno
import fcntl
import json
import os
import pwd
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from aaco_pipeline.errors import UnavailableError

Tell = Callable[[str], None]
#: A longer record was not written by this project.
_LONGEST_BYTES: Final = 1024
_LONGEST_COMMAND: Final = 80
_EVERY_SECONDS: Final = 60.0
_LOCKS: Final = Path("/proc/locks")


@dataclass(frozen=True)
class _Patience:
    """A command's longest wait for the slot each time (forever if None), and the function that informs the user."""

    seconds: float | None = None
    tell: Tell | None = None


_patience: Final[ContextVar[_Patience | None]] = ContextVar("aaco_slot_patience", default=None)


@contextmanager
def slot_patience(seconds: float | None, tell: Tell) -> Iterator[None]:
    """Within the block, wait for the slot at most this many seconds each time, and report its holder to `tell`."""
    token = _patience.set(_Patience(seconds, tell))
    try:
        yield
    finally:
        _patience.reset(token)


class SlotWait:
    """One wait for the slot: reports its holder at once and then every minute, until the time limit."""

    def __init__(self, on_wait: Tell | None, holder: Callable[[], str]) -> None:
        self._patience = _patience.get() or _Patience()
        self._tell = [tell for tell in dict.fromkeys((on_wait, self._patience.tell)) if tell is not None]
        self._holder = holder
        self._began = self._next = time.monotonic()

    def go_on(self) -> None:
        """Wait before another attempt to get the slot. UnavailableError once the time limit is reached."""
        now, limit = time.monotonic(), self._patience.seconds
        if limit is not None and now - self._began >= limit:
            raise UnavailableError(
                f"the measurement slot was not free within {limit:g} s: {self._holder()}; wait longer with --wait"
            )
        if now >= self._next:
            self._next = now + _EVERY_SECONDS
            line = f"waiting for the measurement slot: {self._holder()}"
            for tell in self._tell:
                tell(line)


def sign(descriptor: int) -> None:
    """Write this process's command and start time into the lock file of the slot that it has just acquired.

    If another user's file is not writable, no command is recorded; the kernel still identifies the process.
    """
    command = " ".join([Path(sys.argv[0]).name, *[word for word in sys.argv[1:2] if not word.startswith("-")]])
    record = {"pid": os.getpid(), "since": int(time.time()), "command": command[:_LONGEST_COMMAND]}
    with suppress(PermissionError), open(f"/proc/self/fd/{descriptor}", "r+b", buffering=0) as file:  # noqa: PTH123
        file.truncate(0)
        file.write(json.dumps(record).encode())


def holder_of(descriptor: int) -> str:
    """Describe the process that holds the lock of an open file: number, user, command and start, as far as known."""
    pid = _locking(os.fstat(descriptor))
    if pid is None:
        return "a process that this one cannot see is measuring"
    try:
        user = pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name
    except KeyError:
        user = "an unknown user"
    except OSError:
        return f"process {pid} has ended, and what it started is still measuring"
    command, since = _signed(descriptor, pid)
    return f"process {pid} of {user}{command} is measuring{since}"


def _locking(file: os.stat_result) -> int | None:
    """Return the process that holds a file's lock, as the kernel lists it; None for one in another container."""
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    with suppress(OSError):
        for line in _LOCKS.read_text("ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5] == name and words[4].isdecimal() and words[4] != "0":
                return int(words[4])
    return None


def _signed(descriptor: int, pid: int) -> tuple[str, str]:
    """Return the holder's entry in the lock file, as parts of a sentence; empty if that process did not write it."""
    with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError, OSError):
        record = json.loads(os.pread(descriptor, _LONGEST_BYTES, 0))
        if record["pid"] == pid:
            since = datetime.fromtimestamp(int(record["since"]), UTC)
            # Any user may have written it, so terminal control characters are removed.
            command = ascii(str(record["command"])[:_LONGEST_COMMAND])[1:-1]
            return f" (`{command}`)", f" since {since:%Y-%m-%d %H:%M:%S} UTC"
    return "", ""


#: Folders that all processes of the host share, regardless of environment; the first usable one has the lock.
PLACES: Sequence[Path] = (Path("/run/lock"), Path("/dev/shm"))
_NAME: Final = "aaco-measurement.lock"
_POLL_SECONDS: Final = 0.1
#: Do not follow links, and do not block on pipes.
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
#: Accessible to every user of the host, whoever measured first.
_MODE: Final = 0o666
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"


def slot_path() -> Path:
    """Return the host's lock file: the existing one, or the place where it would be created first."""
    return next((place for place in _places() if os.path.lexists(place)), _places()[0])


@contextmanager
def measurement_slot(path: Path | None = None, on_wait: Callable[[str], None] | None = None) -> Iterator[int]:
    """Wait for the slot and hold it; yield the lock's file descriptor, which the measured process inherits.

    While another process holds the slot, call `on_wait` with its holder, at once and every minute. The slot stays taken
    while the measured process lives, even if the process that started it is killed. Raises UnavailableError if locking
    is impossible, or if the slot was not free within the command's time limit (`slot_patience`).
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
    """Return whether no process on this host is measuring now. UnavailableError if the lock cannot be opened."""
    found = _existing(_places() if path is None else [path])
    if found is None:
        return True
    _, descriptor = found
    try:
        return _locked(descriptor)
    finally:
        os.close(descriptor)


def own_container(kind: str | None) -> str | None:
    """Return the sign that this process is in a container, whose lock is not shared with others, or None.

    `kind` comes from the host's facts; it is null or `none` if they show no container.
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
    """Return whether the file is still where the next process will look: a deleted file excludes nobody."""
    try:
        return os.path.samestat(os.fstat(descriptor), place.lstat())
    except FileNotFoundError:
        return False


def _open(places: Sequence[Path]) -> tuple[Path, int]:
    """Return the lock file in the first place that has one, else create it in the first possible place."""
    while True:
        found = _existing(places)
        if found is not None:
            return found
        refused = []
        for place in places:
            try:
                descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, _MODE)
            except FileExistsError:
                break  # another process was faster: use its file
            except OSError as error:
                refused.append(f"{place}: {error.strerror}")
                continue
            os.fchmod(descriptor, _MODE)  # regardless of this process's umask
            return place, descriptor
        else:
            raise UnavailableError(
                f"{'; '.join(refused)}: the measurement lock can be made in no place that all processes of this host "
                "share; make one of these folders writable"
            )


def _existing(places: Sequence[Path]) -> tuple[Path, int] | None:
    """Open the first existing lock file, or return None.

    It may belong to another user. Opening such a file with O_CREAT is refused in a world-writable folder
    (fs.protected_regular), and a lock only needs read access.
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
            os.fchmod(descriptor, _MODE)  # its creator was killed before setting the mode
        return place, descriptor
    return None


def _unusable(place: Path, reason: str) -> str:
    return f"{place}: the measurement lock cannot be opened: {reason}; have its owner remove it, or `chmod 666` it"


#: A longer line was not written by this project; only its end is kept.
_LONGEST_LINE_BYTES: Final = 4096
_LONGEST_WAIT_SECONDS: Final = 0.5


def run_measured(
    command: Sequence[str],
    slot: int,
    errors: Path,
    deadline: float,
    *,
    progress: Callable[[float, float], None],
    started: Callable[[int], object] = lambda _: None,
    environment: Mapping[str, str] | None = None,
) -> int | None:
    """Return the exit status of a fresh process, or None if it was killed at `deadline` of the monotonic clock.

    It inherits the descriptor `slot`; its standard error goes to `errors`; `started` is called with its number, and
    `progress` with the amount done and the total. Raises KeyboardInterrupt if the process was interrupted.
    """
    with errors.open("wb") as error_stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=error_stream,
            env=None if environment is None else {**os.environ, **environment},
            pass_fds=(slot,),
        )
        assert process.stdout is not None
        try:
            started(process.pid)
            if not follow(process.stdout, deadline, lambda line: _report(line, progress)):
                return None
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    if status == -signal.SIGINT:
        raise KeyboardInterrupt
    return status


def last_line(errors: Path) -> str:
    """Return the last line that a process wrote to standard error."""
    lines = errors.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it wrote no reason"


def _report(line: bytes, progress: Callable[[float, float], None]) -> None:
    """Forward only the worker's own lines; runtimes and providers print there too."""
    try:
        step = json.loads(line)
        done, total = float(step["done"]), float(step["total"])
    except (ValueError, TypeError, KeyError):
        return
    progress(done, total)


def follow(stream: IO[bytes], deadline: float, take: Callable[[bytes], None]) -> bool:
    """Pass every line to `take` until the stream closes; False if the monotonic clock reaches `deadline` first.

    Waits are split up: Polars takes over SIGINT in a way that would let a single long read miss Ctrl-C.
    """
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(min(left, _LONGEST_WAIT_SECONDS)):
                continue
            piece = os.read(stream.fileno(), 1 << 16)
            if not piece:
                return True
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[-_LONGEST_LINE_BYTES:]
            for line in lines:
                take(line)
    return False
