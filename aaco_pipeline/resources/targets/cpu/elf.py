"""Reads an object file: sections, symbols, and what its kernel is made of. ELF, 64 bits, little-endian, relocatable.

The file was written by a compiler from a stranger's source, and may hold anything: nothing is followed beyond its end.
The format is the System V ABI's, chapters 4 (object files) and its processor supplements.
"""

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.objects import Binding, Kind, Section, Symbol

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_MAGIC: Final = b"\x7fELF\x02\x01\x01"
_RELOCATABLE: Final = 1
_SYMBOL_TABLE, _RELOCATIONS, _NO_CONTENT = 2, 4, 8
_WRITE, _ALLOC, _EXECUTE, _LOCAL_OF_THREAD = 1, 2, 4, 0x400
_COMMON: Final = 0xFFF2
_FIRST_SPECIAL: Final = 0xFF00
_KINDS: Final[dict[int, Kind]] = {
    **{0: "none", 1: "data", 2: "function", 3: "section", 4: "file", 5: "common", 6: "thread_local"},
    10: "resolver",
}
_BINDINGS: Final[dict[int, Binding]] = {0: "local", 1: "global", 2: "weak"}
_MOST_BYTES: Final = 64 << 20
_MOST_ENTRIES: Final = 1 << 16


@dataclass(frozen=True)
class ObjectFile:
    """What an object file holds. `code_sha256` is the same for the same instructions and constants, wherever they lie:
    before linking no address is in them, and what is to be put there is told by the name of its symbol."""

    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    code_sha256: str


@dataclass(frozen=True)
class _Raw:
    section: Section
    content: bytes
    link: int
    target: int


def read_object(path: Path) -> ObjectFile:
    """Read an object file. Refused (guard `symbols`) when it is none, or damaged."""
    with path.open("rb") as stream:
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise Refused("resources", f"the object file has more than {_MOST_BYTES} bytes")
    try:
        raw = _sections(data)
        return _read(raw)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise Refused("symbols", f"the object file cannot be read: {error}") from error


def _sections(data: bytes) -> list[_Raw]:
    header = _HEADER.unpack_from(data)
    if not header[0].startswith(_MAGIC) or header[1] != _RELOCATABLE:
        raise ValueError("not a relocatable ELF file of 64 bits")
    offset, size, count, names_at = header[6], header[11], header[12], header[13]
    if size != _SECTION.size or not 0 < count < _FIRST_SPECIAL or names_at >= count or offset > len(data):
        raise ValueError("its table of sections is not as the format says")
    rows = [_SECTION.unpack_from(data, offset + at * size) for at in range(count)]
    names = _content(data, rows[names_at])
    return [_section(data, row, names) for row in rows]


def _section(data: bytes, row: tuple[int, ...], names: bytes) -> _Raw:
    name, kind, flags, _, _, size, link, info, alignment, _ = row
    section = Section(
        _text(names, name),
        kind,
        bool(flags & _ALLOC),
        bool(flags & _WRITE),
        bool(flags & _EXECUTE),
        bool(flags & _LOCAL_OF_THREAD),
        size,
        alignment,
    )
    return _Raw(section, _content(data, row), link, info)


def _content(data: bytes, row: tuple[int, ...]) -> bytes:
    kind, offset, size = row[1], row[4], row[5]
    if kind in (0, _NO_CONTENT):
        return b""
    if offset + size > len(data):
        raise ValueError("a section goes beyond the end of the file")
    return data[offset : offset + size]


def _text(table: bytes, at: int) -> str:
    end = table.index(b"\0", at)
    return table[at:end].decode("ascii")


def _read(raw: list[_Raw]) -> ObjectFile:
    tables = [one for one in raw if one.section.kind == _SYMBOL_TABLE]
    if len(tables) != 1:
        raise ValueError(f"it has {len(tables)} tables of symbols")
    table = tables[0]
    if len(table.content) > _MOST_ENTRIES * _SYMBOL.size:
        raise ValueError("it has too many symbols")
    names = raw[table.link].content
    rows = list(_SYMBOL.iter_unpack(table.content))
    symbols = tuple(_symbol(row, names, raw) for row in rows[1:])
    places = [_place(row, names, raw) for row in rows]
    return ObjectFile(tuple(one.section for one in raw), symbols, _digest(raw, places))


def _symbol(row: tuple[int, ...], names: bytes, raw: list[_Raw]) -> Symbol:
    name, info, _, at, _, size = row
    kind = "common" if at == _COMMON else _KINDS.get(info & 15, "other")
    section = None if at == 0 else raw[at].section.name if at < _FIRST_SPECIAL else "*"
    return Symbol(_text(names, name), kind, _BINDINGS.get(info >> 4, "other"), section, size)


def _place(row: tuple[int, ...], names: bytes, raw: list[_Raw]) -> str:
    """What a relocation points to, without its number in the table: a name, or a section and the offset in it."""
    name, info, _, at, value, _ = row
    if info >> 4 == 0 and 0 < at < _FIRST_SPECIAL:
        return f"{raw[at].section.name}+{value}"
    return _text(names, name)


def _digest(raw: list[_Raw], places: list[str]) -> str:
    digest = hashlib.sha256()
    for index, one in enumerate(raw):
        if not one.section.loaded or one.section.name.startswith((".eh_frame", ".note")):
            continue
        head = f"{one.section.name} {one.section.size_bytes} {one.section.alignment_bytes}\0"
        digest.update(head.encode() + one.content)
        for moved in raw:
            if moved.section.kind == _RELOCATIONS and moved.target == index:
                for offset, info, addend in _RELOCATION.iter_unpack(moved.content):
                    line = f"\0{offset} {info & 0xFFFFFFFF} {places[info >> 32]} {addend}"
                    digest.update(line.encode())
    return digest.hexdigest()
