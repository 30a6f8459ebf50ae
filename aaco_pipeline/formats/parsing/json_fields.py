"""Read values of many small JSON objects at once: match keys by words, read numbers and texts as full columns.

Numbers are converted from decimal text to integers without floating point. `json_stream` locates the objects.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache, cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from aaco_pipeline.formats.parsing.json_stream import BACKSLASH, COLON, QUOTE, Bytes, Elements, Positions, Words

Flags = npt.NDArray[np.bool_]

_ABSENT: Final = -1
_ONES: Final = np.uint64(0x0101010101010101)
#: Keeps the first n bytes of a word read in the machine's little-endian order.
_MASKS: Final = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)
_TENS: Final = np.array([10**n for n in range(20)], np.uint64)
_SPACE: Final = np.zeros(256, np.bool_)
_SPACE[list(b" \t\r\n")] = True
_BEHIND_NUMBER: Final = np.zeros(256, np.bool_)
_BEHIND_NUMBER[list(b" \t\r\n,]}")] = True
_INLINE: Final = 12
_ALL: Final = np.uint64(2**64 - 1)
#: Smaller numbers stay below 2^62 when multiplied by a thousand.
_LATEST: Final = 2**62 // 1000


@dataclass(frozen=True)
class Column:
    """One integer per row; where `valid` is False, the value is meaningless."""

    value: npt.NDArray[np.int64] | Words
    valid: Flags

    def series(self) -> pl.Series:
        """Convert to a Polars column, null if not valid."""
        kind = pa.uint64() if self.value.dtype == np.uint64 else pa.int64()
        buffers = [_bitmap(self.valid), pa.py_buffer(np.ascontiguousarray(self.value))]
        return pl.Series(pl.from_arrow(pa.Array.from_buffers(kind, len(self.value), buffers)))


class Objects:
    """The objects of a piece, with the positions of the wanted keys in each.

    `keys` are those directly in an object, `inner` those of the object under its key `within`. The last of repeated
    keys counts, as in Python's parser. Keys are compared as raw text, so an escaped key is not found.
    """

    def __init__(self, piece: Bytes, found: Elements, keys: Sequence[str], within: str, inner: Sequence[str]) -> None:
        self.piece = piece
        self.count = len(found.start)
        self._words = np.ndarray((len(piece) - 7,), np.dtype("<u8"), piece.data, strides=(1,))
        self._tokens = found.tokens
        self._slashes = np.flatnonzero(piece == BACKSLASH)
        colon = np.flatnonzero(self._tokens.byte == COLON)
        begun = (self._tokens.depth == 1) & (self._tokens.byte == ord("{"))
        self._owner = (np.cumsum(begun, dtype=np.int32) - 1)[colon]
        depth = self._tokens.depth[colon]
        depth[self._owner < 0] = 0
        self._colon = self._tokens.position[colon]
        self._close = self._before(self._colon)
        # Number of the outer key: the key itself or the one it is nested in.
        number = np.cumsum(depth == 1, dtype=np.int32)
        self._where: dict[str, Positions] = {}
        ends = self._ends((*keys, within, *inner))
        outer, below = depth == 1, depth == 2
        for name in keys:
            self._note(name, self._named(name, ends, outer))
        holder = np.full(self.count, _ABSENT, np.int32)
        holding = self._named(within, ends, outer)
        holder[self._owner[holding]] = number[holding]
        for name in inner:
            hit = self._named(name, ends, below)
            self._note(name, hit[holder[self._owner[hit]] == number[hit]])

    def _note(self, name: str, hit: Positions) -> None:
        """Record for each object the colon after the key."""
        where = np.full(self.count, _ABSENT, np.int64)
        where[self._owner[hit]] = self._colon[hit]
        self._where[name] = where

    def _before(self, at: Positions) -> Positions:
        """Step back from a position over any whitespace before it."""
        at = at - 1
        while len(moving := np.flatnonzero(_SPACE[self.piece[at]])):
            at[moving] -= 1
        return at

    def _ends(self, names: Sequence[str]) -> dict[int, Positions]:
        """Group the keys by their last bytes, for the endings of the wanted names."""
        end = self._words[np.maximum(self._close - 3, 0)] & _MASKS[3]
        known, place = _end_places(tuple(names))
        of = place[end]
        return {number: np.flatnonzero(of == at) for at, number in enumerate(known, start=1)}

    def _named(self, name: str, ends: Mapping[int, Positions], among: Flags) -> Positions:
        """Find the keys that equal a name: its text between unescaped quotes."""
        text = b'"' + name.encode()
        hit = ends[_end_of(name)]
        hit = hit[among[hit]]
        close = self._close[hit]
        fits = (close >= len(text)) & (self.piece[close] == QUOTE)
        start = np.maximum(close - len(text), 0)
        if len(self._slashes):
            fits &= self.piece[start - 1] != BACKSLASH
        for at in range(0, len(text), 8):
            part = text[at : at + 8]
            word = self._words[start + at] & _MASKS[len(part)]
            fits &= word == np.uint64(int.from_bytes(part, "little"))
        return hit if fits.all() else hit[fits]

    def texts(self, name: str, rows: Positions) -> pl.Series:
        """Read a key's texts in some objects, null if absent or not a text."""
        valid, start = self._values(name, rows)
        valid = valid & (self.piece[start] == QUOTE)
        if not valid.any():
            return pl.Series(name, [None] * len(rows), pl.String)
        start = np.where(valid, start, start[valid.argmax()])
        stop = self._closing(start)
        series = self._strings(start + 1, stop, valid)
        return (self._unescaped(series, start, stop, valid) if len(self._slashes) else series).alias(name)

    def integers(self, name: str, rows: Positions) -> Column:
        """Read signed integers of up to 18 digits; anything else is not valid."""
        valid, start = self._values(name, rows)
        value, good, _ = self._whole(start)
        return Column(value, valid & good)

    def unsigned(self, name: str, rows: Positions) -> Column:
        """Read integers from 0 to 2^64 - 1; anything else is not valid."""
        valid, start = self._values(name, rows)
        value, digits, stop = self._digits(start)
        good = valid & (digits > 0) & (digits < 20) & _BEHIND_NUMBER[self.piece[stop]]
        for row in np.flatnonzero(valid & (digits == 20) & _BEHIND_NUMBER[self.piece[stop]]):
            number = int(self.piece[start[row] : stop[row]].tobytes())
            good[row] = number < 2**64
            value[row] = number if good[row] else 0
        return Column(value, good)

    def thousandths(self, name: str, rows: Positions) -> Column:
        """Read decimal numbers times 1000, exact to the third decimal and rounded half away from zero beyond it.

        Not valid if absent, not a number, not finite or beyond 2^62.
        """
        valid, start = self._values(name, rows)
        negative = self.piece[start] == ord("-")
        start = start + negative
        whole, digits, stop = self._digits(start)
        dotted = self.piece[stop] == ord(".")
        fraction = np.zeros(len(rows), np.uint64)
        decimals = np.zeros(len(rows), np.int64)
        at = np.flatnonzero(dotted)
        value, count = self._eight(stop[at] + 1)
        decimals[at] = count
        # The first three decimals, and the fourth for rounding.
        four = np.where(count >= 4, value // _TENS[np.maximum(count - 4, 0)], value * _TENS[np.maximum(4 - count, 0)])
        fraction[at] = (four + np.uint64(5)) // np.uint64(10)
        behind = self.piece[np.where(dotted, stop + 1 + decimals, stop)]
        plain = (digits > 0) & (digits <= 19) & (whole < _LATEST) & _BEHIND_NUMBER[behind]
        plain &= ~dotted | ((decimals > 0) & (decimals < 8))
        result = (whole * np.uint64(1000) + fraction).astype(np.int64)
        result = np.where(negative, -result, result)
        for row in np.flatnonzero(valid & ~plain):
            exact = _thousandths(self.piece[start[row] - int(negative[row]) : start[row] + 64].tobytes())
            plain[row] = exact is not None
            result[row] = exact or 0
        return Column(result, valid & plain)

    def triples(self, name: str, rows: Positions) -> tuple[Column, Column, Column]:
        """Read lists of three integers; missing elements of a shorter list are not valid."""
        valid, at = self._values(name, rows)
        valid = valid & (self.piece[at] == ord("["))
        columns = []
        for _ in range(3):
            at = self._skip(np.where(valid, at + 1, at))
            value, good, stop = self._whole(at)
            valid = valid & good
            columns.append(Column(value, valid))
            at = self._skip(np.where(valid, stop, at))
        return columns[0], columns[1], columns[2]

    def any_has(self, name: str) -> bool:
        """Return whether any of the objects has a key."""
        return bool((self._where[name] != _ABSENT).any())

    def lists(self, name: str, rows: Positions) -> pl.Series:
        """Read a key's lists as text, null if the key is absent or its value is not a list."""
        valid, start = self._values(name, rows)
        valid = valid & (self.piece[start] == ord("["))
        if not valid.any():
            return pl.Series(name, [None] * len(rows), pl.String)
        start = np.where(valid, start, start[valid.argmax()])
        opened, ends = self._brackets
        return self._strings(start, ends[np.searchsorted(opened, start)] + 1, valid).alias(name)

    @cached_property
    def _brackets(self) -> tuple[Positions, Positions]:
        """Locate matching brackets: on each level, opening and closing ones alternate."""
        bracket = np.flatnonzero(self._tokens.byte != COLON)
        position, depth, byte = (of[bracket] for of in (self._tokens.position, self._tokens.depth, self._tokens.byte))
        opens = (byte == ord("[")) | (byte == ord("{"))
        level, opened, closed = np.where(opens, depth, depth + 1), position[opens], position[~opens]
        ends = np.empty_like(opened)
        ends[np.argsort(level[opens], kind="stable")] = closed[np.argsort(level[~opens], kind="stable")]
        return opened, ends

    def _values(self, name: str, rows: Positions) -> tuple[Flags, Positions]:
        """Return which objects have the key, and where its value begins."""
        colon = self._where[name][rows]
        valid = colon != _ABSENT
        return valid, self._skip(np.where(valid, colon + 1, 0))

    def _closing(self, start: Positions) -> Positions:
        """Locate the closing quotes of strings from their opening ones."""
        quotes = self._tokens.quotes
        word, bit = (start + 1) >> 6, ((start + 1) & 63).astype(np.uint64)
        bits = quotes[word] & (_ALL << bit)
        while len(moving := np.flatnonzero(bits == 0)):
            word[moving] += 1
            bits[moving] = quotes[word[moving]]
        lowest = bits & (~bits + np.uint64(1))
        ends: Positions = (word << 6) + np.bitwise_count(lowest - np.uint64(1))
        return ends

    def _skip(self, at: Positions) -> Positions:
        """Advance over whitespace; the zero bytes after the piece end it."""
        moving = np.flatnonzero(_SPACE[self.piece[at]])
        if not len(moving):
            return at
        at = at.copy()
        while len(moving):
            at[moving] += 1
            moving = moving[_SPACE[self.piece[at[moving]]]]
        return at

    def _whole(self, start: Positions) -> tuple[npt.NDArray[np.int64], Flags, Positions]:
        negative = self.piece[start] == ord("-")
        value, digits, stop = self._digits(start + negative)
        good = (digits > 0) & (digits <= 18) & _BEHIND_NUMBER[self.piece[stop]]
        signed = value.astype(np.int64)
        return np.where(negative, -signed, signed), good, stop

    def _digits(self, start: Positions) -> tuple[Words, Positions, Positions]:
        """Return value (exact up to 19 digits), number of digits (counted up to 24) and the position after them."""
        value, count = self._eight(start)
        total = count
        for _ in range(2):
            at = np.flatnonzero((count == 8) & (total % 8 == 0))
            if not len(at):
                break
            more, added = self._eight(start[at] + total[at])
            value[at] = value[at] * _TENS[added] + more
            total = total.copy()
            total[at] += added
            count = np.zeros_like(count)
            count[at] = added
        return value, total, start + total

    def _eight(self, start: Positions) -> tuple[Words, Positions]:
        """Parse at most eight digits by arithmetic within a word; return the number and the digit count."""
        word = self._words[start] ^ (_ONES * np.uint64(0x30))
        other = (((word & (_ONES * np.uint64(0x7F))) + _ONES * np.uint64(0x76)) | word) & (_ONES * np.uint64(0x80))
        lowest = other & (~other + np.uint64(1))
        count = (np.bitwise_count(lowest - np.uint64(1)) >> 3).astype(np.int64)
        word <<= (64 - 8 * count).astype(np.uint64)  # leading zeros before the digits
        word = (word * np.uint64(2561)) >> np.uint64(8)
        word = ((word & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
        word = ((word & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32)
        return word, count

    def _strings(self, start: Positions, stop: Positions, valid: Flags) -> pl.Series:
        """Build texts as views into the piece, which is valid UTF-8, without copying long ones. Null if not valid."""
        length = stop - start
        inline = length <= _INLINE
        views = np.empty((len(start), 2), np.uint64)
        first = self._words[start] & _MASKS[np.minimum(length, 8)]
        views[:, 0] = length.astype(np.uint64) | (first << np.uint64(32))
        tail = self._words[start + 4] & _MASKS[np.clip(length - 4, 0, 8)]
        views[:, 1] = np.where(inline, tail, start.astype(np.uint64) << np.uint64(32))
        array = pa.Array.from_buffers(
            pa.string_view(), len(start), [_bitmap(valid), pa.py_buffer(views), pa.py_buffer(self.piece.data)]
        )
        return pl.Series(pl.from_arrow(array))

    def _unescaped(self, series: pl.Series, start: Positions, stop: Positions, valid: Flags) -> pl.Series:
        """Resolve escapes in texts; each distinct text is parsed once."""
        holds = valid & (np.searchsorted(self._slashes, stop) > np.searchsorted(self._slashes, start))
        if not holds.any():
            return series
        raw = series.filter(pl.Series(holds)).unique()
        plain = pl.Series([_unescape(text) for text in raw.to_list()], dtype=pl.String)
        return pl.select(
            pl.when(pl.Series(holds)).then(series.replace_strict(raw, plain, default=None)).otherwise(series)
        ).to_series()


def _bitmap(valid: Flags) -> pa.Buffer | None:
    """Build Arrow's validity bitmap; None if all values are valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _end_of(name: str) -> int:
    """Return the last three bytes of a key, including the quote before a short one."""
    return int.from_bytes((b'"' + name.encode())[-3:], "little")


@cache
def _end_places(names: tuple[str, ...]) -> tuple[tuple[int, ...], Bytes]:
    """List the names' endings, and map every possible ending to its 1-based place in that list; 0 for any other."""
    known = tuple(sorted(set(map(_end_of, names))))
    place = np.zeros(1 << 24, np.uint8)
    place[list(known)] = np.arange(1, len(known) + 1)
    return known, place


def whole(value: object, most: int = 2**63 - 1) -> int | None:
    """Return a parsed value that is an integer from 0 to `most`, else None."""
    return value if type(value) is int and 0 <= value <= most else None


def _unescape(text: str) -> str:
    """Resolve a text's escapes; invalid ones leave it unchanged. Unpaired surrogates are replaced."""
    try:
        return str(json.loads(f'"{text}"', strict=False)).encode("utf-8", "replace").decode()
    except ValueError:
        return text


def _thousandths(text: bytes) -> int | None:
    """Parse the decimal number at the start of `text` times 1000, for rare forms: exponents, many digits."""
    end = next((at for at, byte in enumerate(text) if _BEHIND_NUMBER[byte]), len(text))
    number = text[:end].decode("ascii", "replace")
    if not number[-1:].isdigit() or number.strip("0123456789+-.eE"):
        return None
    try:
        value = Decimal(number)
        if value.adjusted() < -15:
            return 0
        if value.adjusted() > 15 or abs(value) >= _LATEST:
            return None
        return int((value * 1000).quantize(Decimal(1), rounding="ROUND_HALF_UP"))
    except InvalidOperation:
        return None
