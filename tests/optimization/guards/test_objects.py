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
        pytest.param(section(".init_array", kind=INIT_ARRAY), "constructors", id="constructor"),
        pytest.param(section(".text.harmless", kind=INIT_ARRAY), "constructors", id="constructor under another name"),
        pytest.param(section(".init_array.00001"), "constructors", id="constructor with a priority"),
        pytest.param(section(".preinit_array"), "constructors", id="before constructors"),
        pytest.param(section(".fini_array"), "constructors", id="destructor"),
        pytest.param(section(".ctors"), "constructors", id="old constructor"),
        pytest.param(section(".init"), "constructors", id="the start's own code"),
        pytest.param(given("fast", kind="resolver"), "constructors", id="chosen at load"),
        pytest.param(section(".gnu.warning"), "symbols", id="a section that speaks to the linker"),
        pytest.param(section(".interp"), "symbols", id="another loader"),
        pytest.param(replace(section(".rodata"), executable=True), "symbols", id="data that runs"),
        pytest.param(replace(section(".text"), writable=True), "symbols", id="code that changes"),
        pytest.param(replace(section(".bss"), thread_local=True), "symbols", id="local data under another name"),
        pytest.param(section(".tdata.kept", 4), "symbols", id="local data with a value"),
        pytest.param(section(".tbss.tile", 65_537, NOBITS), "resources", id="too much local data share"),
        pytest.param(section(".bss.cache", (16 << 20) + 1, NOBITS), "resources", id="too much data"),
        pytest.param(replace(section(".text"), alignment_bytes=1 << 20), "resources", id="alignment"),
        pytest.param(needed("system"), "symbols", id="starts a program"),
        pytest.param(needed("clock_gettime"), "symbols", id="reads a clock"),
        pytest.param(needed("malloc"), "symbols", id="takes memory"),
        pytest.param(needed("aaco_turn"), "symbols", id="calls into the worker"),
        pytest.param(needed("__tls_get_addr"), "symbols", id="thread-local by a call"),
        pytest.param(needed("dlsym", "weak"), "symbols", id="a weak reference"),
        pytest.param(given("expf"), "symbols", id="takes a name of mathematics"),
        pytest.param(given("memcpy", binding="weak"), "symbols", id="takes a name of the C library, weakly"),
        pytest.param(given("aaco_barrier"), "symbols", id="takes a name of the worker"),
        pytest.param(given("read"), "symbols", id="takes a name that the worker calls"),
        pytest.param(given("main"), "symbols", id="takes the program's start"),
        pytest.param(given("_init"), "symbols", id="takes a name of the C library's start"),
        pytest.param(given("__environ", ".bss", "data"), "symbols", id="takes data of the C library"),
        pytest.param(given("odd", kind="other"), "symbols", id="a kind of the processor's own"),
        pytest.param(given("odd", binding="other"), "symbols", id="unique in the whole process"),
    ],
)
def test_what_no_kernel_needs_is_refused(more: Section | Symbol, guard: str) -> None:
    with pytest.raises(Refused) as refused:
        check(more)
    assert refused.value.guard == guard


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
