"""An object file is judged by its sections and symbols alone."""

from dataclasses import replace
from typing import Final

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.objects import (
    Section,
    Symbol,
    check_object,
    check_state,
    dynamic_local_arrays,
    local_bytes,
    uses_meetings,
    writable_bytes,
)

PROGBITS, NOBITS, INIT_ARRAY = 1, 8, 14


def section(name: str, size: int = 16, kind: int = PROGBITS) -> Section:
    local = name.startswith((".tbss", ".tdata"))
    writable = local or name.startswith((".data", ".bss"))
    loaded = name not in (".note.GNU-stack", ".symtab", ".strtab", ".comment")
    return Section(name, kind, loaded, writable, name.startswith(".text"), local, size, 16)


def needed(name: str, binding: str = "global", kind: str = "none") -> Symbol:
    return Symbol(name, kind, binding, None, 0)  # type: ignore[arg-type]


def given(name: str, where: str = ".text", kind: str = "function", binding: str = "global", size: int = 16) -> Symbol:
    return Symbol(name, kind, binding, where, size)  # type: ignore[arg-type]


SECTIONS: Final = (
    *(section(name) for name in (".text", ".text._Z1kPf", ".rodata.cst4", ".data.rel.ro.local", ".comment", ".symtab")),
    section(".bss._ZL9threadIdx", 12, NOBITS),
    section(".note.GNU-stack", 0),
)
SYMBOLS: Final = (
    given("aaco_items"),
    given("k"),
    given("_Z6helperf", binding="weak"),
    given("_ZL9threadIdx", ".bss._ZL9threadIdx", "data", "local", 12),
    given("TABLE", ".rodata", "data"),
    needed("expf"),
    needed("memcpy"),
    needed("parts", kind="thread_local"),
    needed("aaco_barrier"),
)


def check(*more: Section | Symbol, without: str = "") -> None:
    sections = [one for one in (*SECTIONS, *more) if isinstance(one, Section) and one.name != without]
    symbols = [one for one in (*SYMBOLS, *more) if isinstance(one, Symbol) and one.name != without]
    check_object(sections, symbols, {"k"})


def test_a_plain_kernel_passes() -> None:
    check()


@pytest.mark.parametrize(
    ("more", "guard"),
    [
        (section(".init_array", kind=INIT_ARRAY), "constructors"),  # constructor
        (section(".text.harmless", kind=INIT_ARRAY), "constructors"),  # constructor under another name
        (section(".init_array.00001"), "constructors"),  # constructor with a priority
        (section(".preinit_array"), "constructors"),  # before constructors
        (section(".fini_array"), "constructors"),  # destructor
        (section(".ctors"), "constructors"),  # old constructor
        (section(".init"), "constructors"),  # the start's own code
        (given("fast", kind="resolver"), "constructors"),  # chosen at load
        (section(".gnu.warning"), "symbols"),  # a section that speaks to the linker
        (section(".interp"), "symbols"),  # another loader
        (replace(section(".rodata"), executable=True), "symbols"),  # data that runs
        (replace(section(".text"), writable=True), "symbols"),  # code that changes
        (replace(section(".bss"), thread_local=True), "symbols"),  # local data under another name
        (section(".tdata.kept", 4), "symbols"),  # local data with a value
        (section(".tbss.tile", 65_537, NOBITS), "resources"),  # too much local data share
        (section(".bss.cache", (16 << 20) + 1, NOBITS), "resources"),  # too much data
        (replace(section(".text"), alignment_bytes=1 << 20), "resources"),  # alignment
        (needed("system"), "symbols"),  # starts a program
        (needed("clock_gettime"), "symbols"),  # reads a clock
        (needed("malloc"), "symbols"),  # takes memory
        (needed("aaco_turn"), "symbols"),  # calls into the worker
        (needed("__tls_get_addr"), "symbols"),  # thread-local by a call
        (needed("dlsym", "weak"), "symbols"),  # a weak reference
        (given("expf"), "symbols"),  # takes a name of mathematics
        (given("memcpy", binding="weak"), "symbols"),  # takes a name of the C library, weakly
        (given("aaco_barrier"), "symbols"),  # takes a name of the worker
        (given("read"), "symbols"),  # takes a name that the worker calls
        (given("main"), "symbols"),  # takes the program's start
        (given("_init"), "symbols"),  # takes a name of the C library's start
        (given("__environ", ".bss", "data"), "symbols"),  # takes data of the C library
        (given("odd", kind="other"), "symbols"),  # a kind of the processor's own
        (given("odd", binding="other"), "symbols"),  # unique in the whole process
    ],
)
def test_what_no_kernel_needs_is_refused(more: Section | Symbol, guard: str) -> None:
    with pytest.raises(Refused, match=f"^{guard}: "):
        check(more)


@pytest.mark.parametrize("missing", ["aaco_items", ".note.GNU-stack"])
def test_what_an_object_must_have_is_missed(missing: str) -> None:
    with pytest.raises(Refused, match="symbols"):
        check(without=missing)


def test_data_that_outlive_a_call_are_counted_without_the_headers_own() -> None:
    assert writable_bytes(SECTIONS, SYMBOLS) == 0
    assert writable_bytes([*SECTIONS, section(".bss.cache", 100, NOBITS), section(".data", 8)], SYMBOLS) == 108
    assert writable_bytes(SECTIONS, [*SYMBOLS, Symbol("shared", "common", "global", "*", 40)]) == 40
    hidden = [one for one in SYMBOLS if one.name != "_ZL9threadIdx"]
    assert writable_bytes(SECTIONS, hidden) == 12


def test_a_candidate_keeps_no_more_than_its_baseline() -> None:
    check_state(8, 8)
    with pytest.raises(Refused, match="symbols"):
        check_state(8, 9)


def test_local_data_share_and_meetings_are_reported() -> None:
    assert local_bytes([*SECTIONS, section(".tbss.a", 100, NOBITS), section(".tbss.b", 28, NOBITS)]) == 128
    assert uses_meetings(SYMBOLS)
    assert not uses_meetings([one for one in SYMBOLS if one.name != "aaco_barrier"])
    assert dynamic_local_arrays(SYMBOLS) == ("parts",)
