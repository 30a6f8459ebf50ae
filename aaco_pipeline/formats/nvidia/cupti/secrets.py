"""A CUPTI stream copied without secrets: its texts are looked through, its records are numbers and stay as they are.

Looked at as text, packed numbers look like a secret once in some ten million bytes, and a stream that lost bytes there
is cut for its reader.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.nvidia.cupti import layout
from aaco_pipeline.formats.parsing.redaction.streams import redacted_whole

_NUMBERED: Final = (layout.NAMES, layout.CALL_NAMES, layout.SYMBOLS)


def without_secrets(pieces: Iterable[bytes], limits: Limits, place: str) -> Iterator[tuple[bytes, int]]:
    """A stream's pieces with every text that holds a secret replaced, and how many of each piece did.

    Of kinds that no reader knows, and of texts that were not written whole, as many zeros are kept as there were bytes.
    CaptureError for texts that contradict themselves: what is in them cannot be looked through.
    """
    source = _Source(pieces)
    yield source.take(layout.HEADER.itemsize), 0
    while head := source.take(layout.CHUNK.itemsize):
        if len(head) < layout.CHUNK.itemsize:
            yield bytes(len(head)), 0
            return
        kind, record_bytes, count, size = np.frombuffer(head, "<u4").tolist()
        plain = kind & ~layout.PACKED
        if plain not in (*_NUMBERED, layout.NOTES):
            yield head, 0
            for piece in source.passed_on(size):
                yield piece if plain in layout.RECORDS else bytes(len(piece)), 0
            continue
        if size > limits.whole_bytes:
            raise CaptureError(f"{place}: damaged: {size} bytes of texts in one chunk; copy the file again")
        payload = source.take(size)
        if len(payload) < size:
            yield head + bytes(len(payload)), 0
            return
        clean, hits = _clean_notes(payload) if plain == layout.NOTES else _clean_texts(payload, count, place)
        yield np.array([kind, record_bytes, count, len(clean)], "<u4").tobytes() + clean, hits


class _Source:
    """Pieces of any length as a file that is read from its beginning."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = memoryview(b"")

    def passed_on(self, count: int) -> Iterator[bytes]:
        """The next bytes as they come, fewer where there are no more."""
        while count:
            if not self._held:
                self._held = memoryview(next(self._pieces, b""))
                if not self._held:
                    return
            piece, self._held = self._held[:count], self._held[count:]
            count -= len(piece)
            yield bytes(piece)

    def take(self, count: int) -> bytes:
        """So many bytes, or fewer at the end."""
        return b"".join(self.passed_on(count))


def _clean_notes(payload: bytes) -> tuple[bytes, int]:
    clean = _clean(payload)
    return clean, int(clean != payload)


def _clean_texts(payload: bytes, count: int, place: str) -> tuple[bytes, int]:
    pieces, at, hits = list[bytes](), 0, 0
    for _ in range(count):
        end = at + 8 + int.from_bytes(payload[at + 4 : at + 8], "little")
        if end > len(payload):
            raise CaptureError(f"{place}: damaged: a text ends beyond its chunk; copy the file again")
        text = payload[at + 8 : end]
        clean = _clean(text)
        hits += clean != text
        pieces += [payload[at : at + 4], len(clean).to_bytes(4, "little"), clean, bytes(-len(clean) % 4)]
        at = end + -end % 4
    return b"".join(pieces), hits


def _clean(text: bytes) -> bytes:
    return redacted_whole(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
