"""A session that a killed run left half: every command says so first, and those that show it finish it.

Every road of the command names manifests that were removed or renamed by hand.

What is asked, and what is done to the lake, is in `benchmarks/reliability/lost_manifests.py`, on a larger lake.
"""

import json
import shutil
from contextlib import suppress

import pytest

from aaco_pipeline.assets.stage import stages, stages_of
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.files import write_atomically
from aaco_pipeline.lake.layout import MANIFESTS, MARKED, MARKERS
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.sessions import register
from aaco_pipeline.resources.project import Project
from benchmarks.reliability.lost_manifests import Place, run, table
from tests.cli.conftest import Aaco
from tests.pipeline.comparing import made_up
from tests.sessions import without_stage

EVERY = len(stages_of("measured"))
LACKING = stages_of("measured")[-2:]
HALF = f"{EVERY - 2} of {EVERY} stages"


@pytest.fixture
def lake(copied: Project) -> TraceLake:
    return TraceLake(copied.lake)


@pytest.fixture
def half(lake: TraceLake) -> str:
    """The newest session, killed before its last two stages."""
    session = lake.sessions()[-1]
    before = lake.manifest(session)
    manifest = without_stage(without_stage(before, LACKING[0]), LACKING[1])
    for file in before.files - manifest.files:
        (path := lake.path / file).unlink()
        with suppress(OSError):
            path.parent.rmdir()  # as the lake does with one that is empty
    write_atomically(lake.manifest_path(session, "session"), manifest.to_bytes())
    return session


def test_a_half_session_is_said_to_be_one_before_anything_else(
    aaco: Aaco, copied: Project, lake: TraceLake, half: str
) -> None:
    listed = aaco("ls", project=copied).stdout
    assert HALF in next(line for line in listed.splitlines() if half in line)
    whole, rows = lake.sessions()[0], json.loads(aaco("ls", "--json", project=copied).stdout)
    progress = {row["session_id"]: row["progress"] for row in rows}
    assert progress[half] == {"published": EVERY - 2, "expected": EVERY, "failed": [], "missing": [*LACKING]}
    assert progress[whole] == {"published": EVERY, "expected": EVERY, "failed": [], "missing": []}
    answer = aaco("sql", "SELECT 1", project=copied)
    assert answer.stderr == f"not whole: {half} ({HALF}); `aaco doctor --mend` finishes them\n"
    doctor = aaco("doctor", "--json", project=copied)
    (row,) = json.loads(doctor.stdout)
    assert (doctor.returncode, row["kind"], row["subject"], row["why"]) == (8, "half session", half, HALF)


@pytest.mark.parametrize("arguments", [("show", "--json"), ("doctor", "--mend")])
def test_the_next_command_finishes_it(
    arguments: tuple[str, ...], aaco: Aaco, copied: Project, lake: TraceLake, half: str
) -> None:
    answer = aaco(*arguments, project=copied)
    assert answer.returncode == 0, answer
    assert lake.progress(half).is_whole
    if arguments[0] != "doctor":
        assert answer.stderr == f"finishing {half}: {HALF}\n"
        assert json.loads(answer.stdout)["progress"]["missing"] == []
    assert aaco("show", project=copied).stderr == ""
    assert "stages" not in aaco("ls", project=copied).stdout
    assert aaco("doctor", project=copied).returncode == 0


def test_a_stage_that_the_same_code_would_fail_again_is_named_first_and_not_run(
    aaco: Aaco, copied: Project, lake: TraceLake, half: str
) -> None:
    lake.record_failure(half, "roofline", stages()["roofline"].code_version, "what, where and what to do")
    answer = aaco("show", project=copied)
    assert (answer.returncode, answer.stderr) == (0, "")
    text = " ".join(answer.stdout.split())
    said = f"Not whole: {EVERY - 3} of {EVERY} stages; roofline failed: what, where and what to do."
    assert said in text
    assert text.index(said) < text.index("The median inference")
    assert lake.progress(half).missing == LACKING
    # Code that has changed since may do better.
    lake.record_failure(half, "roofline", "an earlier version", "what, where and what to do")
    assert "finishing" in aaco("show", project=copied).stderr
    assert lake.progress(half).is_whole


def test_a_session_that_a_run_is_at_work_on_is_left_to_it(
    aaco: Aaco, copied: Project, lake: TraceLake, half: str
) -> None:
    with lake.running(half):
        assert aaco("show", project=copied).stderr == f"{half}: {HALF} so far; a run is at work on it\n"
        assert aaco("sql", "SELECT 1", project=copied).stderr == ""
        assert aaco("doctor", project=copied).returncode == 0
    assert lake.progress(half).is_whole is False


def test_what_was_asked_for_and_killed_is_measured_by_the_next_command(
    aaco: Aaco, copied: Project, lake: TraceLake
) -> None:
    session = register(lake, MeasurementRequest(model="control_flow", iterations=2, warmup=0))
    assert aaco("show", session, project=copied).stderr == f"finishing {session}: 0 of {EVERY} stages\n"
    assert lake.progress(session).is_whole
    assert lake.requests() == []


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
