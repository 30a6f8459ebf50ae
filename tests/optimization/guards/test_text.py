"""The guard of text: what a rewrite may not do, one case a rule, and what honest rewrites do."""

from typing import Final

import pytest

from aaco_pipeline.optimization.candidates import Refused, SignatureChange
from aaco_pipeline.optimization.guards.text import check_text

BASELINE: Final = """#include <hip/hip_runtime.h>
#define TILE 16
#define SQUARE(v) ((v) * (v))
#define CLOCK clock64()
__device__ float state;
__device__ float helper(float v) { return v + 1.0f; }
__device__ float other(float v) { return v - 1.0f; }
constexpr int kWidth = 4;

extern "C" __global__ void __launch_bounds__(256) row_dot(const float* a, const float* b, float* out, int n) {
  __shared__ float part[256];
  const int row = blockIdx.x;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    sum += a[row * n + i] * b[i];  // one product
  }
  part[threadIdx.x] = helper(SQUARE(sum));
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&out[row], part[0]);
}

__global__ void untouched(double* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = x[i] * 0.5;
}
"""
SUM: Final = "    sum += a[row * n + i] * b[i];  // one product\n"
LOOP: Final = (
    "  for (int i = threadIdx.x; i < n; i += blockDim.x) {\n    sum += a[row * n + i] * b[i];  // one product\n  }\n"
)
ROW: Final = "  const int row = blockIdx.x;\n"
RESTRICT: Final[tuple[SignatureChange, ...]] = ("restrict",)


def check(candidate: str, *allowed: SignatureChange, kernel: str = "row_dot") -> None:
    check_text(BASELINE.encode(), candidate.encode(), kernel, allowed=allowed)


def with_(old: str, new: str, text: str = BASELINE) -> str:
    """A text with one piece of it put in the place of another."""
    assert text.count(old) == 1, old
    return text.replace(old, new)


def added(statement: str) -> str:
    """The baseline with a statement before the loop."""
    return with_(LOOP, f"  {statement}\n{LOOP}")


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
    "another comment": with_("  // one product", "  /* atomicAdd, asm, clock64(), \u00fcber */"),
    "the standard's maximum": with_(SUM, "    sum += std::max(a[row * n + i], -INFINITY) * b[i];\n"),
    "early return": with_(ROW, f"{ROW}  if (n <= 0) return;\n"),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_rewrites_pass(name: str) -> None:
    check(HONEST[name])


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


def refused(candidate: str, guard: str, *allowed: SignatureChange) -> str:
    with pytest.raises(Refused) as caught:
        check(candidate, *allowed)
    assert caught.value.guard == guard, caught.value
    return caught.value.reason


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
    "a letter outside ASCII": "float s\u00fcm = 1.0f;",
    "a universal name": "float s\\u00fcm = 1.0f;",
    "a return alone": "// hidden \r sum += 1.0f;",
    "an open bracket": "if (n { }",
    "a zero": "sum += 1.0f;\0",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_two_compilers_may_read_differently_is_refused(name: str) -> None:
    refused(added(UNREADABLE[name]), "parse")


def test_a_comment_that_a_backslash_continues_is_refused() -> None:
    refused(added("// continued \\\n  and not code"), "macros")


#: Statements that no rewrite needs, by what each tries.
STATEMENTS: Final = {
    "assembly": 'asm volatile("s_nop 0");',
    "assembly of GNU": '__asm__("s_nop 0");',
    "a register": 'register long sp asm("rsp");',
    "a clock": "sum += clock64();",
    "another clock": "sum += wall_clock64();",
    "a cycle counter": "sum += __builtin_readcyclecounter();",
    "a memory clock": "sum += __builtin_amdgcn_s_memtime();",
    "exit": "exit(0);",
    "exit by the standard": "std::exit(0);",
    "exit at file level": "::_exit(0);",
    "abort": "abort();",
    "a trap": "__builtin_trap();",
    "assert": "assert(n > 0);",
    "printing": 'printf("%f", sum);',
    "allocation": "float* p = (float*)malloc(4);",
    "new": "float* p = new float[4];",
    "delete": "delete a;",
    "a stack allocation": "float* p = (float*)__builtin_alloca(4 * n);",
    "a file": 'fopen("/etc/passwd", "r");',
    "a system call": "syscall(1);",
    "a launch": "untouched<<<1, 1>>>(0, n);",
    "recursion": "row_dot(a, b, out, n);",
    "a function of the file": "sum += other(sum);",
    "an unknown function": "sum += unknown(sum);",
    "a static variable": "static float kept = 0.0f;",
    "a thread's variable": "thread_local float kept = 0.0f;",
    "an external variable": "extern float kept;",
    "a device variable": "__device__ float kept;",
    "a constant in memory": "__constant__ float kept;",
    "the file's variable": "state = sum;",
    "dynamic LDS": "extern __shared__ float all[];",
    "a lambda": "auto f = [&](float v) { return v; }; sum += f(sum);",
    "a lambda at once": "sum += [](float v) { return v; }(sum);",
    "a local type": "struct S { float v; }; S s;",
    "a local operator": "struct S { float v; S operator+(S o) { return o; } };",
    "a union": "union { float f; int i; } u;",
    "an alias of a type": "using number = float;",
    "a typedef": "typedef float number;",
    "a name of a namespace": "using namespace std;",
    "decltype": "decltype(sum) other_sum = sum;",
    "goto": "goto done; done:;",
    "a label": "again: sum += 1.0f;",
    "a computed goto": "void* p = &&again; again: goto *p;",
    "volatile": "volatile float v = sum;",
    "an integer as a pointer": "float* p = (float*)0x1000;",
    "an integer as a pointer by name": "float* p = reinterpret_cast<float*>(n);",
    "a pointer as an integer": "size_t where = (size_t)a;",
    "a pointer as an integer by name": "auto where = reinterpret_cast<unsigned long long>(a);",
    "a pointer's address": "long where = (long)&out[0];",
    "a pointer by a call": "size_t where = size_t(a);",
    "a pointer and a sum": "sum += (float)(long)(a + 1);",
    "a pointer to a function": "float (*f)(float) = helper; sum = f(sum);",
    "a function by auto": "auto f = helper; sum = f(sum);",
    "mathematics as a value": "auto f = sqrtf; sum = f(sum);",
    "a function declared": "float fast(float);",
    "a nested function": "float fast(float v) { return v; }",
    "a cast to a function": "((void (*)())a)();",
    "a call through a buffer": "((void (*)())&out[0])();",
    "a statement as an expression": "sum += ({ float v = 1.0f; v; });",
    "a comma": "sum += (1.0f, 2.0f);",
    "an attribute": "__attribute__((optnone)) float v = 1.0f;",
    "an attribute of C++": "[[assume(n > 4)]];",
    "an attribute with a space": "[ [assume(n > 4)]];",
    "an assumption": "__builtin_assume(n > 4);",
    "unreachable": "if (n < 4) __builtin_unreachable();",
    "a builtin": "__builtin_memcpy(out, a, 4);",
    "memcpy": "memcpy(out, a, 4);",
    "an approximation": "sum += __expf(sum);",
    "a reciprocal": "sum += __builtin_amdgcn_rcpf(sum);",
    "another lane": "sum += __shfl_xor(sum, 1);",
    "a shadowed function": "float helper = 1.0f;",
    "shadowed mathematics": "float fmaf = 1.0f;",
    "a shadowed index": "uint3 threadIdx = blockIdx;",
    "a shadowed global": "float state = 1.0f;",
    "a parameter again": "{ int n = 4; sum += n; }",
    "a macro": "sum += TILE;",
    "a macro that calls": "sum += CLOCK;",
    "a line number": "sum += __LINE__;",
    "a counter": "sum += __COUNTER__;",
    "a reserved name": "float __aaco_time = 1.0f;",
    "a runtime's name": "float aaco_time = 1.0f;",
    "two underscores": "float my__sum = 1.0f;",
    "an underscore and a capital": "float _Sum = 1.0f;",
    "a dollar": "float $sum = 1.0f;",
    "a literal of a user": "sum += 1.0_km;",
    "a half": "_Float16 v = 1.0f;",
    "a half of HIP": "__half v = __float2half(sum);",
    "bfloat16": "__hip_bfloat16 v;",
    "an 8-bit integer": "signed char v = 1;",
    "an 8-bit integer by name": "int8_t v = 1;",
    "a 16-bit integer": "short v = 1;",
    "a 16-bit number": "sum += 1.0f16;",
    "a long array": "float big[100000];",
    "many arrays": "float one[600]; float two[600];",
    "an array of a variable size": "float big[n];",
    "much LDS": "__shared__ float big[65536];",
    "an array left": "float few[4]; few[4] = 1.0f;",
    "an array left below": "float few[4]; few[-1] = 1.0f;",
    "an array left by a counter": "float few[4]; for (int j = 0; j <= 4; ++j) few[j] = 1.0f;",
    "an array left by data": "float few[4]; few[n] = 1.0f;",
    "an array as a pointer": "float few[4]; float* p = few; p[100] = 1.0f;",
    "an array's address": "float few[4]; float* p = &few[0]; p[100] = 1.0f;",
    "an array's row": "float few[4][4]; float* p = few[3]; p[100] = 1.0f;",
    "a variable's address": "float* p = &sum; p[100] = 1.0f;",
    "far away": "sum += a[100000000];",
    "far away by a pointer": "sum += *(a + 100000000);",
    "const taken away": "float* p = (float*)a; p[0] = 1.0f;",
    "const taken away by name": "float* p = const_cast<float*>(a);",
    "another type's view": "const int* p = reinterpret_cast<const int*>(a);",
    "a view of bytes": "const char* p = reinterpret_cast<const char*>(a);",
    "a pointer of pointers": "float** p = reinterpret_cast<float**>(out);",
    "a string": 'const float* p = a; sum += "text"[0];',
    "an exception": "try { sum += 1.0f; } catch (...) { }",
    "a throw": "throw 1;",
    "alignas": "alignas(4096) float v = 1.0f;",
    "an inner macro": '_Pragma("clang fp contract(fast)") sum += 1.0f;',
    "restrict": "const float* __restrict__ p = a;",
    "a template": "template <int N> struct T;",
    "typeid": "sum += typeid(a).hash_code();",
    "sizeof a call": "sum += sizeof(unknown(1));",
    "a static assertion": 'static_assert(sizeof(float) == 4, "");',
    "a member pointer": "sum += (a->*b)(1);",
    "a thread": "std::thread t;",
    "a product that looks like a declaration": "sum * environ; sum += environ ? 1.0f : 2.0f;",
    "a product of a function": "sum * getpid; sum += getpid();",
    "an index that the runtime gives": "threadIdx.x = 5;",
    "a reference to such an index": "unsigned& t = threadIdx.x; t = 5;",
    "a reference to all of them": "auto& t = threadIdx; t.x = 5;",
    "a pointer to such an index": "unsigned* t = &threadIdx.x;",
    "a call of a local name": "long getpid; sum += getpid();",
    "a bit operation that looks like a declaration": "n & environ; sum += environ ? 1.0f : 2.0f;",
    "a pointer of zero": "const float* p = 0; p += n; sum += p[0];",
    "a pointer of zero at times": "const float* p = n ? a : 0; sum += p[0];",
    "a pointer of zero later": "const float* p = a; p = 0; sum += p[n];",
    "a pointer without a value": "const float* p; sum += p[0];",
    "pointers in an array": "const float* p[2] = {a, b}; sum += p[0][1];",
    "far below": "sum += a[-100000];",
    "a step far away": "const float* p = a + 1000000; sum += p[0];",
    "a bit of an address": "if (((size_t)a & 127) == 64) sum += 1.0f;",
    "an element of LDS that is none": "__shared__ float few[4]; few[100] = 1.0f;",
    "an array by reference": "float few[2]; auto& r = few; r[5] = 1.0f;",
    "an index that overflows": "float few[4]; for (int j = 0; j < 65535; ++j) few[(j * 65535 * 3) % 4] = 1.0f;",
    "a name with an ampersand": "const float& r = a[0]; const float* p = &r;",
    "an atomic": "std::atomic<int> counter;",
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_that_a_rewrite_does_not_need(name: str) -> None:
    guard = "macros" if name in ("a macro", "a macro that calls") else "calls"
    refused(added(STATEMENTS[name]), guard)


TAKEN_AWAY: Final = {
    "a barrier": with_("  __syncthreads();\n", ""),
    "an atomic operation": with_("atomicAdd(&out[row], part[0])", "out[row] += part[0]"),
}


@pytest.mark.parametrize("name", TAKEN_AWAY)
def test_what_orders_work_items_is_not_taken_away(name: str) -> None:
    refused(TAKEN_AWAY[name], "calls")


DOUBLES: Final = """__global__ void mean(const double* x, volatile int* ready, double* out, int n) {
  double sum = 0.0;
  for (int i = 0; i < n; ++i) sum += x[i] * 0.5;
  out[0] = sum + ready[0];
  volatile float once = 1.0f;
  long long start = clock64();
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("double sum = 0.0", "float sum = 0.0"),
        ("x[i] * 0.5", "x[i] * 0.5f"),
        ("sum += x[i]", "sum += (float)x[i]"),
        ("volatile float once", "float once"),
        ("ready[0]", "((int*)ready)[0]"),
        ("clock64();", "clock64() + clock64();"),
        ("  long long start = clock64();\n", ""),
    ],
)
def test_neither_precision_nor_volatile_nor_a_clock_changes(old: str, new: str) -> None:
    with pytest.raises(Refused) as caught:
        check_text(DOUBLES.encode(), with_(old, new, DOUBLES).encode(), "mean")
    assert caught.value.guard == "calls"


PRIVATE: Final = """__global__ void bins(const int* x, int* out, int n) {
  int few[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) few[x[i]] += 1;
  for (int j = 0; j < 4; ++j) out[j] = few[j];
}
"""


def test_an_index_that_the_baseline_proves_is_to_stay_proven() -> None:
    check_text(PRIVATE.encode(), with_("out[j] = few[j]", "out[j] = few[j] + 0", PRIVATE).encode(), "bins")
    for old, new in (("j < 4", "j < 5"), ("few[4] = {0, 0, 0, 0}", "few[2] = {0, 0}")):
        with pytest.raises(Refused, match="may leave"):
            check_text(PRIVATE.encode(), with_(old, new, PRIVATE).encode(), "bins")


LASTING: Final = """__constant__ float table[4];
__device__ float memory[4];
__global__ void looked_up(const float* x, float* out, int n) {
  for (int i = 0; i < n; ++i) out[i] = x[i] * table[i & 3] + memory[0];
}
"""


def test_a_variable_of_the_file_is_read_and_no_more() -> None:
    hoisted = with_("  for (int", "  const float first = memory[0];\n  for (int", LASTING)
    hoisted = with_("+ memory[0];", "+ first;", hoisted)
    check_text(LASTING.encode(), hoisted.encode(), "looked_up")


@pytest.mark.parametrize(
    "statement",
    [
        "memory[1] = x[0];",
        "memory[0]++;",
        "float* kept = memory; kept[1] = x[0];",
        "float& kept = memory[0]; kept = x[0];",
        "float* kept = &memory[1]; kept[0] = x[0];",
    ],
)
def test_a_variable_of_the_file_is_not_written(statement: str) -> None:
    with pytest.raises(Refused) as caught:
        check_text(LASTING.encode(), with_("  for (int", f"  {statement}\n  for (int", LASTING).encode(), "looked_up")
    assert caught.value.guard == "calls"


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
    with pytest.raises(Refused) as caught:
        check(BASELINE, kernel="missing")
    assert caught.value.guard == "kernel"
    refused(BASELINE + "__global__ void row_dot(int n) {}\n", "kernel")
