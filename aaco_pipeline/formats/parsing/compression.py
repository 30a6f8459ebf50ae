"""Files of a capture that may be gzip-compressed, opened and read as if they were not.

Reading a large document piece by piece is `aaco_pipeline.formats.parsing.json_stream`.
"""

import gzip
import io
import zlib
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits

#: What reading damaged gzip data raises.
DAMAGED: Final = (OSError, EOFError, zlib.error)
_MAGIC: Final = b"\x1f\x8b"


def open_decompressed(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """The file opened for reading, through gzip when it begins as gzip does. CaptureError when it cannot be opened."""
    try:
        stream = path.open("rb")
        if stream.peek(2)[:2] != _MAGIC:
            return stream
        stream.close()
        return gzip.GzipFile(path)
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_decompressed(path: Path, limits: Limits) -> bytes:
    """The whole file, decompressed when it is gzip; CaptureError beyond `limits.file_bytes` or when it is damaged."""
    with open_decompressed(path) as stream:
        try:
            content = stream.read(limits.file_bytes + 1)
        except DAMAGED as error:
            raise CaptureError(f"{path}: cannot be unpacked: {error}; copy the file again") from error
    if len(content) > limits.file_bytes:
        raise CaptureError(f"{path}: more than {limits.file_bytes} bytes when unpacked; not read")
    return content


def first_bytes(path: Path, count: int) -> bytes:
    """At most the first `count` bytes of the file, decompressed; none of what cannot be read."""
    try:
        with open_decompressed(path) as stream:
            return stream.read(count)
    except (CaptureError, *DAMAGED):
        return b""
