"""What a device's code object holds: kernels and machine code of a cubin, and what either vendor's asks for or keeps.

What an AMDGPU code object states of its kernels is read by `aaco_pipeline.resources.toolchains.amdgpu`.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.elf import (
    ALLOCATE,
    DYNAMIC_SYMBOLS,
    FUNCTION,
    OBJECT,
    SYMBOL_TABLE,
    WRITE,
    Section,
    Symbol,
    read_elf,
)

_LOCAL_DATA: Final = (".nv.shared", ".lds")
#: What ptxas names in every object and no code calls.
_RESERVED: Final = re.compile(r"\.nv\.reservedSmem\.|__nv_reservedSMEM_")
#: What clang keeps in every AMDGPU code object.
_OF_THE_COMPILER: Final = re.compile(r"__hip_cuid_|_DYNAMIC$")
#: Arguments that a kernel for AMD GPUs has where it prints or asserts, and where it allocates: named in its metadata.
_SERVICES: Final = (b"hidden_hostcall_buffer", b"hidden_heap_v1")
_BANK: Final = ".nv.constant0."


@dataclass(frozen=True)
class CodeObject:
    """The parts of one ELF file."""

    image: bytes
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    @property
    def functions(self) -> tuple[Symbol, ...]:
        """The functions that it defines."""
        return tuple(one for one in self.symbols if one.kind == FUNCTION and one.section is not None)

    def code_of(self, function: Symbol) -> bytes:
        """The machine code of one function."""
        section = self.sections[function.index]
        begin = function.value - section.address
        return bytes(section.content[begin : begin + function.size])


def read(image: bytes) -> CodeObject:
    """The parts of a code object. Refused (guard `compile`) when it is no 64-bit ELF file."""
    try:
        parsed = read_elf(image)
        tables = [one for one in parsed.sections if one.kind in (SYMBOL_TABLE, DYNAMIC_SYMBOLS)]
        symbols = dict.fromkeys(symbol for table in tables for symbol in parsed.symbols(table))
        return CodeObject(image, parsed.sections, tuple(symbols))
    except ValueError as error:
        raise Refused("compile", f"the compiler left no readable code object: {error}") from error


def symbol_of(code: CodeObject, kernel: str) -> str:
    """The name by which a driver finds `kernel` of a cubin: as written, or as C++ mangles it. Refused unless one is."""
    mangled = re.compile(rf"_Z(?:N(?:\d+\w*?)?)?{len(kernel)}{re.escape(kernel)}")
    kernels = _kernels(code)
    found = [kernel] if kernel in kernels else sorted(name for name in kernels if mangled.match(name))
    if len(found) != 1:
        names = ", ".join(found) if found else "none"
        raise Refused("kernel", f"the code object must hold one kernel {kernel}, and holds {names}")
    return found[0]


def code_digest(code: CodeObject, symbol: str) -> str:
    """The SHA-256 of what a kernel of a cubin runs: its machine code, its literals, and the functions it may call.

    Each kernel is a section of its own with offsets from its begin alone: where it is loaded does not show.
    """
    digest = hashlib.sha256()
    kernels = _kernels(code)
    for function in sorted(code.functions, key=lambda function: (function.name != symbol, function.name)):
        if function.name == symbol or function.name not in kernels:
            digest.update(code.code_of(function))
    for section in code.sections:
        literals = re.fullmatch(r"\.nv\.constant(?!0\b)\d+(?:\.(.+))?", section.name)
        if literals and literals[1] in (None, symbol):
            digest.update(section.name.encode() + bytes(section.content))
    return digest.hexdigest()


def check_symbols(code: CodeObject) -> None:
    """Refused (guard `symbols`) where device code asks for a service, or keeps memory from one launch to the next."""
    undefined = {symbol.name for symbol in code.symbols if symbol.name and not symbol.index}
    asked = sorted(name for name in undefined if not _RESERVED.match(name))
    if asked:
        raise Refused("symbols", f"device code calls {', '.join(asked)}; a kernel may not print, allocate or assert")
    if any(service in code.image for service in _SERVICES):
        raise Refused("symbols", "device code calls the host; a kernel may not print, allocate or assert")
    kept = sorted({symbol.name for symbol in code.symbols if _is_kept(code, symbol)})
    if kept:
        raise Refused("symbols", f"{', '.join(kept)} would keep its value from one launch to the next")


def _is_kept(code: CodeObject, symbol: Symbol) -> bool:
    if symbol.kind != OBJECT or symbol.section is None or _OF_THE_COMPILER.match(symbol.name):
        return False
    section = code.sections[symbol.section]
    return bool(section.flags & WRITE and section.flags & ALLOCATE) and not section.name.startswith(_LOCAL_DATA)


def _kernels(code: CodeObject) -> set[str]:
    """What a cubin can launch: each has a bank of constants for its arguments."""
    banks = [section.name for section in code.sections if section.name.startswith(_BANK)]
    return {name.removeprefix(_BANK) for name in banks}
