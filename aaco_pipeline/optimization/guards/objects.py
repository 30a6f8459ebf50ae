"""Judge a compiled kernel's object file by its sections and symbols, whatever its text says.

The target reads the file. An object may run nothing by itself (no constructors, no
resolvers), call nothing but mathematics, memory copies and the worker's own two meetings, replace nothing that others
call, and keep nothing between calls that its source does not state openly.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from aaco_pipeline.optimization.candidates import Refused

Kind = Literal["none", "data", "function", "section", "file", "common", "thread_local", "resolver", "other"]
Binding = Literal["local", "global", "weak", "other"]


@dataclass(frozen=True)
class Section:
    """A section of an object file; `kind` is its number in the ELF format (sh_type)."""

    name: str
    kind: int
    loaded: bool
    writable: bool
    executable: bool
    thread_local: bool
    size_bytes: int
    alignment_bytes: int


@dataclass(frozen=True)
class Symbol:
    """A symbol of an object file; `section` is null where it is not defined in it."""

    name: str
    kind: Kind
    binding: Binding
    section: str | None
    size_bytes: int


#: The function by which the worker runs work-items, made by the target's header.
ENTRY: Final = "aaco_items"
#: What the worker gives a kernel, for barriers and for values exchanged between lanes.
MEETINGS: Final = ("aaco_barrier", "aaco_exchange")
#: Where a work-item is, which the header keeps as static variables of 12 bytes each.
INDEX_VARIABLES: Final = ("_ZL9threadIdx", "_ZL8blockIdx", "_ZL8blockDim", "_ZL7gridDim")
MOST_LOCAL_BYTES: Final = 64 << 10
_MOST_BYTES: Final = 16 << 20
_MOST_ALIGNMENT: Final = 4096
_MATHEMATICS: Final = re.findall(
    r"\w+",
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs fdim floor "
    "fma fmax fmin fmod frexp hypot ilogb ldexp llrint llround log log10 log1p log2 logb lrint lround modf nearbyint "
    "nextafter pow remainder remquo rint round roundeven scalbln scalbn sin sincos sinh sqrt tan tanh tgamma trunc",
)
#: Functions that compilers call for operations that a processor has no instruction for.
_OF_COMPILERS: Final = re.findall(
    r"\w+",
    "memcpy memmove memset memcmp __popcountdi2 __popcountsi2 __clzdi2 __clzsi2 __ctzdi2 __ctzsi2 __ffsdi2 __ffssi2 "
    "__bswapdi2 __bswapsi2 __divti3 __udivti3 __modti3 __umodti3 __multi3",
)
MAY_CALL: Final = frozenset([*_MATHEMATICS, *(f"{name}f" for name in _MATHEMATICS), *_OF_COMPILERS, *MEETINGS])
#: Programs' sections as a compiler writes them for plain functions and data. All others mean something to a linker or
#: a loader, or hide something from those who look.
_SECTIONS: Final = re.compile(
    r"(\.(text|rodata|data|bss|tbss|tdata|data\.rel\.ro)(\..*)?"
    r"|\.(eh_frame|comment|group|symtab|strtab|shstrtab|symtab_shndx|llvm_addrsig|note\.GNU-stack|note\.gnu\.property)"
    r"|\.rela\..*|)"
)
_RUN_AT_START: Final = re.compile(r"\.(pre)?(init|fini)(_array)?(\..*)?|\.[cd]tors(\..*)?|\.jcr")
_NUMBERS_OF_ARRAYS: Final = (14, 15, 16)
_INDEX_BYTES: Final = 12
_MANGLED: Final = "_Z"


def check_object(sections: Iterable[Section], symbols: Iterable[Symbol], kernels: Collection[str]) -> None:
    """Refuse an object (guards `constructors`, `symbols`, `resources`) that does more than kernels do.

    `kernels` are the names that its source gives to kernels, which it may define under C names.
    """
    sections, symbols = list(sections), list(symbols)
    for section in sections:
        _check_section(section)
    total = sum(section.size_bytes for section in sections if section.loaded and not section.thread_local)
    if total > _MOST_BYTES:
        raise Refused("resources", f"the compiled kernel takes {total} bytes; at most {_MOST_BYTES} are taken")
    local = local_bytes(sections)
    if local > MOST_LOCAL_BYTES:
        raise Refused("resources", f"it declares {local} bytes of local data share; a workgroup has {MOST_LOCAL_BYTES}")
    if not any(section.name == ".note.GNU-stack" for section in sections):
        raise Refused("symbols", "the object does not say that its stack need not be executable")
    for symbol in symbols:
        _check_symbol(symbol, kernels)
    if not any(symbol.name == ENTRY and symbol.kind == "function" and symbol.section for symbol in symbols):
        raise Refused("symbols", "the compiled object has no way in: the end of the source hides what follows it")


def local_bytes(sections: Iterable[Section]) -> int:
    """Sum the bytes of statically declared local data share."""
    return sum(section.size_bytes for section in sections if section.thread_local)


def writable_bytes(sections: Iterable[Section], symbols: Iterable[Symbol]) -> int:
    """Sum the bytes of writable data beside the header's own: they could carry something from call to call."""
    written = sum(section.size_bytes for section in sections if is_writable_data(section))
    own = {symbol.name for symbol in symbols if symbol.name in INDEX_VARIABLES and symbol.section is not None}
    common = sum(symbol.size_bytes for symbol in symbols if symbol.kind == "common")
    return max(0, written - _INDEX_BYTES * len(own)) + common


def is_writable_data(section: Section) -> bool:
    """Return whether a program can write to a section while it runs, other than as local data share."""
    relocated_once = section.name == ".data.rel.ro" or section.name.startswith(".data.rel.ro.")
    return section.loaded and section.writable and not section.thread_local and not relocated_once


def uses_meetings(symbols: Iterable[Symbol]) -> bool:
    """Return whether work-items wait for one another, so that each needs a stack of its own."""
    return any(symbol.name in MEETINGS for symbol in symbols if symbol.section is None)


def dynamic_local_arrays(symbols: Iterable[Symbol]) -> tuple[str, ...]:
    """List the `extern __shared__` arrays, whose size the launch gives."""
    return tuple(sorted(symbol.name for symbol in symbols if symbol.kind == "thread_local" and symbol.section is None))


def check_state(baseline_bytes: int, candidate_bytes: int) -> None:
    """Refuse (guard `symbols`) a candidate with more writable data of its own than the baseline has."""
    if candidate_bytes > baseline_bytes:
        kept = f"it keeps {candidate_bytes} bytes of writable data where the baseline keeps {baseline_bytes}"
        raise Refused("symbols", f"{kept}: what a call leaves behind must not reach the next")


def _check_section(section: Section) -> None:
    if section.kind in _NUMBERS_OF_ARRAYS or _RUN_AT_START.fullmatch(section.name):
        raise Refused("constructors", f"the object has code that runs before its kernel (section {section.name})")
    if not _SECTIONS.fullmatch(section.name):
        raise Refused("symbols", f"the object has a section that no kernel needs: {section.name[:80]!r}")
    if section.executable and (section.writable or not section.name.startswith(".text")):
        raise Refused("symbols", f"section {section.name[:80]!r} may be executed")
    if section.name.startswith(".tdata") and section.size_bytes:
        raise Refused("symbols", "local data share is declared with a value, which no GPU gives it")
    if section.thread_local != section.name.startswith((".tbss", ".tdata")):
        raise Refused("symbols", f"section {section.name[:80]!r} is not what its name says")
    if section.alignment_bytes > _MOST_ALIGNMENT:
        raise Refused("resources", f"section {section.name[:80]!r} is aligned to {section.alignment_bytes} bytes")


def _check_symbol(symbol: Symbol, kernels: Collection[str]) -> None:
    shown = symbol.name[:80]
    if symbol.kind == "resolver":
        raise Refused("constructors", f"{shown} is chosen by code that runs when the program is loaded")
    if symbol.kind == "other" or symbol.binding == "other":
        raise Refused("symbols", f"{shown} is a symbol of a kind that no kernel needs")
    if symbol.binding == "local":
        return
    if symbol.section is None:
        if symbol.kind == "thread_local" or symbol.name in MAY_CALL or symbol.name == "_GLOBAL_OFFSET_TABLE_":
            return
        # A weak reference to a constructor of thread-local data, as clang writes it for `extern __shared__`.
        if symbol.binding == "weak" and symbol.name.startswith("_ZTH"):
            return
        raise Refused("symbols", f"the kernel calls {shown}, which is neither mathematics nor a copy of memory")
    if symbol.name in MAY_CALL or symbol.name == "main":
        raise Refused("symbols", f"the object defines {shown}, which others call")
    if symbol.name.startswith(_MANGLED) or symbol.name == ENTRY or symbol.name in kernels:
        return
    if symbol.kind == "function" or symbol.name.startswith("_"):
        raise Refused("symbols", f'the object defines {shown}, which is no kernel; do not declare it extern "C"')
