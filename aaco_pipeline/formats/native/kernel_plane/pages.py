"""Pages of the kernel's ring buffer as records: when each was written, of which event, and where its bytes lie."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aaco_pipeline.errors import CaptureError

Numbers = npt.NDArray[np.int64]
Loss = tuple[int | None, int, int | None]
#: A page begins with the time of its first record and how many bytes of records follow.
HEADER_BYTES: Final = 16
_SIZE_BITS: Final = 0xFFFFFFF
#: Of the size's word: records were lost before this page, and how many stands behind its records.
_MISSED: Final = 1 << 31
_COUNT_STORED: Final = 1 << 30
#: What the low five bits of a record's first word say besides how many words of data it has.
_LONG, _PADDING, _EXTEND, _STAMP = 0, 29, 30, 31
_DELTA_SHIFT: Final = 27


@dataclass(frozen=True)
class _Heads:
    """What the pages say of themselves: when each began, its word on its size, the size, and where its records are."""

    began_ns: Numbers
    commit: Numbers
    sizes: Numbers
    begins: Numbers


@dataclass(frozen=True)
class Records:
    """The records of one buffer in their order: `time_ns`, the event's number `event`, and where in the buffer's bytes
    their data begin (`offset`) and how many there are (`size`).

    `losses`: the time of the last record before each loss (None: there is none), of the first after it, and how many
    were lost (None: unknown).
    """

    time_ns: Numbers
    event: Numbers
    offset: Numbers
    size: Numbers
    losses: tuple[Loss, ...]


def records_of(content: bytes, page_bytes: int, where: str) -> Records:
    """Read all pages at once, the first record of every page, then the second, and so on.

    CaptureError when a page is not one, which names `where`.
    """
    if page_bytes < 2 * HEADER_BYTES or page_bytes % 8 or len(content) % page_bytes:
        raise CaptureError(f"{where}: {len(content)} bytes are no whole number of pages of {page_bytes}; copy it again")
    pages = len(content) // page_bytes
    words = np.frombuffer(content, "<u4")
    heads = np.frombuffer(content, "<u8").reshape(pages, page_bytes // 8)[:, :2].astype(np.uint64)
    commit = heads[:, 1].astype(np.int64)
    sizes = commit & _SIZE_BITS & ~(_MISSED | _COUNT_STORED)
    if pages and int(sizes.max()) > page_bytes - HEADER_BYTES:
        raise CaptureError(f"{where}: a page claims more bytes than it has; the file is damaged")
    begins = np.arange(pages, dtype=np.int64) * page_bytes + HEADER_BYTES
    ends, at = begins + sizes, begins.copy()
    clock = heads[:, 0].astype(np.int64)
    head_of = _Heads(clock.copy(), commit, sizes, begins)
    found: list[tuple[Numbers, ...]] = []
    live = np.flatnonzero(at < ends)
    while len(live):
        place = at[live]
        head = words[place >> 2].astype(np.int64)
        kind, delta = head & 31, head >> 5
        room = ends[live] - place
        second = words[np.minimum(place + 4, len(content) - 4) >> 2].astype(np.int64)
        is_data = kind < _PADDING
        length = np.where(kind == _LONG, second, kind * 4) + 4
        length = np.where(kind == _PADDING, np.where(delta > 0, second + 4, room), length)
        length = np.where(kind >= _EXTEND, 8, length)
        if (length < 4).any() or (length > room).any() or (length & 3).any():
            raise CaptureError(f"{where}: a record reaches beyond its page; the file is damaged")
        stamp = (second << _DELTA_SHIFT) + delta
        # A stamp has 59 bits; the upper ones are those of the time before it.
        absolute = (clock[live] & ~((1 << 59) - 1)) | (stamp & ((1 << 59) - 1))
        moved = np.where(kind == _EXTEND, clock[live] + stamp, clock[live] + delta)
        moved = np.where(kind == _STAMP, absolute, moved)
        # Padding that ends a page has no time; what was discarded within it keeps its share of the time.
        clock[live] = np.where((kind == _PADDING) & (delta == 0), clock[live], moved)
        data = np.where(kind == _LONG, place + 8, place + 4)
        kept = is_data & (place + length - data >= 2)
        found.append((live[kept], clock[live][kept], data[kept], (place + length - data)[kept]))
        at[live] = place + length
        live = live[at[live] < ends[live]]
    if not found:
        nothing = np.zeros(0, np.int64)
        return Records(nothing, nothing, nothing, nothing, ())
    page, time_ns, offset, size = (np.concatenate(one) for one in zip(*found, strict=True))
    order = np.lexsort((offset, page))
    page, time_ns, offset, size = page[order], time_ns[order], offset[order], size[order]
    event = numbers(content, offset, 0, 2, signed=False)
    return Records(time_ns, event, offset, size, _losses(content, head_of, page, time_ns))


def numbers(content: bytes, offset: Numbers, at: int, size: int, *, signed: bool) -> Numbers:
    """A number of `size` bytes, `at` so many into the data of each record."""
    raw = np.frombuffer(content, np.uint8)[(offset[:, None] + at + np.arange(size))]
    dtype = np.dtype(f"<{'i' if signed else 'u'}{size}")
    return np.ascontiguousarray(raw).view(dtype)[:, 0].astype(np.int64)


def texts(content: bytes, offset: Numbers, at: int, size: int) -> npt.NDArray[Any]:
    """A text of at most `size` bytes that a zero ends, `at` so many into the data of each record: an array of bytes."""
    raw = np.frombuffer(content, np.uint8)[(offset[:, None] + at + np.arange(size))]
    over = np.cumsum(raw == 0, axis=1) > 0
    return np.ascontiguousarray(np.where(over, 0, raw)).astype(np.uint8).view(f"S{size}")[:, 0]


def _losses(content: bytes, heads: _Heads, page: Numbers, time_ns: Numbers) -> tuple[Loss, ...]:
    losses = list[Loss]()
    missed = np.flatnonzero(heads.commit & _MISSED)
    # Pages are in order: where the records of each begin, and where those of the next do.
    since, until = np.searchsorted(page, missed, side="left"), np.searchsorted(page, missed, side="right")
    for one, first, last in zip(missed.tolist(), since.tolist(), until.tolist(), strict=True):
        after = int(time_ns[first]) if first < last else int(heads.began_ns[one])
        behind = int(heads.begins[one] + heads.sizes[one])
        count = int.from_bytes(content[behind : behind + 8], "little") if heads.commit[one] & _COUNT_STORED else None
        losses.append((int(time_ns[first - 1]) if first else None, after, count))
    return tuple(losses)
