"""A CUPTI stream from its bytes to columns and texts, chunk by chunk; the layouts are `layout`'s.

What the columns become is `tables` and `host_records`; nothing is concluded here.
"""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.nvidia.cupti import layout
from aaco_pipeline.formats.nvidia.cupti.packing import unpacked
from aaco_pipeline.formats.nvidia.cupti.signs import MAGIC
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed
from aaco_pipeline.lake.on_disk import GrowingColumn

Columns = dict[str, NDArray[Any]]
#: Records are taken out of their chunks in blocks of at least so many bytes: a chunk may hold a single record.
_BLOCK_BYTES: Final = 4 << 20
_TEXTS: Final = (layout.NAMES, layout.CALL_NAMES, layout.SYMBOLS)


@dataclass
class Stream:
    """What one stream holds: its header, columns by kind, texts by number, notes; and how it ends.

    `torn_bytes` are those of a last chunk that was not written whole, `unknown` counts records of kinds not known here.
    """

    path: Path
    header: dict[str, int]
    columns: dict[int, Columns] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    symbols: dict[int, str] = field(default_factory=dict)
    call_names: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unknown: dict[int, int] = field(default_factory=dict)
    torn_bytes: int = 0
    ends_with_end: bool = False

    def count(self, kind: int) -> int:
        """Records of a kind."""
        columns = self.columns.get(kind)
        return len(next(iter(columns.values()))) if columns else 0

    def take(self, kind: int) -> Columns:
        """The columns of a kind, handed over: they are freed with what takes them."""
        empty = {name: np.zeros(0, layout.RECORDS[kind][name].base) for name in _kept(kind)}
        return self.columns.pop(kind, None) or empty


def _kept(kind: int) -> list[str]:
    left_out = layout.UNUSED.get(kind, ())
    return [name for name in layout.RECORDS[kind].names or () if name not in left_out]


def read_stream(path: Path, limits: Limits) -> Stream:
    """All of a stream, up to a chunk that is cut. CaptureError for no stream, and for one that contradicts itself."""
    with open_decompressed(path, limits) as file:
        try:
            return _Reading(path, file, limits).stream()
        except DAMAGED as error:
            raise CaptureError(f"{path}: cannot be read: {error}; copy the file again") from error


class _Reading:
    """One stream while it is read."""

    def __init__(self, path: Path, file: io.BufferedIOBase, limits: Limits) -> None:
        self._path, self._file, self._limits = path, file, limits
        self._at = self._events = 0
        self._pending: dict[tuple[int, int], bytearray] = {}
        self._columns: dict[int, dict[str, GrowingColumn]] = {}

    def stream(self) -> Stream:
        found = Stream(self._path, self._header())
        while head := self._take(layout.CHUNK.itemsize):
            if len(head) < layout.CHUNK.itemsize:
                found.torn_bytes = len(head)
                break
            kind, record_bytes, count, payload_bytes = (int(value) for value in np.frombuffer(head, "<u4"))
            is_packed, kind = bool(kind & layout.PACKED), kind & ~layout.PACKED
            self._check(kind, record_bytes, count, payload_bytes, is_packed=is_packed)
            payload = self._take(payload_bytes)
            if len(payload) < payload_bytes:
                found.torn_bytes = len(head) + len(payload)
                break
            if is_packed and kind in layout.RECORDS:
                records = unpacked(payload, record_bytes, count)
                if records is None:
                    raise self._damaged(kind, record_bytes, count, payload_bytes)
                payload = records
            found.ends_with_end = kind == layout.ENDS
            self._put(found, kind, record_bytes, count, payload)
        for kind, record_bytes in list(self._pending):
            self._unpack(kind, record_bytes)
        for kind in list(self._columns):
            found.columns[kind] = {name: column.array() for name, column in self._columns.pop(kind).items()}
        return found

    def _take(self, count: int) -> bytes:
        """So many bytes, or fewer at the end."""
        pieces = []
        while count and (piece := self._file.read(count)):
            pieces.append(piece)
            count -= len(piece)
            self._at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _header(self) -> dict[str, int]:
        head = self._take(layout.HEADER.itemsize)
        if head[: len(MAGIC)] != MAGIC:
            raise CaptureError(f"{self._path}: no CUPTI stream: it does not begin with {MAGIC.decode()}")
        if len(head) < layout.HEADER.itemsize:
            raise CaptureError(
                f"{self._path}: a CUPTI stream cut within its header: the process died as it began; record it again"
            )
        values = np.frombuffer(head, layout.HEADER)[0]
        header = {name: int(values[name]) for name in ("version", "pid", "cupti_version", "driver_version")}
        header |= {name: int(values[name]) for name in ("monotonic", "realtime", "cupti")}
        if header["version"] != layout.VERSION:
            raise CaptureError(
                f"{self._path}: a CUPTI stream of version {header['version']}, and {layout.VERSION} is known; read it "
                "with the release of aaco_pipeline that recorded it, or a later one"
            )
        return header

    def _check(self, kind: int, record_bytes: int, count: int, payload_bytes: int, *, is_packed: bool) -> None:
        """Refuse a chunk that no recorder writes: what follows it would be read wrongly."""
        most = self._limits.whole_bytes
        if kind in layout.RECORDS:
            smallest = min(layout.RECORDS[kind].itemsize, 8)
            whole = record_bytes * count
            sound = count > 0 and record_bytes >= smallest and (whole <= most if is_packed else whole == payload_bytes)
        else:
            sound = kind not in _TEXTS or payload_bytes >= 8 * count
        if not sound or payload_bytes > most:
            raise self._damaged(kind, record_bytes, count, payload_bytes)
        self._events += count if kind in layout.RECORDS else 0
        if self._events > self._limits.events:
            raise CaptureError(f"{self._path}: more than {self._limits.events} records; not read")

    def _damaged(self, kind: int, record_bytes: int, count: int, payload_bytes: int) -> CaptureError:
        return CaptureError(
            f"{self._path}: damaged before byte {self._at}: a chunk of kind {kind} states {count} records of "
            f"{record_bytes} bytes in {payload_bytes}; copy the file again"
        )

    def _put(self, found: Stream, kind: int, record_bytes: int, count: int, payload: bytes) -> None:
        if kind in layout.RECORDS:
            pending = self._pending.setdefault((kind, record_bytes), bytearray())
            pending += payload
            if len(pending) >= _BLOCK_BYTES:
                self._unpack(kind, record_bytes)
        elif kind in _TEXTS:
            into = {layout.NAMES: found.names, layout.CALL_NAMES: found.call_names, layout.SYMBOLS: found.symbols}
            self._texts(payload, count, into[kind])
        elif kind == layout.NOTES:
            found.notes += payload.decode(errors="replace").splitlines()
        else:
            found.unknown[kind] = found.unknown.get(kind, 0) + count

    def _texts(self, payload: bytes, count: int, into: dict[int, str]) -> None:
        at = 0
        for _ in range(count):
            number = int.from_bytes(payload[at : at + 4], "little")
            length = int.from_bytes(payload[at + 4 : at + 8], "little")
            end = at + 8 + length
            if end > len(payload) or length > self._limits.text_bytes:
                raise CaptureError(
                    f"{self._path}: damaged before byte {self._at}: a text ends beyond its chunk; copy the file again"
                )
            into[number] = payload[at + 8 : end].decode(errors="replace")
            at = end + -end % 4

    def _unpack(self, kind: int, record_bytes: int) -> None:
        """Pending records as columns; a field that this stream's records do not reach is 0, as where it is unknown."""
        payload = self._pending.pop((kind, record_bytes))
        declared = layout.RECORDS[kind]
        fields = {name: declared.fields[name] for name in _kept(kind)} if declared.fields else {}
        reached = {name: at for name, at in fields.items() if at[1] + at[0].itemsize <= record_bytes}
        form = np.dtype(
            {
                "names": list(reached),
                "formats": [at[0] for at in reached.values()],
                "offsets": [at[1] for at in reached.values()],
                "itemsize": record_bytes,
            }
        )
        records = np.frombuffer(payload, form)
        into = self._columns.setdefault(kind, {name: GrowingColumn(at[0]) for name, at in fields.items()})
        for name, (dtype, *_) in fields.items():
            # Copies: a view would keep the block with the fields that nobody needs.
            into[name].add(records[name].copy() if name in reached else np.zeros(len(records), dtype))
