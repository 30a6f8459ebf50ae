"""End a command early: on SIGINT or SIGTERM it unwinds, prints one line and leaves no process behind.

Errors caused by a full disk are recognized here, too. `main` sets the exit codes of other errors.
"""

import errno
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Final, NoReturn

from aaco_pipeline.errors import Terminated

_ENDING: Final = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
#: Default message, unless a note on the error provides a better one (`BaseException.add_note`).
_USUALLY: Final = "nothing is half-published"
#: Exceeds the time that a recorded program may take to exit.
_LONGEST_SECONDS: Final = 12.0
_KILL_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.01
#: Polars restarts system calls after SIGINT, so an otherwise unused signal interrupts the call of the main thread.
_WAKING: Final = signal.SIGURG
_WAKE_SECONDS: Final = 0.1
#: Time for a running import to finish: native code panics if an exception is raised while it is being loaded.
_IMPORT_SECONDS: Final = 2.0
#: Parts of the names of Python files that native code calls and in which it cannot handle an exception.
_CALLED_BY_NATIVE_CODE: Final = ("<frozen importlib._bootstrap>", "/polars/datatypes/")

_deferred: Final = threading.Event()
_raised: Final = threading.Event()
_swallowed: Final = threading.Event()
_over: Final = threading.Event()
_numbers: Final[list[signal.Signals]] = []
FULL_DISK: Final = "a disk is full or fails; make room where the lake is"
#: SQLite's messages for a full disk; the second one concerns memory shared between its processes.
_DISK_WORDS: Final = ("database or disk is full", "disk I/O error")


def hear() -> None:
    """Handle SIGINT and SIGTERM from here on, even if a shell without job control made SIGINT ignored."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(_WAKING, _unwind_now)
    sys.unraisablehook = _unraisable
    threading.Thread(target=_watch, args=(reader,), name="aaco-signals", daemon=True).start()
    for number in _ENDING:
        signal.signal(number, _unwind)


def close_ears() -> None:
    """Ignore signals until the interpreter exits, because the command is done.

    Ends the process if a signal arrived earlier and was swallowed: any output since then is lost.
    """
    _over.set()
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    if _numbers:
        _leave(None)


def leave_for(error: BaseException) -> None:
    """End the process with its message if the error was caused by a signal; otherwise return."""
    if _numbers:
        _leave(error)


def _unwind(number: int, frame: FrameType | None) -> None:
    if _raised.is_set() or _over.is_set():
        return
    _note(number)
    _deferred.set()
    _unwind_now(number, frame)


def _unwind_now(number: int, frame: FrameType | None) -> None:
    """Raise the exception for a signal, again if it was swallowed, unless native code would panic."""
    if not _numbers or not _deferred.is_set() or _over.is_set() or _is_called_by_native_code(frame):
        return
    if _raised.is_set() and not _swallowed.is_set():
        return
    _raised.set()
    _swallowed.clear()
    raise Terminated if _numbers[0] == signal.SIGTERM else KeyboardInterrupt


def _unraisable(what: "sys.UnraisableHookArgs") -> None:
    """Raise an interrupt again if it arrived where Python drops exceptions, such as during garbage collection."""
    if issubclass(what.exc_type, KeyboardInterrupt):
        _deferred.set()
        _swallowed.set()
    else:
        sys.__unraisablehook__(what)


def _is_called_by_native_code(frame: FrameType | None) -> bool:
    """Return whether an import is in progress or Polars is asking Python for a data type."""
    while frame is not None and not any(place in frame.f_code.co_filename for place in _CALLED_BY_NATIVE_CODE):
        frame = frame.f_back
    return frame is not None


def _note(number: int) -> None:
    """Record the first signal. From here on only `_leave` writes to standard error."""
    if _numbers:
        return
    if sys.stderr is not None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")  # until the process ends
    _numbers.append(signal.Signals(number))  # must be last: it tells the other thread that everything else is done


def _watch(reader: int) -> None:
    """Record the first signal, and end the process if it does not end by itself in time."""
    number = next(number for number in iter(lambda: os.read(reader, 1)[0], None) if _is_ours(number))
    if _over.is_set():
        return
    _note(number)
    began = time.monotonic()
    while (passed := time.monotonic() - began) < _LONGEST_SECONDS:
        if passed > _IMPORT_SECONDS and _deferred.is_set() and not _raised.is_set():
            break
        signal.pthread_kill(threading.main_thread().ident or 0, _WAKING)
        time.sleep(_WAKE_SECONDS)
    _leave(None)


def _is_ours(number: int) -> bool:
    """Return whether our signal handlers are still installed."""
    return number in _ENDING and signal.getsignal(number) is _unwind


def _notes(error: BaseException | None) -> list[str]:
    """Return the notes on the error and its causes."""
    while error is not None:
        notes: list[str] = getattr(error, "__notes__", [])
        if notes:
            return notes
        error = error.__cause__ or error.__context__
    return []


def _kill_descendants() -> None:
    """Send SIGKILL to all descendants of this process until none is left."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (left := _descendants()) and time.monotonic() < deadline:
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _descendants() -> list[int]:
    """Descendant processes that are still running."""
    from pathlib import Path  # imported late: it accounts for half of the imports before signals are handled

    children: dict[int, list[int]] = {}
    ended = set()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (place / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            children.setdefault(int(parent), []).append(int(place.name))
            if state in (b"Z", b"X"):
                ended.add(int(place.name))
    found = [os.getpid()]
    for process in found:
        found += children.get(process, [])
    return [process for process in found[1:] if process not in ended]


def _leave(error: BaseException | None) -> NoReturn:
    """End this process and all its descendants, and print one line."""
    from aaco_pipeline.report.formatting import in_a_line

    _over.set()
    _kill_descendants()
    with suppress(OSError, ValueError):
        if sys.stdout is not None:
            sys.stdout.flush()
    if sys.stderr is not None:
        line = in_a_line(f"aaco: {_ENDING[_numbers[0]]}; {'; '.join(_notes(error)) or _USUALLY}") + "\n"
        with suppress(OSError):
            os.write(2, line.encode("utf-8", "replace"))
    os._exit(128 + _numbers[0])


def is_of_a_full_disk(error: BaseException | None) -> bool:
    """Return whether a full disk caused the error; SQLite reports it only in its message."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(words in str(error) for words in _DISK_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False
