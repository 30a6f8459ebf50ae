"""The digest of machine code: the same wherever code lies, another when an instruction or what it refers to changes."""

import struct

import pytest

from aaco_pipeline.resources.toolchains.amdgpu.code_object import CodeObject, CodeObjectError
from aaco_pipeline.resources.toolchains.amdgpu.machine_code import code_sha256
from tests.resources.toolchains.amdgpu.code_objects import SYMBOLS, kept, with_bytes

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
