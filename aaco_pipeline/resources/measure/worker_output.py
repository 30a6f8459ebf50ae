"""Reading what a measured process prints, line by line, as long as it may take."""

import os
import selectors
import time
from collections.abc import Callable
from typing import IO, Final

#: A line longer than this is not the project's own word, and only its end is kept.
_LONGEST_LINE_BYTES: Final = 4096
_LONGEST_WAIT_SECONDS: Final = 0.5


def follow(stream: IO[bytes], deadline: float, take: Callable[[bytes], None]) -> bool:
    """Give every line to `take` until the stream closes; False when the monotonic clock reaches `deadline` first.

    Waits in pieces: Polars takes over the interrupt signal in such a way that a read would sleep through Ctrl-C.
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
