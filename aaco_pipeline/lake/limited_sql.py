"""Limits for a SQL statement: memory, bounded disk space for spilling, a deadline, and Ctrl-C.

DuckDB runs in its own thread, because a thread inside it notices neither deadline nor signal. `aaco_pipeline.lake.sql`
decides what a statement may read.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.files import temporary_beside

if TYPE_CHECKING:
    import duckdb

DEFAULT_SECONDS: Final = 300.0
#: By default, a statement gets half of the machine's memory, up to this amount.
MOST_MEMORY_BYTES: Final = 8 * 10**9
#: A statement may spill this many times its memory, but at most half of the free space on the lake's disk.
SPILL_PER_MEMORY: Final = 4
_MEMORY_OF_GROUP: Final = Path("/sys/fs/cgroup/memory.max")
_THREAD: Final = "aaco-sql"
_STOP_SECONDS: Final = 0.5
_STOP_POLL_SECONDS: Final = 0.01
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Limits:
    """The memory and time that one statement may take."""

    memory_bytes: int
    seconds: float = DEFAULT_SECONDS


def default_limits() -> Limits:
    """Return the defaults: half of this machine's (or control group's) memory, at most 8 GB, and 300 seconds."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no control group, or one without a limit (`max`)
        whole = min(whole, int(_MEMORY_OF_GROUP.read_text("ascii")))
    return Limits(min(whole // 2, MOST_MEMORY_BYTES))


def statement_goes_on() -> bool:
    """Return whether an abandoned statement is still running; only the end of the process stops it."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


class LimitedConnection:
    """A connection whose calls end at the deadline or when this thread is interrupted."""

    def __init__(self, connection: "duckdb.DuckDBPyConnection", limits: Limits, lake: Path) -> None:
        """Limit memory, and spilling to a folder in `lake`, which DuckDB creates when needed."""
        self._connection = connection
        self._limits = limits
        self._left = limits.seconds
        self._is_left_behind = False
        self._folder: Path | None = None
        spill = 0
        if os.access(lake, os.W_OK):
            self._folder = temporary_beside(lake / "sql")
            spill = min(SPILL_PER_MEMORY * limits.memory_bytes, shutil.disk_usage(lake).free // 2)
        folder = str(self._folder or "").replace("'", "''")
        connection.execute(f"SET memory_limit = '{limits.memory_bytes}B'")
        connection.execute(f"SET temp_directory = '{folder}'")
        connection.execute(f"SET max_temp_directory_size = '{spill}B'")

    def __call__(self, work: "Callable[[duckdb.DuckDBPyConnection], _Answer]") -> _Answer:
        """Return the result of `work`. UsageError once the total time of all calls is used up."""
        answer: Future[_Answer] = Future()

        def run() -> None:
            try:
                answer.set_result(work(self._connection))
            except BaseException as error:  # noqa: BLE001  (it is raised in the thread that waits)
                answer.set_exception(error)

        thread = threading.Thread(target=run, name=_THREAD, daemon=True)
        began = time.monotonic()
        try:
            thread.start()
            return answer.result(max(0.0, self._left))
        except TimeoutError as error:
            self._stop(thread)
            raise UsageError(
                f"SQL: the statement ran longer than {self._limits.seconds:g} s; ask for less, or give `aaco sql` a "
                "longer --timeout"
            ) from error
        except BaseException:
            self._stop(thread)
            raise
        finally:
            self._left -= time.monotonic() - began

    def _stop(self, thread: threading.Thread) -> None:
        """Interrupt the thread. A long call of a single function cannot be interrupted and is abandoned."""
        until = time.monotonic() + _STOP_SECONDS
        while thread.is_alive() and time.monotonic() < until:
            self._connection.interrupt()  # repeatedly: an interrupt before the statement starts has no effect
            thread.join(_STOP_POLL_SECONDS)
        self._is_left_behind = thread.is_alive()

    def close(self) -> None:
        """Close the connection and remove spilled data."""
        if not self._is_left_behind:  # closing would block until it ends
            self._connection.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def out_of_memory(self) -> UsageError:
        """Return the error for a statement that exceeds its memory and disk space."""
        spilled = "" if self._folder is not None else ", and the lake cannot be written, so that nothing is spilled"
        return UsageError(
            f"SQL: the statement needs more than {self._limits.memory_bytes / 1e9:.3g} GB of memory and its "
            f"room on the disk{spilled}; ask for less, or give `aaco sql` a larger --memory"
        )
