"""Every road of the command names manifests that were removed or renamed by hand.

Questions and damage are those of `benchmarks.reliability.lost_manifests`, which takes a larger lake.
"""

import json
import shutil

import pytest

from aaco_pipeline.lake.layout import MANIFESTS, MARKED, MARKERS
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from benchmarks.reliability.lost_manifests import Place, run, table
from tests.cli.conftest import Aaco
from tests.pipeline.comparing import made_up

COUNT = "select count(*) as n from sessions"


@pytest.fixture
def place(copied: Project) -> Place:
    """The two measured sessions, and a campaign of as many blocks as are needed, judged."""
    lake = TraceLake(copied.lake)
    plan = made_up.planned(lake, blocks=5)
    made_up.measured(lake, plan)
    made_up.judged(lake, plan, made_up.verdict_row("equivalent"))
    return Place(copied, plan.campaign)


def lose(lake: TraceLake, session: str) -> None:
    lake.manifest_path(session, "session").unlink()


def test_every_road_names_every_loss(place: Place, aaco: Aaco) -> None:
    aaco("doctor", "--mend", project=place.project)
    found, wrong = run(place)
    # Undamaged, sessions that nobody measured have no captures all the same.
    assert [line for line in wrong if not line.startswith(("doctor, undamaged", "a stage, undamaged"))] == []
    assert all(found.values()), table(found)
    assert len(found) > 60


def test_sql_answers_of_what_is_there_and_names_the_loss_beside_the_answer(aaco: Aaco, copied: Project) -> None:
    older, newer = TraceLake(copied.lake).sessions()
    lose(TraceLake(copied.lake), newer)
    answer = aaco("sql", "--json", f"{COUNT} where session_id = '{older}'", project=copied)
    assert (answer.returncode, json.loads(answer.stdout)) == (0, [{"n": 1}])
    assert newer in answer.stderr
    refused = aaco("sql", COUNT, project=copied)
    assert (refused.returncode, refused.stdout) == (8, "")
    assert len(refused.stderr.splitlines()) == 1


def test_ls_lists_what_it_can_and_ends_with_8_for_a_lost_and_for_a_torn_manifest(aaco: Aaco, copied: Project) -> None:
    lake = TraceLake(copied.lake)
    older, newer = lake.sessions()
    lose(lake, newer)
    answer = aaco("ls", "--json", project=copied)
    rows = json.loads(answer.stdout)
    assert [(row["session_id"], row["progress"] is None) for row in rows] == [(newer, True), (older, False)]
    assert (answer.returncode, answer.stderr.count(f"{newer}.json: lost")) == (8, 1)
    assert "lost" in aaco("ls", project=copied).stdout
    lake.remove(newer)
    assert aaco("ls", project=copied).returncode == 0
    lake.manifest_path(older, "session").write_text("{")
    torn = aaco("ls", project=copied)
    assert (torn.returncode, "unreadable" in torn.stdout) == (8, True)


def test_the_newest_session_is_named_when_it_is_lost(aaco: Aaco, copied: Project) -> None:
    lose(TraceLake(copied.lake), newer := TraceLake(copied.lake).sessions()[-1])
    for command in (("show",), ("report",), ("diff", "latest", TraceLake(copied.lake).sessions()[0])):
        answer = aaco(*command, project=copied)
        assert (answer.returncode, newer in answer.stderr) == (8, True), answer


def test_doctor_rebuilds_what_was_lost_and_the_session_is_as_before(aaco: Aaco, copied: Project) -> None:
    lake = TraceLake(copied.lake)
    before = aaco("ls", "--json", project=copied).stdout
    _, newer = lake.sessions()
    lose(lake, newer)
    assert "lost manifest" in aaco("doctor", "--json", project=copied).stdout
    mended = aaco("doctor", "--mend", "--json", project=copied)
    assert mended.returncode == 0, mended.stdout
    assert aaco("ls", "--json", project=copied).stdout == before
    assert aaco("doctor", project=copied).returncode == 0


def test_rm_accepts_a_loss_and_takes_what_is_left(aaco: Aaco, place: Place) -> None:
    lake = place.lake
    older, newer = (one for one in lake.sessions() if lake.has_raw(one))
    lose(lake, newer)
    lake.manifest_path(place.campaign, "campaign").unlink()
    assert aaco("rm", "--yes", place.campaign, project=place.project).returncode == 0
    (row,) = json.loads(aaco("rm", "--yes", "--json", newer, project=place.project).stdout)
    assert (row["session_id"], row["freed_bytes"] > 100_000) == (newer, True)
    assert [path for path in lake.path.rglob("*") if newer in path.name] == []
    assert aaco("ls", project=place.project).returncode == 0
    assert older in lake.sessions()


def test_a_lake_of_an_earlier_version_is_well_and_doctor_mend_marks_it(aaco: Aaco, copied: Project) -> None:
    lake = TraceLake(copied.lake)
    for path in (lake.path / MARKERS["session"]).iterdir():
        if path.is_file():
            path.unlink()
    shutil.rmtree(lake.path / MARKERS["campaign"], ignore_errors=True)
    (lake.path / MANIFESTS / MARKED).unlink()
    for command in (("doctor",), ("ls",), ("sql", COUNT), ("show",)):
        answer = aaco(*command, project=copied)
        assert answer.returncode == 0, answer
    assert lake.marked("session") == []
    assert aaco("doctor", "--mend", project=copied).returncode == 0
    assert lake.marked("session") == lake.sessions()
