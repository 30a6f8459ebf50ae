"""A session that a killed run left half: every command says so first, and those that show it finish it."""

import json
from contextlib import suppress

import pytest

from aaco_pipeline.assets.stage import stages, stages_of
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.files import write_atomically
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.sessions import register
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco
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
