"""Reads a compiled kernel's relocatable object file, written by a compiler from a stranger's source."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.objects import Binding, Kind, Section, Symbol
from aaco_pipeline.resources import elf

_RELOCATABLE: Final = 1
_KINDS: Final[dict[int, Kind]] = {
    **{0: "none", 1: "data", 2: "function", 3: "section", 4: "file", 5: "common", 6: "thread_local"},
    10: "resolver",
}
_BINDINGS: Final[dict[int, Binding]] = {0: "local", 1: "global", 2: "weak"}
_MOST_BYTES: Final = 64 << 20
_MOST_SYMBOLS: Final = 1 << 16


@dataclass(frozen=True)
class ObjectFile:
    """The parts of an object file. `code_sha256` is the same for the same instructions and constants, wherever they
    lie: before linking they hold no addresses, and each place for one has the name of its symbol."""

    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    code_sha256: str


def read_object(path: Path) -> ObjectFile:
    """Read an object file. Refused (guards `symbols`, `resources`) when it is none, damaged, or above 64 MiB."""
    with path.open("rb") as stream:
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise Refused("resources", f"the object file has more than {_MOST_BYTES} bytes")
    try:
        return _read(elf.read_elf(data))
    except (IndexError, ValueError) as error:
        raise Refused("symbols", f"the object file cannot be read: {error}") from error


def _read(parsed: elf.ElfFile) -> ObjectFile:
    tables = [one for one in parsed.sections if one.kind == elf.SYMBOL_TABLE]
    if parsed.kind != _RELOCATABLE or len(tables) != 1:
        raise ValueError(f"it is of type {parsed.kind} and has {len(tables)} tables of symbols")
    found = parsed.symbols(tables[0])
    if len(found) > _MOST_SYMBOLS:
        raise ValueError("it has too many symbols")
    if not all(name.isascii() for name in [*(one.name for one in parsed.sections), *(one.name for one in found)]):
        raise ValueError("a name is not ASCII")
    symbols = tuple(_symbol(one, parsed) for one in found[1:])
    places = [_place(one, parsed) for one in found]
    return ObjectFile(tuple(_section(one) for one in parsed.sections), symbols, _digest(parsed, places))


def _section(one: elf.Section) -> Section:
    return Section(
        one.name,
        one.kind,
        bool(one.flags & elf.ALLOCATE),
        bool(one.flags & elf.WRITE),
        bool(one.flags & elf.EXECUTE),
        bool(one.flags & elf.THREAD_LOCAL),
        one.size,
        one.alignment,
    )


def _symbol(one: elf.Symbol, parsed: elf.ElfFile) -> Symbol:
    kind = "common" if one.index == elf.COMMON_INDEX else _KINDS.get(one.kind, "other")
    section = None if one.index == 0 else "*" if one.section is None else parsed.sections[one.section].name
    return Symbol(one.name, kind, _BINDINGS.get(one.binding, "other"), section, one.size)


def _place(one: elf.Symbol, parsed: elf.ElfFile) -> str:
    """Name a relocation's target without its number in the table: a symbol, or a section and the offset in it."""
    if one.binding == 0 and one.section is not None:
        return f"{parsed.sections[one.section].name}+{one.value}"
    return one.name


def _digest(parsed: elf.ElfFile, places: list[str]) -> str:
    digest, moved_in = hashlib.sha256(), defaultdict[int, list[elf.Section]](list)
    for one in parsed.sections:
        if one.kind == elf.RELOCATIONS:
            moved_in[one.info].append(one)
    for index, one in enumerate(parsed.sections):
        if not one.flags & elf.ALLOCATE or one.name.startswith((".eh_frame", ".note")):
            continue
        digest.update(f"{one.name} {one.size} {one.alignment}\0".encode())
        digest.update(one.content)
        for moved in moved_in[index]:
            for offset, kind, symbol, addend in elf.relocations(moved):
                digest.update(f"\0{offset} {kind} {places[symbol]} {addend}".encode())
    return digest.hexdigest()
