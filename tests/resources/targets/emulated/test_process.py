"""The adapter of an emulator against stand-ins: guarded memory, orders, counts, and answers that are hostile."""

from pathlib import Path

import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.emulation import NotEmulated
from aaco_pipeline.resources.targets.emulated import process as process_module
from aaco_pipeline.resources.targets.emulated.finding import Emulator
from aaco_pipeline.resources.targets.emulated.process import started
from tests.resources.targets.emulated import stand_in_emulator as toy
from tests.resources.targets.emulated.conftest import Started, call, hostile


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


def test_an_output_that_is_not_written_keeps_the_poison_that_is_told(load: Started) -> None:
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


def test_a_store_beyond_a_buffer_is_refused_and_told_by_its_place(load: Started) -> None:
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
