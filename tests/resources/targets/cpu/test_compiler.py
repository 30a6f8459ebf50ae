"""A compiler runs within limits, and nothing that it started outlives it. Other programs stand in for one here.

An object file is read as the format says, and a damaged one is refused, whatever is wrong with it.
"""

import errno
import os
import random
import shutil
import socket
import sys
import time
from pathlib import Path

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.confinement import sandbox
from aaco_pipeline.resources.elf import SYMBOL_TABLE
from aaco_pipeline.resources.targets.cpu import compiler as compilers
from aaco_pipeline.resources.targets.cpu.compiler import Compiler, compile_confined, find_compiler, read_object
from tests.resources.toolchains.amdgpu.code_objects import section_header, with_bytes

INSTALLED = [name for name in ("g++", "clang++") if shutil.which(name)]
needs_landlock = pytest.mark.skipif(sandbox.why_no_landlock() is not None, reason="this kernel has no Landlock")
#: Sources that would put a file into what is compiled, or into what the compiler says.
READING = {
    "incbin": """asm(".incbin \\"FILE\\"");""",
    "a section's incbin": """asm(".section .rodata\\n.incbin \\"FILE\\"\\n.text");""",
    "an incbin that a macro spells": """asm(".macro q a,b\\n.\\\\a\\\\b \\"FILE\\"\\n.endm\\nq inc,bin");""",
    "an assembler's include": """asm(".include \\"FILE\\"");""",
    "an include": '#include "FILE"',
    "an include by a macro": '#define F "FILE"\n#include F',
    "an include in brackets": "#include <FILE>",
    "an include that goes up": '#include "../../../../../../../../../..FILE"',
    "a question": '#if __has_include("FILE")\n#error there\n#endif',
    "a line of it in a message": '#line 1 "FILE"\nint x = y;',
    "a pragma": '#pragma GCC dependency "FILE"\n#error after',
    "a list of options": """asm(".section .note\\n.incbin \\"FILE\\",0,9");""",
}
SHELL = Compiler("/bin/sh", "a shell")
PYTHON = Compiler(sys.executable, "Python")


def ends(pid: int) -> bool:
    """Return whether a killed process is gone, which takes a moment."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_compiler_that_takes_too_long_is_ended_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compilers, "_WALL_SECONDS", 0.5)
    with pytest.raises(Refused, match="compile: the compiler took more than"):
        compile_confined(SHELL, ["-c", "sleep 300 & echo $! > child; sleep 300"], tmp_path)
    assert ends(int((tmp_path / "child").read_text()))


def test_what_a_compiler_leaves_running_is_ended(tmp_path: Path) -> None:
    compile_confined(SHELL, ["-c", "sleep 300 & echo $! > child"], tmp_path)
    assert ends(int((tmp_path / "child").read_text()))


def test_a_compiler_has_limits_of_its_own(tmp_path: Path) -> None:
    program = """
import ctypes, resource
for what in ("CPU", "AS", "FSIZE", "CORE"):
    print("x: warning: ", what, resource.getrlimit(getattr(resource, "RLIMIT_" + what))[0])
print("x: warning: ", ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))
"""
    told = compile_confined(PYTHON, ["-I", "-S", "-c", program], tmp_path)
    assert [line.split()[-1] for line in told] == ["60", str(4 << 30), str(128 << 20), "0", "1"]


@pytest.mark.skipif(os.getuid() != 0, reason="a network namespace needs root here")
def test_a_compiler_reaches_no_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), 5)
except OSError as error:
    print("x: warning: ", error.errno)
"""
        told = compile_confined(PYTHON, ["-I", "-S", "-c", program], tmp_path)
    # Landlock refuses first, where it knows of networks.
    assert [int(line.split()[-1]) for line in told] in ([errno.ENETUNREACH], [errno.EACCES])


def test_errors_are_reported_in_a_few_lines_without_the_folder(tmp_path: Path) -> None:
    text = "".join(f"{tmp_path}/kernel.cpp:{line}:1: error: wrong\\n  note of line\\n" for line in range(100))
    with pytest.raises(Refused) as refused:
        compile_confined(SHELL, ["-c", f"printf '{text}'; exit 1"], tmp_path)
    assert refused.value.reason.startswith("kernel.cpp:0:1: error: wrong; kernel.cpp:1:1: error: wrong")
    assert len(refused.value.reason) <= 1_000 and "note" not in refused.value.reason


@needs_landlock
@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.parametrize("what", READING)
def test_a_source_gets_at_no_file_of_the_system(name: str, what: str, tmp_path: Path) -> None:
    (folder := tmp_path / "work").mkdir()
    (mine := tmp_path / "mine").write_text("SECRET;\n")
    for file in (str(mine), "/etc/passwd", "/proc/self/environ", "/var/lib/dpkg/status"):
        (folder / "a.cpp").write_text(READING[what].replace("FILE", file) + "\n")
        with pytest.raises(Refused) as refused:
            compile_confined(find_compiler(name), ["-S", "a.cpp"], folder)
            compile_confined(find_compiler(name), ["-c", "a.s"], folder)
        assert "SECRET" not in refused.value.reason
        assert "root:" not in refused.value.reason


@needs_landlock
@pytest.mark.parametrize("name", INSTALLED)
def test_a_compiler_reads_the_files_it_is_given_and_writes_in_its_folder_alone(name: str, tmp_path: Path) -> None:
    (folder := tmp_path / "work").mkdir()
    (beside := tmp_path / "beside.h").write_text("int x;\n")
    (folder / "a.cpp").write_text(f'#include <vector>\n#include "{beside}"\nint main() {{ return x; }}\n')
    compiler = find_compiler(name)
    with pytest.raises(Refused, match="Permission denied"):
        compile_confined(compiler, ["a.cpp", "-o", "a"], folder)
    compile_confined(compiler, ["a.cpp", "-o", "a"], folder, reads=[beside])
    assert (folder / "a").is_file()
    with pytest.raises(Refused):
        compile_confined(compiler, ["a.cpp", "-o", str(tmp_path / "a")], folder, reads=[beside])
    assert not (tmp_path / "a").exists()


@needs_landlock
def test_a_script_for_the_linker_reads_no_other_file(tmp_path: Path) -> None:
    (folder := tmp_path / "work").mkdir()
    (mine := tmp_path / "mine").write_text("SECRET;\n")
    (folder / "a.cpp").write_text("int main() { return 0; }\n")
    (folder / "a.ld").write_text(f"INCLUDE {mine}\n")
    with pytest.raises(Refused) as refused:
        compile_confined(find_compiler(), ["a.cpp", "-o", "a", "-Wl,-T,a.ld"], folder)
    assert "SECRET" not in refused.value.reason


@needs_landlock
@pytest.mark.parametrize("place", ["bin", ".local/bin", "opt/gcc/bin"])
def test_a_compiler_in_a_home_works_and_opens_nothing_else_of_it(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = find_compiler().path
    (home := tmp_path / "home").mkdir()
    (home / "secret").write_text("int x = y;\n")
    (programs := home / place).mkdir(parents=True)
    (programs / "wrapped").write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
    (programs / "wrapped").chmod(0o755)
    (programs / "linked").symlink_to("wrapped")
    (chain := tmp_path / "chain").mkdir()
    (chain / "mine++").symlink_to(programs / "linked")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{chain}:{os.environ['PATH']}")
    compiler = find_compiler("mine++")
    (folder := tmp_path / "work").mkdir()
    (folder / "a.cpp").write_text("#include <vector>\nint main() { return 0; }\n")
    compile_confined(compiler, ["a.cpp", "-o", "a"], folder)
    (folder / "a.cpp").write_text(f'#include "{home / "secret"}"\n')
    with pytest.raises(Refused, match="Permission denied"):
        compile_confined(compiler, ["-c", "a.cpp"], folder)


@needs_landlock
def test_a_wrapper_finds_the_compiler_that_it_stands_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ccache and distcc do: the same name, further on in PATH, in a prefix that nobody else names."""
    real = find_compiler().path
    for prefix, text in (
        ("first", f'PATH="{tmp_path}/second/bin:$PATH" exec c++ "$@"'),
        ("second", f'exec "{real}" "$@"'),
    ):
        (program := tmp_path / prefix / "bin" / "c++").parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/first/bin:{tmp_path}/second/bin:{os.environ['PATH']}")
    (folder := tmp_path / "work").mkdir()
    (folder / "a.cpp").write_text("#include <vector>\nint main() { return 0; }\n")
    compiler = Compiler(str(tmp_path / "first" / "bin" / "c++"), "a wrapper")
    compile_confined(compiler, ["a.cpp", "-o", "a"], folder)
    assert (folder / "a").is_file()


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
