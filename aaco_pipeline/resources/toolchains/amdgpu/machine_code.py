"""Whether two builds of a kernel run the same instructions, wherever the linker puts them.

A digest of a relocatable code object, in which addresses are not filled in yet: instructions as they are, and for each
reference the content of what it refers to, so that a called function or a table that changed is seen, too.
"""

import hashlib
from bisect import bisect_left
from collections import defaultdict
from typing import Final

from aaco_pipeline.resources.elf import FUNCTION, NO_BITS, RELOCATIONS, SECTION, Symbol, relocations
from aaco_pipeline.resources.toolchains.amdgpu.code_object import CodeObject, CodeObjectError

_DEEPEST: Final = 64
#: R_AMDGPU_REL32_LO and _HI: how far behind the address that is meant they stand, after s_getpc_b64.
_BEHIND: Final = {10: 4, 11: 12}


def code_sha256(code: CodeObject, symbol: str) -> str:
    """The digest of a function's machine code and of all that it refers to; no name and no address goes into it.

    Line tables and the like are no part of it. CodeObjectError when it is not relocatable or the function is not there.
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
        if key in self._under_way:  # it calls itself: how many calls back says which
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
