"""The guard of text: honest rewrites pass; files, directives, the signature and the rest of the file are guarded."""

from typing import Final

import pytest

from aaco_pipeline.optimization.candidates import Refused, SignatureChange
from aaco_pipeline.optimization.guards.text import check_files, check_text
from tests.optimization.guards.kernel_text import BASELINE, DOUBLES, LOOP, ROW, SUM, added, check, refused, with_


def test_the_baseline_itself_passes() -> None:
    check(BASELINE)


HONEST: Final = {
    "unrolled by a pragma": with_(LOOP, f"#pragma unroll 4\n{LOOP}"),
    "unrolled in full": with_(LOOP, f"#pragma unroll\n{LOOP}"),
    "pragma in brackets": with_(LOOP, f"#pragma unroll(8)\n{LOOP}"),
    "fma": with_(SUM, "    sum = fmaf(a[row * n + i], b[i], sum);\n"),
    "several accumulators": with_(
        LOOP,
        """  float sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
  int i = threadIdx.x;
  for (; i + 3 * (int)blockDim.x < n; i += 4 * blockDim.x) {
    sum += a[row * n + i] * b[i];
    sum1 += a[row * n + i + blockDim.x] * b[i + blockDim.x];
    sum2 += a[row * n + i + 2 * blockDim.x] * b[i + 2 * blockDim.x];
    sum3 += a[row * n + i + 3 * blockDim.x] * b[i + 3 * blockDim.x];
  }
  for (; i < n; i += blockDim.x) sum += a[row * n + i] * b[i];
  sum += (sum1 + sum2) + sum3;
""",
    ),
    "vector loads": with_(
        LOOP,
        """  if (n % 4 == 0) {
    const float4* a4 = reinterpret_cast<const float4*>(a + row * n);
    const float4* b4 = reinterpret_cast<const float4*>(b);
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
      const float4 x = a4[i], y = b4[i];
      sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
    }
  } else {
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += a[row * n + i] * b[i];
  }
""",
    ),
    "vector loads where aligned": with_(
        LOOP,
        """  {
    int i = threadIdx.x;
    if (((reinterpret_cast<unsigned long long>(&a[row * n]) | reinterpret_cast<unsigned long long>(b)) & 15ULL) == 0) {
      while ((long long)i + 3LL < (long long)(n)) {
        const float4 i_vector_0 = *reinterpret_cast<const float4*>(&a[row * n + i]);
        const float4 i_vector_1 = *reinterpret_cast<const float4*>(&b[i]);
        sum += i_vector_0.x * i_vector_1.x;
        i++;
      }
    }
    while (i < n) { sum += a[row * n + i] * b[i]; i++; }
  }
""",
    ),
    "one address tested": with_(LOOP, f"  if ((size_t)a % 16 == 0) sum += 0.0f;\n{LOOP}"),
    "a vector through a reference": with_(
        SUM, "    sum += reinterpret_cast<const float2&>(a[row * n + i]).x * b[i];\n"
    ),
    "a vector by a plain cast": with_(
        SUM, "    const float2 v = *(const float2*)(a + row * n + i); sum += v.x * b[i];\n"
    ),
    "register blocking": with_(
        LOOP,
        """  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int i = threadIdx.x; i + 4 <= n; i += 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float v = a[row * n + i + j];
      sums[j] += v * b[i + j];
    }
  }
  for (int j = 0; j < 4; ++j) sum += sums[j];
""",
    ),
    "two-dimensional registers": with_(
        LOOP,
        """  float block[2][3];
  for (int y = 0; y < 2; ++y)
    for (int x = 0; x < 3; ++x) block[y][x] = a[row * n + y * 3 + x];
  sum += block[1][2] + block[0][n & 1];
""",
    ),
    "LDS padding": with_("__shared__ float part[256];", "__shared__ float part[256 + 8];"),
    "tiling in LDS": with_(
        LOOP,
        """  __shared__ float tile[256];
  for (int start = 0; start < n; start += 256) {
    if (start + (int)threadIdx.x < n) tile[threadIdx.x] = b[start + threadIdx.x];
    __syncthreads();
    for (int k = 0; k < min(256, n - start); ++k) sum += a[row * n + start + k] * tile[k];
    __syncthreads();
  }
""",
    ),
    "hoisting": with_(
        LOOP,
        """  const float* line = a + row * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += line[i] * b[i];
""",
    ),
    "counting down": with_(
        LOOP, "  for (int i = n - 1 - (int)threadIdx.x; i >= 0; i -= blockDim.x) sum += a[row * n + i] * b[i];\n"
    ),
    "two counters": with_(
        LOOP, "  for (int i = threadIdx.x, j = 0; i < n; i += blockDim.x, ++j) sum += a[row * n + i] * b[i];\n"
    ),
    "a branch less": with_(SUM, "    const bool used = b[i] != 0.0f; sum += used ? a[row * n + i] * b[i] : 0.0f;\n"),
    "read-only loads": with_(SUM, "    sum += __ldg(&a[row * n + i]) * __ldg(&b[i]);\n"),
    "another comment": with_("  // one product", "  /* atomicAdd, asm, clock64(), over */"),
    "the standard's maximum": with_(SUM, "    sum += std::max(a[row * n + i], -INFINITY) * b[i];\n"),
    "early return": with_(ROW, f"{ROW}  if (n <= 0) return;\n"),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_rewrites_pass(name: str) -> None:
    check(HONEST[name])


def test_an_honest_rewrite_of_a_kernel_with_doubles_passes() -> None:
    rewritten = with_("double sum = 0.0;", "double sum = 0.0, odd = 0.0;", DOUBLES)
    rewritten = with_("sum += x[i] * 0.5;", "{ sum += x[i] * 0.5; ++i; if (i < n) odd += x[i] * 0.5; }", rewritten)
    rewritten = with_("sum + ready[0]", "(sum + odd) + ready[0]", rewritten)
    check_text(DOUBLES.encode(), rewritten.encode(), "mean")


def test_a_pragma_alone_passes_whatever_the_kernel_holds() -> None:
    odd = DOUBLES.replace("long long start = clock64();", 'asm volatile("s_nop 0"); goto end; end:;')
    check_text(odd.encode(), odd.replace("  for (", "#pragma unroll 2\n  for (").encode(), "mean")


def test_a_rewrite_of_what_the_grammar_does_not_understand_is_refused() -> None:
    broken = "__global__ void f(float* x, int n) {\n  x[0] = = 1;\n  for (int i = 0; i < n; ++i) x[i] = 1;\n}\n"
    with pytest.raises(Refused, match="line 2"):
        check_text(broken.encode(), broken.replace("x[i] = 1", "x[i] = 2").encode(), "f")


def test_a_kernel_that_is_not_there_or_twice_is_refused() -> None:
    with pytest.raises(Refused, match=r"^kernel: "):
        check(BASELINE, kernel="missing")
    refused(BASELINE + "__global__ void row_dot(int n) {}\n", "kernel")


READING: Final = {
    "incbin": r'asm(".incbin \"/etc/passwd\"");',
    "incbin in another case": r'asm(".INCBIN \"/etc/passwd\"");',
    "incbin in parts": r'asm(".inc" "bin \"/etc/passwd\"");',
    "incbin in escapes": r'asm(".\x69ncbin \"/etc/passwd\"");',
    "incbin in octal": r'asm(".\151ncbin \"/etc/passwd\"");',
    "incbin in a raw string": 'asm(R"(.incbin "/etc/passwd")");',
    "incbin in a section": r'asm(".section .rodata\n .incbin \"/etc/passwd\"\n .text");',
    "incbin as a word": '#define S(x) #x\nasm(S(.incbin "/etc/passwd"));',
    "incbin in a macro": r'#define A ".incbin \"/etc/passwd\""',
    "incbin in a pragma": r'_Pragma(".incbin")',
    "an assembler's include": r'asm(".include \"/etc/passwd\"");',
    "an assembler's macro": r'asm(".macro a x,y\n.\\x\\y \"/etc/passwd\"\n.endm\na inc,bin");',
    "an absolute include": '#include "/etc/passwd"',
    "an absolute include in brackets": "#include </etc/passwd>",
    "an include that goes up": '#include "../../etc/passwd"',
    "an include that goes up within": "#include <hip/../../../etc/passwd>",
    "an include by a macro": '#define F "/etc/passwd"\n#include F',
    "an include over two lines": '#include \\\n"/etc/passwd"',
    "an include next": '#include_next "/etc/passwd"',
    "an import": '#import "/etc/passwd"',
    "an include of a process": '#include "/proc/self/environ"',
    "embed": 'const char a[] = {\n#embed "/etc/passwd"\n};',
    "a question": '#if __has_include("/etc/passwd")\n#endif',
    "a question in brackets": "#if __has_include(</etc/passwd>)\n#endif",
    "a question by a macro": '#define F "/etc/passwd"\n#if __has_include(F)\n#endif',
    "a question for embed": '#if __has_embed("/etc/passwd")\n#endif',
    "a line": '#line 1 "/etc/passwd"',
    "a line of a preprocessor": '# 1 "/etc/passwd"',
    "a pragma": '#pragma GCC dependency "/etc/passwd"',
    "a pragma for headers": '#pragma GCC pch_preprocess "/etc/passwd"',
    "a pragma for libraries": '#pragma comment(lib, "/etc/passwd")',
}


@pytest.mark.parametrize("name", READING)
def test_a_source_that_names_a_file_is_refused_with_its_line(name: str) -> None:
    source = f"{BASELINE}\n{READING[name]}\n".encode()
    with pytest.raises(Refused, match=r"^files: line \d+: ") as caught:
        check_files(source)
    assert "\n" not in caught.value.reason
    with pytest.raises(Refused, match=r"^files: "):
        check_text(source, source, "row_dot")


def test_headers_and_plain_assembly_pass() -> None:
    check_files(
        BASELINE.encode()
        + b'#include <cmath>\n#include "hip/hip_fp16.h"\n#include "a..b.h"\n#if __has_include(<cmath>)\n#endif\n'
        + b'#line 7 "kernel.hip"\n#pragma unroll 4\n__device__ void f() { asm volatile("s_nop 0"); }\n'
        + b'// asm(".incbin") in a comment\nconst char* said = "macro include";\n'
    )


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


REFUSED: Final = {
    **{name: ("outside_kernel", candidate) for name, candidate in OUTSIDE.items()},
    **{f"the directive of {name}": ("pragmas", with_(LOOP, loop)) for name, loop in DIRECTIVES.items()},
    **{name: ("parse", added(statement)) for name, statement in UNREADABLE.items()},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_outside_the_kernel_or_steers_a_compiler_or_is_read_in_two_ways_is_refused(name: str) -> None:
    guard, candidate = REFUSED[name]
    refused(candidate, guard)


def test_a_comment_that_a_backslash_continues_is_refused() -> None:
    refused(added("// continued \\\n  and not code"), "macros")


RESTRICT: Final[tuple[SignatureChange, ...]] = ("restrict",)


def test_a_declared_change_of_the_signature_is_allowed_and_no_other() -> None:
    bounds = with_("__launch_bounds__(256)", "__launch_bounds__(128, 2)")
    restrict = with_(
        "const float* a, const float* b, float* out",
        "const float* __restrict__ a, const float* b, float* __restrict__ out",
    )
    check(bounds, "launch_bounds")
    check(with_("__launch_bounds__(256) ", ""), "launch_bounds")
    check(restrict, "restrict")
    wrong: list[tuple[str, tuple[SignatureChange, ...]]] = [
        (bounds, ("restrict",)),
        (restrict, ("launch_bounds",)),
        (bounds, ()),
        (restrict, ()),
    ]
    for text, allowed in wrong:
        refused(text, "signature", *allowed)


@pytest.mark.parametrize("bounds", ["n", "TILE * 16", "2048", "0", "256, 2, 3", "kWidth", "sizeof(int)"])
def test_launch_bounds_are_whole_numbers(bounds: str) -> None:
    refused(with_("__launch_bounds__(256)", f"__launch_bounds__({bounds})"), "signature", "launch_bounds")


def test_restrict_is_for_pointers_of_the_signature_and_is_not_taken_away() -> None:
    refused(with_("int n) {\n  __shared__", "int __restrict__ n) {\n  __shared__"), "signature", "restrict")
    once = with_("const float* a, const", "const float* __restrict__ a, const")
    with pytest.raises(Refused, match="missing"):
        check_text(once.encode(), BASELINE.encode(), "row_dot", allowed=RESTRICT)


SIGNATURES: Final = {
    "another bound": with_("__launch_bounds__(256)", "__launch_bounds__(512)"),
    "no bound": with_("__launch_bounds__(256) ", ""),
    "another type": with_("float* out, int n", "float* out, long n"),
    "another name": with_("float* out, int n", "float* out, int m"),
    "no const": with_("const float* b", "float* b"),
    "another order": with_("const float* a, const float* b", "const float* b, const float* a"),
    "one more": with_("float* out, int n) {\n  __shared__", "float* out, int n, int m = 0) {\n  __shared__"),
    "a template": with_('extern "C" __global__', "template <int N> __global__"),
    "other linkage": with_('extern "C" __global__', "static __global__"),
    "an attribute": with_("__launch_bounds__(256)", "__launch_bounds__(256) __attribute__((optnone))"),
    "an attribute of C++": with_('extern "C" __global__', '[[gnu::flatten]] extern "C" __global__'),
    "a constructor": with_('extern "C" __global__', '__attribute__((constructor)) extern "C" __global__'),
    "restrict": with_("const float* a,", "const float* __restrict__ a,"),
    "volatile": with_("float* out, int n) {\n  __shared__", "volatile float* out, int n) {\n  __shared__"),
    "a calling convention": with_("__launch_bounds__(256)", '__launch_bounds__(256) __attribute__((alias("other")))'),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_is_the_baselines(name: str) -> None:
    refused(SIGNATURES[name], "signature")
