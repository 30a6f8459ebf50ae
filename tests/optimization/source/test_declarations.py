"""Operations that a loop runs without naming them: operators, conversions, lifetimes, types and headers."""

import pytest

from aaco_pipeline.optimization.source import parse

LANES = "struct Lanes { float v; __device__ operator float() const { return __shfl_xor(v, 1); } };\n"
WATCHED = """struct Watched {
  float v;
  __device__ Watched(const Watched& o) : v(o.v) { __threadfence(); }
  __device__ ~Watched() { __threadfence(); }
};
"""
SUMS = (
    "template <class T> __global__ void k(const T* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] += x[i]; }\n"
)


def reason(source: str, kernel: str = "k") -> str | None:
    return parse(source.encode()).kernel(kernel).loop("loop1").reason


def in_a_loop(body: str, parameters: str, before: str = "") -> str:
    return f"{before}__global__ void k({parameters}, float* y, int n) {{ for (int i = 0; i < n; ++i) {{ {body} }} }}\n"


@pytest.mark.parametrize(
    "host",
    [
        "void run(Lanes* p) { k<<<1, 64>>>(p, nullptr, 3); }",
        "void run(Lanes* p) { hipLaunchKernelGGL(k, 1, 64, 0, 0, p, nullptr, 3); }",
        "template __global__ void k<Lanes>(const Lanes*, float*, int);",
        "auto chosen = &k<Lanes>;",
        "template <class T> void on(T* p) { k<<<1, 64>>>(p, nullptr, 3); }\nvoid run(Lanes* p) { on(p); }",
    ],
)
def test_a_template_may_have_every_class_that_is_passed_to_one(host: str) -> None:
    assert "across lanes" in str(reason(LANES + SUMS + host))


def test_a_template_has_no_class_that_is_passed_to_none() -> None:
    assert reason(LANES + SUMS + "void run(float* p) { k<<<1, 64>>>(p, nullptr, 3); }") is None


@pytest.mark.parametrize(
    "source",
    [
        in_a_loop("y[i] = x[i];", "const Lanes* x", LANES),
        in_a_loop("auto q = x[i]; y[i] = q;", "const Lanes* x", LANES),
        in_a_loop("y[i] = box.lanes[i];", "Box box", LANES + "struct Box { Lanes* lanes; };\n"),
        in_a_loop("y[i] = made(i) + 1;", "int m", LANES + "__device__ Lanes made(float v) { return {v}; }\n"),
        in_a_loop("y[i] = x[i];", "const Other* x", LANES + "using Other = Lanes;\n"),
        in_a_loop("y[i] = x[i];", "const Child* x", LANES + "struct Child : Lanes {};\n"),
        in_a_loop("y[i] = FIRST;", "const Lanes* x", LANES + "#define FIRST x[0]\n"),
        in_a_loop(
            "y[i] = total(x, i);",
            "const Lanes* x",
            LANES + "template <class T> __device__ float total(T x, int i) { return x[i]; }\n",
        ),
    ],
)
def test_a_conversion_is_seen_wherever_something_of_its_class_is(source: str) -> None:
    assert "across lanes" in str(reason(source))


def test_a_conversion_is_not_seen_where_nothing_is_of_its_class() -> None:
    assert reason(in_a_loop("y[i] = z[i];", "const Lanes* x, const float* z", LANES)) is None
    second = "__global__ void other(const Lanes* z) {}\n"
    assert reason(in_a_loop("y[i] = z[i];", "const float* z", LANES + second)) is None


def test_copies_and_ends_of_objects_run_what_their_class_says() -> None:
    assert "a barrier" in str(reason(in_a_loop("auto w = x[i]; y[i] = w.v;", "const Watched* x", WATCHED)))
    assert reason(in_a_loop("y[i] = z[i];", "const Watched* x, const float* z", WATCHED)) is None


@pytest.mark.parametrize(
    ("body", "parameters", "before"),
    [
        ("(*x)++;", "Ticket* x", "#include <atomic>\nusing Ticket = std::atomic<int>;\n"),
        ("x[i] = i;", "std::atomic<int>* x", ""),
        ("y[i] = x[0];", "const cuda::atomic_ref<int>* x", ""),
        ("box.count += 1;", "Box& box", "struct Box { std::atomic<int> count; int plain; };\n"),
    ],
)
def test_a_use_of_an_atomic_type_is_an_atomic_operation(body: str, parameters: str, before: str) -> None:
    assert "an atomic" in str(reason(in_a_loop(body, parameters, before)))


def test_a_member_beside_an_atomic_or_volatile_one_is_neither() -> None:
    before = "struct Box { std::atomic<int> count; volatile int flag; int plain; };\n"
    assert reason(in_a_loop("box->plain += 1;", "Box* box", before)) is None
    assert "volatile" in str(reason(in_a_loop("y[i] = box->flag;", "Box* box", before)))
    assert "volatile" in str(reason(in_a_loop("y[i] = f[i];", "const flag_t* f", "typedef volatile int flag_t;\n")))


@pytest.mark.parametrize(
    ("header", "before"),
    [
        ("while (NEXT(n))", "#define NEXT(n) ((n)-- > 0)\n"),
        ("while (next(n))", "__device__ bool next(int& n) { return --n > 0; }\n"),
        ("while (next(&n))", "__device__ bool next(int* n) { return --*n > 0; }\n"),
        (
            "while (outer(n))",
            "__device__ bool next(int& n) { return --n > 0; }\n__device__ bool outer(int& n) { return next(n); }\n",
        ),
        (
            "for (int i = 0; counts(i) < n; ++i)",
            "__device__ int counts(int i) { static int calls; ++calls; return i; }\n",
        ),
        ("for (; n > 0; back(n))", "__device__ void back(int& n) { n -= 1; }\n"),
    ],
)
def test_a_header_may_not_change_a_value_by_a_call(header: str, before: str) -> None:
    assert "changes a value" in str(reason(f"{before}__global__ void k(float* y, int n) {{ {header} y[n] = 1.0f; }}\n"))


def test_a_header_may_call_what_changes_its_own_variables_alone() -> None:
    before = "__device__ int halves(int n) { int c[2] = {0, 0}; while (n > 1) { n /= 2; ++c[0]; } return c[0]; }\n"
    source = f"{before}__global__ void k(float* y, int n) {{ for (int i = 0; i < halves(n); ++i) y[i] = 1.0f; }}\n"
    assert reason(source) is None


def test_what_one_kernel_declares_says_nothing_of_anothers_name() -> None:
    fixed = "__global__ void k(float* y) { __shared__ float s[64]; for (int i = 0; i < 64; ++i) y[i] = s[i]; }\n"
    launched = "__global__ void other(volatile float* y) { extern __shared__ float s[]; y[0] = s[0]; }\n"
    assert reason(fixed + launched) is None
    pointed = fixed.replace("__shared__ float s[64];", "s = t;")
    assert reason("extern __shared__ float t[];\n__device__ float* s;\n" + launched + pointed)
    stored = "__device__ float* seen;\n__global__ void other() { extern __shared__ float s[]; seen = s; }\n"
    assert "dynamic" in str(reason(stored + in_a_loop("y[i] = seen[i];", "int m")))


def test_which_virtual_method_runs_is_not_known() -> None:
    before = "struct Base { __device__ virtual float weight() const { return 1.0f; } };\n"
    assert "virtual" in str(reason(in_a_loop("y[i] = b->weight();", "const Base* b", before)))
