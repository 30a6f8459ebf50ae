"""Each content of the inbox is requested once, again after a kill or a system error, but not for ever."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

from aaco_pipeline.automation import inbox_runs as module
from aaco_pipeline.automation import sensors
from aaco_pipeline.automation.inbox_runs import INBOX_TAG, INGEST_JOB, MOST_AT_ONCE, REFUSED_TAG, Due, due, settle
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.automation.runs import ATTEMPT_TAG, FIRST_DELAY_SECONDS, MOST_ATTEMPTS
from aaco_pipeline.automation.sensors import capture_inbox
from aaco_pipeline.lake.journal import Journal
from aaco_pipeline.lake.layout import LakeFolder
from aaco_pipeline.pipeline.inbox import INBOX_VARIABLE, STAYS_SECONDS, Memory
from aaco_pipeline.resources.project import Project


class Inbox:
    """An inbox with its sensor's memory, looked at as time goes by."""

    def __init__(self, folder: Path, lake: LakeFolder, instance: dg.DagsterInstance) -> None:
        self.folder, self.lake, self.instance = folder, lake, instance
        self.memory, self.now = Memory(), 0.0

    def drop(self, name: str = "run", *, done: bool = True) -> Path:
        (self.folder / name).mkdir()
        (self.folder / name / "out_kernel_trace.csv").write_text("rows\n")
        if done:
            (self.folder / name / ".done").touch()
        return self.folder / name

    def look(self, later: float = 30.0) -> Due:
        self.now += later
        answer = due(self.lake, self.instance, self.folder, self.memory, self.now)
        self.memory = Memory.from_text(self.memory.to_text())
        return answer

    def asked(self, later: float = 30.0) -> list[tuple[str, int]]:
        return [(arrival.path.name, attempt) for arrival, attempt in self.look(later).requests]

    def run(self, status: dg.DagsterRunStatus, tags: Mapping[str, str] | None = None) -> dg.DagsterRun:
        """Make the run that Dagster would have for the request of the last look."""
        (arrival, _), *_ = due(self.lake, self.instance, self.folder, self.memory, self.now).requests
        tags = {INBOX_TAG: arrival.key, **(tags or {})}
        return recorded(self.instance, status, tags)


def recorded(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, tags: Mapping[str, str]) -> dg.DagsterRun:
    run = dg.DagsterRun(job_name=INGEST_JOB, run_id=str(uuid4()), status=status, tags=tags)
    return instance.run_storage.add_run(run)


@pytest.fixture
def inbox(tmp_path: Path, lake_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Inbox:
    folder = tmp_path / "inbox"
    folder.mkdir()
    monkeypatch.setenv(INBOX_VARIABLE, str(folder))
    return Inbox(folder, LakeFolder(lake_path), instance)


def test_a_finished_capture_is_asked_for_and_not_while_its_run_is_under_way(inbox: Inbox) -> None:
    inbox.drop()
    assert inbox.asked() == [("run", 1)]
    inbox.run(dg.DagsterRunStatus.STARTED)
    answer = inbox.look()
    assert (answer.requests, answer.message) == ([], "1 being taken in")


def test_a_run_that_never_came_to_be_is_asked_for_again(inbox: Inbox) -> None:
    inbox.drop()
    assert [inbox.asked(), inbox.asked()] == [[("run", 1)]] * 2


@pytest.mark.parametrize("ended", [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED])
def test_a_failed_run_is_tried_again_after_a_growing_delay_until_the_user_is_needed(
    inbox: Inbox, ended: dg.DagsterRunStatus
) -> None:
    folder = inbox.drop()
    delay = FIRST_DELAY_SECONDS
    for attempt in range(1, MOST_ATTEMPTS):
        assert inbox.asked(0.0) == [("run", attempt)]
        inbox.run(ended)
        assert inbox.look().message == f"run: attempt {attempt + 1} of {MOST_ATTEMPTS} in {delay:.0f} s"
        assert inbox.asked(delay - 1.0) == []
        inbox.now += 1.0
        delay *= 2.0
    assert inbox.asked(0.0) == [("run", MOST_ATTEMPTS)]
    inbox.run(ended)
    for _ in range(2):
        answer = inbox.look(9_999.0)
        assert answer.requests == []
        assert f"{MOST_ATTEMPTS} attempts failed, look at its runs" in answer.message
    (folder / "out_kernel_trace.csv").touch()
    assert inbox.asked() == [("run", 1)]


def test_after_a_reboot_a_delay_does_not_last_longer_than_it_is(inbox: Inbox) -> None:
    inbox.drop()
    inbox.now = 500_000.0
    inbox.look()
    inbox.run(dg.DagsterRunStatus.FAILURE)
    assert inbox.asked() == []
    inbox.now = 0.0
    assert inbox.asked() == []
    assert inbox.asked(FIRST_DELAY_SECONDS) == [("run", 2)]


def test_a_delay_of_another_boot_is_not_waited_for(inbox: Inbox) -> None:
    inbox.drop()
    inbox.look()
    inbox.run(dg.DagsterRunStatus.FAILURE)
    inbox.now = 500_000.0
    assert inbox.asked() == []
    inbox.now = 60.0
    assert inbox.asked() == [("run", 2)]


def test_a_refused_capture_that_could_not_be_moved_is_not_tried_again_until_it_changes(inbox: Inbox) -> None:
    folder = inbox.drop()
    inbox.look()
    inbox.run(dg.DagsterRunStatus.FAILURE, {REFUSED_TAG: "yes"})
    assert inbox.look(9_999.0).message == "1 refused"
    (folder / "more.csv").write_text("x")
    assert inbox.asked() == [("run", 1)]


def test_a_lost_memory_asks_for_nothing_twice(inbox: Inbox) -> None:
    inbox.drop()
    inbox.look()
    inbox.run(dg.DagsterRunStatus.STARTED)
    inbox.memory = Memory()
    assert inbox.asked() == []


def test_the_number_of_an_attempt_follows_the_runs_and_no_memory(inbox: Inbox) -> None:
    inbox.drop()
    inbox.look()
    inbox.run(dg.DagsterRunStatus.FAILURE)
    inbox.memory = Memory()
    assert inbox.asked() == []
    assert inbox.asked(FIRST_DELAY_SECONDS) == [("run", 2)]


def test_a_taken_capture_without_the_mark_stays_for_an_hour_and_then_leaves_with_its_place(inbox: Inbox) -> None:
    folder = inbox.drop(done=False)
    while not inbox.asked():
        pass
    inbox.run(dg.DagsterRunStatus.SUCCESS)
    journal = Journal(inbox.lake)
    journal.keep_place(folder, {"0": "ab" * 32})
    assert inbox.look().message == "1 taken"
    inbox.look(STAYS_SECONDS - 90.0)
    assert folder.is_dir()
    inbox.look(90.0)
    assert (inbox.folder / "taken/run/out_kernel_trace.csv").is_file()
    assert journal.at(folder) == {}
    assert inbox.look().message == ""


def test_what_arrives_later_in_a_taken_capture_is_asked_for_when_it_is_still(inbox: Inbox) -> None:
    folder = inbox.drop(done=False)
    while not inbox.asked():
        pass
    inbox.run(dg.DagsterRunStatus.SUCCESS)
    inbox.look()
    (folder / "late.csv").write_text("x")
    assert [inbox.asked() for _ in range(5)] == [[], [], [], [], [("run", 1)]]


def test_a_mark_that_comes_after_it_was_taken_lets_it_leave(inbox: Inbox) -> None:
    folder = inbox.drop(done=False)
    while not inbox.asked():
        pass
    inbox.run(dg.DagsterRunStatus.SUCCESS)
    inbox.look()
    (folder / ".done").touch()
    inbox.look()
    assert [path.name for path in inbox.folder.iterdir()] == ["taken"]


def test_what_cannot_be_moved_is_remembered(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox.drop()
    inbox.look()
    inbox.run(dg.DagsterRunStatus.SUCCESS)
    (inbox.folder / "taken").write_text("a file in the way")
    inbox.look()
    inbox.look()
    monkeypatch.setattr(module, "settle", pytest.fail)
    assert "1 taken, and cannot be moved" in inbox.look().message


def test_so_many_at_once_and_the_others_wait_their_turn(inbox: Inbox) -> None:
    for number in range(MOST_AT_ONCE + 2):
        inbox.drop(f"run{number}")
    answer = inbox.look()
    assert [arrival.path.name for arrival, _ in answer.requests] == [f"run{n}" for n in range(MOST_AT_ONCE)]
    assert answer.message == "2 waiting their turn"
    inbox.run(dg.DagsterRunStatus.STARTED)
    assert len(inbox.look().requests) == MOST_AT_ONCE - 1


def test_settling_writes_what_was_refused_beside_the_rest(inbox: Inbox) -> None:
    settle(inbox.lake, inbox.drop(), ["b.db: it is cut"])
    assert (inbox.folder / "taken/run.reason.txt").read_text() == "b.db: it is cut\n"


def test_every_attempt_has_a_key_of_its_own_and_is_numbered(
    inbox: Inbox, instance: dg.DagsterInstance, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cursor = inbox.drop(), None
    asked: list[dg.RunRequest] = []
    for now in (0.0, 30.0, 30.0 + FIRST_DELAY_SECONDS):
        monkeypatch.setattr(sensors, "monotonic", lambda now=now: now)
        context = dg.build_sensor_context(
            instance,
            cursor=cursor,
            resources={"lake": LakeResource(path=str(project.lake))},
            sensor_name="capture_inbox",
        )
        made = capture_inbox(context)
        assert isinstance(made, Iterator)
        (one,) = made
        cursor = context.cursor
        if isinstance(one, dg.RunRequest):
            asked.append(one)
            recorded(instance, dg.DagsterRunStatus.FAILURE, one.tags)
        else:
            assert isinstance(one, dg.SkipReason)
            assert "run: attempt 2 of 5 in 60 s" in str(one.skip_message)
    assert [request.tags[ATTEMPT_TAG] for request in asked] == ["1", "2"]
    assert len({request.run_key for request in asked}) == 2
    for request in asked:
        assert request.run_config["ops"]["take_in_capture"]["config"] == {"path": str(folder), "from_inbox": True}
