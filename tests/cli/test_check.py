"""`aaco check`: one page on a capture or a session, its exit codes, and nothing left behind."""

import json
import tempfile
from pathlib import Path

import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco
from tests.places import ROOT


def trace(folder: Path, *, kernels: int, launches: int) -> str:
    """A trace with so many launches, of which the last ones have a kernel."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1, "dur": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 2}
    events = [{**call, "ts": 10 * i, "args": {"correlation": i + 1}} for i in range(launches)]
    events += [
        {**kernel, "ts": 10 * i + 5, "args": {"device": 0, "stream": 7, "correlation": i + 1}}
        for i in range(launches - kernels, launches)
    ]
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    return str(path)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """No lake and no home, and a folder of its own for what is temporary."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return Project(ROOT, tmp_path / "lake", tmp_path / "home")


def test_a_whole_capture_is_reported_as_whole_and_nothing_is_kept(aaco: Aaco, nowhere: Project, tmp_path: Path) -> None:
    answer = aaco("check", trace(tmp_path, kernels=20, launches=20), project=nowhere)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Nothing that it states shows a loss" in answer.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "trace.json"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_fault_is_shown_with_evidence_consequence_and_remedy_and_exits_with_9(
    aaco: Aaco, nowhere: Project, tmp_path: Path
) -> None:
    path = trace(tmp_path, kernels=14, launches=20)
    answer = aaco("check", path, project=nowhere)
    assert (answer.returncode, answer.stderr) == (9, "")
    page = " ".join(answer.stdout.split())
    for words in (
        "FAULT the first kernels are missing: process 0",
        "The first 6 kernel launches of 20 left no record",
        "The truth is at least: timeline.busy_ns",
        "To record it whole: start recording after a wait",
    ):
        assert words in page
    told = json.loads(aaco("check", path, "--json", project=nowhere).stdout)
    assert [one["of"] for one in told] == [path]
    assert not told[0]["whole"]
    assert {"finding", "evidence", "voids", "at_least", "at_most", "mend"} <= told[0]["findings"][0].keys()
    assert told[0]["ledger"][1]["unrecorded"] == 6


@pytest.mark.parametrize("content", [b"\0" * 4096, b"nothing that a profiler writes"])
def test_what_cannot_be_read_is_a_fault_and_exits_with_6(
    aaco: Aaco, nowhere: Project, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "1_results.db"
    path.write_bytes(content)
    answer = aaco("check", str(path), project=nowhere)
    assert (answer.returncode, answer.stderr) == (6, "")
    assert "a file is cut or damaged: 1_results.db" in answer.stdout


def test_a_session_is_answered_from_the_lake(aaco: Aaco, measured: Project) -> None:
    answer = aaco("check", "latest", "--json")
    assert answer.returncode == 0
    (told,) = json.loads(answer.stdout)
    assert told["whole"]
    assert {row["record_kind"] for row in told["ledger"]} >= {"dispatches"}


def test_a_session_that_is_not_there_is_named(aaco: Aaco, measured: Project) -> None:
    answer = aaco("check", "20200101T000000Z-00000000")
    assert answer.returncode == 2
    assert "20200101T000000Z-00000000" in answer.stderr


def test_a_session_where_there_is_no_lake_is_refused_as_other_commands_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AACO_LAKE", raising=False)
    for command in ("check", "show"):
        assert main([command, "latest"]) == 2
        assert "no lake in" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
