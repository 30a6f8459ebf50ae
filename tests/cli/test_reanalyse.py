"""`aaco reanalyse`: what it says it did, and what it would do."""

import json

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco
from tests.pipeline.test_reanalysis import EARLIER, grown_old, published


@pytest.fixture
def old(copied: Project) -> TraceLake:
    lake = TraceLake(copied.lake)
    grown_old(lake, "timeline")
    return lake


def test_it_says_what_it_would_run_then_runs_it_then_leaves_it_alone(
    aaco: Aaco, copied: Project, old: TraceLake
) -> None:
    sessions = old.sessions()
    would = aaco("reanalyse", "--stage", "timeline", "--dry-run", project=copied)
    assert (would.returncode, would.stderr) == (0, "")
    assert would.stdout.startswith(f"Would run timeline in {len(sessions)} sessions: {sessions[0]}")
    assert {published(old, session, "timeline") for session in sessions} == {EARLIER}
    ran = aaco("reanalyse", "--stage", "timeline", project=copied)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"Ran timeline in {len(sessions)} sessions\n")
    assert "critical_path" in ran.stdout
    assert "--downstream runs them, too" in ran.stdout
    again = aaco("reanalyse", "--stage", "timeline", "--json", project=copied)
    document = json.loads(again.stdout)
    assert (document["due"], document["current"], document["sessions"]) == ({}, sessions, [])


def test_a_session_at_work_is_named_and_a_wrong_stage_refused(aaco: Aaco, copied: Project, old: TraceLake) -> None:
    busy = old.sessions()[0]
    with old.running(busy):
        ran = aaco("reanalyse", "--stage", "timeline", project=copied)
    assert ran.returncode == 0
    assert "1 session skipped, another process is at work on them:" in ran.stdout
    assert f"  {busy}: " in ran.stdout
    refused = aaco("reanalyse", "--stage", "capture", project=copied)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "a new measurement is a new session" in refused.stderr
