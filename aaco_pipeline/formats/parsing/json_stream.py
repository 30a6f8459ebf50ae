"""Scan large JSON documents in pieces: locate strings, brackets and colons with whole-array operations.

The scanner only checks what it needs to navigate; a reader that needs more passes the piece to a parser. No library can
replace it: parsers such as orjson build a Python object for every value of the document, but memory is limited here;
Polars' parser, used for records of a fixed form, only reads lines.
"""

import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import open_decompressed
from aaco_pipeline.formats.parsing.json_document import parsed

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

#: Zero bytes after every piece, so that reading a word at its last byte stays within the array.
PADDING: Final = 64
PIECE_BYTES: Final = 8 << 20
QUOTE, COLON, COMMA, BACKSLASH = b'":,\\'
_OPEN_BRACE, _CLOSE_BRACE = b"{}"
_STEP: Final = np.zeros(256, np.int8)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1


@dataclass(frozen=True)
class Tokens:
    """The brackets and colons of a piece outside strings, and one bit per byte for the quotes around strings.

    `depth` is the number of open brackets after each token, from 0 at the start of the piece. The bits of `quotes`
    start at the lowest bit of the first word.
    """

    position: Positions
    byte: Bytes
    depth: npt.NDArray[np.int32]
    quotes: Words


class Pieces:
    """A file read forward, unpacking gzip; bytes that a caller did not use are returned with the next piece.

    CaptureError for a file that cannot be unpacked or exceeds the limit. `cut` is True once compressed data ended
    early.
    """

    def __init__(self, path: Path, limits: Limits, piece_bytes: int = PIECE_BYTES) -> None:
        self.cut = False
        self._path, self._limits, self._size = path, limits, piece_bytes
        self._taken = 0
        self._stream = open_decompressed(path, limits)

    def __enter__(self) -> "Pieces":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def more(self, rest: bytes) -> bytes | None:
        """Return `rest` and the bytes after it; None at the end of the file."""
        if len(rest) > (most := self._limits.line_bytes):
            raise CaptureError(f"{self._path}: one event or section is longer than {most} bytes; not read")
        piece = b"" if self.cut else self._read(max(self._size, len(rest)))
        self._taken += len(piece)
        if self._taken > self._limits.file_bytes:
            raise CaptureError(f"{self._path}: more than {self._limits.file_bytes} bytes when unpacked; not read")
        return rest + piece if piece else None

    def _read(self, size: int) -> bytes:
        """Read the next bytes, keeping those unpacked before compressed data breaks off."""
        parts: list[bytes] = []
        missing = size
        try:
            while missing and (part := self._stream.read1(missing)):
                parts.append(part)
                missing -= len(part)
        except EOFError:
            self.cut = True
        except (OSError, zlib.error) as error:
            raise CaptureError(f"{self._path}: cannot be unpacked: {error}; copy the file again") from error
        return b"".join(parts)


def padded(piece: bytes) -> Bytes:
    """Copy a piece into an array of 64-byte blocks with at least `PADDING` zero bytes after it."""
    array = np.zeros((len(piece) // 64 + 1) * 64 + PADDING, np.uint8)
    array[: len(piece)] = np.frombuffer(piece, np.uint8)
    return array


def tokens(piece: Bytes, depth_limit: int) -> Tokens | None:
    """Locate brackets and colons of a padded piece that begins outside any string; None if nested too deep."""
    quote = piece == QUOTE
    slashes = np.flatnonzero(piece == BACKSLASH)
    if len(slashes):
        quote[_escaped(slashes)] = False
    quotes = _bits(quote)
    folded = piece | 0x20  # makes [ ] and { } equal
    wanted = (folded == _OPEN_BRACE) | (folded == _CLOSE_BRACE) | (piece == COLON)
    outside = _bits(wanted) & ~_inside(quotes)
    position = np.flatnonzero(np.unpackbits(outside.view(np.uint8), bitorder="little").view(np.bool_))
    byte = piece[position]
    depth = np.cumsum(_STEP[byte], dtype=np.int32)
    if len(depth) and int(depth.max()) > depth_limit:
        return None
    return Tokens(position, byte, depth, quotes)


def _bits(flags: npt.NDArray[np.bool_]) -> Words:
    return np.packbits(flags, bitorder="little").view("<u8")


def _inside(quotes: Words) -> Words:
    """Set a bit for each byte of a string and its opening quote, from the parity of the preceding quotes."""
    parity = quotes.copy()
    for distance in (1, 2, 4, 8, 16, 32):
        parity ^= parity << np.uint64(distance)
    ends_inside = np.cumsum(parity >> np.uint64(63), dtype=np.uint64) & np.uint64(1)
    parity[1:] ^= np.uint64(0) - ends_inside[:-1]
    return parity


def _escaped(slashes: Positions) -> Positions:
    """Return positions after a backslash that is not itself escaped."""
    first = np.ones(len(slashes), np.bool_)
    first[1:] = np.diff(slashes) != 1
    run = np.maximum.accumulate(np.where(first, slashes, 0))
    escaped: Positions = slashes[(slashes - run) % 2 == 0] + 1
    return escaped


@dataclass(frozen=True)
class Elements:
    """Consecutive complete objects of an array, part of which is in a piece.

    `start` and `stop` delimit each object's text; `used` is the number of bytes read, `ended` whether the array ended
    there (its bracket is included in `used`), `damaged` whether a bracket is closed by one of the other kind.
    """

    start: Positions
    stop: Positions
    used: int
    ended: bool
    damaged: bool
    tokens: Tokens


def elements(found: Tokens) -> Elements:
    """Find the objects of a piece that begins within an array, before an object or a comma."""
    beyond = np.flatnonzero(found.depth < 0)
    ended = len(beyond) > 0
    damaged = False
    if ended:
        last = int(beyond[0])
        damaged = found.byte[last] == _CLOSE_BRACE
        used = int(found.position[last]) + 1
        found = replace(found, position=found.position[:last], byte=found.byte[:last], depth=found.depth[:last])
    bracket = found.byte != COLON
    closing = np.flatnonzero(bracket & (found.depth == 0))
    opening = np.flatnonzero(bracket & (found.depth == 1) & (_STEP[found.byte] > 0))[: len(closing)]
    braces = found.byte[opening] == _OPEN_BRACE
    damaged |= bool((braces != (found.byte[closing] == _CLOSE_BRACE)).any())
    start, stop = found.position[opening[braces]], found.position[closing[braces]] + 1
    if not ended:
        upto = int(closing[-1]) + 1 if len(closing) else 0
        used = int(found.position[upto - 1]) + 1 if upto else 0
        found = replace(found, position=found.position[:upto], byte=found.byte[:upto], depth=found.depth[:upto])
    return Elements(start, stop, used, ended, bool(damaged), found)


def lines(piece: Bytes, found: Elements) -> io.BytesIO:
    """Write the objects one per line, for parsers of line-delimited JSON."""
    if not len(found.start):
        return io.BytesIO()
    first, last = int(found.start[0]), int(found.stop[-1])
    text = piece[first:last].copy()
    text[(text == 10) | (text == 13)] = 32  # JSON strings contain no line ends
    gap_start, gap_stop = found.stop[:-1] - first, found.start[1:] - first
    longest = int((gap_stop - gap_start).max(initial=0))
    for offset in range(longest):
        at = gap_start + offset
        text[at[at < gap_stop]] = 32
    text[gap_start] = 10
    return io.BytesIO(text.tobytes())


class CutError(Exception):
    """The document ends too early. Readers catch it and decide what it means for their format."""


class Cursor:
    """A reader of a document, value by value; arrays of many objects come in batches.

    Raises CutError if the document ends too early, CaptureError if it is not JSON as expected.
    """

    def __init__(self, path: Path, pieces: Pieces, limits: Limits) -> None:
        self._path, self._pieces, self._limits = path, pieces, limits
        self._text, self._at = b"", 0

    def entries(self) -> Iterator[str]:
        """Yield the keys of the next object; the caller reads each value before requesting the next key."""
        self._expect(b"{")
        if self.follows(b"}"):
            self._at += 1
            return
        while True:
            yield str(self._parsed(self._string()))
            if not self._separated(b"}"):
                return

    def items(self) -> Iterator[None]:
        """Yield once per value of the next array; the caller reads each value there."""
        self._expect(b"[")
        if self.follows(b"]"):
            self._at += 1
            return
        while True:
            yield None
            if not self._separated(b"]"):
                return

    def follows(self, byte: bytes) -> bool:
        """Return whether this is the next non-whitespace byte; after a key, the byte after its colon."""
        while True:
            found = _NEXT.search(self._text, self._at)
            if found:
                self._at = found.start()
                return found[0] == byte
            self._at = len(self._text)
            self._more()

    def value(self) -> Any:
        """Parse the next value."""
        return self._parsed(self._raw())

    def skip(self) -> None:
        """Skip the next value."""
        if self.follows(b"["):
            for _ in self.batches():
                pass
        else:
            self._raw()

    def batches(self) -> Iterator[tuple[Bytes, Elements]]:
        """Yield the objects of the next array in batches, as they are read; other values in it are skipped."""
        self._expect(b"[")
        if self.follows(b"]"):
            self._at += 1
            return
        window = _FIRST_WINDOW
        while True:
            piece = self._text[self._at : self._at + window]
            array = padded(piece)
            part = elements(self._tokens(array))
            if part.damaged:
                raise CaptureError(f"{self._path}: damaged: brackets do not match; copy the file again")
            if part.used:
                if not _is_utf8(piece[: part.used]):
                    array = padded(piece[: part.used].decode("utf-8", "replace").encode())
                    part = replace(elements(self._tokens(array)), used=part.used)
                self._at += part.used
                yield array, part
                if part.ended:
                    return
                window = min(window * 8, 2 * PIECE_BYTES)  # the rest, and the next piece
            elif len(piece) < window:
                self._more()
            else:
                window *= 8

    def _more(self) -> None:
        longer = self._pieces.more(self._text[self._at :])
        if longer is None:
            raise CutError
        self._text, self._at = longer, 0

    def _expect(self, byte: bytes) -> None:
        if not self.follows(byte):
            found = self._text[self._at : self._at + 1].decode("latin-1")
            raise CaptureError(f"{self._path}: damaged or another format: {found!r} where {byte.decode()!r} must be")
        self._at += 1

    def _separated(self, end: bytes) -> bool:
        """Skip the comma before another value (True) or the end (False)."""
        if self.follows(end):
            self._at += 1
            return False
        self._expect(b",")
        return True

    def _string(self) -> bytes:
        """Read the next string with its quotes, and skip the colon after it."""
        if not self.follows(b'"'):
            self._expect(b'"')
        text = self._raw()
        self._expect(b":")
        return text

    def _raw(self) -> bytes:
        """Read the text of the next value."""
        self.follows(b"")
        first = self._text[self._at : self._at + 1]
        if first in (b"{", b"["):
            return self._container()
        pattern = _STRING if first == b'"' else _SCALAR
        while not (found := pattern.match(self._text, self._at)):
            if first != b'"' and self._at + 64 < len(self._text):
                raise CaptureError(f"{self._path}: damaged or another format: {self._text[self._at : self._at + 20]!r}")
            self._more()
        self._at = found.end(1)
        return found[1]

    def _container(self) -> bytes:
        window = _FIRST_WINDOW
        while True:
            found = self._tokens(padded(self._text[self._at : self._at + window]))
            closed = np.flatnonzero((found.depth == 0) & (found.byte != COLON))
            if len(closed):
                begin = self._at
                self._at += int(found.position[closed[0]]) + 1
                return self._text[begin : self._at]
            if self._at + window >= len(self._text):
                self._more()
            window *= 8

    def _tokens(self, piece: Bytes) -> Tokens:
        found = tokens(piece, self._limits.depth)
        if found is None:
            raise CaptureError(f"{self._path}: JSON nested deeper than {self._limits.depth}; not read")
        return found

    def _parsed(self, text: bytes) -> Any:
        try:
            return parsed(text.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError) as error:
            raise CaptureError(f"{self._path}: damaged: {error}; copy the file again") from error


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


_NEXT: Final = re.compile(rb"[^ \t\r\n]")
_STRING: Final = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)
_SCALAR: Final = re.compile(rb"([-+.\w]+)(?=[^-+.\w])")
_FIRST_WINDOW: Final = 1 << 16
