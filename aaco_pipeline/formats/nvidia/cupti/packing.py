"""Packed chunks of a CUPTI stream: many records as columns of steps, which take a tenth of the bytes.

`pack` of `aaco_pipeline/recording/profilers/injection.cpp` writes them. A record is so many 32-bit words. The payload
is a byte for each word, the bytes that its steps take (0, 1, 2 or 4), filled up to a multiple of four; the first
record; and for each word the steps of all other records from the one before: the difference modulo 2^32 with its sign
in the lowest bit.
"""

from typing import Final

import numpy as np

_STEPS: Final[dict[int, str]] = {1: "u1", 2: "<u2", 4: "<u4"}
_WORD: Final = np.dtype("<u4")


def unpacked(payload: bytes, record_bytes: int, count: int) -> bytes | None:
    """The records as `count` times `record_bytes` bytes; None where the payload is not of that many records."""
    words, odd = divmod(record_bytes, _WORD.itemsize)
    first = words + -words % _WORD.itemsize
    steps = first + record_bytes
    if odd or count < 1 or len(payload) < steps:
        return None
    widths = payload[:words]
    if not {*widths} <= {0, *_STEPS} or len(payload) != steps + sum(widths) * (count - 1):
        return None
    records = np.empty((count, words), _WORD)
    records[:] = np.frombuffer(payload, dtype=_WORD, count=words, offset=first)
    at = steps
    for word, width in enumerate(widths):
        if width:
            coded = np.frombuffer(payload, dtype=np.dtype(_STEPS[width]), count=count - 1, offset=at).astype(_WORD)
            at += width * (count - 1)
            # Sums wrap around as the recorder's differences do.
            records[1:, word] += np.cumsum((coded >> 1) ^ -(coded & 1), dtype=_WORD)
    return records.tobytes()
