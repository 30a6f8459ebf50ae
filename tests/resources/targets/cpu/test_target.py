"""Only the device part of a source is compiled, every line where it was.

A kernel built for a CPU computes what HIP says, in every layout, and its build states its contents.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Argument, Buffer, Build, Call, Content, Launch, Layout, Parameter, Scalar
from aaco_pipeline.resources.targets.cpu import CpuTarget
from aaco_pipeline.resources.targets.cpu import compiler as compilers
from aaco_pipeline.resources.targets.cpu.target import device_part, kernel_names

SOURCE = b"""#include <hip/hip_runtime.h>
#include <vector>
#define FACTOR 4 // a number
#define DEV __device__ inline
DEV float of_macro(float x) { return x; }
namespace inner {
std::vector<int> host() {
  return {};
}
constexpr int both(int x) { return x; }
}
extern "C" __global__ void __launch_bounds__(256) k(float* a) {
#pragma unroll FACTOR
  for (int i = 0; i < 4; ++i) a[i] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = 0;
#pragma unroll(2)
  for (int i = 0; i < 4; ++i) a[i] = 0;
#pragma nounroll
  for (int i = 0; i < 4; ++i) a[i] = 0;
}
template <class T> __global__ void of_template(T* a) {}
template <class T> T of_host(T x) { return x; }
#ifdef SOMETHING
void conditional() {}
#endif
void declared(int);
int main() {
  k<<<1, 1>>>(nullptr);
}
"""


def test_the_host_is_left_out_and_no_line_moves() -> None:
    lines = device_part(SOURCE, for_gcc=True).split(b"\n")
    before = SOURCE.split(b"\n")
    assert len(lines) == len(before)
    gone = [b"vector", b"host()", b"of_host", b"conditional", b"declared", b"main", b"<<<"]
    assert not [word for word in gone if any(word in line for line in lines)]
    changed = [at for at, line in enumerate(lines) if line != before[at]]
    kept = [b"hip_runtime", b"of_macro", b"both", b"__launch_bounds__", b"of_template"]
    assert not [word for word in kept for at in changed if word in before[at]]


@pytest.mark.parametrize(
    ("line", "written"),
    [
        (b"#pragma unroll FACTOR", b"#pragma GCC unroll 4"),
        (b"#pragma unroll", b"#pragma GCC unroll 16"),
        (b"#pragma unroll(2)", b"#pragma GCC unroll 2"),
        (b"#pragma nounroll", b"#pragma GCC unroll 1"),
    ],
)
def test_unrolling_is_asked_for_in_the_compilers_own_words(line: bytes, written: bytes) -> None:
    at = SOURCE.split(b"\n").index(line)
    assert device_part(SOURCE, for_gcc=True).split(b"\n")[at] == written
    assert device_part(SOURCE, for_gcc=False).split(b"\n")[at] == line


def test_kernels_are_known_by_name() -> None:
    assert kernel_names(SOURCE) == ("k", "of_template")


def test_a_zero_byte_is_refused() -> None:
    with pytest.raises(Refused, match="zero byte"):
        device_part(b"int a;\0int b;", for_gcc=True)


#: Quick to compile; what the user's flags change is speed.
TARGET: Final = CpuTarget(flags=("-O1", "-std=c++17", "-ffp-contract=off"))
SOURCE_TARGET: Final = rb"""
#include <hip/hip_runtime.h>
#include <iostream>
#include <vector>

#define TILE 8
#define DEVICE __device__ static
__constant__ float WEIGHTS[2] = {3.0f, 0.5f};

template <class T>
DEVICE T wave_sum(T value) {
  for (int by = warpSize / 2; by > 0; by /= 2) value += __shfl_down(value, by);
  return value;
}
std::vector<float> host_only(int n) { return std::vector<float>(n); }

// A sum by wavefronts, with the launch's own local data share between them.
__global__ void __launch_bounds__(256) sum(const float* __restrict__ in, float* out, int n) {
  extern __shared__ float parts[];
  float value = 0.0f;
  for (int at = threadIdx.x; at < n; at += blockDim.x) value += in[at];
  value = wave_sum(value);
  if (__lane_id() == 0) parts[threadIdx.x / warpSize] = value;
  __syncthreads();
  if (threadIdx.x < warpSize) {
    value = threadIdx.x < blockDim.x / warpSize ? parts[threadIdx.x] : 0.0f;
    value = wave_sum(value);
    if (threadIdx.x == 0) out[0] = value;
  }
}

// A matrix turned over by tiles: barriers between all work-items of a workgroup in three dimensions.
extern "C" __global__ void turned(const int* in, int* out, int n) {
  __shared__ int tile[TILE][TILE + 1];
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
  if (x < n && y < n) tile[threadIdx.y][threadIdx.x] = in[y * n + x];
  __syncthreads();
  int to_x = blockIdx.y * TILE + threadIdx.x, to_y = blockIdx.x * TILE + threadIdx.y;
  if (to_x < n && to_y < n) out[to_y * n + to_x] = tile[threadIdx.x][threadIdx.y];
}

__global__ void counted(const unsigned* in, unsigned* out, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < n) atomicAdd(&out[in[at] % 8], 1u);
}

template <typename T, int BY>
__global__ void scaled(const T* in, T* out, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll TILE
  for (int twice = 0; twice < 2; ++twice)
    if (at < n) out[at] = in[at] * T(BY) * T(WEIGHTS[0]) + T(WEIGHTS[1]);
}

// What each lane sees of the others; lanes beyond the third quarter take no part.
__global__ void lanes(int* out, int n) {
  int lane = threadIdx.x;
  if (lane >= 48) return;
  out[lane * 6] = __shfl(lane * 10, 5);
  out[lane * 6 + 1] = __shfl_xor(lane, 1, 16);
  out[lane * 6 + 2] = __shfl_up(lane, 3, 8);
  out[lane * 6 + 3] = __popcll(__ballot(lane % 2 == 0));
  out[lane * 6 + 4] = __any(lane == 47) + 2 * __all(lane < 47);
  out[lane * 6 + 5] = __popcll(__activemask());
}

__global__ void overruns(float* out, int n) {
  extern __shared__ float parts[];
  parts[n] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = parts[n];
}

int main() {
  std::cout << host_only(1)[0];
  hipLaunchKernelGGL(sum, 1, 2, 3, 4, nullptr, nullptr, 5);
  sum<<<1, 256, 16>>>(nullptr, nullptr, 5);
  return 1 / 0;
}
"""

SYSTEM: Final = b'extern "C" __device__ int system(const char*); __device__ int run() { return system("id"); }'


def parameters(count: int) -> tuple[Parameter, ...]:
    return tuple(Parameter(f"p{at}", "float", True, False) for at in range(count))


def run(build: Build, call: Call, times: int = 2) -> Mapping[str, Content]:
    with TARGET.start(build) as worker:
        outputs = [worker.run(call).outputs for _ in range(times)]
    for name, values in outputs[0].items():
        assert all(values.tobytes() == later[name].tobytes() for later in outputs)
    return outputs[0]


Made = Callable[..., Build]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("built")
    kept: dict[Any, Build] = {}

    def build(kernel: str, count: int = 3, seed: int = 1, source: bytes = SOURCE_TARGET) -> Build:
        key = (kernel, seed, source)
        if key not in kept:
            kept[key] = TARGET.build(source, kernel, parameters(count), Layout(seed), folder)
        return kept[key]

    return build


def buffers(
    inputs: Mapping[str, Content], output: Buffer, **scalars: int
) -> tuple[tuple[Argument, ...], dict[str, Content]]:
    given = tuple(Buffer(name, str(values.dtype), values.size, "in") for name, values in inputs.items())
    return (*given, output, *(Scalar(name, "int32", value) for name, value in scalars.items())), dict(inputs)


@pytest.mark.parametrize("n", [1, 64, 1009])
def test_wavefronts_sum_with_the_launchs_own_local_data_share(made: Made, n: int) -> None:
    values = np.arange(n, dtype=np.float32)
    arguments, contents = buffers({"in": values}, Buffer("out", "float32", 1, "out"), n=n)
    call = Call(Launch((1, 1, 1), (256, 1, 1), 16), arguments, contents)
    assert run(made("sum"), call)["out"][0] == values.sum()


@pytest.mark.parametrize("n", [1, 8, 29])
def test_barriers_meet_every_work_item_of_a_workgroup(made: Made, n: int) -> None:
    values = np.arange(n * n, dtype=np.int32)
    arguments, contents = buffers({"in": values}, Buffer("out", "int32", n * n, "out"), n=n)
    groups = (n + 7) // 8
    call = Call(Launch((groups, groups, 1), (8, 8, 1)), arguments, contents)
    assert run(made("turned"), call)["out"].tolist() == values.reshape(n, n).T.ravel().tolist()


def test_an_inout_buffer_is_written_anew_before_each_call(made: Made) -> None:
    values = np.arange(1000, dtype=np.uint32)
    arguments, contents = buffers({"in": values}, Buffer("out", "uint32", 8, "inout"), n=1000)
    call = Call(Launch((4, 1, 1), (256, 1, 1)), arguments, {**contents, "out": np.full(8, 7, dtype=np.uint32)})
    assert run(made("counted"), call, times=3)["out"].tolist() == [132] * 8


def test_a_kernel_of_a_template_is_named_with_its_arguments(made: Made) -> None:
    values = np.arange(100, dtype=np.float64)
    arguments, contents = buffers({"in": values}, Buffer("out", "float64", 100, "out"), n=100)
    call = Call(Launch((2, 1, 1), (64, 1, 1)), arguments, contents)
    assert run(made("scaled<double, 4>"), call)["out"].tolist() == (values * 12 + 0.5).tolist()


def test_lanes_exchange_as_on_a_wavefront_of_64(made: Made) -> None:
    arguments, contents = buffers({}, Buffer("out", "int32", 48 * 6, "out"), n=0)
    got = run(made("lanes", 2), Call(Launch((1, 1, 1), (64, 1, 1)), arguments, contents))["out"].reshape(48, 6)
    lane = np.arange(48)
    assert got[:, 0].tolist() == [50] * 48
    assert got[:, 1].tolist() == (lane ^ 1).tolist()
    assert got[:, 2].tolist() == np.where(lane % 8 < 3, lane, lane - 3).tolist()
    assert got[:, 3].tolist() == [24] * 48
    assert got[:, 4].tolist() == [1] * 48
    assert got[:, 5].tolist() == [48] * 48


@pytest.mark.parametrize(("at", "refused"), [(3, False), (4, True), (1000, True)])
def test_beyond_the_launchs_local_data_share_nothing_may_be_written(made: Made, at: int, refused: bool) -> None:
    arguments, contents = buffers({}, Buffer("out", "float32", 64, "out"), n=at)
    call = Call(Launch((1, 1, 1), (64, 1, 1), 16), arguments, contents)
    if refused:
        with pytest.raises(Refused, match="memory: it wrote past the dynamic local data share"):
            run(made("overruns", 2), call)
    else:
        assert run(made("overruns", 2), call)["out"].tolist() == [1.0] * 64


def test_an_element_that_is_not_written_is_poison_and_the_execution_says_which(made: Made) -> None:
    values = np.ones(100, dtype=np.float64)
    arguments, contents = buffers({"in": values}, Buffer("out", "float64", 100, "out"), n=40)
    with TARGET.start(made("scaled<double, 4>")) as worker:
        execution = worker.run(Call(Launch((2, 1, 1), (64, 1, 1)), arguments, contents))
    assert np.isnan(execution.outputs["out"][40:]).all()
    assert execution.outputs["out"][40:].tobytes() == 60 * execution.poison["out"]
    assert np.isfinite(execution.outputs["out"][:40]).all()


def test_a_layout_moves_code_and_changes_none(made: Made) -> None:
    builds = [made("sum", seed=seed) for seed in (1, 2, 3)]
    assert len({one.code_sha256 for one in builds}) == 1
    assert len({one.artefact.read_bytes() for one in builds}) == 3
    again = made("sum", seed=1).artefact.read_bytes()
    TARGET.build(SOURCE_TARGET, "sum", parameters(3), Layout(1), builds[0].artefact.parent.parent)
    assert builds[0].artefact.read_bytes() == again
    values = np.arange(500, dtype=np.float32)
    arguments, contents = buffers({"in": values}, Buffer("out", "float32", 1, "out"), n=500)
    call = Call(Launch((1, 1, 1), (256, 1, 1), 16), arguments, contents)
    assert {float(run(one, call)["out"][0]) for one in builds} == {float(values.sum())}


def test_a_comment_changes_no_code_and_a_constant_does(made: Made) -> None:
    before = made("counted")
    assert made("counted", source=SOURCE_TARGET + b"// more words\n").code_sha256 == before.code_sha256
    assert made("counted", source=SOURCE_TARGET.replace(b"% 8", b"% 4")).code_sha256 != before.code_sha256
    weighed = made("counted", source=SOURCE_TARGET.replace(b"3.0f, 0.5f", b"3.0f, 0.25f"))
    assert weighed.code_sha256 != before.code_sha256


def test_a_build_says_what_made_it_and_what_it_takes(made: Made) -> None:
    build = made("turned")
    assert (build.target, build.kernel, build.layout) == ("cpu", "turned", Layout(1))
    assert {"-falign-functions=64", "-falign-loops=32", "-ffp-contract=off"} <= set(build.flags)
    assert build.resources["lds_bytes"] == 8 * 9 * 4
    assert build.resources["writable_bytes"] == 8, "WEIGHTS can be written on a CPU"
    assert any(word in build.compiler.lower() for word in ("g++", "c++", "gcc", "clang"))
    assert (TARGET.executed_on, TARGET.wavefront_size) == ("cpu-emulation", 64)


@pytest.mark.parametrize(
    ("text", "guard", "words"),
    [
        (b"int f(", "compile", "error"),
        (
            b"__device__ int f(); __device__ int n = f(); __device__ int f() { volatile int x = 1; return x; }",
            "constructors",
            "",
        ),
        (SYSTEM, "symbols", "system"),
        (b'extern "C" __device__ float expf(float x) { return x; }', "symbols", "expf"),
        (b'extern "C" __device__ long read(int, void*, unsigned long) { return 0; }', "symbols", "read"),
        (b"__device__ thread_local int kept = 3; __device__ int now() { return kept++; }", "symbols", "local data"),
        (b"__shared__ float huge[20000]; __device__ float* some() { return huge; }", "resources", "80000 bytes"),
        (b"#if 0", "compile", "unterminated"),
    ],
)
def test_what_no_kernel_needs_is_refused_when_it_is_built(tmp_path: Path, text: bytes, guard: str, words: str) -> None:
    source = b"__global__ void k(float* out) { out[0] = 1.0f; }\n" + text + b"\n"
    with pytest.raises(Refused) as refused:
        TARGET.build(source, "k", parameters(1), Layout(1), tmp_path)
    assert refused.value.guard == guard, refused.value
    assert words in refused.value.reason
    assert str(tmp_path) not in refused.value.reason


def test_a_call_that_does_not_fit_the_kernel_is_a_mistake_of_the_caller(made: Made) -> None:
    arguments, contents = buffers({}, Buffer("out", "float32", 1, "out"))
    with TARGET.start(made("sum")) as worker:
        with pytest.raises(UsageError, match="1 arguments to a kernel of 3"):
            worker.run(Call(Launch((1, 1, 1), (64, 1, 1)), arguments, contents))
        with pytest.raises(UsageError, match="1 to 1024"):
            worker.run(Call(Launch((1, 1, 1), (2048, 1, 1)), arguments, contents))


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="apt-get install"):
        compilers.find_compiler.__wrapped__(None)


def test_what_is_timed_is_the_kernels_own_cpu_time(made: Made) -> None:
    """A hundred times the work takes far longer; the file's other figures are those of the newest process."""
    durations: list[int] = []
    with TARGET.start(made("sum")) as worker:
        assert worker.load_ns is None and worker.first_call_ns is None
        for n in (1 << 14, 1 << 21):
            values = np.ones(n, dtype=np.float32)
            arguments, contents = buffers({"in": values}, Buffer("out", "float32", 1, "out"), n=n)
            call = Call(Launch((1, 1, 1), (256, 1, 1), 16), arguments, contents)
            taken = [worker.run(call).duration_ns or 0 for _ in range(3)]
            assert worker.first_call_ns == taken[0]
            assert worker.load_ns is not None and worker.load_ns > 0
            durations.append(min(taken))
    assert durations[1] > 4 * durations[0] > 0
