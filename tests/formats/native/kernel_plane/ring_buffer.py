"""Pages of a ring buffer as the kernel writes them, for tests: made by a plain encoder, read by a plain loop."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PAGE: Final = 512
MISSED: Final = 1 << 31
STORED: Final = 1 << 30


@dataclass(frozen=True)
class Record:
    """One record, `delta` ns after the one before, with its data; or one without: `extend`, `stamp`, `discarded`."""

    delta: int
    data: bytes = b""
    kind: str = "data"
    value: int = 0

    def encoded(self) -> bytes:
        head = self.delta & 0x7FFFFFF
        if self.kind == "extend":
            return struct.pack("<II", head << 5 | 30, self.value)
        if self.kind == "stamp":
            return struct.pack("<II", head << 5 | 31, self.value)
        words = -(-len(self.data) // 4)
        padded = self.data.ljust(4 * words, b"\0")
        if self.kind == "discarded":
            return struct.pack("<II", (head or 1) << 5 | 29, 4 + len(padded) - 4) + padded[4:]
        if words <= 28 and words:
            return struct.pack("<I", head << 5 | words) + padded
        return struct.pack("<II", head << 5, len(padded) + 4) + padded


def page(began_ns: int, records: Sequence[Record], *, flags: int = 0, missed: int | None = None) -> bytes:
    """A page of `PAGE` bytes with these records."""
    content = b"".join(record.encoded() for record in records)
    stored = b"" if missed is None else struct.pack("<Q", missed)
    assert len(content) + len(stored) <= PAGE - 16
    return (struct.pack("<QQ", began_ns, len(content) | flags) + content + stored).ljust(PAGE, b"\0")


def plainly_read(pages: Sequence[tuple[int, Sequence[Record]]]) -> list[tuple[int, bytes]]:
    """When each record with data was written, and its data up to whole words."""
    found = []
    for began_ns, records in pages:
        at = began_ns
        for record in records:
            if record.kind == "extend":
                at += (record.value << 27) + record.delta
            elif record.kind == "stamp":
                at = (at >> 59 << 59) | (record.value << 27) + record.delta
            else:
                at += (record.delta or 1) if record.kind == "discarded" else record.delta
                if record.kind == "data":
                    found.append((at, record.data.ljust(-(-len(record.data) // 4) * 4, b"\0")))
    return found
