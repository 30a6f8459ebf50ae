"""`aaco gc`: what it says goes is what goes, and without limits no session does.

`aaco rm`: sessions and campaigns go for good, after a question, and leave nothing for `aaco doctor` to find.
"""

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.running import begin
from aaco_pipeline.resources.project import Project
from tests.cli.old_sessions import OLD, OLDER, old_sessions
from tests.pipeline.comparing.made_up import planned
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


Refused = Callable[..., str]


def test_rm_asks_and_an_answer_of_no_leaves_the_session(
    aaco: Aaco, copied: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = TraceLake(copied.lake)
    before = lake.sessions()
    for typed in ("n\n", ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        answer = aaco("rm", "latest", project=copied)
        assert answer.returncode != 0
        assert answer.stdout == ""
        assert before[-1] in answer.stderr
        assert "Remove 1 session" in answer.stderr
        assert "Traceback" not in answer.stderr
        assert lake.sessions() == before
    assert aaco("doctor", project=copied).returncode == 0


def test_rm_with_a_yes_typed_or_given_removes_tables_and_capture(
    aaco: Aaco, copied: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = TraceLake(copied.lake)
    older, newer = lake.sessions()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    answer = aaco("rm", "latest", project=copied)
    assert (answer.returncode, lake.sessions()) == (0, [older])
    assert answer.stdout.startswith("removed 1 session, ")
    assert [path for path in lake.path.rglob("*") if newer in path.name] == []
    freed = lake.disk_bytes(older)
    rows = json.loads(aaco("rm", "--yes", "--json", older, project=copied).stdout)
    assert rows == [{"session_id": older, "freed_bytes": freed}]
    assert lake.sessions() == []
    assert aaco("doctor", project=copied).returncode == 0


def test_rm_of_an_unknown_session_removes_nothing_of_the_others_named(refused: Refused, copied: Project) -> None:
    before = TraceLake(copied.lake).sessions()
    assert "no session 'nonsense'" in refused(2, "rm", "--yes", "latest", "nonsense", project=copied)
    assert TraceLake(copied.lake).sessions() == before


def test_a_campaign_that_was_given_up_goes_and_doctor_is_well_again(aaco: Aaco, copied: Project) -> None:
    lake = TraceLake(copied.lake)
    sessions = lake.sessions()
    begin(lake, plan := planned(lake))
    assert aaco("doctor", project=copied).returncode == 8
    (row,) = json.loads(aaco("rm", "--yes", "--json", plan.campaign, project=copied).stdout)
    assert (row["campaign_id"], row["freed_bytes"] > 0) == (plan.campaign, True)
    assert aaco("doctor", project=copied).returncode == 0
    assert lake.sessions() == sessions


def test_a_campaign_that_is_measured_stays(refused: Refused, copied: Project) -> None:
    lake = TraceLake(copied.lake)
    plan = planned(lake)
    with lake.measuring(plan.campaign):
        assert "is being measured" in refused(8, "rm", "--yes", plan.campaign, project=copied)
    assert not lake.read("campaigns", plan.campaign).is_empty()
