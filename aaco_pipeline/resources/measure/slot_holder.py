"""Who holds the measurement slot, told to whoever waits for it, and how long that one waits.

The kernel says which process has the lock, so a record that a dead process left, or that another user made up, names
nobody. The lock itself is `measurement_slot`'s.
"""

import json
import os
import pwd
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError

Tell = Callable[[str], None]
#: A longer record is nobody's word.
_LONGEST_BYTES: Final = 1024
_LONGEST_COMMAND: Final = 80
_EVERY_SECONDS: Final = 60.0
_LOCKS: Final = Path("/proc/locks")


@dataclass(frozen=True)
class _Patience:
    """How long a command waits for the slot each time, for ever if None, and how it tells the person who waits."""

    seconds: float | None = None
    tell: Tell | None = None


_patience: Final[ContextVar[_Patience | None]] = ContextVar("aaco_slot_patience", default=None)


@contextmanager
def slot_patience(seconds: float | None, tell: Tell) -> Iterator[None]:
    """Wait for the slot at most so many seconds each time within the block, and tell `tell` who holds it."""
    token = _patience.set(_Patience(seconds, tell))
    try:
        yield
    finally:
        _patience.reset(token)


class SlotWait:
    """One wait for the slot: says who holds it at once and then each minute, until patience runs out."""

    def __init__(self, on_wait: Tell | None, holder: Callable[[], str]) -> None:
        self._patience = _patience.get() or _Patience()
        self._tell = [tell for tell in dict.fromkeys((on_wait, self._patience.tell)) if tell is not None]
        self._holder = holder
        self._began = self._next = time.monotonic()

    def go_on(self) -> None:
        """Called before each look at the slot but the first. UnavailableError when it was waited for long enough."""
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
    """Write into the lock file of the slot, which this process has just got, what it is doing and since when.

    Another user's file that cannot be written keeps no command; the kernel still names the process.
    """
    command = " ".join([Path(sys.argv[0]).name, *[word for word in sys.argv[1:2] if not word.startswith("-")]])
    record = {"pid": os.getpid(), "since": int(time.time()), "command": command[:_LONGEST_COMMAND]}
    with suppress(PermissionError), open(f"/proc/self/fd/{descriptor}", "r+b", buffering=0) as file:  # noqa: PTH123
        file.truncate(0)
        file.write(json.dumps(record).encode())


def holder_of(descriptor: int) -> str:
    """The process that has the lock of an open file: its number, user, command and since when, as far as known."""
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
    """The process that has locked a file, as the kernel lists it; None for one of another container."""
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    with suppress(OSError):
        for line in _LOCKS.read_text("ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5] == name and words[4].isdecimal() and words[4] != "0":
                return int(words[4])
    return None


def _signed(descriptor: int, pid: int) -> tuple[str, str]:
    """What the process wrote of itself into the lock file, as parts of a sentence; empty where that is not its word."""
    with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError, OSError):
        record = json.loads(os.pread(descriptor, _LONGEST_BYTES, 0))
        if record["pid"] == pid:
            since = datetime.fromtimestamp(int(record["since"]), UTC)
            # Anybody may have written it: nothing that steers a terminal stays.
            command = ascii(str(record["command"])[:_LONGEST_COMMAND])[1:-1]
            return f" (`{command}`)", f" since {since:%Y-%m-%d %H:%M:%S} UTC"
    return "", ""
