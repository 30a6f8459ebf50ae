"""Encode protobuf records by the million: constant bytes with columns of fixed width between them, spooled to disk.

This encoder writes 4 M slices/s; the builders of the package `perfetto` write 0.25 M. It relies on decoders accepting
varints that are longer than they need to be, so that all records of a kind have one size.
"""

import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aaco_pipeline.report.perfetto.lanes import Integers, Mask

Bytes = npt.NDArray[np.uint8]

_CHUNK_EVENTS: Final = 1 << 15  # so that a chunk's records stay in the processor's cache


@dataclass(frozen=True)
class Cells:
    """A column encoded to one width: row i is line i of `table`, or line `index[i]`."""

    table: Bytes
    index: Integers | None = None

    def of(self, rows: Integers) -> Bytes:
        return np.take(self.table, rows if self.index is None else self.index[rows], axis=0)


Part = bytes | Cells


@dataclass(frozen=True)
class Field:
    """A message field that only the rows of `present` have; None means all rows."""

    parts: Sequence[Part]
    present: Mask | None = None


class _Template:
    """A fixed-size record, which overlong varints make possible."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.cells: list[tuple[slice, Cells]] = []
        self.width = 0
        for part in parts:
            size = _size(part)
            if isinstance(part, Cells):
                self.cells.append((slice(self.width, self.width + size), part))
            self.width += size
        constant = b"".join(part if isinstance(part, bytes) else bytes(_size(part)) for part in parts)
        self.record = np.frombuffer(constant, np.uint8).reshape(1, -1)

    def fill(self, rows: Integers) -> Bytes:
        """Fill the records of `rows`, one per line."""
        records = np.repeat(self.record, len(rows), axis=0)
        for columns, cells in self.cells:
            records[:, columns] = cells.of(rows)
        return records


def _size(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else part.table.shape[1]


def _varint(number: int) -> bytes:
    """Encode a tag or length in as few bytes as possible."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def number_field(field: int, value: Cells | int) -> list[Part]:
    return [_varint(field << 3), value if isinstance(value, Cells) else _varint(value)]


def fixed64_field(field: int, values: npt.NDArray[Any]) -> list[Part]:
    little_endian = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return [_varint(field << 3 | 1), Cells(little_endian.view(np.uint8).reshape(-1, 8))]


def message_field(field: int, parts: Sequence[Part]) -> list[Part]:
    return [_varint(field << 3 | 2) + _varint(sum(map(_size, parts))), *parts]


def largest(values: npt.NDArray[Any]) -> int:
    """Return the largest of these integers as a varint; negative ones need all ten bytes."""
    return int(_unsigned(values).max(initial=0))


def _unsigned(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    return values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)


def varints(values: npt.NDArray[Any], index: Integers | None = None, most: int | None = None) -> Cells:
    """Encode integers, each with the number of bytes that the largest of them, or `most`, needs."""
    numbers = _unsigned(values)
    width = max(1, -(-(largest(values) if most is None else most).bit_length() // 7))
    table = np.empty((len(numbers), width), np.uint8)
    for i in range(width):
        table[:, i] = (numbers >> np.uint64(7 * i)).astype(np.uint8) | np.uint8(128)
    table[:, -1] &= 127
    return Cells(table, index)


def packet_templates(
    sequence: int, time: Cells, event: int, fields: Sequence[Field]
) -> tuple[Integers, list[_Template]]:
    """Create templates of packets with the message `event`, and return each row's template number.

    There is one template per distinct set of present fields.
    """
    pattern = np.zeros(len(time.table), np.int64)
    optional = [field.present for field in fields if field.present is not None]
    for i, present in enumerate(optional):
        pattern |= present.astype(np.int64) << i
    occurring = np.unique(pattern) if optional else np.zeros(1, np.int64)
    templates = []
    for bits in occurring.tolist():
        has = iter([bool(bits >> i & 1) for i in range(len(optional))])
        parts = [part for field in fields if field.present is None or next(has) for part in field.parts]
        head = [
            *number_field(8, time),
            *number_field(10, sequence),
            *number_field(13, 2),
        ]  # 2: needs the interned strings
        templates.append(_Template(message_field(1, [*head, *message_field(event, parts)])))
    return np.searchsorted(occurring, pattern), templates


def packets_in_order(templates: Sequence[_Template], of_event: Integers, rows: Integers) -> Iterator[bytes]:
    """Encode all events in order: event i is row `rows[i]` in the template `of_event[i]`."""
    widths = np.array([template.width for template in templates], np.int64)
    for begin in range(0, len(rows), _CHUNK_EVENTS):
        kinds, chunk = of_event[begin : begin + _CHUNK_EVENTS], rows[begin : begin + _CHUNK_EVENTS]
        ends = np.cumsum(widths[kinds])
        content = np.empty(ends[-1], np.uint8)
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            events, width = np.flatnonzero(kinds == kind), templates[kind].width
            # View every offset of the chunk as a slot for a whole record, so that each record is one copy.
            places = np.ndarray((len(content) - width + 1,), f"V{width}", content, strides=(1,))
            places[ends[events] - width] = templates[kind].fill(chunk[events]).view(f"V{width}")[:, 0]
        yield content.tobytes()


#: Smaller spools stay in memory.
_HELD_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class Stored:
    """Position of a stored array: first byte, number of values, and type."""

    at: int
    count: int
    dtype: np.dtype[Any]


class Spool:
    """A temporary file of arrays, in memory while small. OSError when the disk is full."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_HELD_BYTES)  # noqa: SIM115 (open as long as this object is)
        weakref.finalize(self, self._file.close)
        self._end = 0

    def put(self, values: npt.NDArray[Any]) -> Stored:
        self._file.seek(self._end)
        self._file.write(np.ascontiguousarray(values).data.cast("B") if len(values) else b"")
        stored = Stored(self._end, len(values), values.dtype)
        self._end += values.nbytes
        return stored

    def get(self, stored: Stored, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """Read the values of the half-open range from `first` to `last`."""
        count = (stored.count if last is None else last) - first
        self._file.seek(stored.at + first * stored.dtype.itemsize)
        return np.frombuffer(self._file.read(count * stored.dtype.itemsize), stored.dtype)
