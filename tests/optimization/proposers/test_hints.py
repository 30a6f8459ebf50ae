"""Hints to the compiler, padding and workgroups: where they apply, and where not."""

import pytest

from aaco_pipeline.optimization.proposers.hints import FACTORS, BlockSize, LaunchBounds, Restrict, Unrolling, factors
from aaco_pipeline.optimization.proposers.lds_padding import LdsPadding
from aaco_pipeline.optimization.source import parse
from tests.optimization.proposers.kernels import (
    ROW_DOT,
    TRANSPOSE,
    inserted,
    left_alone,
    proposed,
    reasons,
    summing,
    task,
)


def test_every_pointer_is_restricted_and_types_stay() -> None:
    (one,) = proposed(Restrict(), task(ROW_DOT))
    assert b"(const float* __restrict__ a, const float *__restrict__ b, float* __restrict__ out, int rows" in one.source
    assert parse(one.source).kernel("row_dot").parameters == parse(ROW_DOT.encode()).kernel("row_dot").parameters
    assert one.bit_exact


def test_pointers_that_have_it_are_left() -> None:
    source = ROW_DOT.replace("const float* a", "const float* __restrict__ a")
    source = source.replace("float* out", "float* __restrict out")
    (one,) = proposed(Restrict(), task(source))
    assert inserted(source.encode(), one.source)[1].strip() == b"__restrict__"
    assert reasons(Restrict(), task(one.source.decode())) == ["every pointer of the kernel has __restrict__ already"]


def test_one_pointer_alone_has_nothing_to_overlap_with() -> None:
    assert "fewer than two pointers" in reasons(Restrict(), task(summing("out[0] = n;", "float* out, int n")))[0]


@pytest.mark.parametrize(
    "launch", ["row_dot<<<1, 64>>>(x, x, y, 1);", "hipLaunchKernelGGL(row_dot, 1, 64, 0, 0, x, y, x, 1);"]
)
def test_a_launch_that_gives_one_buffer_twice_forbids_it(launch: str) -> None:
    source = summing("out[0] = a[0] + b[0];") + f"void run(float* x, float* y) {{ {launch} }}\n"
    left_alone(Restrict(), task(source), "launches the kernel with one buffer for two pointers")


def test_an_array_parameter_is_not_rewritten() -> None:
    source = summing("out[0] = a[0];", "const float a[], float* out")
    assert reasons(Restrict(), task(source)) == ["the parameter a is not written as a plain pointer with a name"]


def test_bounds_of_the_workgroup_go_in_front_of_the_name() -> None:
    candidates = proposed(LaunchBounds(), task(ROW_DOT))
    texts = [inserted(ROW_DOT.encode(), one.source)[1].strip().decode() for one in candidates]
    assert texts == ["__launch_bounds__(256)", "__launch_bounds__(256, 2)", "__launch_bounds__(256, 4)"]
    for one in candidates:
        bounds = parse(one.source).kernel("row_dot").launch_bounds
        assert bounds is not None and (bounds.threads, bounds.blocks) == (256, one.parameters.get("resident"))


def test_bounds_that_are_there_are_changed_in_their_place() -> None:
    source = ROW_DOT.replace("void row_dot", "void __launch_bounds__(1024) row_dot")
    first, *_ = proposed(LaunchBounds(), task(source))
    assert first.source.decode() == source.replace("(1024)", "(256)")


def test_bounds_as_they_are_are_not_proposed() -> None:
    source = ROW_DOT.replace("void row_dot", "void __launch_bounds__(256, 2) row_dot")
    assert [one.parameters.get("resident") for one in proposed(LaunchBounds(), task(source))] == [None, 4]


def test_a_workgroup_that_splits_a_wavefront_gets_none() -> None:
    about = task(ROW_DOT, block=(96, 1, 1))
    assert reasons(LaunchBounds(), about) == ["a workgroup of 96 is no multiple of the wavefront of 64"]
    assert len(proposed(LaunchBounds(), task(ROW_DOT, block=(96, 1, 1), wavefront=32))) == 3


def test_bounds_that_cannot_be_read_stay() -> None:
    kernel = ROW_DOT[ROW_DOT.index("__global__") :].replace("void row_dot", "void __launch_bounds__(N) row_dot")
    for proposer in (LaunchBounds(), BlockSize()):
        told = reasons(proposer, task(f"template <int N>\n{kernel}"))
        assert told == ["the kernel's launch bounds are no constants of this file"]


@pytest.mark.parametrize(
    ("bounds", "wavefront", "sizes"),
    [("", 64, [128, 64, 512, 1024]), ("", 128, [128, 512, 1024]), ("__launch_bounds__(256) ", 64, [128, 64])],
)
def test_other_sizes_are_whole_wavefronts_within_the_bounds(bounds: str, wavefront: int, sizes: list[int]) -> None:
    source = ROW_DOT.replace("void row_dot", f"void {bounds}row_dot")
    candidates = proposed(BlockSize(), task(source, wavefront=wavefront))
    assert [one.block for one in candidates] == [(size, 1, 1) for size in sizes]
    assert all(one.source == source.encode() for one in candidates)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("out[threadIdx.x] = 0;", "uses threadIdx for more than the global index"),
        ("for (int j = row; j < rows; j += blockDim.x * gridDim.x) out[j] = 0;", "uses blockDim for more than"),
        ("out[row] = gridDim.x;", "uses gridDim for more than the global index"),
        ("__shared__ float t[256]; t[0] = 0;", "local data share"),
        ("extern __shared__ float t[]; t[0] = 0;", "local data share"),
        ("__syncthreads();", "synchronizes its workgroup"),
        ("acc = __shfl_xor(acc, 1);", "exchanges values between lanes"),
        ("atomicAdd(out, 1.0f);", "has an atomic operation"),
        ("out[row] = place();", "a function or macro of this file asks for its place"),
        ("out[row] = PLACE;", "a function or macro of this file asks for its place"),
    ],
)
def test_a_kernel_that_may_depend_on_its_workgroup_keeps_it(statement: str, reason: str) -> None:
    more = "__device__ int place() { return threadIdx.x; }\n" if "place()" in statement else ""
    more += "#define PLACE threadIdx.x\n" if "PLACE" in statement else ""
    source = more + ROW_DOT.replace("out[row] = acc;", f"out[row] = acc;\n  {statement}")
    left_alone(BlockSize(), task(source), reason)


def test_a_kernel_without_a_global_index_keeps_its_workgroup() -> None:
    assert reasons(BlockSize(), task(summing("out[0] = 1;"))) == ["the kernel does not compute a global index"]
    assert "more than one dimension" in reasons(BlockSize(), task(ROW_DOT, block=(16, 16, 1)))[0]


def padded(source: str) -> str | None:
    """Pad the source's kernel; None where nothing is proposed."""
    candidates = proposed(LdsPadding(), task(source, "transpose", (32, 32, 1)))
    assert len(candidates) <= 1
    return candidates[0].source.decode() if candidates else None


def test_one_column_more_and_nothing_else() -> None:
    assert padded(TRANSPOSE) == TRANSPOSE.replace("tile[TILE][TILE];", "tile[TILE][TILE + 1];")


@pytest.mark.parametrize(
    "more",
    [
        "#define TILE 64\n",
        "#define TILE 16\n",
        "constexpr int TILE = 32;\n",
        "const int W = 4; constexpr int TILE = 32;\n",
    ],
)
def test_extents_are_numbers_or_names_of_numbers(more: str) -> None:
    source = TRANSPOSE.replace("#define TILE 32\n", more)
    assert padded(source) == source.replace("tile[TILE][TILE];", "tile[TILE][TILE + 1];")


def test_a_local_that_is_the_lane_counts_as_the_lane() -> None:
    source = TRANSPOSE.replace("__syncthreads();", "__syncthreads();\n  const int lane = threadIdx.x;")
    assert padded(source.replace("tile[threadIdx.x][threadIdx.y];", "tile[lane][threadIdx.y];")) is not None


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("#define TILE 32", "#define TILE 24", "has rows of 24, no multiple of 16 elements"),
        ("#define TILE 32", "#define TILE 32 + 1", "has rows of a length not known here"),
        ("#define TILE 32", "#define TILE 32\n#undef TILE\n#define TILE 64", "has rows of a length not known here"),
        ("#define TILE 32", "#define TILE 128", "does not fit into 65536 bytes with another column"),
        ("__shared__ float tile", "__shared__ double tile", "holds double, not elements of four bytes"),
        ("tile[TILE][TILE]", "tile[TILE * TILE]", "is no array of rows and columns"),
        ("tile[threadIdx.x][threadIdx.y];", "tile[threadIdx.y][threadIdx.x];", "is never accessed down a column"),
        ("  out[", "  float* flat = &tile[0][0]; out[", "is used on line 8 other than by row and column"),
        ("  out[", "  float* flat = tile[1]; out[", "is used on line 8 other than by row and column"),
        ("  out[", "  n = sizeof(tile); out[", "is used on line 8 other than by row and column"),
        ("  out[", "  fill(tile); out[", "is used on line 8 other than by row and column"),
        ("#define TILE 32", "#define TILE 32\n#define AT tile[0]", "is a name that stands for something else too"),
        ("  out[", "  volatile int x = 0; out[", "volatile"),
        ("  int x", "  __shared__ other t2; int x", "beside an array of local data share whose size is not known"),
        ("__shared__ float tile[TILE][TILE];", "extern __shared__ float tile[];", "dynamic local data share"),
        ("__shared__ float", "float", "no array in local data share"),
    ],
)
def test_an_array_that_is_not_proven_suitable_stays(before: str, after: str, reason: str) -> None:
    assert before in TRANSPOSE
    about = task(TRANSPOSE.replace(before, after), "transpose", (32, 32, 1))
    left_alone(LdsPadding(), about, reason)


LOOP = "for (int k = 0; k < n; ++k) acc += a[k];"


def test_the_pragma_stands_alone_on_the_line_before_the_loop_and_nothing_else_changes() -> None:
    first, *_ = proposed(Unrolling(), task(ROW_DOT))
    place, text = inserted(ROW_DOT.encode(), first.source)
    assert text.strip() == b"#pragma unroll 4"
    assert b"  #pragma unroll 4\n  for (int k" in first.source
    assert place <= ROW_DOT.encode().index(b"for (int k")
    assert first.bit_exact


def test_every_factor_from_2_to_8_is_tried_once() -> None:
    candidates = proposed(Unrolling(), task(ROW_DOT))
    assert [one.parameters["factor"] for one in candidates] == list(FACTORS)
    assert sorted(FACTORS) == [2, 3, 4, 5, 6, 7, 8]
    assert len({one.source for one in candidates}) == len(FACTORS)


def test_a_loop_in_the_middle_of_its_line_gets_a_line_of_its_own() -> None:
    source = summing(f"float acc = 0; if (n > 1) {LOOP} out[0] = acc;")
    first, *_ = proposed(Unrolling(), task(source))
    assert b"if (n > 1) \n#pragma unroll 4\nfor (int k = 0" in first.source
    assert parse(first.source).kernel("row_dot").loops[0].pragma is not None


def test_a_loop_with_a_pragma_is_left_to_who_wrote_it() -> None:
    source = summing(f"float acc = 0;\n#pragma unroll 16\n{LOOP}\n{LOOP}\nout[0] = acc;")
    first, *_ = proposed(Unrolling(), task(source))
    assert first.source.decode() == source.replace(f"{LOOP}\n{LOOP}", f"{LOOP}\n#pragma unroll 4\n{LOOP}")
    (told,) = reasons(Unrolling(), task(source))
    assert told.startswith("loop1 ") and "already carries #pragma unroll 16" in told


@pytest.mark.parametrize("trips", [2, 4, 8])
def test_a_short_constant_loop_is_left_to_the_compiler(trips: int) -> None:
    source = summing(f"float acc = 0; for (int k = 0; k < {trips}; ++k) acc += a[k]; out[0] = acc;")
    why = f"loop1 makes {trips} trips, known to the compiler, which unrolls it wholly by itself"
    left_alone(Unrolling(), task(source), why)


def test_divisors_of_a_constant_trip_count_come_first() -> None:
    assert factors(9) == (3, 4, 8, 2, 6, 5, 7)
    assert factors(None) == FACTORS


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("__syncthreads(); acc += a[k];", "barrier"),
        ("acc += __shfl_down(acc, 1);", "lane"),
        ("atomicAdd(out, a[k]);", "atomic"),
        ("if (a[k] < 0) break; acc += a[k];", "break"),
        ("if (a[k] < 0) return;", "return"),
    ],
)
def test_an_unsafe_loop_is_left_alone_with_the_reason(body: str, reason: str) -> None:
    source = summing(f"float acc = 0;\nfor (int k = 0; k < n; ++k) {{ {body} }}\nout[0] = acc;")
    assert reason in left_alone(Unrolling(), task(source), "loop1 is not safe to unroll: ")


def test_a_kernel_without_a_loop_says_so() -> None:
    assert reasons(Unrolling(), task(summing("out[0] = a[0];"))) == ["the kernel row_dot has no loop"]
