"""Kernels, parameters, launches and loops of a source, by a table made by hand, and what is refused."""

import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.source import Kernel, Loop, parse, tokens, tree
from aaco_pipeline.optimization.targets import Parameter

ONE = "__global__ void f(float* x, int n) {\n  for (int i = 0; i < n; ++i) x[i] = 1.0f;\n}\n"


def kernel(source: str, name: str = "f") -> Kernel:
    return parse(source.encode()).kernel(name)


@pytest.mark.parametrize(
    "head",
    [
        'extern "C" __global__ void __launch_bounds__(256, 2) f(float* x, int n)',
        "__launch_bounds__(4 * 64, 1 + 1) __global__ static void f(float* x, int n)",
        "template <typename T = float, int N = (4 > 3)> __global__ void __launch_bounds__(256, 2) f(float* x, int n)",
        "__attribute__((amdgpu_waves_per_eu(2, 4))) void __global__ __launch_bounds__(0x100, 2) f(float* x, int n)",
        "[[gnu::noinline]] inline __global__ auto __launch_bounds__(256, 2) f(float* x, int n) -> void",
        "__global__ void f(float* x, int n) __launch_bounds__(256, 2)",
        "API void UNKNOWN_MACRO(1) __launch_bounds__(MOST, 2) f(float* x, int n)",
    ],
)
def test_a_kernel_is_found_however_its_head_is_written(head: str) -> None:
    before = '#define API extern "C" __global__\n#define MOST 256\n#include "a.h"\n// before\n'
    source = f"{before}{head} {{ x[n] = 1; }}\nint last;\n"
    found = kernel(source)
    assert source[found.span.start : found.span.end] == f"{head} {{ x[n] = 1; }}"
    assert source[found.body.start : found.body.end] == "{ x[n] = 1; }"
    assert source[found.name_span.start : found.name_span.end] == "f"
    assert found.parameters == (Parameter("x", "float*", True, False), Parameter("n", "int", False, False))
    assert [source[start:end] for start, end in found.parameter_spans] == ["float* x", "int n"]
    bounds = found.launch_bounds
    assert bounds is not None and (bounds.threads, bounds.blocks) == (256, 2)
    assert (found.template, found.line) == (head.startswith("template"), 5)


def test_launch_bounds_that_are_no_constants_are_null() -> None:
    bounds = kernel("template <int N> __global__ __launch_bounds__(N) void f() {}").launch_bounds
    assert bounds is not None and (bounds.threads, bounds.blocks) == (None, None)
    assert kernel(ONE).launch_bounds is None


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("const float* __restrict__ x", Parameter("x", "const float*", True, True)),
        ("float const *const x", Parameter("x", "float const*", True, True)),
        ("float * const __restrict x", Parameter("x", "float*", True, False)),
        ("const float* const* x", Parameter("x", "const float* const*", True, True)),
        ("const float** x", Parameter("x", "const float**", True, False)),
        ("unsigned long long n = 4", Parameter("n", "unsigned long long", False, False)),
        ("float x[]", Parameter("x", "float*", True, False)),
        ("std::array<float, 4> x", Parameter("x", "std::array<float, 4>", False, False)),
        ("volatile int* x", Parameter("x", "volatile int*", True, False)),
        ("const struct Shape shape", Parameter("shape", "const struct Shape", False, True)),
        ("float*", Parameter("", "float*", True, False)),
    ],
)
def test_parameters_have_their_types_without_name_and_qualifiers_of_the_pointer(
    written: str, expected: Parameter
) -> None:
    assert kernel(f"__global__ void f({written}) {{}}").parameters == (expected,)


def test_a_kernel_without_parameters_has_none() -> None:
    assert kernel("__global__ void f() {}").parameters == ()
    assert kernel("__global__ void f(void) {}").parameters == ()


def test_namespaces_around_a_kernel_are_named() -> None:
    found = kernel("namespace a::b { namespace { struct S { int x; }; namespace c { __global__ void f() {} } } }")
    assert found.scope == ("a::b", "c")
    assert kernel('extern "C" { __global__ void f() {} }').scope == ()


def test_a_kernel_that_is_missing_or_defined_twice_is_refused_by_name() -> None:
    unit = parse((ONE + "#ifdef A\n__global__ void g() {}\n#else\n__global__ void g() {}\n#endif\n").encode())
    with pytest.raises(Refused, match="no kernel h; this source has f, g, g") as missing:
        unit.kernel("h")
    with pytest.raises(Refused, match=re.escape("defined 2 times (lines 5, 7)")) as twice:
        unit.kernel("g")
    assert missing.value.guard == twice.value.guard == "kernel"
    with pytest.raises(Refused, match="has no loop2; it has loop1") as loop:
        unit.kernel("f").loop("loop2")
    assert loop.value.guard == "loop"


def test_launches_are_found_with_their_parts() -> None:
    source = """#define RUN(k, ...) k<<<4, 64>>>(__VA_ARGS__)
%s
int main() {
  auto shifted = 1 << 2 >> 1;
  f<<<dim3(n / 4, 2), 256, 1024, stream>>>(x, g(1, 2));
  outer::h<float, 4><<<1, 2>>>();
  hipLaunchKernelGGL((h<float, 4>), dim3(1), dim3(2), 0, 0, x, n);
  hipLaunchKernelGGL(f, 1, 2, 0, nullptr);
  // f<<<1, 2>>>(x);
}
"""
    unit = parse((source % ONE).encode())
    text = unit.source.decode()

    def parts(spans: tuple[tuple[int, int], ...]) -> list[str]:
        return [text[start:end] for start, end in spans]

    assert [text[each.kernel.start : each.kernel.end] for each in unit.launches] == [
        "k",
        "f",
        "outer::h<float, 4>",
        "(h<float, 4>)",
        "f",
    ]
    assert parts(unit.launches[1].configuration) == ["dim3(n / 4, 2)", "256", "1024", "stream"]
    assert parts(unit.launches[1].arguments) == ["x", "g(1, 2)"]
    assert parts(unit.launches[2].arguments) == []
    assert parts(unit.launches[3].configuration) == ["dim3(1)", "dim3(2)", "0", "0"]
    assert parts(unit.launches[3].arguments) == ["x", "n"]
    assert parts((unit.launches[0].span,)) == ["k<<<4, 64>>>(__VA_ARGS__)"]


def test_a_loops_identifier_and_span_hold_when_other_places_are_edited() -> None:
    loops = "for (;;) {}\n  for (int j = 0; j < 4; ++j) for (int k = 0; k < 3; k++) x[k] = j;\n"
    source = ONE.replace("}\n", f"  {loops}}}\n")
    edited = f"// \u00fcber\nint added;\n{source}".replace("x[i] = 1.0f", "x[i] = 1.0f + 2")
    before, after = kernel(source), kernel(edited)
    assert [loop.identifier for loop in before.loops] == ["loop1", "loop2", "loop3", "loop3.1"]
    assert [loop.identifier for loop in after.loops] == [loop.identifier for loop in before.loops]
    assert [loop.parent for loop in before.loops] == [None, None, None, "loop3"]
    inner = before.loop("loop3.1")
    assert source[inner.span.start : inner.span.end] == "for (int k = 0; k < 3; k++) x[k] = j;"
    assert source[inner.body.start : inner.body.end] == "x[k] = j;"


def test_what_a_kernel_does_is_said_by_line() -> None:
    found = kernel(
        "extern __shared__ float s[];\n__device__ void sync() { __syncthreads(); }\n__global__ void f(int* x) {\n"
        "  sync();\n  atomicAdd(x, 1);\n  x[0] = __shfl(x[0], 1);\n  s[0] = 1;\n}\n"
    )
    assert (found.barriers, found.atomics, found.cross_lane, found.dynamic_lds) == ((4,), (5,), (6,), True)
    none = kernel(ONE)
    assert (none.barriers, none.atomics, none.cross_lane, none.dynamic_lds) == ((), (), (), False)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "there is no kernel"),
        ("int main() { for (;;) {} }", "there is no kernel"),
        ("__global__ void f(float* x);", "there is no kernel"),
        ("// __global__ void f() {}\n", "there is no kernel"),
        ('const char* s = "__global__ void f() {}";', "there is no kernel"),
        ("#if 0\n__global__ void f() {}\n#endif\n", "there is no kernel"),
        (ONE + "}", "line 4: '}' closes nothing"),
        (ONE + "void g() {", "line 4: '{' is never closed"),
        (ONE + "void g() { (]; }", "line 4: ']' closes nothing"),
        (ONE + "#define A /* never\n", "line 4: a directive that cannot be read"),
        (ONE + "/* never", "line 4: a comment that does not end"),
        (ONE + 'const char* s = "never;\n', "line 4: a string or character"),
        (ONE + "#if A\n", "line 4: a conditional of the preprocessor without its #endif"),
        (ONE + "#endif\n", "line 4: #endif without its #if"),
        (ONE + "#define for while\n", "line 4: the keyword for is redefined"),
        (ONE + "#define 4\n", "line 4: a #define without a name"),
        (ONE + "int a??(4??);", "line 4: a trigraph"),
        (ONE + "int a<:4:>;", "line 4: a digraph"),
        (ONE + "int \\\n a;", "line 4: a backslash"),
        (ONE + "int \u00fc;", "line 4: a character outside ASCII"),
        (ONE + "// a\rint b;", "line 4: a carriage return alone"),
        (ONE + "int a;\0", "line 4: a zero byte"),
        (ONE + "/* a *\\\n/ int b; */", "line 4: a comment whose end is split"),
        (ONE + "int a @ b;", "line 4: the character '@'"),
        ("__global__ int x = 4, f(", "line 1: '(' is never closed"),
        ("__global__ (4) { }", "line 1: a __global__ function whose parameters cannot be read"),
        ("__global__ void", "line 1: a __global__ that no function follows"),
    ],
)
def test_what_is_no_source_of_a_kernel_is_refused_with_its_line(source: str, said: str) -> None:
    with pytest.raises(Refused, match=re.escape(said)) as caught:
        parse(source.encode())
    assert caught.value.guard == "parse"


def test_what_is_not_utf8_or_too_large_is_refused() -> None:
    with pytest.raises(Refused, match="line 4: the source is not UTF-8"):
        parse(ONE.encode() + b"// \xff\n")
    with pytest.raises(Refused, match="more than the 1048576 that are read"):
        parse(ONE.encode() + b" " * (1 << 20))


@pytest.mark.parametrize(
    ("deep", "said"),
    [
        ("(" * 200 + "1" + ")" * 200, "brackets deeper"),
        ("- " * 2000 + "1", "statements nest deeper"),
        ("1; " + "if (n) " * 2000 + "n = 1", "statements nest deeper"),
    ],
)
def test_what_nests_too_deep_is_refused(deep: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        parse(f"__global__ void f(int n) {{ n = {deep}; }}".encode())


def test_what_has_too_many_tokens_or_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST_TOKENS", 30)
    with pytest.raises(Refused, match="more than the 30 tokens"):
        parse(ONE.encode())
    monkeypatch.setattr(tokens, "MOST_TOKENS", 60)
    monkeypatch.setattr(tree, "MOST_NODES", 20)
    with pytest.raises(Refused, match="more than the 20 nodes"):
        parse(ONE.encode())


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (ONE.replace("x[i] = 1.0f;", "x[i] = 1.0f;" + "for (;;);" * 300), "more than 256 loops"),
        (ONE.replace("x[i] = 1.0f;", "for (;;) " * 20 + "x[i] = 1.0f;"), "in more than 12 others"),
        (ONE * 300, "more than the 256 kernels"),
        ("".join(f"#define A{index}\n" for index in range(2100)) + ONE, "more than the 2048 macros"),
    ],
    ids=["loops", "nesting", "kernels", "macros"],
)
def test_more_than_is_worth_reading_is_refused(source: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        parse(source.encode())


def test_macros_that_grow_without_end_are_read_in_no_time_that_matters() -> None:
    """Each macro names the next twice: expanded it would be 2 to the power of 200 words."""
    chain = "".join(f"#define A{index} A{index + 1} A{index + 1}\n" for index in range(200))
    source = chain + "#define A200 A0 __syncthreads()\n" + ONE.replace("x[i] = 1.0f", "A0")
    assert not kernel(source).loop("loop1").safe


def test_functions_that_call_deeper_than_is_followed_are_not_known_to_be_safe() -> None:
    calls = "".join(f"__device__ void g{index}() {{ g{index + 1}(); }}\n" for index in range(400))
    loop = kernel(calls + "__device__ void g400() {}\n" + ONE.replace("x[i] = 1.0f", "g0()")).loop("loop1")
    assert not loop.safe and "deeper than the" in str(loop.reason)


def test_a_line_that_only_the_grammar_does_not_understand_is_named() -> None:
    found = kernel("__global__ void f(int* x, int n) {\n  x[0] = = 1;\n  for (;;) x[1] = 2;\n}")
    assert found.damaged == (2,)
    assert [loop.safe for loop in found.loops] == [False]
    assert kernel(ONE).damaged == ()


HERE: Final = Path(__file__).parent
SOURCES: Final = sorted((HERE / "kernels").glob("*.hip"))
#: Words in the reason of a loop that may not be unrolled, by the table's word for it.
SAID: Final = {
    "damaged": "not understand|not understood",
    "barrier": "a barrier",
    "cross_lane": "across lanes",
    "atomic": "an atomic",
    "volatile": "volatile",
    "dynamic_lds": "dynamic local data share",
    "assembly": "assembly",
    "exit": "leaves the loop|goto",
    "header": "changes",
    "unknown": "not known|is allocated|declared nowhere|through a value|no array|pasted",
    "pragma": "pragma|already carries",
}


class Row(NamedTuple):
    """A line of the table; `-` is None."""

    source: str
    kernel: str
    loop: str
    line: str
    safe: str
    innermost: str
    trips: str


def rows_of(name: str) -> list[Row]:
    return [Row(*line.split()) for line in (HERE / name).read_text().splitlines() if line[:1] != "#"]


TABLE: Final = rows_of("truth.txt")
#: Loops whose reported row differs from the true one.
LESS: Final = {row[:3]: row for row in rows_of("less.txt")}


def row_of(source: str, kernel: str, loop: Loop) -> Row:
    """A loop as the table would have it; an unsafe one with the first word that its reason bears out."""
    words = [word for word, said in SAID.items() if any(each in (loop.reason or "") for each in said.split("|"))]
    trips = "-" if loop.trip_count is None else str(loop.trip_count)
    safe = "yes" if loop.safe else (words or [loop.reason or ""])[0]
    return Row(source, kernel, loop.identifier, str(loop.line), safe, "yes" if loop.innermost else "no", trips)


def found_in(path: Path) -> list[Row]:
    rows: list[Row] = []
    for kernel in parse(path.read_bytes()).kernels:
        loops = [row_of(path.stem, kernel.name, loop) for loop in kernel.loops]
        rows += loops or [Row(path.stem, kernel.name, *"-----")]
    return rows


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_loop_is_what_the_table_says(path: Path) -> None:
    assert found_in(path) == [LESS.get(row[:3], row) for row in TABLE if row.source == path.stem]


def test_what_is_said_in_place_of_the_truth_is_less_and_never_more() -> None:
    true = {row[:3]: row for row in TABLE}
    assert LESS.keys() <= true.keys()
    for key, row in LESS.items():
        assert row != true[key] and row.line == true[key].line
        assert row.safe != "yes" or true[key].safe == "yes"
        assert row.trips in ("-", true[key].trips)


def test_no_unsafe_loop_is_called_safe_and_hardly_a_safe_one_unsafe() -> None:
    found = {row[:3]: row.safe == "yes" for path in SOURCES for row in found_in(path) if row.loop != "-"}
    true = {row[:3]: row.safe == "yes" for row in TABLE if row.loop != "-"}
    assert len(SOURCES) >= 30 and found.keys() == true.keys()
    said, right = ({key for key, safe in each.items() if safe} for each in (found, true))
    assert 30 <= len(right) <= len(true) - 30
    assert said <= right, "precision is 100 %"
    assert len(said & right) / len(right) >= 0.95
