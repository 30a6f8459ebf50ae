"""The guard of text on the kernel's body: statements that no rewrite needs, and what is not to be taken away."""

import re
from typing import Final

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.text import check_text
from tests.optimization.guards.kernel_text import DOUBLES, added, refused, with_

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


def test_barriers_and_atomic_operations_are_not_taken_away() -> None:
    refused(with_("  __syncthreads();\n", ""), "calls")
    refused(with_("atomicAdd(&out[row], part[0])", "out[row] += part[0]"), "calls")


def test_new_local_data_share_comes_with_a_barrier() -> None:
    shared = with_("double sum = 0.0;", "__shared__ double last[64]; double sum = last[0] = 0.0;", DOUBLES)
    with pytest.raises(Refused, match="no barrier of the kernel orders"):
        check_text(DOUBLES.encode(), shared.encode(), "mean")


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
    with pytest.raises(Refused, match=r"^calls: "):
        check_text(DOUBLES.encode(), with_(old, new, DOUBLES).encode(), "mean")


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
    with pytest.raises(Refused, match=r"^calls: "):
        check_text(LASTING.encode(), with_("  for (int", f"  {statement}\n  for (int", LASTING).encode(), "looked_up")


WIDE: Final = """__global__ void scale(const float* x, float* out, int n, int pitch) {
  size_t at = (size_t)blockIdx.x * pitch + threadIdx.x;
  out[at] = 2.0f * x[at];
}
"""


@pytest.mark.parametrize(
    ("rewritten", "words"),
    [
        (WIDE.replace("size_t at = (size_t)", "int at = "), "nothing has 64 bits; the baseline's kernel has size_t"),
        (WIDE.replace("size_t at", "int at"), "at has 32 bits, in the baseline's kernel 64"),
        (WIDE.replace("size_t at", "unsigned most = 0, at"), "at has 32 bits, in the baseline's kernel 64"),
    ],
)
def test_an_offset_of_64_bits_is_not_made_32(rewritten: str, words: str) -> None:
    with pytest.raises(Refused, match=re.escape(words)):
        check_text(WIDE.encode(), rewritten.encode(), "scale")
    walking = WIDE.replace("size_t at = (size_t)", "const float* in = x + (long long)")
    check_text(WIDE.encode(), walking.replace("out[at]", "out[in - x]").replace("x[at]", "*in").encode(), "scale")
