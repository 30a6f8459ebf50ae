"""Progress of work, reported to a listener: the command draws a bar, Dagster writes a log line.

The listener is a context variable, so the functions between the command and the reporting loop need not pass it on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done, and how many there are."""

_listener: ContextVar[Listener | None] = ContextVar("aaco_progress_listener", default=None)


def report_progress(doing: str, done: int, total: int) -> None:
    """Notify the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(doing, done, total)


@contextmanager
def progress_listener(listener: Listener) -> Iterator[None]:
    """Report all progress within the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
