"""Open and read files that may be gzip-compressed, with limits on their unpacked size.

`regular_files` checks and opens paths; `json_stream` reads large documents piece by piece.
"""

import errno
import gzip
import io
import os
import zlib
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.regular_files import open_regular

#: Errors raised when reading damaged gzip data.
DAMAGED: Final = (OSError, EOFError, zlib.error)
_MAGIC: Final = b"\x1f\x8b"
_CHUNK_BYTES: Final = 8 << 20
#: Maximum number of a sparse file's extents to examine.
_MOST_EXTENTS: Final = 10_000


class Unpacked(gzip.GzipFile):
    """A gzip stream that raises CaptureError once it yields more bytes than its packed size allows."""

    def __init__(self, path: Path, packed: io.BufferedReader, most: int) -> None:
        super().__init__(fileobj=packed, mode="rb")
        self._path, self._packed, self._most = path, packed, most
        self._given = 0

    def read(self, size: int | None = -1) -> bytes:
        return self._counted(super().read(size))

    def read1(self, size: int = -1) -> bytes:
        return self._counted(super().read1(size))

    def close(self) -> None:
        super().close()
        self._packed.close()

    def _counted(self, piece: bytes) -> bytes:
        self._given += len(piece)
        if self._given > self._most:
            reason = f"more than {self._most} bytes when unpacked, too many for its size; not read"
            raise CaptureError(f"{self._path}: {reason}")
        return piece


def expanded_limit(data: int, limits: Limits) -> int:
    """Return how many bytes may be unpacked from `data` bytes on disk."""
    return min(limits.file_bytes, max(limits.freely_expanded_bytes, limits.expansion_ratio * data))


def data_bytes(descriptor: int) -> int:
    """Count the bytes of an open file that occupy disk space, without holes; rewinds the file."""
    status = os.fstat(descriptor)
    known = at = 0
    try:
        for _ in range(_MOST_EXTENTS):
            if at >= status.st_size:
                return known
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
            at = os.lseek(descriptor, begin, os.SEEK_HOLE)
            known += at - begin
    except OSError as error:
        # ENXIO: only a hole follows. Otherwise the file system does not report holes, and everything is data.
        return known if error.errno == errno.ENXIO else status.st_size
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return min(status.st_size, 512 * status.st_blocks)


def open_decompressed(path: Path, limits: Limits | None = None) -> Unpacked | io.BufferedReader:
    """Open a file for reading, through gzip if it begins with gzip's magic number.

    CaptureError if it cannot be opened, is not a regular file, or exceeds the limits, holes included.
    """
    limits = limits or Limits()
    try:
        stream = open_regular(path)
        try:
            most = expanded_limit(data_bytes(stream.fileno()), limits)
            size = os.fstat(stream.fileno()).st_size
            if size > limits.freely_expanded_bytes and size > most:
                raise CaptureError(f"{path}: {size} bytes, more than {most}, or mostly holes; not read")
            return Unpacked(path, stream, most) if stream.peek(2)[:2] == _MAGIC else stream
        except BaseException:
            stream.close()
            raise
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_decompressed(path: Path, limits: Limits) -> bytes:
    """Read a file completely, decompressing gzip; CaptureError beyond `limits.whole_bytes` or if damaged."""
    most = min(limits.whole_bytes, limits.file_bytes)
    pieces, taken = list[bytes](), 0
    with open_decompressed(path, limits) as stream:
        try:
            while piece := stream.read(_CHUNK_BYTES):
                taken += len(piece)
                if taken > most:
                    raise CaptureError(f"{path}: more than {most} bytes when unpacked; not read")
                pieces.append(piece)
        except DAMAGED as error:
            raise CaptureError(f"{path}: cannot be unpacked: {error}; copy the file again") from error
    return b"".join(pieces)


def first_bytes(path: Path, count: int) -> bytes:
    """Return at most the first `count` bytes of a file, decompressed; empty if it is unreadable."""
    try:
        with open_decompressed(path) as stream:
            return stream.read(count)
    except (CaptureError, *DAMAGED):
        return b""
