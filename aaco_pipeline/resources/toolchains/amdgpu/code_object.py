"""Read an AMD GPU code object: sections, symbols, each kernel's metadata, and a digest of its code.

Implements ELF with the notes and kernel descriptors of the "User Guide for AMDGPU Backend" of LLVM
(https://llvm.org/docs/AMDGPUUsage.html).
"""

import hashlib
import re
import struct
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.resources.elf import (
    FUNCTION,
    NO_BITS,
    NOTES,
    RELOCATIONS,
    SECTION,
    SYMBOL_TABLE,
    Symbol,
    read_elf,
    relocations,
)

_LARGEST_BYTES: Final = 256 << 20
_LARGEST_NOTE_BYTES: Final = 16 << 20
_RELOCATABLE: Final = 1
_MACHINE: Final = 224
_OS_ABI: Final = 64
_TARGET: Final = re.compile(r"amdgcn-amd-amdhsa--(gfx[0-9a-f]{3,6}|gfx[0-9]+(?:-[0-9]+)*-generic)(?::.*)?")
_METADATA_NOTE: Final = 32
_DESCRIPTOR_BYTES: Final = 64
_DEEPEST_METADATA: Final = 16
#: Entries of a list or map: msgpack allocates the declared size before reading, at each of up to 1,024 levels.
_MOST_MEMBERS: Final = 1 << 15


class CodeObjectError(CaptureError):
    """The bytes are not a readable code object; the message has the reason."""


@dataclass(frozen=True)
class KernelArgument:
    """An argument's position in the kernel's argument segment, in bytes; `kind` is the metadata's `.value_kind`."""

    kind: str
    offset: int
    size: int


@dataclass(frozen=True)
class KernelMetadata:
    """A kernel's metadata, by the names used there.

    `arguments` are the source's arguments in order, then the hidden ones that the launching side fills. `vgprs`
    includes the accumulation registers if both share one register file (gfx90a and later). `symbol` is the symbol of
    the machine code. LDS and scratch sizes are the static ones: bytes per workgroup and per work-item.
    """

    symbol: str
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    max_workgroup_work_items: int
    wavefront_size: int
    dynamic_stack: bool
    arguments: tuple[KernelArgument, ...] = ()


class CodeObject:
    """Parse a code object. CodeObjectError if it is invalid."""

    def __init__(self, data: bytes) -> None:
        if len(data) > _LARGEST_BYTES:
            raise CodeObjectError(f"a code object of {len(data)} bytes; {_LARGEST_BYTES} are the most that are read")
        try:
            elf = read_elf(data)
            if (elf.machine, elf.system) != (_MACHINE, _OS_ABI):
                raise ValueError(f"it is for machine {elf.machine} and system {elf.system}")
            self.relocatable = elf.kind == _RELOCATABLE
            self.sections = elf.sections
            table = next((one for one in elf.sections if one.kind == SYMBOL_TABLE), None)
            if table is None:
                raise ValueError("it has no symbols")
            self.symbols = elf.symbols(table)
            self.architecture, self.kernels = self._metadata()
            for kernel in self.kernels:
                self._check_descriptor(kernel)
        except (struct.error, ValueError) as error:
            raise CodeObjectError(f"not a code object for AMD GPUs: {error}") from error

    def kernel(self, name: str) -> KernelMetadata:
        """Return the kernel with this source or linker name; CodeObjectError unless there is exactly one."""
        found = [one for one in self.kernels if name in (one.symbol, unqualified(one.symbol))]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(one.symbol for one in self.kernels)) or "none"
        if found:
            raise CodeObjectError(
                f"{len(found)} compiled kernels are called {name} (overloads, instances); give one of {known}"
            )
        raise CodeObjectError(f"no compiled kernel is called {name}; there is {known}")

    @cached_property
    def symbols_by_name(self) -> dict[str, Symbol]:
        """Return the first defined symbol of each name."""
        named: dict[str, Symbol] = {}
        for one in self.symbols:
            if one.name and one.section is not None:
                named.setdefault(one.name, one)
        return named

    def content(self, symbol: Symbol) -> bytes:
        """Return the bytes of a defined symbol, if they are in the file."""
        if symbol.section is None:
            raise CodeObjectError(f"{symbol.name} is not defined in the code object")
        section = self.sections[symbol.section]
        start = symbol.value - section.address
        if start < 0 or start + symbol.size > section.size:
            raise CodeObjectError(f"{symbol.name} reaches beyond its section {section.name}")
        return bytes(section.content[start : start + symbol.size])

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _metadata(self) -> tuple[str, tuple[KernelMetadata, ...]]:
        sections = [one for one in self.sections if one.kind == NOTES]
        if (size := sum(len(one.content) for one in sections)) > _LARGEST_NOTE_BYTES:
            raise ValueError(f"notes of {size} bytes")
        found = [note for one in sections for note in _metadata_notes(bytes(one.content))]
        if len(found) != 1:
            raise ValueError(f"it has {len(found)} notes with metadata, and not one")
        stated = unpacked(found[0])
        if not isinstance(stated, dict):
            raise ValueError("its metadata is no mapping")
        target, kernels = stated.get("amdhsa.target"), stated.get("amdhsa.kernels", [])
        match = _TARGET.fullmatch(target) if isinstance(target, str) else None
        if match is None or not isinstance(kernels, list):
            raise ValueError("its metadata names no target, or no list of kernels")
        return match[1], tuple(_kernel(one) for one in kernels)

    def _check_descriptor(self, kernel: KernelMetadata) -> None:
        """Check that the descriptor, which the hardware reads, agrees with the metadata, which this module reads."""
        symbol = self.symbols_by_name.get(f"{kernel.symbol}.kd")
        descriptor = b"" if symbol is None else self.content(symbol)
        if len(descriptor) != _DESCRIPTOR_BYTES:
            raise ValueError(f"the kernel {kernel.symbol} has no descriptor of {_DESCRIPTOR_BYTES} bytes")
        told = struct.unpack_from("<III", descriptor)
        if told != (kernel.lds_bytes, kernel.scratch_bytes, kernel.kernarg_bytes):
            raise ValueError(f"the kernel {kernel.symbol} has other sizes in its descriptor than in its metadata")


def unqualified(symbol: str) -> str:
    """Return a function's name in the source, without scopes and parameters; `symbol` if it is not mangled.

    Follows the Itanium C++ ABI for functions with plain names: `_ZN1a1fEPf` is `f`.
    """
    match = re.match(r"_Z(N[rVKRO]*)?(?=L?\d)", symbol)
    if match is None:
        return symbol
    name, at = symbol, match.end()
    while part := re.compile(r"L?(\d{1,4})").match(symbol, at):
        at = part.end() + int(part[1])
        name = symbol[part.end() : at]
        if match[1] is None:
            break
    return name


def _metadata_notes(data: bytes) -> list[bytes]:
    at, found = 0, []
    while at < len(data):
        name_size, size, kind = struct.unpack_from("<III", data, at)
        begin = at + 12 + _up_to_four(name_size)
        if begin + size > len(data):
            raise ValueError(f"a note of {size} bytes reaches beyond its section")
        if kind == _METADATA_NOTE and data[at + 12 : at + 12 + name_size] == b"AMDGPU\0":
            found.append(data[begin : begin + size])
        at = begin + _up_to_four(size)
    return found


def unpacked(data: bytes) -> object:
    """Read one MessagePack value: None, bool, int, float, str, bytes, list, or dict by str.

    Raises ValueError if it is damaged, contains an extension, a duplicate or non-text key, or nests deeper than 16.
    """
    # Imported here because Dagster's definitions import this module, but few processes read a code object.
    import msgpack

    most = min(len(data), _MOST_MEMBERS)
    try:
        value = msgpack.unpackb(
            data, object_pairs_hook=_mapping, ext_hook=_extension, max_array_len=most, max_map_len=most
        )
    except ValueError as error:
        raise ValueError(f"no MessagePack: {str(error) or type(error).__name__}") from error
    level: list[object] = [value]
    for _ in range(_DEEPEST_METADATA + 1):
        if any(isinstance(one, msgpack.Timestamp) for one in level):
            raise ValueError("no MessagePack of metadata: a timestamp")
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [one for several in inner for one in several]
    if level:
        raise ValueError(f"no MessagePack of metadata: nested deeper than {_DEEPEST_METADATA}")
    return value


def _mapping(pairs: list[tuple[object, object]]) -> dict[str, object]:
    found = {key: value for key, value in pairs if isinstance(key, str)}
    if len(found) != len(pairs):
        raise ValueError("a key stands twice, or is not text")
    return found


def _extension(kind: int, content: bytes) -> object:
    raise ValueError(f"an extension of type {kind}")


def _kernel(stated: object) -> KernelMetadata:
    if not isinstance(stated, dict):
        raise ValueError("a kernel's metadata is no mapping")

    def number(key: str, default: int | None = None) -> int:
        return _number(stated, key, default)

    arguments = stated.get(".args", [])
    if not isinstance(arguments, list):
        raise ValueError("a kernel's arguments are no list")
    descriptor = stated.get(".symbol")
    if not isinstance(descriptor, str) or not descriptor.endswith(".kd"):
        raise ValueError("a kernel names no descriptor")
    return KernelMetadata(
        symbol=descriptor.removesuffix(".kd"),
        vgprs=number(".vgpr_count"),
        agprs=number(".agpr_count", 0),
        sgprs=number(".sgpr_count"),
        vgpr_spills=number(".vgpr_spill_count"),
        sgpr_spills=number(".sgpr_spill_count"),
        lds_bytes=number(".group_segment_fixed_size"),
        scratch_bytes=number(".private_segment_fixed_size"),
        kernarg_bytes=number(".kernarg_segment_size"),
        max_workgroup_work_items=number(".max_flat_workgroup_size"),
        wavefront_size=number(".wavefront_size"),
        dynamic_stack=stated.get(".uses_dynamic_stack") is True,
        arguments=tuple(_argument(one) for one in arguments),
    )


def _argument(stated: object) -> KernelArgument:
    if not isinstance(stated, dict) or not isinstance(kind := stated.get(".value_kind"), str):
        raise ValueError("a kernel's argument says no kind")
    return KernelArgument(kind, _number(stated, ".offset"), _number(stated, ".size"))


def _number(stated: dict[str, object], key: str, default: int | None = None) -> int:
    value = stated.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
        raise ValueError(f"a kernel's {key} is {value!r:.40}")
    return value


def _up_to_four(size: int) -> int:
    return -(-size // 4) * 4


_DEEPEST: Final = 64
#: R_AMDGPU_REL32_LO and _HI: their offset past the base address that s_getpc_b64 returns.
_BEHIND: Final = {10: 4, 11: 12}


def code_sha256(code: CodeObject, symbol: str) -> str:
    """Return the digest of a function's machine code and everything that it references, without names and addresses.

    Line tables and similar debug data are excluded. Raises CodeObjectError if the object is not relocatable or the
    function is missing.
    """
    if not code.relocatable:
        raise CodeObjectError("machine code is compared before it is linked: give a relocatable code object")
    found = code.symbols_by_name.get(symbol)
    if found is None or found.kind != FUNCTION:
        raise CodeObjectError(f"no function {symbol} in the code object")
    return _Digest(code).of(found).hex()


class _Digest:
    def __init__(self, code: CodeObject) -> None:
        self._code = code
        self._under_way: list[tuple[int | None, int, int]] = []
        self._done: dict[tuple[int | None, int, int], bytes] = {}
        self._references: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
        for section in code.sections:
            if section.kind != RELOCATIONS:
                continue
            try:
                self._references[section.info].extend(relocations(section))
            except ValueError as error:
                raise CodeObjectError(f"damaged relocations: {error}") from error
        for references in self._references.values():
            references.sort()
        functions = (one for one in code.symbols if one.kind == FUNCTION)
        self._functions = {(one.section, one.value): one for one in functions}

    def of(self, symbol: Symbol) -> bytes:
        key = (symbol.section, symbol.value, symbol.size)
        if key in self._done:
            return self._done[key]
        if key in self._under_way:  # a recursive call: the number of levels back identifies the function
            return f"again {len(self._under_way) - self._under_way.index(key)}".encode()
        if len(self._under_way) >= _DEEPEST:
            raise CodeObjectError(f"{symbol.name} is reached through more than {_DEEPEST} references")
        self._under_way.append(key)
        digest = hashlib.sha256(self._code.content(symbol))
        digest.update(f"|{symbol.size}".encode())
        assert symbol.section is not None, "content() has seen to it"
        references = self._references[symbol.section]
        first, end = (bisect_left(references, (at,)) for at in (symbol.value, symbol.value + symbol.size))
        for offset, kind, target, addend in references[first:end]:
            digest.update(f"|{offset - symbol.value} {kind} ".encode() + self._target(kind, target, addend))
        self._under_way.pop()
        self._done[key] = digest.digest()
        return self._done[key]

    def _target(self, kind: int, number: int, addend: int) -> bytes:
        if number >= len(self._code.symbols):
            raise CodeObjectError(f"a reference to symbol {number} of {len(self._code.symbols)}")
        symbol = self._code.symbols[number]
        if symbol.section is None:
            return f"{symbol.name} {symbol.value} {symbol.size} {addend}".encode()
        section = self._code.sections[symbol.section]
        if symbol.kind != SECTION:
            return self.of(symbol) + f" {addend}".encode()
        function = self._functions.get((symbol.section, addend - _BEHIND.get(kind, 0)))
        if function is not None:
            return self.of(function)
        size = 0 if section.kind == NO_BITS else section.size
        return self.of(Symbol(section.name, SECTION, 0, symbol.index, section.address, size)) + f" {addend}".encode()
