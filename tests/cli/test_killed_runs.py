"""A run that is killed or interrupted: nothing published is lost, and the next command finishes it.

The kills are those of `benchmarks.reliability.kill_runs`. tests/pipeline holds what a killed run leaves, and
tests/resources/measure who holds the measurement slot and who ends the measured process.
"""

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.resources.measure import inference
from aaco_pipeline.resources.project import Project
from benchmarks.reliability import kill_runs
from tests.cli.conftest import Aaco

QUICK = ("run", "--model", "control_flow", "--iterations", "2", "--warmup", "0")


@pytest.fixture
def place(copied: Project) -> kill_runs.Workplace:
    """The copied lake, for the harness."""
    return kill_runs.Workplace(copied.lake.parent)


def test_a_run_killed_in_mid_analysis_is_whole_after_the_next_command(
    place: kill_runs.Workplace, copied: Project, aaco: Aaco
) -> None:
    before = place.whole()
    process = place.start_run()
    try:
        assert kill_runs.wait_until(lambda: len(place.lake.captured()) > len(before), process)
    finally:
        kill_runs.kill_group(process)
    (begun,) = place.begun() - set(before)
    assert place.lake.progress(begun).is_whole is False
    done = aaco("show", begun, "--json", project=copied)
    assert done.returncode == 0, done.stderr
    assert f"finishing {begun}: " in done.stderr
    assert kill_runs.check(place, before, {begun}) == []


def test_the_harness_sees_what_is_lost_changed_torn_and_half(place: kill_runs.Workplace) -> None:
    before = place.whole()
    older, newer = sorted(before)
    assert kill_runs.check(place, before, set()) == []
    (entry,) = place.lake.manifest(newer).of_table("iterations")
    (place.lake.path / entry.file).write_bytes(b"torn")
    place.lake.record_failure(newer, "roofline", "code", "why")
    place.lake.remove(older)
    text = "\n".join(kill_runs.check(place, {**before, newer: "other"}, {"begun"}))
    half = f"session {newer} has {place.lake.progress(newer).count}"
    for part in (f"session {older} is lost", "session begun is lost", "torn file", half):
        assert part in text


def test_an_interrupt_while_measuring_exits_with_130_and_nothing_of_the_session_stays(
    aaco: Aaco, copied: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = TraceLake(copied.lake)
    known, seen = lake.sessions(), list[str]()

    def interrupted(*_: object) -> None:
        seen.extend(lake.requests())
        raise KeyboardInterrupt

    monkeypatch.setattr(inference, "capture_inference", interrupted)
    done = aaco(*QUICK, project=copied)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "aaco: interrupted; nothing is half-published"
    assert len(seen) == 1
    assert (lake.sessions(), lake.captured(), lake.requests()) == (known, known, [])
    assert list((lake.path / "raw").glob(".*")) == []
    assert examine(lake, pytest.fail) == []
