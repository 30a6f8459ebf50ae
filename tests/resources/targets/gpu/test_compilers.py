"""Device code by the real compilers, where they are: resources, digests, and what a kernel may not ask for."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Layout
from aaco_pipeline.resources.host import kernel_files
from aaco_pipeline.resources.targets.gpu import target as targets
from aaco_pipeline.resources.targets.gpu.compilers import (
    INCLUDE,
    Compiler,
    amd_compiler,
    code_digest,
    cuda_compiler,
    ptxas_resources,
    read,
    symbol_of,
)
from aaco_pipeline.resources.targets.gpu.driver import VENDORS, Vendor, VendorName
from aaco_pipeline.resources.targets.gpu.target import GpuTarget, find_gpu

HEAD = "#include <hip/hip_runtime.h>\n#include <cstdio>\n"
ADD = "if (i < n) out[i] = a[i] + 1.0f;"
VENDORS_AND_ARCHITECTURES: tuple[tuple[VendorName, str], ...] = (("cuda", "sm_90"), ("amd", "gfx942"))


def source(body: str, before: str = "") -> bytes:
    signature = "__global__ void adding(const float* a, float* out, int n)"
    return f"{HEAD}{before}{signature} {{ int i = blockIdx.x * blockDim.x + threadIdx.x; {body} }}\n".encode()


def made(name: VendorName, architecture: str) -> GpuTarget:
    compiler: Compiler | None = (cuda_compiler if name == "cuda" else amd_compiler)(architecture, ())
    if compiler is None:
        pytest.skip(f"no compiler for {architecture} here")
    return GpuTarget(VENDORS[name], compiler, architecture, 32 if name == "cuda" else 64, "no device")


@pytest.fixture(scope="module", params=VENDORS_AND_ARCHITECTURES, ids=[name for name, _ in VENDORS_AND_ARCHITECTURES])
def target(request: pytest.FixtureRequest) -> GpuTarget:
    return made(*request.param)


@pytest.fixture(scope="module")
def cuda() -> GpuTarget:
    return made("cuda", "sm_90")


def test_a_kernel_is_built_once_a_folder_and_its_code_is_the_same_in_every_layout(
    target: GpuTarget, tmp_path: Path
) -> None:
    one = target.build(source(ADD), "adding", (), Layout(1), tmp_path)
    written = one.artefact.stat().st_mtime_ns
    two = target.build(source(ADD), "adding", (), Layout(2), tmp_path)
    assert one.artefact == two.artefact
    assert two.artefact.stat().st_mtime_ns == written
    assert one.code_sha256 == two.code_sha256
    assert one.layout != two.layout
    assert one.resources["registers"] > 0
    assert one.resources["lds_bytes"] == 0
    assert not one.warnings


def test_only_what_the_kernel_runs_is_in_its_digest(cuda: GpuTarget, tmp_path: Path) -> None:
    other = "/* faster */ __global__ void other(float* x) { x[threadIdx.x] = 3.0f; }\n"
    texts = {
        "plain": source(ADD),
        "neighbour": source(ADD, before=other),
        "constant": source(ADD.replace("1.0f", "2.0f")),
    }
    digests = {
        name: cuda.build(text, "adding", (), Layout(0), tmp_path / name).code_sha256 for name, text in texts.items()
    }
    assert digests["plain"] == digests["neighbour"] != digests["constant"]


@pytest.mark.parametrize(
    ("body", "kernel", "guard"),
    [
        (f'{ADD} printf("%d", i);', "adding", "symbols"),
        (f"static float kept; {ADD} kept += 1.0f; out[0] = kept;", "adding", "symbols"),
        ("out[i] = a[i] + ;", "adding", "compile"),
        (ADD, "subtracting", "kernel"),
    ],
    ids=["prints", "keeps", "is no C++", "is not there"],
)
def test_what_a_kernel_may_not_be_is_refused(
    cuda: GpuTarget, tmp_path: Path, body: str, kernel: str, guard: str
) -> None:
    with pytest.raises(Refused) as caught:
        cuda.build(source(body), kernel, (), Layout(0), tmp_path)
    assert caught.value.guard == guard


def test_a_kernel_for_amd_may_not_print_either(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="calls the host"):
        made("amd", "gfx942").build(source(f'{ADD} printf("%d", i);'), "adding", (), Layout(0), tmp_path)


def test_a_whole_program_is_read_and_a_wave_of_32_lanes_is_said(cuda: GpuTarget, tmp_path: Path) -> None:
    host = (
        "int main() { float* x; hipMalloc(&x, 4); adding<<<1, 1>>>(x, x, 1);\n"
        "hipLaunchKernelGGL(adding, dim3(1), dim3(1), 0, 0, x, x, 1); return hipDeviceSynchronize() != hipSuccess; }\n"
    )
    across = source("float x = a[i] + __shfl_xor(a[i], 1); if (__ballot(i < n)) out[i] = x;")
    build = cuda.build(across + host.encode(), "adding", (), Layout(0), tmp_path)
    assert {function.name for function in read(build.artefact.read_bytes()).functions} == {"_Z6addingPKfPfi"}
    assert any("32 lanes" in warning for warning in build.warnings)


def test_the_names_of_hip_are_known_to_a_host_compiler(tmp_path: Path) -> None:
    """Without nvcc: the header's names alone, with the built-ins of CUDA declared."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "names.cpp"
    program.write_text(
        "#define __device__\n#define __forceinline__ inline\n#define __CUDACC_RTC__ 1\n"
        "struct { unsigned x, y, z; } threadIdx, blockIdx, blockDim, gridDim;\n"
        "unsigned __activemask();\nunsigned __ballot_sync(unsigned, int);\n"
        "int __any_sync(unsigned, int), __all_sync(unsigned, int);\n"
        "template <typename T> T __shfl_sync(unsigned, T, int, int);\n"
        "template <typename T> T __shfl_up_sync(unsigned, T, unsigned, int);\n"
        "template <typename T> T __shfl_down_sync(unsigned, T, unsigned, int);\n"
        "template <typename T> T __shfl_xor_sync(unsigned, T, int, int);\n"
        "#include <hip/hip_runtime.h>\n"
        "unsigned long long seen() { return __ballot(hipThreadIdx_x) + __any(1) + __all(1) + __lane_id(); }\n"
        "float moved(float x) { return __shfl(x, 1) + __shfl_up(x, 1u) + __shfl_down(x, 1u, 16) + __shfl_xor(x, 1); }\n"
    )
    command = [compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", "-I", str(INCLUDE), str(program)]
    subprocess.run(command, check=True, timeout=60)


def test_resources_are_those_of_the_kernel_that_is_meant() -> None:
    said = (
        "ptxas info    : Compiling entry function 'one' for 'sm_90'\n"
        "ptxas info    : Function properties for one\n"
        "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem\n"
        "ptxas info    : Compiling entry function 'two' for 'sm_90'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 10 registers, used 0 barriers\n"
    )
    assert ptxas_resources(said, "one") == {
        "registers": 40,
        "lds_bytes": 2048,
        "stack_bytes": 8,
        "spill_store_bytes": 12,
        "spill_load_bytes": 16,
    }
    assert ptxas_resources(said, "two")["lds_bytes"] == 0
    assert ptxas_resources(said, "three") == {}


def test_bytes_that_are_no_code_object_are_refused() -> None:
    for image in (b"", b"\x7fELF\x02\x01" + bytes(10), b"not an object" * 10):
        with pytest.raises(Refused, match="no readable code object"):
            read(image)


def test_a_name_is_found_as_it_is_mangled(tmp_path: Path) -> None:
    compiler = cuda_compiler("sm_90", ())
    if compiler is None:
        pytest.skip("no nvcc here")
    text = (
        "template <typename T> __global__ void shape(T* x) { *x = 1; }\n"
        "template __global__ void shape<float>(float*);\ntemplate __global__ void shape<int>(int*);\n"
        "namespace space { __global__ void inside(float* x) { *x = 2; } }\n"
    )
    compiled = compiler(text.encode(), "inside", tmp_path)
    assert compiled.symbol == "_ZN5space6insideEPf"
    code = read(compiled.artefact.read_bytes())
    with pytest.raises(Refused, match="_Z5shapeIfEvPT_, _Z5shapeIiEvPT_"):
        symbol_of(code, "shape")
    assert code_digest(code, "_Z5shapeIfEvPT_") != code_digest(code, "_Z5shapeIiEvPT_")


def test_what_is_missing_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(targets, "_KFD", tmp_path / "kfd")
    with pytest.raises(UnavailableError, match="/dev/kfd is absent"):
        find_gpu("amd")
    monkeypatch.setattr(targets, "VENDORS", {name: _without_library(name) for name in VENDORS})
    with pytest.raises(UnavailableError, match=r"target cuda: no NVIDIA GPU can be used \(libnot_there"):
        find_gpu("cuda")


def _without_library(name: str) -> Vendor:
    return replace(VENDORS[name], library="libnot_there.so")


def test_an_amd_gpus_architecture_is_the_kernel_drivers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for node, version, width in ((0, 0, 0), (1, 90402, 64), (2, 110000, 32)):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "properties").write_text(
            f"cpu_cores_count 4\ngfx_target_version {version}\nwave_front_size {width}\n"
        )
    monkeypatch.setattr(kernel_files, "KFD_NODES", tmp_path)
    assert targets._first_amd_gpu() == ("gfx942", 64)
    (tmp_path / "1" / "properties").write_text("gfx_target_version 90010\nwave_front_size 64\n")
    assert targets._first_amd_gpu() == ("gfx90a", 64)
    monkeypatch.setattr(kernel_files, "KFD_NODES", tmp_path / "none")
    with pytest.raises(UnavailableError, match="lists no GPU"):
        targets._first_amd_gpu()
