"""Links a kernel's object with the worker into a program, laid out in memory as a seed says.

Every alignment stays as the flags of compiler and target make it; what moves is the address of the program, of the
kernel in it, the order of its functions and the room between them.
"""

import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.objects import (
    MOST_LOCAL_BYTES,
    Section,
    Symbol,
    dynamic_local_arrays,
    uses_meetings,
)
from aaco_pipeline.optimization.targets import Layout
from aaco_pipeline.resources.targets.cpu.compiler import Compiler, compile_confined
from aaco_pipeline.resources.targets.cpu.object_file import ObjectFile

KERNEL_OBJECT: Final = "kernel.o"
_LOWEST, _HIGHEST = 0x1000_0000, 0x6000_0000
#: Programs begin at whole pages of the largest size there is on the machines that this target knows.
_PAGE: Final = 0x1_0000
_LINE: Final = 64
_MOST_LINES_BETWEEN: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_.$]{1,4096}")


def link(
    compiler: Compiler,
    found: ObjectFile,
    worker: Path,
    layout: Layout,
    folder: Path,
) -> Path:
    """The program of `folder`'s kernel.o in that layout. Refused (guard `symbols`) where names are missing or twice."""
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
    """The kernel's functions in their own part of the program, in a random order and at random distances."""
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
    """What the worker asks of the kernel: whether it needs fibers, and one room for all dynamic local data share."""
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
