"""Code objects: what they state is what the compiler says, and whatever is wrong with one is one clear error.

The digest of machine code: the same wherever code lies, another when an instruction or what it refers to changes.
"""

import random
import struct

import pytest

from aaco_pipeline.errors import AacoError
from aaco_pipeline.resources.elf import NOTES, SYMBOL_TABLE
from aaco_pipeline.resources.toolchains.amdgpu.code_object import (
    CodeObject,
    CodeObjectError,
    code_sha256,
    unpacked,
    unqualified,
)
from aaco_pipeline.resources.toolchains.amdgpu.compiling import (
    SOURCE_NAME,
    disagreements,
    kernel_resources,
    read_remarks,
)
from tests.resources.toolchains.amdgpu.code_objects import SYMBOLS, kept, section_header, section_offset, with_bytes


@pytest.mark.parametrize("name", SYMBOLS)
def test_every_figure_is_the_compilers_own(name: str) -> None:
    resources, symbol = kernel_resources(kept(name), name.partition("-")[0])
    assert symbol == SYMBOLS[name]
    assert disagreements(resources, read_remarks(kept(name, "yaml"), symbol, SOURCE_NAME)) == []


def test_what_a_kernel_takes() -> None:
    """By llvm-readelf-19 --notes and -s of the kept files."""
    matrix, _ = kernel_resources(kept("matrix-gfx942-1"), "matrix")
    assert (matrix.architecture, matrix.wavefront_size, matrix.max_workgroup_work_items) == ("gfx942", 64, 256)
    assert (matrix.vgprs, matrix.agprs, matrix.sgprs, matrix.scratch_bytes) == (308, 256, 20, 1088)
    lookup, _ = kernel_resources(kept("lookup-gfx90a-1"), "lookup")
    assert (lookup.architecture, lookup.lds_bytes, lookup.max_workgroup_work_items) == ("gfx90a", 1024, 256)
    assert (lookup.vgprs, lookup.sgprs, lookup.code_bytes) == (6, 39, 184)
    star, _ = kernel_resources(kept("star-gfx942-8"), "star")
    assert (star.vgprs, star.vgpr_spills, star.sgpr_spills, star.scratch_bytes) == (128, 119, 0, 400)
    assert (star.code_bytes, star.dynamic_stack) == (8216, False)


def test_a_linked_code_object_states_the_same() -> None:
    linked, relocatable = (CodeObject(kept("lookup-gfx90a-1", suffix)) for suffix in ("hsaco", "o"))
    assert linked.kernel("lookup") == relocatable.kernel("lookup")
    assert linked.architecture == "gfx90a"
    functions = [one.symbols_by_name[SYMBOLS["lookup-gfx90a-1"]] for one in (linked, relocatable)]
    assert functions[0].size == functions[1].size == 184
    assert functions[0].value != functions[1].value


def test_a_kernel_is_found_by_either_name_and_only_when_there_is_one() -> None:
    code = CodeObject(kept("lookup-gfx90a-1"))
    assert code.kernel("lookup") == code.kernel("_ZN5scope6lookupIfEEvPKT_PS1_i")
    with pytest.raises(CodeObjectError, match=r"no compiled kernel is called look; there is _ZN5scope6lookup"):
        code.kernel("look")
    code.kernels = (*code.kernels, *code.kernels)
    with pytest.raises(CodeObjectError, match=r"2 compiled kernels are called lookup \(overloads, instances\)"):
        code.kernel("lookup")


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("star", "star"),
        ("_Z6matrixPKfS0_Pfi", "matrix"),
        ("_ZL1kPf", "k"),
        ("_ZN5scope6lookupIfEEvPKT_PS1_i", "lookup"),
        ("_ZN1a12_GLOBAL__N_11qEPf", "q"),
        ("_ZN1aL1rEPf", "r"),
        ("_Z3addIiEvPT_", "add"),
        ("_ZSt4swapv", "_ZSt4swapv"),
    ],
)
def test_the_name_of_the_source_is_found_in_a_mangled_one(symbol: str, name: str) -> None:
    assert unqualified(symbol) == name


def _torn(data: bytes) -> dict[str, bytes]:
    notes, symbols = section_header(data, NOTES), section_header(data, SYMBOL_TABLE)
    metadata = section_offset(data, NOTES)
    huge = struct.pack("<Q", 1 << 60)
    kernel = CodeObject(data).kernel("lookup")
    sizes = (kernel.lds_bytes, kernel.scratch_bytes, kernel.kernarg_bytes)
    descriptor = struct.pack("<III", *sizes)
    return {
        "nothing": b"",
        "another file": b"MZ" + data[2:],
        "32 bits": with_bytes(data, 4, b"\1"),
        "another system": with_bytes(data, 7, b"\3"),
        "another machine": with_bytes(data, 18, struct.pack("<H", 62)),
        "sections beyond the end": with_bytes(data, 40, huge),
        "most sections": with_bytes(data, 60, struct.pack("<H", 0xFFFF)),
        "no sections": with_bytes(data, 60, struct.pack("<H", 0)),
        "names of no section": with_bytes(data, 62, struct.pack("<H", 0xFFFE)),
        "a huge note section": with_bytes(data, notes + 32, huge),
        "a huge note": with_bytes(data, metadata + 4, struct.pack("<I", 0xFFFFFFF0)),
        "a huge name of a note": with_bytes(data, metadata, struct.pack("<I", 0xFFFFFFF0)),
        "a note of somebody else": with_bytes(data, metadata + 12, b"OTHERS"),
        "no symbols": with_bytes(data, symbols + 4, struct.pack("<I", 1)),
        "names of symbols nowhere": with_bytes(data, symbols + 40, struct.pack("<I", 0xFFFF)),
        "half a symbol": with_bytes(data, symbols + 32, struct.pack("<Q", 25)),
        "an unknown value in the metadata": with_bytes(data, metadata + 20, b"\xc1"),
        "a huge map in the metadata": with_bytes(data, metadata + 20, b"\xdf\xff\xff\xff\xff"),
        "a negative figure": data.replace(b".sgpr_count\x27", b".sgpr_count\xff"),
        "another figure in the descriptor": data.replace(descriptor, struct.pack("<III", 0, *sizes[1:])),
    }


@pytest.mark.parametrize("damage", _torn(kept("lookup-gfx90a-1")))
def test_what_is_no_code_object_is_one_error(damage: str) -> None:
    whole = kept("lookup-gfx90a-1")
    torn = _torn(whole)[damage]
    assert torn != whole
    with pytest.raises(CodeObjectError, match="not a code object for AMD GPUs: ") as raised:
        CodeObject(torn)
    assert raised.value.exit_code == 6


def test_every_truncation_is_one_error() -> None:
    whole = kept("lookup-gfx90a-1")
    for size in range(0, len(whole) - 1, 37):
        with pytest.raises(CodeObjectError):
            CodeObject(whole[:size])


def test_no_flipped_bytes_are_another_error() -> None:
    """Some change nothing that is read; what must not be is another exception."""
    whole, drawn = kept("lookup-gfx90a-1"), random.Random(20261123)
    refused = 0
    for _ in range(600):
        torn = bytearray(whole)
        for _ in range(drawn.choice((1, 2, 8))):
            torn[drawn.randrange(len(torn))] = drawn.randrange(256)
        try:
            kernel_resources(bytes(torn), "lookup")
        except AacoError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "incomplete input"),
        (b"\xa3ab", "incomplete input"),
        (b"\xdb\xff\xff\xff\xff", "incomplete input"),
        (b"\xdd\xff\xff\xff\xff", "exceeds"),
        (b"\xdf\xff\xff\xff\xff\xa1a", "exceeds"),
        (b"\xdd\x00\x01\x00\x00" + bytes(1 << 16), "exceeds max_array_len"),
        (b"\xdd\x00\x00\x7f\xff" * 1100 + bytes(1 << 16), "StackError"),
        (b"\x01\x02", "extra data"),
        (b"\x81\x01\x02", "int is not allowed for map key"),
        (b"\x81\xc4\x01a\x02", "a key stands twice, or is not text"),
        (b"\x82\xa1a\x01\xa1a\x02", "a key stands twice, or is not text"),
        (b"\x91" * 17 + b"\x01", "nested deeper than 16"),
        (b"\x81\xa1a" * 17 + b"\x01", "nested deeper than 16"),
        (b"\x91\xd6\xff\x00\x00\x00\x00", "a timestamp"),
        (b"\xd4\x00\x00", "an extension of type 0"),
        (b"\xc1", "FormatError"),
        (b"\xa1\xff", "can't decode byte"),
    ],
)
def test_metadata_that_is_no_value_is_one_error(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=rf"^no MessagePack.*{words}"):
        unpacked(data)


def test_metadata_may_nest_16_levels_and_hold_bytes() -> None:
    assert unpacked(b"\x81\xa1a\xc4\x02\x00\xff") == {"a": b"\x00\xff"}
    value = unpacked(b"\x91" * 16 + b"\x90")
    for _ in range(16):
        assert isinstance(value, list)
        (value,) = value
    assert value == []


NAME = "lookup-gfx90a-1"
SYMBOL = SYMBOLS[NAME]


def content_at(data: bytes, symbol: str) -> int:
    code = CodeObject(data)
    found = code.symbols_by_name[symbol]
    assert found.section is not None
    return data.index(bytes(code.sections[found.section].content)) + found.value


def test_every_kept_kernel_has_another_one() -> None:
    digests = {code_sha256(CodeObject(kept(name)), symbol) for name, symbol in SYMBOLS.items()}
    assert len(digests) == len(SYMBOLS)
    assert all(len(one) == 64 for one in digests)


@pytest.mark.parametrize("symbol", [SYMBOL, "_Z9looked_upf", "table"])
def test_a_changed_byte_of_what_the_kernel_reaches_changes_it(symbol: str) -> None:
    whole = kept(NAME)
    at = content_at(whole, symbol)
    changed = with_bytes(whole, at, bytes([whole[at] ^ 1]))
    assert code_sha256(CodeObject(changed), SYMBOL) != code_sha256(CodeObject(whole), SYMBOL)


def test_neither_names_nor_what_is_not_reached_are_part_of_it() -> None:
    whole = kept(NAME)
    renamed = whole.replace(b"\0table\0", b"\0bable\0").replace(b"\0_Z9looked_upf\0", b"\0_Z9hooked_upf\0")
    assert renamed != whole
    assert code_sha256(CodeObject(renamed), SYMBOL) == code_sha256(CodeObject(whole), SYMBOL)
    at = content_at(whole, f"{SYMBOL}.kd")
    descriptor = with_bytes(whole, at + 48, bytes([whole[at + 48] ^ 1]))
    assert code_sha256(CodeObject(descriptor), SYMBOL) == code_sha256(CodeObject(whole), SYMBOL)


def test_a_reference_to_another_place_changes_it() -> None:
    whole = kept(NAME)
    entry = struct.pack("<QQq", 0x10, 4 << 32 | 10, 4)
    assert whole.count(entry) == 1
    moved = whole.replace(entry, struct.pack("<QQq", 0x10, 4 << 32 | 10, 8))
    assert code_sha256(CodeObject(moved), SYMBOL) != code_sha256(CodeObject(whole), SYMBOL)


def test_a_function_that_reaches_itself_has_one() -> None:
    whole = kept(NAME)
    entry = struct.pack("<QQq", 0x10, 4 << 32 | 10, 4)
    recursive = whole.replace(entry, struct.pack("<QQq", 0x10, 2 << 32 | 10, 4))
    digest = code_sha256(CodeObject(recursive), SYMBOL)
    assert digest != code_sha256(CodeObject(whole), SYMBOL)
    renamed = recursive.replace(b"\0_Z9looked_upf\0", b"\0_Z9hooked_upf\0")
    assert code_sha256(CodeObject(renamed), SYMBOL) == digest


def test_only_code_that_is_not_linked_yet_has_one() -> None:
    with pytest.raises(CodeObjectError, match="give a relocatable code object"):
        code_sha256(CodeObject(kept(NAME, "hsaco")), SYMBOL)
    with pytest.raises(CodeObjectError, match="no function table in the code object"):
        code_sha256(CodeObject(kept(NAME)), "table")
    whole = kept(NAME)
    entry = struct.pack("<QQq", 0x10, 4 << 32 | 10, 4)
    nowhere = whole.replace(entry, struct.pack("<QQq", 0x10, 4000 << 32 | 10, 4))
    with pytest.raises(CodeObjectError, match="a reference to symbol 4000 of 8"):
        code_sha256(CodeObject(nowhere), SYMBOL)
