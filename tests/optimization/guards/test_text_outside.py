"""The guard of text on the rest of the file, on directives, and on what two compilers may read differently."""

from typing import Final

import pytest

from tests.optimization.guards.kernel_text import BASELINE, LOOP, ROW, added, refused, with_

OUTSIDE: Final = {
    "an include": with_("#define TILE 16", "#include <unistd.h>\n#define TILE 16"),
    "a macro": with_("#define TILE 16", "#define TILE 8"),
    "a global": with_("__device__ float state;", "__device__ float state, cache;"),
    "a function beside it": with_('extern "C"', 'inline float cheat() { return 1; }\nextern "C"'),
    "a function after it": with_("\n__global__ void untouched", "\nstatic int late = 1;\n__global__ void untouched"),
    "another kernel": with_("x[i] * 0.5", "x[i] * 0.25"),
    "a space": with_("__device__ float state;", "__device__  float state;"),
    "a comment": with_("constexpr int", "/* mine */ constexpr int"),
    "the kernel closed early": with_(ROW, f"{ROW}}}\nint evil() {{\n"),
    "a pragma before it": with_('\nextern "C"', '\n#pragma clang fp contract(fast)\nextern "C"'),
    "a constructor before it": with_('extern "C"', '__attribute__((constructor)) void first() {} extern "C"'),
    "at the end": BASELINE + "\nint last;\n",
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_everything_outside_the_kernel_is_the_baselines(name: str) -> None:
    refused(OUTSIDE[name], "outside_kernel")


DIRECTIVES: Final = {
    "a macro": f"#define n 1\n{LOOP}",
    "no macro": f"#undef TILE\n{LOOP}",
    "an include": f'#include "/etc/passwd"\n{LOOP}',
    "a conditional": f"#if 1\n{LOOP}#endif\n",
    "a disabled loop": f"#if 0\n{LOOP}#endif\n",
    "floating point": f"#pragma clang fp contract(fast)\n{LOOP}",
    "the standard's": f"#pragma STDC FENV_ACCESS ON\n{LOOP}",
    "optimization": f'#pragma GCC optimize("Ofast")\n{LOOP}',
    "clang's": f"#pragma clang optimize off\n{LOOP}",
    "vectorization": f"#pragma clang loop vectorize(assume_safety)\n{LOOP}",
    "independence": f"#pragma GCC ivdep\n{LOOP}",
    "a great number": f"#pragma unroll 1000\n{LOOP}",
    "a name": f"#pragma unroll TILE\n{LOOP}",
    "a line": f'#line 1 "other"\n{LOOP}',
    "spaced": f"  #   pragma omp parallel for\n{LOOP}",
    "behind a comment": f"/* */ #define n 1\n{LOOP}",
    "an error": f"#error stop\n{LOOP}",
}


@pytest.mark.parametrize("name", DIRECTIVES)
def test_no_directive_but_an_unroll(name: str) -> None:
    refused(with_(LOOP, DIRECTIVES[name]), "pragmas")


UNREADABLE: Final = {
    "a splice in a word": "su\\\nm += 1.0f;",
    "a splice": "sum += \\\n 1.0f;",
    "a splice with a space": "sum += \\ \n 1.0f;",
    "a trigraph": "// why??/\n sum += 1.0f;",
    "a trigraph of a bracket": "sum += a??(0??);",
    "a digraph": "sum += a<:0:>;",
    "a digraph of a brace": "<% sum += 1.0f; %>",
    "a universal name": "float s\\u00fcm = 1.0f;",
    "a return alone": "// hidden \r sum += 1.0f;",
    "an open bracket": "if (n { }",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_two_compilers_may_read_differently_is_refused(name: str) -> None:
    refused(added(UNREADABLE[name]), "parse")


def test_a_comment_that_a_backslash_continues_is_refused() -> None:
    refused(added("// continued \\\n  and not code"), "macros")
