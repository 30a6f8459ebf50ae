"""Compile and link for this machine's processor, with limits: the compiler, the target's own C code, objects, layouts.

`target` decides which part of a source is compiled; `worker` is the process that runs the result.
"""

import hashlib
import os
import random
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from aaco_pipeline.cache_folder import own_code
from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.objects import (
    MOST_LOCAL_BYTES,
    Binding,
    Kind,
    Section,
    Symbol,
    dynamic_local_arrays,
    uses_meetings,
)
from aaco_pipeline.optimization.targets import Layout
from aaco_pipeline.resources import elf
from aaco_pipeline.resources.toolchains.limited import Limits, Reach, ending, parts_of, run_limited

#: Only ends processes that hang: the compiler's computation is limited in CPU time.
_WALL_SECONDS: Final = 3_600
_LIMITS: Final = Limits(memory_bytes=4 << 30, cpu_seconds=60, file_bytes=128 << 20)
_TOLD_LINES: Final = 6
_TOLD_LETTERS: Final = 1_000
_READ_BYTES: Final = 1 << 16
_NO_CACHE: Final = {"CCACHE_DISABLE": "1"}
#: This target's headers and sources.
_OWN: Final = Path(__file__).parent
_CHOICES: Final = ("c++", "g++", "clang++")
HOW_TO_INSTALL: Final = "install g++ or clang++ (Debian, Ubuntu: apt-get install g++)"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its path and the first line of its version output."""

    path: str
    version: str

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version


@cache
def find_compiler(name: str | None = None) -> Compiler:
    """Find the compiler of that name, else the first of c++, g++ and clang++. UsageError if there is none."""
    for choice in _CHOICES if name is None else (name,):
        if (path := shutil.which(choice)) is not None:
            return Compiler(path, _version(path))
    raise UsageError(f"no C++ compiler named {name or ', '.join(_CHOICES)} on PATH; {HOW_TO_INSTALL}")


def _version(path: str) -> str:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{path} --version does not answer: {error}; {HOW_TO_INSTALL}") from error
    return said.splitlines()[0] if said else path


def compile_confined(
    compiler: Compiler, arguments: Sequence[str], folder: Path, *, reads: Sequence[Path] = ()
) -> tuple[str, ...]:
    """Run the compiler in `folder`, with its temporary files there; return its warnings.

    It can access only its own installation, that folder, this target's headers and the files `reads`. Refused (guard
    `compile`) if it fails, or exceeds 60 s of CPU time, an hour or 4 GiB. All processes that it started have ended.
    """
    said = folder / "compiler.txt"
    # A compilation cache would read and write elsewhere.
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": str(folder)} | _NO_CACHE
    status = run_limited(
        [compiler.path, *arguments],
        folder,
        log=said,
        limit_seconds=_WALL_SECONDS,
        limits=_LIMITS,
        reach=Reach((*parts_of(compiler.path), _OWN, *reads)),
        environment=environment,
    )
    if status is None:
        raise Refused("compile", f"the compiler took more than {_WALL_SECONDS} s")
    with said.open("rb") as stream:
        text = stream.read(_READ_BYTES).decode(errors="replace")
    if status != 0:
        raise Refused(
            "compile", _shortened(text, folder) or f"the compiler ended with {ending(status)} and said nothing"
        )
    return tuple(line for line in _plain(text, folder).splitlines() if ": warning: " in line)[:_TOLD_LINES]


def _shortened(text: str, folder: Path) -> str:
    """Return the error lines, without those about a template's instantiation."""
    lines = [line for line in _plain(text, folder).splitlines() if line.strip()]
    telling = [
        line for line in lines if re.search(r"\b(fatal error|error|undefined reference|Killed|terminated)\b", line)
    ]
    return "; ".join((telling or lines)[:_TOLD_LINES])[:_TOLD_LETTERS]


def _plain(text: str, folder: Path) -> str:
    return "".join(letter for letter in text if letter.isprintable() or letter == "\n").replace(f"{folder}/", "")


_SOURCES: Final = Path(__file__).with_name("native")
_WORKER_FLAGS: Final = ("-O2", "-fno-pie", "-fno-stack-protector", "-fcf-protection=none", "-c")
_FLUSH_FLAGS: Final = ("-O2", "-fPIC", "-shared")


def worker_object(compiler: Compiler) -> Path:
    """Return the worker, to be linked with a kernel. UsageError if this machine's compiler cannot build it."""
    return _made(compiler, "worker.c", "worker.o", _WORKER_FLAGS)


def flush_library(compiler: Compiler) -> Path:
    """Return the library that flushes buffers from the caches, to be loaded by this process."""
    return _made(compiler, "flush.c", "flush.so", _FLUSH_FLAGS)


def _made(compiler: Compiler, source: str, name: str, flags: Sequence[str]) -> Path:
    if os.uname().machine != "x86_64":
        flags = [flag for flag in flags if not flag.startswith("-fcf-protection")]
    text = (_SOURCES / source).read_bytes()
    digest = hashlib.sha256("\0".join([compiler.path, compiler.version, *flags]).encode() + text).hexdigest()

    def build(made: Path) -> None:
        made.with_name(source).write_bytes(text)
        try:
            compile_confined(compiler, ["-x", "c", source, *flags, "-o", made.name], made.parent)
        except Refused as refused:
            raise UsageError(f"{compiler.path} cannot make {source}: {refused.reason}; {HOW_TO_INSTALL}") from refused

    return own_code(f"cpu_target/{digest[:32]}/{name}", build)


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
    """Read an object file. Refused (guards `symbols`, `resources`) if it is invalid, damaged, or above 64 MiB."""
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
    """Name a relocation's target without its number in the table: a symbol, or a section with an offset."""
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


KERNEL_OBJECT: Final = "kernel.o"
_LOWEST, _HIGHEST = 0x1000_0000, 0x6000_0000
#: Programs begin at a multiple of the largest page size of the machines that this target supports.
_PAGE: Final = 0x1_0000
_LINE: Final = 64
_MOST_LINES_BETWEEN: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_.$]{1,4096}")


def link(compiler: Compiler, found: ObjectFile, worker: Path, layout: Layout, folder: Path) -> Path:
    """Link `folder`'s kernel.o in that layout. Refused (guard `symbols`) if names are missing or duplicated."""
    chosen = random.Random(layout.seed)
    base = chosen.randrange(_LOWEST, _HIGHEST, _PAGE)
    script = folder / f"layout_{layout.seed}.ld"
    script.write_text(_script(found.sections, chosen))
    stub = folder / "stub.c"
    stub.write_text(_stub(found.symbols))
    program = folder / f"kernel_{layout.seed}"
    objects = [KERNEL_OBJECT, str(worker)]
    chosen.shuffle(objects)
    arguments = [
        *("-x", "c", "-O2", "-fno-pie", str(stub), "-x", "none", *objects),
        *("-no-pie", "-nodefaultlibs", "-o", str(program), f"-Wl,-T,{script}", f"-Wl,-Ttext-segment={base:#x}"),
        *("-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,-z,separate-code", "-Wl,--build-id=none"),
        *("-lm", "-lc", "-lgcc"),
    ]
    try:
        compile_confined(compiler, arguments, folder, reads=[worker])
    except Refused as refused:
        raise Refused("symbols", f"it does not link: {refused.reason}") from refused
    return program


def _script(sections: Sequence[Section], chosen: random.Random) -> str:
    """Place the kernel's functions in a separate section of the program, in a random order and at random distances."""
    texts = _plain_names(section for section in sections if section.executable and section.size_bytes)
    chosen.shuffle(texts)
    parts = [
        f"    . = . + {_LINE * chosen.randrange(_MOST_LINES_BETWEEN)};\n    *{KERNEL_OBJECT}({name})\n"
        for name in texts
    ]
    return (
        "SECTIONS\n{\n"
        f"  .aaco_text : ALIGN({_LINE})\n  {{\n{''.join(parts)}    *{KERNEL_OBJECT}(.text .text.*)\n  }}\n"
        "}\nINSERT AFTER .text;\n"
    )


def _plain_names(sections: Iterable[Section]) -> list[str]:
    names = list(dict.fromkeys(section.name for section in sections))
    for name in names:
        if not _NAME.fullmatch(name):
            raise Refused("symbols", f"a section has no plain name: {name[:80]!r}")
    return names


def _stub(symbols: Sequence[Symbol]) -> str:
    """Return source that tells the worker whether the kernel needs fibers, with one area for all dynamic LDS."""
    arrays = dynamic_local_arrays(symbols)
    for name in arrays:
        if not _NAME.fullmatch(name):
            raise Refused("symbols", f"an array of dynamic local data share has no plain name: {name[:80]!r}")
    size = MOST_LOCAL_BYTES
    room = f"_Thread_local char aaco_lds[{size}] __attribute__((aligned(64)));\n" if arrays else ""
    aliases = "".join(
        f'extern _Thread_local char lds_{at}[{size}] __asm__("{name}") __attribute__((alias("aaco_lds")));\n'
        for at, name in enumerate(arrays)
    )
    return (
        f"{room}{aliases}"
        f"char *aaco_dynamic_lds(void) {{ return {'aaco_lds' if arrays else '0'}; }}\n"
        f"const unsigned aaco_uses_fibers = {int(uses_meetings(symbols))};\n"
        f"const unsigned aaco_uses_dynamic_lds = {int(bool(arrays))};\n"
    )
