"""`aaco gc`: what it says goes is what goes, and without limits no session does."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from tests.cli.old_sessions import OLD, OLDER, old_sessions
from tests.places import ROOT

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A lake of two old sessions that Dagster has never seen."""
    return old_sessions(tmp_path, ROOT)


def test_without_limits_no_session_goes_and_it_says_how_to_set_them(aaco: Aaco, project: Project) -> None:
    answer = aaco("gc", project=project)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("Nothing to remove\n")
    assert "--keep 90d" in answer.stdout
    assert TraceLake(project.lake).sessions() == [OLDER, OLD]


def test_a_dry_run_says_what_would_go_and_a_run_does_it(aaco: Aaco, project: Project) -> None:
    lake = TraceLake(project.lake)
    dry = json.loads(aaco("gc", "--keep", "90d", "--keep-last", "1", "--dry-run", "--json", project=project).stdout)
    assert dry["limits"] == {"keep_seconds": 90 * 86400, "keep_last": 1, "keep_baselines": False}
    assert [(one["kind"], one["name"]) for one in dry["removed"]] == [("session", OLDER)]
    assert dry["removed_bytes"] == lake.disk_bytes(OLDER)
    assert [(one["session_id"], one["rule"]) for one in dry["kept"]] == [(OLD, "newest")]
    assert lake.sessions() == [OLDER, OLD]
    done = json.loads(aaco("gc", "--keep", "90d", "--keep-last", "1", "--json", project=project).stdout)
    assert done == {**dry, "dry_run": False}
    assert lake.sessions() == [OLD]
    assert (project.lake / "removals.jsonl").is_file()


def test_people_see_what_goes_and_why_the_rest_stays(
    aaco: Aaco, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = aaco("gc", "--keep-last", "1", "--dry-run", project=project).stdout.splitlines()
    assert lines[0].startswith("Would free ")
    assert lines[0].endswith(": 1 session")
    assert "Would go: not the newest" in lines
    assert [line.split()[0] for line in lines if line.startswith((" 2023", " 2024"))] == [OLDER]
    assert any(line.split()[:3] == ["the", "newest", "1"] for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("wrong", [("--keep", "90"), ("--keep", "soon"), ("--keep-last", "0")])
def test_a_wrong_limit_is_bad_usage(wrong: tuple[str, str], refused: Callable[..., str], project: Project) -> None:
    assert wrong[0] in refused(2, "gc", *wrong, project=project)
    assert TraceLake(project.lake).sessions() == [OLDER, OLD]


def test_a_lake_that_cannot_be_read_loses_nothing(refused: Callable[..., str], project: Project) -> None:
    (project.lake / "manifests" / f"{OLD}.json").write_text("{}")
    assert "not a manifest" in refused(8, "gc", "--keep", "1d", project=project)
    assert list(project.lake.glob(f"sessions/session_id={OLDER}/*"))
