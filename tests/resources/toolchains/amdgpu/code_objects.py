"""The code objects that are kept for tests, and the means to damage them."""

import struct
from typing import Final

from tests.resources.toolchains.amdgpu.make_code_objects import DATA

#: The kernel of each kept object, by file name: its symbol.
SYMBOLS: Final = {
    "star-gfx942-1": "star",
    "star-gfx942-2": "star",
    "star-gfx942-8": "star",
    "lookup-gfx90a-1": "_ZN5scope6lookupIfEEvPKT_PS1_i",
    "matrix-gfx942-1": "_Z6matrixPKfS0_Pfi",
}


def kept(name: str, suffix: str = "o") -> bytes:
    """The bytes of a kept file."""
    return (DATA / f"{name}.{suffix}").read_bytes()


def with_bytes(data: bytes, at: int, content: bytes) -> bytes:
    """The same file with other bytes at one place."""
    return data[:at] + content + data[at + len(content) :]


def section_header(data: bytes, kind: int) -> int:
    """Offset of the header of the first section of this kind."""
    (table,) = struct.unpack_from("<Q", data, 40)
    (count,) = struct.unpack_from("<H", data, 60)
    return next(at for at in range(table, table + 64 * count, 64) if struct.unpack_from("<I", data, at + 4)[0] == kind)


def section_offset(data: bytes, kind: int) -> int:
    """Offset of the content of the first section of this kind."""
    offset: int = struct.unpack_from("<Q", data, section_header(data, kind) + 24)[0]
    return offset
