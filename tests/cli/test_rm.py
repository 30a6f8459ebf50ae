"""`aaco rm`: sessions and campaigns go for good, after a question, and leave nothing for `aaco doctor` to find."""

import io
import json
import subprocess
from collections.abc import Callable

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.running import begin
from aaco_pipeline.resources.project import Project
from tests.pipeline.comparing.made_up import planned

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]
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
