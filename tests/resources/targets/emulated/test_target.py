"""Which emulator there is, what it is started with, and the architecture that a compiler here makes code for."""

from pathlib import Path

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Build, Layout
from aaco_pipeline.resources.targets.emulated import target
from aaco_pipeline.resources.targets.emulated.finding import VARIABLE, Emulator, NoEmulator, availability, find_emulator
from aaco_pipeline.resources.targets.emulated.target import EmulatedTarget, emulated_target
from aaco_pipeline.resources.toolchains.amdgpu.finding import Toolchain
from tests.resources.targets.emulated import stand_in_emulator as toy
from tests.resources.targets.emulated.conftest import call, program

TOOLCHAINS = [Toolchain(kind, (kind,), ("lld",), Path("/bitcode")) for kind in ("debian", "packages")]


def test_without_the_setting_there_is_no_emulator_and_how_to_have_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    said = availability()
    assert said.startswith(f"emulated gfx950: not available ({VARIABLE} is not set); to have it: git clone")
    assert "\n" not in said


def test_a_folder_that_is_no_checkout_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    found = find_emulator()
    assert isinstance(found, NoEmulator)
    assert found.reason == f"{VARIABLE} names {tmp_path}, which has no test/mockgpu/amd/emu.py"


def test_without_clang_there_is_no_emulator(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert find_emulator() == NoEmulator("tinygrad's emulator needs clang, and none is on PATH")


def test_nothing_of_the_users_environment_reaches_it_but_where_llvm_lies(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "secret")
    monkeypatch.setenv("LLVM_PATH", "/opt/libLLVM.so")
    found = find_emulator()
    assert isinstance(found, Emulator)
    environment = dict(found.environment)
    assert environment["LLVM_PATH"] == "/opt/libLLVM.so"
    assert "secret" not in environment.values()
    assert set(environment) <= {
        *("PATH", "LD_LIBRARY_PATH", "LLVM_PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "DEV", "CC", "CACHELEVEL"),
    }


@pytest.mark.parametrize(
    ("knows", "expected"),
    [
        ({"debian": ["gfx942"], "packages": ["gfx942", "gfx950"]}, ("gfx950", "packages")),
        ({"debian": ["gfx942"], "packages": []}, ("gfx942", "debian")),
    ],
)
def test_gfx950_is_taken_where_any_compiler_knows_it(
    emulator: Emulator,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    knows: dict[str, list[str]],
    expected: tuple[str, str],
) -> None:
    def compiling(
        toolchain: Toolchain, source: bytes, kernel: str, architecture: str, *_: object, **__: object
    ) -> None:
        if architecture not in knows[toolchain.kind]:
            raise Refused("compile", "unknown target")

    monkeypatch.setattr(target, "find_toolchains", lambda: TOOLCHAINS)
    monkeypatch.setattr(target, "compile_kernel", compiling)
    found = emulated_target(tmp_path)
    assert isinstance(found, EmulatedTarget)
    assert (found.architecture, found.toolchain.kind) == expected
    assert found.executed_on == f"emulated {expected[0]} (tinygrad)"


def test_without_a_compiler_there_is_no_target(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(target, "find_toolchains", list)
    assert emulated_target(tmp_path) == NoEmulator("no compiler for gfx950 or gfx942", "see the static verdict")


def test_a_build_is_loaded_into_a_fresh_process(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(target, "read_program", lambda data, kernel: program(toy.GLOBAL_STORE, toy.S_ENDPGM))
    artefact = tmp_path / "k.hsaco"
    artefact.touch()
    one = EmulatedTarget(emulator, TOOLCHAINS[0], "gfx950")
    with one.start(Build("amd-emulated", "k", artefact, "", "", "", (), Layout(0))) as process:
        assert process.emulate(call(), backwards=False).outputs["out"].tolist() == [7, 8]
