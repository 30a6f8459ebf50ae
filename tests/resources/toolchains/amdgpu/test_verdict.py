"""The static verdict from real compilations: the compiler's own figures, and candidates compared with the baseline."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Launch
from aaco_pipeline.resources.toolchains.amdgpu import compiling, verdict
from aaco_pipeline.resources.toolchains.amdgpu.compiling import compile_kernel
from aaco_pipeline.resources.toolchains.amdgpu.finding import Missing, Toolchain, find_toolchain
from aaco_pipeline.resources.toolchains.amdgpu.verdict import StaticVerdict, static_verdict
from aaco_pipeline.resources.toolchains.limited import Limits
from tests.resources.toolchains.amdgpu.make_code_objects import DATA, unrolled

FOUND = find_toolchain()
needs_compiler = pytest.mark.skipif(
    isinstance(FOUND, Missing), reason=FOUND.reason if isinstance(FOUND, Missing) else "there is a compiler"
)
LAUNCH = Launch((8, 8, 1), (32, 8, 1))
STAR = (DATA / "star.hip").read_bytes()
LOOP = STAR[: STAR.index(b"for (")].count(b"\n") + 1


def toolchain() -> Toolchain:
    assert isinstance(FOUND, Toolchain)
    return FOUND


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StaticVerdict]:
    """Put the cache into a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AACO_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = static_verdict(tmp_path_factory.mktemp("static"), LAUNCH)
        assert isinstance(found, StaticVerdict)
        yield found


@pytest.fixture(scope="module")
def before(judge: StaticVerdict) -> dict[str, dict[str, Any]]:
    return judge.figures(STAR, "star")


@needs_compiler
def test_figures_are_the_compilers_own_and_plain_values(before: dict[str, dict[str, Any]]) -> None:
    assert set(before) == {"gfx90a", "gfx942"}
    for name, figures in before.items():
        assert (figures["architecture"], figures["disagreements"], figures["failed"]) == (name, [], [])
        assert 5 <= figures["waves_per_simd"] <= 8
        assert figures["flags"] == [f"--offload-arch={name}", "-O3"]
        assert "clang version" in figures["compiler"]
        assert any(one["completely"] for one in figures["unrolled"])
    assert json.loads(json.dumps(before)) == before


@needs_compiler
def test_a_stencil_unrolled_by_two_is_refused_for_occupancy(
    judge: StaticVerdict, before: dict[str, dict[str, Any]]
) -> None:
    after = judge.figures(unrolled(STAR, 2), "star")
    with pytest.raises(Refused, match=r"^resources: occupancy falls from \d to \d wavefronts per SIMD on gfx90a: "):
        judge.check(before, after, parameters={"line": LOOP, "factor": 2})
    with pytest.raises(Refused, match=r"^no_effect: the loop of line \d+ was to be unrolled by 4, and was by 2 on"):
        judge.check(before, after, parameters={"line": LOOP, "factor": 4})


@needs_compiler
def test_a_comment_has_no_effect(judge: StaticVerdict, before: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    source = b"// A comment.\n\n" + STAR
    build = compile_kernel(toolchain(), source, "star", "gfx942", tmp_path)
    assert build.resources.code_sha256 == before["gfx942"]["code_sha256"]
    assert build.artefact.read_bytes()[:4] == b"\x7fELF"
    assert list(tmp_path.iterdir()) == [build.artefact]
    with pytest.raises(Refused, match=r"^no_effect: the machine code on gfx90a is the baseline's, \d+ bytes; "):
        judge.check(before, before)


@needs_compiler
def test_a_source_that_does_not_compile_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^compile: \S+ ended with status 1: kernel\.hip:1:\d+: error: ") as raised:
        compile_kernel(toolchain(), b"__global__ void star(float* p) { *p = }", "star", "gfx90a", tmp_path)
    assert str(tmp_path) not in raised.value.reason
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_a_compilation_is_ended_at_its_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bomb = (
        b"template <int N, int M> struct F { static const int v = F<N - 1, M>::v + F<N - 1, M + (1 << N)>::v; };"
        b"template <int M> struct F<0, M> { static const int v = M; }; int x = F<24, 0>::v;"
    )
    monkeypatch.setattr(compiling, "_LIMITS", Limits(memory_bytes=4 << 30, cpu_seconds=1, file_bytes=1 << 20))
    with pytest.raises(Refused, match=r"ended with signal SIG\w+; it may take 1 s of CPU time, 4 GiB of memory"):
        compile_kernel(toolchain(), bomb, "star", "gfx90a", tmp_path)


def test_without_a_compiler_the_verdict_is_missing_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(verdict, "find_toolchain", lambda: Missing("no compiler for AMD GPUs"))
    assert static_verdict(tmp_path, LAUNCH) == Missing("no compiler for AMD GPUs")


def broken(folder: Path, program: str) -> Toolchain:
    compiler = folder / "clang++"
    compiler.write_text(f"#!/bin/sh\n{program}\n")
    compiler.chmod(0o755)
    (folder / "oclc_isa_version_90a.bc").touch()
    return Toolchain("rocm", (str(compiler),), (str(compiler),), folder, rocm=folder)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("exit 3", "compile: clang++ ended with status 3: it says nothing"),
        ("echo 'error: cannot find HIP' >&2; exit 1", "compile: clang++ ended with status 1: error: cannot find HIP"),
        ("kill -9 $$", "compile: clang++ ended with signal SIGKILL; it may take"),
    ],
)
def test_a_compiler_that_does_not_work_is_missing_with_its_reason(
    program: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = broken(tmp_path, program)
    monkeypatch.setattr(verdict, "find_toolchain", lambda: found)
    answer = static_verdict(tmp_path, LAUNCH)
    assert isinstance(answer, Missing)
    assert answer.reason.startswith(f"{found.compiler[0]} compiles no empty kernel: {words}")


def test_device_libraries_without_an_architecture_cannot_be_used(tmp_path: Path) -> None:
    found = broken(tmp_path, "exit 0")
    with pytest.raises(UnavailableError, match=r"has no oclc_isa_version_942\.bc: these device libraries do not know"):
        compile_kernel(found, STAR, "star", "gfx942", tmp_path)


def test_figures_of_a_journal_are_judged_without_a_compiler(tmp_path: Path) -> None:
    figures = {
        **{"architecture": "gfx942", "vgprs": 56, "agprs": 0, "sgprs": 31, "vgpr_spills": 0, "sgpr_spills": 0},
        **{"lds_bytes": 0, "scratch_bytes": 0, "dynamic_stack": False, "max_workgroup_work_items": 1024},
        **{"wavefront_size": 64, "code_bytes": 1684, "code_sha256": "before", "unrolled": [], "failed": []},
        **{"waves_per_simd": 8, "compiler": "clang", "flags": [], "disagreements": []},
    }
    judge = StaticVerdict(broken(tmp_path, "exit 1"), tmp_path, LAUNCH)
    after = {**figures, "code_sha256": "after", "max_workgroup_work_items": 256}
    judge.check({"gfx942": figures}, {"gfx942": after}, parameters={"work_items": 256})
    with pytest.raises(Refused, match="compiled for workgroups of up to 256 work-items"):
        judge.check({"gfx942": figures}, {"gfx942": after})
    with pytest.raises(Refused, match="launched with workgroups of 512 work-items"):
        judge.check({"gfx942": figures}, {"gfx942": after}, (512, 1, 1), {"work_items": 256})
    with pytest.raises(Refused, match="where the baseline has 0"):
        judge.check({"gfx942": figures}, {"gfx942": {**after, "vgpr_spills": 1}}, parameters={"work_items": 256})
