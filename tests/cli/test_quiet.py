"""`aaco quiet` probes every CPU that it may use, and says what it could not see where the kernel may not be asked."""

import json
import os

import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.resources.kernel_plane import recording
from aaco_pipeline.resources.kernel_plane.instances import NotPossible


def test_it_accounts_for_every_cpu_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quiet", "--seconds", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["cpu"] for row in told["taken"]} == os.sched_getaffinity(0)
    assert all(0 <= row["taken_ns"] <= 2 * row["of_ns"] and row["of_ns"] >= 500_000_000 for row in told["taken"])
    kinds = {row["kind"] for row in told["taken"]}
    assert "unseen" in kinds if told["reason"] is None else kinds == {"gap"}


def test_where_the_kernel_may_not_be_asked_it_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise NotPossible("tracefs is not mounted, or not for this user", "run as root")

    monkeypatch.setattr(recording, "find_tracefs", refused)
    assert main(["quiet", "--seconds", "0.5"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "By what is unknown: tracefs is not mounted, or not for this user." in said
    assert "to see what: run as root" in said


def test_what_is_to_be_said_of_the_recording_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "remove_stale", lambda: ["aaco_7_7_1_threads"])
    assert main(["quiet", "--seconds", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    if told["reason"] is not None:
        pytest.skip(f"the kernel's events cannot be recorded here: {told['reason']}")
    assert "had left in tracefs: aaco_7_7_1_threads" in told["recording"]
    assert main(["quiet", "--seconds", "0.5"]) == 0
    assert "Of the recording: removed what a killed run had left" in " ".join(capsys.readouterr().out.split())
