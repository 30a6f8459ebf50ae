"""`aaco replay`: its screens, its JSON and its exit codes."""

import json
from pathlib import Path

import pytest

from aaco_pipeline.cli.main import main
from tests.optimization.captured import BASE, isolated, kerncap, region

FREE = 0x1000_0000_0000
TOO_MUCH = [region(FREE, 1 << 56)]
TAKEN = [region(0x7FFF_FFFF_F000, 4096)]  # the last page of a process, which no process can have


def test_inspect_says_what_was_captured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = kerncap(tmp_path / "capture")
    assert main(["replay", "inspect", str(folder)]) == 0
    said = capsys.readouterr().out
    for part in ("axpy(float const*, float*, int)", "4 x 1 x 1 workgroups of 256", "gfx942", f"{BASE:#x} + 0x0"):
        assert part in said
    assert main(["replay", "inspect", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["workgroups"] == [4, 1, 1]
    assert [one["region"] for one in document["pointers"]] == [BASE, BASE + 0x10_0000]


def test_inspect_of_a_faulty_capture_names_the_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = kerncap(tmp_path / "capture")
    (folder / "capture_complete").unlink()
    assert main(["replay", "inspect", str(folder)]) == 6
    assert "fault: capture_complete is missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("regions", "expected"),
    [([region(FREE, 4096)], ("exact", 0, 0)), (TOO_MUCH, ("failed", 4, 1)), (TAKEN, ("relocated", 4, 2))],
)
def test_reserve_check_exits_with_what_came_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], regions: list[dict[str, object]], expected: tuple[str, int, int]
) -> None:
    outcome, code, legacy = expected
    folder = isolated(tmp_path / "capture", regions)
    assert main(["replay", "reserve-check", str(folder), "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert (document["outcome"], document["mode"], document["regions"]) == (outcome, "host", 1)
    assert main(["replay", "reserve-check", str(folder), "--legacy-exit-codes"]) == legacy
    assert "no GPU was asked" in capsys.readouterr().out


def test_a_bad_capture_is_distinguished_from_a_failed_reservation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dispatch.json").write_text("{")
    assert main(["replay", "reserve-check", str(tmp_path)]) == 6
    assert main(["replay", "reserve-check", str(tmp_path), "--legacy-exit-codes"]) == 1
    assert capsys.readouterr().err.count("is no JSON") == 2
    assert main(["replay", "reserve-check", str(isolated(tmp_path / "c")), "--granularity", "5000"]) == 2


def test_diff_says_what_a_kernel_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = isolated(tmp_path / "a"), isolated(tmp_path / "b")
    assert main(["replay", "diff", str(before), str(after)]) == 0
    assert "no region differs" in capsys.readouterr().out
    (after / f"memory/region_{BASE:x}.bin").write_bytes(bytes(4092) + b"\0\0\x80\x3f")
    assert main(["replay", "diff", str(before), str(after), "--dtype", "float32", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["equal"] is False
    assert document["regions"][0]["greatest_difference"] == 1.0
    assert main(["replay", "diff", str(before), str(after), "--dtype", "float32"]) == 0
    assert "1 of 2 regions differ" in capsys.readouterr().out
