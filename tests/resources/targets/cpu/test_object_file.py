"""An object file is read as the format says, and a damaged one is refused, whatever is wrong with it."""

import random
from pathlib import Path

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.elf import SYMBOL_TABLE
from aaco_pipeline.resources.targets.cpu.compiler import compile_confined, find_compiler
from aaco_pipeline.resources.targets.cpu.object_file import read_object
from tests.resources.toolchains.amdgpu.code_objects import section_header, with_bytes

SOURCE = b"""
extern "C" float expf(float);
extern thread_local float shared[];
static thread_local int tile[10];
int kept[3];
static const float table[] = {1.5f, 2.5f};
extern "C" float f(int at) { shared[0] = 1; return expf(table[at]) + kept[at] + ++tile[at]; }
__attribute__((constructor)) static void early() { kept[0] = 1; }
static int (*resolved(void))(void) { return nullptr; }
__attribute__((ifunc("_ZL8resolvedv"))) int chosen();
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("object")
    (folder / "some.cpp").write_bytes(SOURCE)
    flags = ("-O1", "-fno-pie", "-ffunction-sections", "-fdata-sections", "-c", "some.cpp", "-o", "some.o")
    compile_confined(find_compiler(), flags, folder)
    return folder / "some.o"


def test_sections_and_symbols_are_what_the_source_says(made: Path) -> None:
    found = read_object(made)
    sections = {one.name: one for one in found.sections}
    symbols = {one.name: one for one in found.symbols}
    assert sections[".text.f"].executable and not sections[".text.f"].writable
    assert sections[".bss.kept"].writable and sections[".bss.kept"].size_bytes == 12
    assert [one.size_bytes for one in found.sections if one.thread_local] == [40]
    assert any(name.startswith((".init_array", ".ctors")) for name in sections)
    assert (symbols["f"].kind, symbols["f"].binding, symbols["f"].section) == ("function", "global", ".text.f")
    assert (symbols["expf"].binding, symbols["expf"].section) == ("global", None)
    assert (symbols["shared"].kind, symbols["shared"].section) == ("thread_local", None)
    assert symbols["_Z6chosenv"].kind == "resolver"


def test_a_damaged_object_is_refused_or_read_and_nothing_else(made: Path, tmp_path: Path) -> None:
    whole = made.read_bytes()
    chosen = random.Random(5)
    damaged = tmp_path / "damaged.o"
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(chosen.randrange(1, 6)):
            at = chosen.randrange(len(content)) if chosen.random() < 0.5 else chosen.randrange(64)
            content[at] = chosen.randrange(256)
        damaged.write_bytes(content[: chosen.choice([len(content), chosen.randrange(len(content))])])
        try:
            read_object(damaged)
        except Refused as error:
            refused += 1
            assert error.guard in ("symbols", "resources")
    assert refused > 100


def test_what_is_no_object_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"\x7fELF", b"int main() {}" * 100):
        (tmp_path / "text").write_bytes(content)
        with pytest.raises(Refused, match="symbols"):
            read_object(tmp_path / "text")


def test_the_digest_follows_what_is_called_and_no_name_of_its_own(made: Path, tmp_path: Path) -> None:
    whole = made.read_bytes()
    digests = []
    for before, after in ((b"\0expf\0", b"\0sinf\0"), (b"\0_ZL5table\0", b"\0_ZL5fable\0")):
        assert before in whole
        (tmp_path / "renamed.o").write_bytes(whole.replace(before, after))
        digests.append(read_object(tmp_path / "renamed.o").code_sha256 == read_object(made).code_sha256)
    assert digests == [False, True]


@pytest.mark.parametrize(
    ("at", "content", "words"),
    [
        (16, b"\3", "it is of type 3 and has 1 tables of symbols"),
        ("table", b"\1", "it is of type 1 and has 0 tables of symbols"),
        ("name", b"\xc3\xa9", "a name is not ASCII"),
    ],
)
def test_an_object_that_no_compiler_leaves_is_refused(
    made: Path, tmp_path: Path, at: int | str, content: bytes, words: str
) -> None:
    whole = made.read_bytes()
    places = {"table": section_header(whole, SYMBOL_TABLE) + 4, "name": whole.index(b"\0expf\0") + 1}
    place = at if isinstance(at, int) else places[at]
    (tmp_path / "other.o").write_bytes(with_bytes(whole, place, content))
    with pytest.raises(Refused, match=words):
        read_object(tmp_path / "other.o")
