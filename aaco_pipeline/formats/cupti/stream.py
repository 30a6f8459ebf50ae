"""The CUPTI recorder's binary stream: record layout, reading and unpacking of blocks, and a redacted copy.

`tables` builds the tables.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.cupti import MAGIC
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed
from aaco_pipeline.formats.parsing.redaction import redacted_whole
from aaco_pipeline.lake.on_disk import GrowingColumn

VERSION: Final = 2


def _fields(code: str, names: str) -> list[tuple[str, str]]:
    """Return fields of one type for a structured dtype."""
    return [(name, code) for name in names.split()]


HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        *_fields("<u4", "version pid cupti_version driver_version"),
        *_fields("<i8", "monotonic realtime cupti"),
        ("reserved", "<u8", (2,)),
    ]
)
CHUNK: Final = np.dtype(_fields("<u4", "kind record_bytes count payload_bytes"))
#: Added to a kind whose records are stored as columns of differences; see `unpacked`.
PACKED: Final = 0x100
#: Chunks of texts: each record is a number, a length and that many bytes, padded to a multiple of four.
NAMES: Final = 1
CALL_NAMES: Final = 12
SYMBOLS: Final = 16
#: Text lines: calls that were enabled or refused, and other notes of the recorder.
NOTES: Final = 15
_SPAN: Final = _fields("<i8", "start end")
_LANE: Final = _fields("<u4", "device context stream correlation")
RECORDS: Final = {
    2: np.dtype(
        [
            *(*_SPAN, *_fields("<i8", "queued submitted"), *_LANE),
            *_fields("<u4", "name grid_x grid_y grid_z block_x block_y block_z"),
            *_fields("<u4", "registers static_shared dynamic_shared"),
            *(("graph_node", "<u8"), *_fields("<u4", "graph local_memory")),
        ]
    ),
    3: np.dtype([*_SPAN, *_fields("<u4", "thread correlation call domain")]),
    4: np.dtype(
        [
            *(*_SPAN, ("bytes", "<u8"), *_LANE, *_fields("u1", "kind source_kind destination_kind flags")),
            *(("graph", "<u4"), ("graph_node", "<u8"), *_fields("<u4", "source destination")),
        ]
    ),
    5: np.dtype([*_SPAN, ("bytes", "<u8"), *_LANE, *_fields("<u4", "value memory_kind")]),
    6: np.dtype([*_SPAN, *_fields("<u4", "type context stream correlation event pad"), ("recording", "<u8")]),
    7: np.dtype(
        [
            *(("time", "<i8"), *_fields("<u8", "address bytes"), *_fields("<u4", "operation memory_kind")),
            *(*_LANE, ("process", "<u4"), ("pad", "<u4", (3,))),
        ]
    ),
    8: np.dtype([("time", "<i8"), ("range", "<u8"), *_fields("<u4", "kind thread name domain"), ("pad", "<u4", (2,))]),
    9: np.dtype([*_SPAN, *_fields("<u4", "kind object thread pad")]),
    10: np.dtype(
        [
            *(*_fields("<u4", "device major minor multiprocessors"), *_fields("<u8", "memory_bytes memory_kb_per_s")),
            *_fields("<u4", "clock_khz l2_bytes threads_per_multiprocessor threads_per_warp"),
            *_fields("<u4", "shared_per_multiprocessor registers_per_multiprocessor threads_per_block pad"),
            *(("name", "S64"), ("uuid", "V16"), ("reserved", "V16")),
        ]
    ),
    11: np.dtype([("time", "<i8"), ("count", "<u8")]),
    13: np.dtype(_fields("<i8", "monotonic realtime cupti uncertainty")),
    14: np.dtype([("time", "<i8"), *_fields("<u4", "reason pad")]),
    17: np.dtype([*_fields("<u4", "event context stream correlation"), ("recording", "<u8")]),
    18: np.dtype(_fields("<u4", "context device")),
}
#: Names of the record kinds, here and in evidence.
KERNELS, CALLS, COPIES, FILLS, WAITS, ALLOCATIONS, RANGES, OVERHEADS, DEVICES, DROPPED = range(2, 12)
CLOCKS: Final = 13
ENDS: Final = 14
EVENTS: Final = 17
CONTEXTS: Final = 18
WORDS: Final = {
    **{KERNELS: "kernels", CALLS: "calls", COPIES: "copies", FILLS: "fills", WAITS: "waits"},
    **{ALLOCATIONS: "allocations", RANGES: "ranges' ends and instants", OVERHEADS: "overheads", DEVICES: "devices"},
    **{EVENTS: "events recorded", CONTEXTS: "contexts"},
}
#: Fields that no table needs, by kind. They are dropped because a stream may contain many millions of records.
UNUSED: Final = {
    KERNELS: ("queued", "submitted", "graph"),
    COPIES: ("flags", "graph", "graph_node"),
    FILLS: ("value",),
    WAITS: ("pad", "event"),
    ALLOCATIONS: ("process", "pad", "stream"),
    RANGES: ("pad", "domain"),
    OVERHEADS: ("object", "thread", "pad"),
    EVENTS: ("event",),
}


_STEPS: Final[dict[int, str]] = {1: "u1", 2: "<u2", 4: "<u4"}
_WORD: Final = np.dtype("<u4")


def unpacked(payload: bytes, record_bytes: int, count: int) -> bytes | None:
    """Unpack `count` records of `record_bytes` bytes each; None if the payload has a different number of records."""
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
            # Sums wrap around, as the recorder's differences do.
            records[1:, word] += np.cumsum((coded >> 1) ^ -(coded & 1), dtype=_WORD)
    return records.tobytes()


Columns = dict[str, NDArray[Any]]
#: Minimum block size for extracting records from chunks, as a chunk may hold a single record.
_BLOCK_BYTES: Final = 4 << 20
_TEXTS: Final = (NAMES, CALL_NAMES, SYMBOLS)


@dataclass
class Stream:
    """The contents of one stream: header, columns by kind, texts by number, notes, and how it ends.

    `torn_bytes` counts the bytes of an incomplete last chunk, `unknown` the records of unknown kinds.
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
        """Count records of a kind."""
        columns = self.columns.get(kind)
        return len(next(iter(columns.values()))) if columns else 0

    def take(self, kind: int) -> Columns:
        """Return the columns of a kind and drop them here, so that the caller controls their memory."""
        empty = {name: np.zeros(0, RECORDS[kind][name].base) for name in _kept(kind)}
        return self.columns.pop(kind, None) or empty


def _kept(kind: int) -> list[str]:
    left_out = UNUSED.get(kind, ())
    return [name for name in RECORDS[kind].names or () if name not in left_out]


def read_stream(path: Path, limits: Limits) -> Stream:
    """Read a stream up to its end or a truncated chunk. CaptureError if it is not a stream or is inconsistent."""
    with open_decompressed(path, limits) as file:
        try:
            return _Reading(path, file, limits).stream()
        except DAMAGED as error:
            raise CaptureError(f"{path}: cannot be read: {error}; copy the file again") from error


class _Reading:
    """A stream being read."""

    def __init__(self, path: Path, file: io.BufferedIOBase, limits: Limits) -> None:
        self._path, self._file, self._limits = path, file, limits
        self._at = self._events = 0
        self._pending: dict[tuple[int, int], bytearray] = {}
        self._columns: dict[int, dict[str, GrowingColumn]] = {}

    def stream(self) -> Stream:
        found = Stream(self._path, self._header())
        while head := self._take(CHUNK.itemsize):
            if len(head) < CHUNK.itemsize:
                found.torn_bytes = len(head)
                break
            kind, record_bytes, count, payload_bytes = (int(value) for value in np.frombuffer(head, "<u4"))
            is_packed, kind = bool(kind & PACKED), kind & ~PACKED
            self._check(kind, record_bytes, count, payload_bytes, is_packed=is_packed)
            payload = self._take(payload_bytes)
            if len(payload) < payload_bytes:
                found.torn_bytes = len(head) + len(payload)
                break
            if is_packed and kind in RECORDS:
                records = unpacked(payload, record_bytes, count)
                if records is None:
                    raise self._damaged(kind, record_bytes, count, payload_bytes)
                payload = records
            found.ends_with_end = kind == ENDS
            self._put(found, kind, record_bytes, count, payload)
        for kind, record_bytes in list(self._pending):
            self._unpack(kind, record_bytes)
        for kind in list(self._columns):
            found.columns[kind] = {name: column.array() for name, column in self._columns.pop(kind).items()}
        return found

    def _take(self, count: int) -> bytes:
        """Read this many bytes, or fewer at the end."""
        pieces = []
        while count and (piece := self._file.read(count)):
            pieces.append(piece)
            count -= len(piece)
            self._at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _header(self) -> dict[str, int]:
        head = self._take(HEADER.itemsize)
        if head[: len(MAGIC)] != MAGIC:
            raise CaptureError(f"{self._path}: no CUPTI stream: it does not begin with {MAGIC.decode()}")
        if len(head) < HEADER.itemsize:
            reason = "a CUPTI stream cut within its header: the process died as it began; record it again"
            raise CaptureError(f"{self._path}: {reason}")
        values = np.frombuffer(head, HEADER)[0]
        header = {name: int(values[name]) for name in HEADER.names or () if name not in ("magic", "reserved")}
        if (version := header["version"]) != VERSION:
            remedy = "read it with the release of aaco_pipeline that recorded it, or a later one"
            raise CaptureError(f"{self._path}: a CUPTI stream of version {version}, and {VERSION} is known; {remedy}")
        return header

    def _check(self, kind: int, record_bytes: int, count: int, payload_bytes: int, *, is_packed: bool) -> None:
        """Reject a chunk that no recorder writes, because everything after it would be misread."""
        most = self._limits.whole_bytes
        if kind in RECORDS:
            smallest = min(RECORDS[kind].itemsize, 8)
            whole = record_bytes * count
            sound = count > 0 and record_bytes >= smallest and (whole <= most if is_packed else whole == payload_bytes)
        else:
            sound = kind not in _TEXTS or payload_bytes >= 8 * count
        if not sound or payload_bytes > most:
            raise self._damaged(kind, record_bytes, count, payload_bytes)
        self._events += count if kind in RECORDS else 0
        if self._events > self._limits.events:
            raise CaptureError(f"{self._path}: more than {self._limits.events} records; not read")

    def _damaged(self, kind: int, record_bytes: int, count: int, payload_bytes: int) -> CaptureError:
        stated = f"a chunk of kind {kind} states {count} records of {record_bytes} bytes in {payload_bytes}"
        return CaptureError(f"{self._path}: damaged before byte {self._at}: {stated}; copy the file again")

    def _put(self, found: Stream, kind: int, record_bytes: int, count: int, payload: bytes) -> None:
        if kind in RECORDS:
            pending = self._pending.setdefault((kind, record_bytes), bytearray())
            pending += payload
            if len(pending) >= _BLOCK_BYTES:
                self._unpack(kind, record_bytes)
        elif kind in _TEXTS:
            into = {NAMES: found.names, CALL_NAMES: found.call_names, SYMBOLS: found.symbols}
            self._texts(payload, count, into[kind])
        elif kind == NOTES:
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
                reason = "a text ends beyond its chunk; copy the file again"
                raise CaptureError(f"{self._path}: damaged before byte {self._at}: {reason}")
            into[number] = payload[at + 8 : end].decode(errors="replace")
            at = end + -end % 4

    def _unpack(self, kind: int, record_bytes: int) -> None:
        """Convert pending records to columns; a field beyond the stream's record size is 0, meaning unknown."""
        payload = self._pending.pop((kind, record_bytes))
        declared = RECORDS[kind]
        fields = {name: declared.fields[name] for name in _kept(kind)} if declared.fields else {}
        reached = {name: at for name, at in fields.items() if at[1] + at[0].itemsize <= record_bytes}
        formats, offsets = [at[0] for at in reached.values()], [at[1] for at in reached.values()]
        form = np.dtype({"names": list(reached), "formats": formats, "offsets": offsets, "itemsize": record_bytes})
        records = np.frombuffer(payload, form)
        into = self._columns.setdefault(kind, {name: GrowingColumn(at[0]) for name, at in fields.items()})
        for name, (dtype, *_) in fields.items():
            # Copies: a view would keep the entire block in memory, with its unneeded fields.
            into[name].add(records[name].copy() if name in reached else np.zeros(len(records), dtype))


def without_secrets(pieces: Iterable[bytes], limits: Limits, place: str) -> Iterator[tuple[bytes, int]]:
    """Copy a stream's pieces, replacing every text that contains a secret, and count these per piece.

    Unknown kinds, and texts that were not written completely, become zeros of the same length. CaptureError for
    inconsistent texts, which cannot be searched.
    """
    source = _Source(pieces)
    yield source.take(HEADER.itemsize), 0
    while head := source.take(CHUNK.itemsize):
        if len(head) < CHUNK.itemsize:
            yield bytes(len(head)), 0
            return
        kind, record_bytes, count, size = np.frombuffer(head, "<u4").tolist()
        plain = kind & ~PACKED
        if plain not in (*_TEXTS, NOTES):
            yield head, 0
            for piece in source.passed_on(size):
                yield piece if plain in RECORDS else bytes(len(piece)), 0
            continue
        if size > limits.whole_bytes:
            raise CaptureError(f"{place}: damaged: {size} bytes of texts in one chunk; copy the file again")
        payload = source.take(size)
        if len(payload) < size:
            yield head + bytes(len(payload)), 0
            return
        if plain == NOTES:
            clean = _clean(payload)
            hits = int(clean != payload)
        else:
            clean, hits = _clean_texts(payload, count, place)
        yield np.array([kind, record_bytes, count, len(clean)], "<u4").tobytes() + clean, hits


class _Source:
    """File-like reader over pieces of any length."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = memoryview(b"")

    def passed_on(self, count: int) -> Iterator[bytes]:
        """Yield the next bytes as they arrive, fewer at the end."""
        while count:
            if not self._held:
                self._held = memoryview(next(self._pieces, b""))
                if not self._held:
                    return
            piece, self._held = self._held[:count], self._held[count:]
            count -= len(piece)
            yield bytes(piece)

    def take(self, count: int) -> bytes:
        """Read this many bytes, or fewer at the end."""
        return b"".join(self.passed_on(count))


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
