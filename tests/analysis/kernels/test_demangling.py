"""Mangled names read back, against names written by hand, GCC's own demangler and damaged text."""

import shutil
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aaco_pipeline.analysis.kernels.demangling import demangled

KNOWN = {
    "_Z4copyPfPKf": "copy(float*, float const*)",
    "_Z3addIfEvPT_PKS0_i": "void add<float>(float*, float const*, int)",
    "_ZN2at6native12_GLOBAL__N_13runEv": "at::native::(anonymous namespace)::run()",
    "_ZN1a1bILi128ELj2ELl3ELm4ELb1ELin5EEEvv": "void a::b<128, 2u, 3l, 4ul, true, -5>()",
    "_ZN1a1bILNS_4KindE7EEEvv": "void a::b<(a::Kind)7>()",
    "_Z1fIJifEEvDpT_": "void f<int, float>(int, float)",
    "_Z1fIJEEvDpT_": "void f<>()",
    "_Z1fPFviE": "f(void (*)(int))",
    "_Z1fRA16_Kf": "f(float const (&) [16])",
    "_Z1fM1aFviE": "f(void (a::*)(int))",
    "_Z1fDv4_f": "f(float __vector(4))",
    "_Z1fDF16bDF16_": "f(__bf16, _Float16)",
    "_Z1fU3AS1Pf": "f(float* AS1)",
    "_ZN1aaSERKS_": "a::operator=(a const&)",
    "_ZN1acvbEv": "a::operator bool()",
    "_ZN1aC2Ev": "a::a()",
    "_ZN1aIfED0Ev": "a<float>::~a()",
    "_ZNK1a3getEv": "a::get() const",
    "_ZN1aB5cxx113getB3oneEv": "a[abi:cxx11]::get[abi:one]()",
    "_ZZ4mainvENKUlifE0_clEif": "main()::{lambda(int, float)#2}::operator()(int, float) const",
    "_ZZ1fvENKUlT_E_clIiEEDaS_": "auto f()::{lambda(auto:1)#1}::operator()<int>(auto:1) const",
    "_ZN1aUt_E": "a::{unnamed type#1}",
    "_Z1fISt6vectorIiSaIiEEEvT_": (
        "void f<std::vector<int, std::allocator<int> > >(std::vector<int, std::allocator<int> >)"
    ),
    "_Z1fIXadL_Z1gvEEEvv": "void f<&g()>()",
    "_Z1fILi2EEv1aIXplT_Li1EEE": "void f<2>(a<(2)+(1)>)",
    "_Z1fIiEDTcl1gcvT__EEES0_": "decltype (g((int)())) f<int>(int)",
    "_Z4act_I1bTnPFT_RKS1_EXadL_Z4siluIS0_ES1_S3_EEEvPS1_": "void act_<b, &b silu<b>(b const&)>(b*)",
    "_ZTVN1a1bE": "vtable for a::b",
    "_ZN1aIiEC1IfEET_": "a<int>::a<float>(float)",
    "_ZN1acvT_IiEEv": "_ZN1acvT_IiEEv",
    "_ZGVZ1fvE1x": "guard variable for f()::x",
    "_ZZ1fvEs": "f()::string literal",
    "_ZZ1fvE1x_0": "f()::x",
    "_ZZN1a1bEvEN1c1dEv": "a::b()::c::d()",
    "_Zli2_wPKc": 'operator"" _w(char const*)',
    "_Z1fIiEv1aIXstT_EE": "void f<int>(a<sizeof (int)>)",
    "_Z1fIJifEEv1aIXsZT_EE": "void f<int, float>(a<2>)",
    "_Z1fIiEv1aIXcvbLi1EEE": "void f<int>(a<(bool)(1)>)",
    "_Z1fIiEv1aIXsrT_5valueEE": "void f<int>(a<int::value>)",
    "_Z1fIiEv1aIXquLb1ELi1ELi2EEE": "void f<int>(a<(true)?(1) : (2)>)",
    "_Z1fIiEv1aIXntLb1EEE": "void f<int>(a<!(true)>)",
    "_Z1fIiEDTfp_ET_": "decltype ({parm#1}) f<int>(int)",
    "_Z1fIRiEvOT_": "void f<int&>(int&)",
    "_ZNO1a1gEv": "a::g() &&",
    "_Z1fPKVi": "f(int volatile const*)",
    "_Z1fu6__bf16": "f(__bf16)",
    "_Z1fIiEvN1aIT_E4typeE": "void f<int>(a<int>::type)",
    "_ZNSt3fooEv": "std::foo()",
    "_Z1fPFivEPFvS0_E": "f(int (*)(), void (*)(int (*)()))",
    "_ZDC1a1bE": "[a, b]",
    "_Z1fILf3f800000EEvv": "void f<(float)[3f800000]>()",
}


@pytest.mark.parametrize(("symbol", "name"), KNOWN.items())
def test_symbols_are_read(symbol: str, name: str) -> None:
    assert demangled(symbol) == name


@pytest.mark.parametrize(
    "symbol", ["Cijk_Alik", "_Z", "_ZN1a", "_Z99abc", "_Z0", "_Z1fIJT_", "_Z1fS9_", "_ZN3foo3barIXzzEEEvv", "_Z1fJ"]
)
def test_unknown_symbols_stay(symbol: str) -> None:
    assert demangled(symbol) == symbol


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="needs GCC's demangler, c++filt")
def test_gcc_reads_the_same() -> None:
    # Older releases do not know the sixteen-bit formats, and none of them writes the address of a function so.
    symbols = [
        symbol
        for symbol, name in KNOWN.items()
        if not any(part in name for part in ("__bf16", "&g", "&b", "decltype", "auto", "AS1", "(2)+", "cvT_"))
    ]
    shown = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    assert [demangled(symbol) for symbol in symbols] == shown.split("\n")[: len(symbols)]


@given(st.text(alphabet="_ZNSTIELKPRFDXJ0123456789abfivtdpUlC", max_size=60))
@example("NE")
def test_any_text_is_survived(text: str) -> None:
    assert demangled("_Z" + text)
    assert demangled(text) == text or text.startswith("_Z")


@given(st.sampled_from(sorted(KNOWN)), st.integers(0, 80))
def test_cut_symbols_are_survived(symbol: str, length: int) -> None:
    assert isinstance(demangled(symbol[:length]), str)


def test_deep_nesting_ends() -> None:
    symbol = "_Z1f" + "P" * 5000 + "i"
    assert demangled(symbol) == symbol
