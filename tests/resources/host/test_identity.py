"""Machines, boots and GPUs are told apart, and a machine's confidential id is never told."""

from pathlib import Path

import pytest

from aaco_pipeline.resources.host import identity
from aaco_pipeline.resources.host.facts import host_facts
from aaco_pipeline.resources.host.identity import identity_of

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
    monkeypatch.setattr(identity, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(identity, "_MACHINE", tmp_path / "machine-id")
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
    monkeypatch.setattr(identity, "_PROC", tmp_path)
    monkeypatch.setattr(identity, "_MACHINE", tmp_path / "machine-id")
    (tmp_path / "card").mkdir()
    assert set(identity_of(None, [tmp_path / "card"]).values()) == {None}


def test_it_stays_outside_of_the_fingerprint() -> None:
    own = [fact for fact in host_facts()["facts"] if fact["category"] in ("boot", "identity")]
    assert {(fact["category"], fact["key"]) for fact in own} >= {("boot", "id"), ("boot", "time")}
    assert all(fact["volatile"] for fact in own)
