"""The column names of a profiler's CSV file, by which its kind is recognized; reading the file is `csv_text`'s."""

import csv
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed

#: A header longer than this is no profiler's; the widest seen, of 2,718 counters, takes 61 kB.
_LONGEST_HEADER: Final = 1 << 20
_PROBED_BYTES: Final = 4096
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_NUL: Final = b"\0"


def plain_name(name: str) -> str:
    """A column's name without regard to case, blanks, and whether its words are joined by `-` or `_`."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def header_of(path: Path) -> tuple[str, ...] | None:
    """The plain names in the first record of a CSV file, or None when it cannot be one. Reads a few KB, more only for
    a wide header.
    """
    try:
        with open_decompressed(path) as stream:
            head = stream.read(_PROBED_BYTES)
            while b"\n" not in head and len(head) < _LONGEST_HEADER:
                more = stream.read(len(head))
                if not more:
                    break
                head += more
    except (CaptureError, *DAMAGED):
        return None
    names = first_record(decoded(head).split(b"\n", 1)[0])
    return None if names is None else tuple(plain_name(name) for name in names)


def decoded(content: bytes) -> bytes:
    """The content as UTF-8 without a byte-order mark; what a spreadsheet saved as UTF-16 is told by its own mark."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace").encode()
    return content.removeprefix(_BYTE_ORDER_MARK)


def first_record(line: bytes) -> list[str] | None:
    """The names in a header's line; None when it cannot be one: one name only, binary data, or broken quoting."""
    if _NUL in line or len(line) > _LONGEST_HEADER:
        return None
    try:
        names = next(csv.reader([line.decode()], strict=True), [])
    except (csv.Error, UnicodeDecodeError):
        return None
    return names if len(names) > 1 and all(name.strip() for name in names) else None
