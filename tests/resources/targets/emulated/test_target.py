"""The adapter of an emulator against stand-ins: guarded memory, orders, counts, and answers that are hostile.

Which emulator there is, what it is started with, and the architecture that a compiler here makes code for.
"""

from pathlib import Path

import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Build, Layout, NotEmulated
from aaco_pipeline.resources.targets.emulated import target
from aaco_pipeline.resources.targets.emulated import target as process_module
from aaco_pipeline.resources.targets.emulated.target import EmulatedTarget, emulated_target, started
from aaco_pipeline.resources.toolchains.amdgpu.finding import (
    EMULATOR_VARIABLE,
    Emulator,
    NoEmulator,
    Toolchain,
    emulator_availability,
    find_emulator,
)
from tests.resources.targets.emulated import stand_in_emulator as toy
from tests.resources.targets.emulated.conftest import Started, call, hostile, program


def test_outputs_and_executed_instructions_come_back(load: Started) -> None:
    with load(toy.GLOBAL_STORE, toy.S_ENDPGM) as process:
        execution = process.emulate(call(), backwards=False)
        assert execution.outputs["out"].tolist() == [7, 8]
        assert execution.duration_ns is None
        # two workgroups of two wavefronts each
        assert {name: count for name, count in process.instructions.items() if count} == {
            "vector_memory": 4,
            "control": 4,
        }


def test_the_process_is_shut_in(load: Started) -> None:
    with load(toy.S_ENDPGM) as process:
        assert process.unconfined == ()


def test_an_output_that_is_not_written_keeps_the_poison_that_is_reported(load: Started) -> None:
    with load(toy.S_ENDPGM) as process:
        for backwards in (False, True):
            execution = process.emulate(call(), backwards=backwards)
            assert execution.outputs["out"].tobytes() == 2 * execution.poison["out"]


def test_wavefronts_run_in_both_orders_and_local_memory_is_poisoned_for_each_workgroup(load: Started) -> None:
    counted = {}
    with load(toy.DS_ADD, toy.GLOBAL_STORE_LDS, toy.S_ENDPGM) as process:
        for backwards in (False, True):
            execution = process.emulate(call(), backwards=backwards)
            poison = int.from_bytes(execution.poison["out"], "little")
            counted[backwards] = [value - poison for value in execution.outputs["out"].tolist()]
    assert counted == {False: [1, 2], True: [2, 1]}


def test_a_barrier_is_waited_for_by_every_wavefront(load: Started) -> None:
    with load(toy.DS_ADD, toy.S_BARRIER, toy.GLOBAL_STORE_LDS, toy.S_ENDPGM) as process:
        for backwards in (False, True):
            execution = process.emulate(call(), backwards=backwards)
            poison = int.from_bytes(execution.poison["out"], "little")
            assert [value - poison for value in execution.outputs["out"].tolist()] == [2, 2]


def test_a_store_beyond_a_buffer_is_refused_and_reported_by_its_place(load: Started) -> None:
    with load(toy.S_BARRIER, toy.GLOBAL_STORE | 2 << 8, toy.S_ENDPGM) as process:
        with pytest.raises(Refused, match="memory that it was not given, at byte 0x4 of its code") as refused:
            process.emulate(call(), backwards=False)
        assert refused.value.guard == "memory"
        with pytest.raises(Refused):  # it is gone, and says so again
            process.emulate(call(), backwards=False)


def test_a_store_before_a_buffer_on_its_own_page_is_seen_afterwards(load: Started) -> None:
    with load(toy.GLOBAL_STORE | 200 << 8, toy.S_ENDPGM) as process:
        with pytest.raises(Refused, match="wrote beside buffer 1") as refused:
            process.emulate(call(), backwards=False)
        assert refused.value.guard == "memory"


def test_what_a_lane_that_is_off_holds_as_an_address_faults_nobody(load: Started) -> None:
    with load(toy.V_EXEC | 1 << 8, toy.DS_WRITE, toy.GLOBAL_STORE_LDS, toy.S_ENDPGM) as process:
        assert process.emulate(call(), backwards=False).outputs["out"].tolist() == [42, 42]


def test_an_instruction_that_is_not_emulated_is_named(load: Started) -> None:
    with load(toy.V_UNKNOWN) as process, pytest.raises(NotEmulated, match="v_unknown: no such instruction"):
        process.emulate(call(), backwards=False)


def test_a_kernel_that_leaves_its_code_is_not_emulated(load: Started) -> None:
    with load(toy.S_BARRIER) as process, pytest.raises(NotEmulated, match="none of its own code"):
        process.emulate(call(), backwards=False)


def test_a_kernel_without_an_end_is_given_up(load: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "MOST_INSTRUCTIONS", 1000)
    with load(toy.S_BRANCH) as process, pytest.raises(NotEmulated, match="more instructions than it is given"):
        process.emulate(call(), backwards=False)


def test_an_emulator_that_hangs_is_killed_at_the_deadline(tmp_path: Path) -> None:
    with hostile("hangs", tmp_path, seconds=0.5) as process, pytest.raises(NotEmulated, match=r"within 0\.5 s"):
        process.emulate(call(), backwards=False)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("garbage", "no line of JSON"),
        ("deep", "no line of JSON"),
        ("nonce", "what it was not asked"),
        ("short", "not the 8 bytes of out"),
        ("not base64", "not the 8 bytes of out"),
        ("another number", "not the form"),
        ("no results", "not the form"),
        ("a list", "not the form"),
        ("counts less than none", "no instructions"),
        ("counts what is nothing", "no instructions"),
        ("counts in words", "no instructions"),
    ],
)
def test_an_answer_of_another_form_is_refused(tmp_path: Path, way: str, words: str) -> None:
    with hostile(way, tmp_path) as process, pytest.raises(Refused, match=words) as refused:
        process.emulate(call(), backwards=False)
    assert refused.value.guard == "result"


def test_an_emulator_that_ends_says_nothing_against_the_kernel(tmp_path: Path) -> None:
    with hostile("exits", tmp_path) as process, pytest.raises(NotEmulated, match="ended with status 1: out of order"):
        process.emulate(call(), backwards=False)


def test_a_checkout_that_lacks_what_is_needed_is_unavailable(emulator: Emulator, tmp_path: Path) -> None:
    (tmp_path / "test" / "mockgpu" / "amd").mkdir(parents=True)
    (tmp_path / "test" / "__init__.py").touch()
    (tmp_path / "test" / "mockgpu" / "amd" / "emu.py").touch()
    environment = dict(emulator.environment)
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    with (
        pytest.raises(UnavailableError, match=r"cannot be driven: (AttributeError|ImportError|ModuleNotFoundError)"),
        started(emulator.command, environment, "gfx950", (), 20.0),
    ):
        pass


def test_a_program_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be started"), started(("/absent",), {}, "gfx950", (), 1.0):
        pass


TOOLCHAINS = [Toolchain(kind, (kind,), ("lld",), Path("/bitcode")) for kind in ("debian", "packages")]


def test_without_the_setting_there_is_no_emulator_and_the_line_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(EMULATOR_VARIABLE, raising=False)
    said = emulator_availability()
    assert said.startswith(f"emulated gfx950: not available ({EMULATOR_VARIABLE} is not set); to have it: git clone")
    assert "\n" not in said


def test_a_folder_that_is_no_checkout_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(EMULATOR_VARIABLE, str(tmp_path))
    found = find_emulator()
    assert isinstance(found, NoEmulator)
    assert found.reason == f"{EMULATOR_VARIABLE} names {tmp_path}, which has no test/mockgpu/amd/emu.py"


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
        *("PATH", "LD_LIBRARY_PATH", "LLVM_PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "DEV", "CC", "CACHELEVEL")
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
    def why_no_kernel(toolchain: Toolchain, architecture: str, *_: object) -> str | None:
        return None if architecture in knows[toolchain.kind] else "unknown target"

    monkeypatch.setattr(target, "find_toolchains", lambda: TOOLCHAINS)
    monkeypatch.setattr(target, "why_no_kernel", why_no_kernel)
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
