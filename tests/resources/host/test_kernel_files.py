"""Machines, boots and GPUs are distinguished, and a machine's confidential id is never revealed.

A process named beyond doubt: its number alone would name whichever process has it later.

Freed memory goes back to the system.
"""

import ctypes
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.resources.host import kernel_files
from aaco_pipeline.resources.host.facts import host_facts
from aaco_pipeline.resources.host.kernel_files import (
    HOST_TAG,
    PID_TAG,
    give_back_memory,
    identity_of,
    process_is_gone,
    process_tags,
)

MACHINE = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host that states its id, its boot, two AMD GPUs and one NVIDIA GPU."""
    files = {
        "machine-id": MACHINE,
        "proc/stat": "cpu 1 2\nbtime 1700000000\nprocesses 1",
        "proc/sys/kernel/random/boot_id": "11111111-2222",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: X\nGPU UUID: \t GPU-aa-bb\n",
        "card0/unique_id": "0xf00",
        "card1/unique_id": "0xf01",
    }
    for name, text in files.items():
        (file := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    monkeypatch.setattr(kernel_files, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(kernel_files, "_MACHINE", tmp_path / "machine-id")
    return tmp_path


def test_the_boot_the_machine_and_each_gpu_are_named(machine: Path) -> None:
    found = identity_of("EPYC", [machine / "card0", machine / "card1"])
    told = found.pop(("identity", "machine"))
    assert told is not None
    assert len(told) == 16
    assert found == {
        ("boot", "id"): "11111111-2222",
        ("boot", "time"): "2023-11-14T22:13:20+00:00",
        ("identity", "gpu0.unique_id"): "0xf00",
        ("identity", "gpu1.unique_id"): "0xf01",
        ("identity", "nvidia0.uuid"): "GPU-aa-bb",
    }


def test_the_machine_is_a_digest_that_another_machine_or_processor_does_not_have(machine: Path) -> None:
    key = ("identity", "machine")
    own, again, other_processor = (identity_of(model, [])[key] for model in ("EPYC", "EPYC", "Xeon"))
    (machine / "machine-id").write_text(MACHINE[::-1])
    assert own == again
    assert len({own, other_processor, identity_of("EPYC", [])[key]}) == 3
    assert MACHINE not in str(own)


def test_what_a_host_does_not_state_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_files, "_PROC", tmp_path)
    monkeypatch.setattr(kernel_files, "_MACHINE", tmp_path / "machine-id")
    (tmp_path / "card").mkdir()
    assert set(identity_of(None, [tmp_path / "card"]).values()) == {None}


def test_it_stays_outside_of_the_fingerprint() -> None:
    own = [fact for fact in host_facts()["facts"] if fact["category"] in ("boot", "identity")]
    assert {(fact["category"], fact["key"]) for fact in own} >= {("boot", "id"), ("boot", "time")}
    assert all(fact["volatile"] for fact in own)


TELL_TAGS: Final = """
import json
from aaco_pipeline.resources.host.kernel_files import process_tags
print(json.dumps(process_tags()), flush=True)
input()
"""
STARTED_TAG: Final = ".dagster/aaco/process/started"
BOOT_TAG: Final = ".dagster/aaco/process/boot"


def test_this_process_lives() -> None:
    assert process_is_gone(process_tags()) is False


def test_tags_are_text_and_name_host_and_process() -> None:
    tags = process_tags()
    assert tags[HOST_TAG] == platform.node()
    assert tags[PID_TAG] == str(os.getpid())
    assert all(isinstance(value, str) and value for value in tags.values())
    assert process_tags() == tags


def test_a_process_lives_until_it_ends_and_a_zombie_has_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TELL_TAGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        tags = json.loads(process.stdout.readline())
        assert tags[PID_TAG] == str(process.pid)
        assert process_is_gone(tags) is False
        process.kill()
        deadline = time.monotonic() + 10
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
        assert process_is_gone(tags) is True  # nobody has waited for it yet
    assert process_is_gone(tags) is True


def test_a_number_used_again_is_another_process() -> None:
    assert process_is_gone({**process_tags(), STARTED_TAG: "1"}) is True
    assert process_is_gone({**process_tags(), STARTED_TAG: ""}) is True


def test_nothing_outlives_a_boot() -> None:
    assert process_is_gone({**process_tags(), BOOT_TAG: "another boot"}) is True


@pytest.mark.parametrize(
    "tags", [{}, {HOST_TAG: platform.node()}, {**process_tags(), HOST_TAG: "another host"}, {PID_TAG: "1"}]
)
def test_processes_of_other_hosts_and_of_nobody_are_not_judged(tags: dict[str, str]) -> None:
    assert process_is_gone(tags) is None


@pytest.mark.parametrize("number", ["", "many", "-1", "1.5"])
def test_a_tag_that_somebody_wrote_by_hand_is_not_judged(number: str) -> None:
    """Anybody can set tags in the launchpad; one run's nonsense may not hide every other dead run."""
    assert process_is_gone({**process_tags(), PID_TAG: number}) in (None, True)


def test_a_name_with_spaces_and_parentheses_does_not_confuse_the_fields(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fields = ["S", *map(str, range(4, 60))]
    monkeypatch.setattr(Path, "read_text", lambda self: f"42 (a) Z (b) {' '.join(fields)}\n")
    assert kernel_files._process_started(42) == "22"


_PIECE = 64 << 10
_PIECES = 1_000


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only GNU's C library gives back when told")
def test_what_the_c_library_keeps_of_freed_memory_goes_back() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    held = [library.malloc(_PIECE) for _ in range(_PIECES)]
    for piece in held:
        ctypes.memset(piece, 1, _PIECE)
    last = held.pop()  # keeps the heap from shrinking by itself
    for piece in held:
        library.free(piece)
    before = resident_bytes()
    give_back_memory()
    assert before - resident_bytes() > _PIECE * _PIECES // 2
    library.free(last)
