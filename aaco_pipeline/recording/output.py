"""What a program writes, passed on as it comes: unchanged, in order, and with no more of it kept than its end."""

import os
import select
import threading
from dataclasses import dataclass
from typing import Final

#: What is kept of the end of each stream.
TAIL_BYTES: Final = 64 << 10
_PIECE: Final = 1 << 16
_WAIT_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Written:
    """What came of one stream: how many bytes, and the last of them."""

    total_bytes: int
    tail: bytes


class Pump:
    """One stream from a pipe to a descriptor, in a thread of its own, until the pipe closes or `finish` is called.

    Where nobody reads what is passed on any more, the pipe is closed as well: the program then meets what it would have
    met without a recorder between. Without a `target` the stream is only counted and its tail kept.
    """

    def __init__(self, source: int, target: int | None, name: str) -> None:
        self._source, self._target = source, target
        self._total = 0
        self._tail = bytearray()
        self._program_is_gone = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"output-{name}", daemon=True)
        self._thread.start()

    def finish(self) -> Written:
        """Pass on what the pipe still holds and no more: somebody who is not the program's may hold it open."""
        self._program_is_gone.set()
        self._thread.join()
        return Written(self._total, bytes(self._tail[-TAIL_BYTES:]))

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        try:
            while True:
                last_look = self._program_is_gone.is_set()
                if not poll.poll(0 if last_look else _WAIT_SECONDS * 1000):
                    if last_look:
                        return
                    continue
                piece = os.read(self._source, _PIECE)
                if not piece:
                    return
                self._total += len(piece)
                self._tail += piece
                if len(self._tail) > 2 * TAIL_BYTES:
                    del self._tail[:-TAIL_BYTES]
                if self._target is not None:
                    _write(self._target, piece)
        except OSError:
            return  # nobody takes it: a closed pipe, a terminal that is gone, a full disk behind a redirection
        finally:
            os.close(self._source)


def _write(target: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # a terminal or pipe that somebody has made non-blocking
            select.select([], [target], [])
