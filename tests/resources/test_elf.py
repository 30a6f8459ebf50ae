"""ELF files: the same tables as pyelftools reads, and one error for a damaged file, at a bounded cost."""

import io
import random
import struct
import sysconfig
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from aaco_pipeline.resources.elf import DYNAMIC_SYMBOLS, NOTES, RELOCATIONS, SYMBOL_TABLE, read_elf, relocations
from tests.resources.toolchains.amdgpu.code_objects import SYMBOLS, kept, section_header, with_bytes
from tests.resources.toolchains.amdgpu.make_code_objects import DATA

NAME = "lookup-gfx90a-1"
LIBRARIES = sorted(Path(sysconfig.get_path("platlib"), "markupsafe").glob("*.so"))
FILES = [*sorted(DATA.glob("*.o")), *sorted(DATA.glob("*.hsaco")), *LIBRARIES]


def made(*sections: tuple[int, int, int, int], content: bytes) -> bytes:
    """A file of sections given as kind, offset in the content, size and link; names are the second's."""
    head = struct.pack(
        "<7s9xHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 1, 62, 1, 0, 0, 64 + len(content), *(0, 64, 0, 0, 64), 0, 1
    )
    rows = [
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, 64 + at, size, link, 0, 1, 0) for kind, at, size, link in sections
    ]
    return with_bytes(head, 60, struct.pack("<H", len(rows))) + content + b"".join(rows)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_tables_are_those_of_pyelftools(path: Path) -> None:
    data = path.read_bytes()
    found, other = read_elf(data), ELFFile(io.BytesIO(data))
    assert len(found.sections) == other.num_sections()
    for mine, its in zip(found.sections, other.iter_sections(), strict=True):
        assert mine.name == its.name
        shared = ("sh_flags", "sh_addr", "sh_size", "sh_link", "sh_info", "sh_addralign")
        figures = (mine.flags, mine.address, mine.size, mine.link, mine.info, mine.alignment)
        assert figures == tuple(its[name] for name in shared)
        if its["sh_type"] != "SHT_NOBITS":
            assert mine.content == its.data()
        assert (mine.kind in (SYMBOL_TABLE, DYNAMIC_SYMBOLS)) == isinstance(its, SymbolTableSection)
        assert (mine.kind == RELOCATIONS) == isinstance(its, RelocationSection)
        if isinstance(its, SymbolTableSection):
            symbols = [(one.name, one.value, one.size, one.section) for one in found.symbols(mine)]
            assert symbols == [
                (one.name, one["st_value"], one["st_size"], at if isinstance(at := one["st_shndx"], int) else None)
                for one in its.iter_symbols()
            ]
        if isinstance(its, RelocationSection):
            assert list(relocations(mine)) == [
                (one["r_offset"], one["r_info_type"], one["r_info_sym"], one["r_addend"])
                for one in its.iter_relocations()
            ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x7fELF\2\1\1", "7 bytes are no ELF file"),
        (with_bytes(kept(NAME), 4, b"\1"), "not a 64-bit little-endian ELF file"),
        (with_bytes(kept(NAME), 58, b"\x41"), "sections of 65 bytes"),
        (with_bytes(kept(NAME), 40, b"\xff" * 8), "bytes at 18446744073709551615 of a file"),
        (with_bytes(kept(NAME), section_header(kept(NAME), NOTES) + 32, b"\xff" * 8), "18446744073709551615 bytes at"),
        (made((0, 0, 0, 0), (3, 0, 1, 0), (1, 0, 900, 0), (1, 0, 900, 0), content=bytes(1000)), "its sections overlap"),
        (made((0, 0, 0, 0), (3, 0, 8, 0), content=b"a" * 8), "a name reaches beyond its table"),
        (made((0, 0, 0, 0), (3, 0, 2, 0), content=b"\xff\0"), "can't decode byte"),
    ],
)
def test_a_damaged_file_is_one_error(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_elf(data)


@pytest.mark.parametrize(
    ("index", "link", "size", "words"),
    [
        (9, 1, 24, "a section that is not there"),
        (1, 9, 24, "a section that is not there"),
        (1, 1, 23, "a table of symbols has 23 bytes"),
    ],
)
def test_a_damaged_table_of_symbols_is_one_error(index: int, link: int, size: int, words: str) -> None:
    row = struct.pack("<IBBHQQ", 0, 0, 0, index, 0, 0)
    file = read_elf(made((0, 0, 0, 0), (3, 24, 1, 0), (SYMBOL_TABLE, 0, size, link), content=row + b"\0"))
    with pytest.raises(ValueError, match=words):
        file.symbols(file.sections[2])


def test_overlapping_names_are_refused_before_they_fill_the_memory() -> None:
    """1,000 symbols whose names are one text of a million letters: a gigabyte in a file of one megabyte."""
    letters = b"a" * 1_000_000 + b"\0"
    rows = struct.pack("<IBBHQQ", 0, 0, 0, 1, 0, 0) * 1_000
    places = ((0, 0, 0, 0), (3, len(rows) + len(letters) - 1, 1, 0))
    file = read_elf(
        made(*places, (SYMBOL_TABLE, 0, len(rows), 3), (3, len(rows), 1_000_001, 0), content=rows + letters)
    )
    with pytest.raises(ValueError, match="names take too much room"):
        file.symbols(file.sections[2])


def test_damage_is_read_or_is_one_error() -> None:
    """Bytes at random places, and header fields at their extremes."""
    drawn, refused = random.Random(35), 0
    wholes = [kept(name) for name in SYMBOLS]
    for _ in range(1_000):
        torn = bytearray(drawn.choice(wholes))
        at = drawn.choice((drawn.randrange(64), len(torn) - drawn.randrange(1, 800), drawn.randrange(len(torn))))
        torn[at : at + 4] = drawn.choice((b"\xff" * 4, bytes(4), drawn.randbytes(4)))
        try:
            file = read_elf(bytes(torn)[: drawn.choice((len(torn), drawn.randrange(len(torn))))])
            for section in file.sections:
                file.symbols(section)
                list(relocations(section))
        except ValueError:
            refused += 1
    assert refused > 300
