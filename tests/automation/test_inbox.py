"""The inbox: when a capture counts as finished, that it is taken once, and where a bad one goes."""

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from aaco_pipeline.automation.inbox import INBOX_VARIABLE, Arrival, arrivals, inbox_of, set_aside
from aaco_pipeline.automation.jobs import ingest_capture
from aaco_pipeline.automation.sensors import capture_inbox, start_observing
from aaco_pipeline.automation.session_runs import SESSION_TAG
from aaco_pipeline.resources.dagster_resources import LakeResource
from aaco_pipeline.resources.project import Project

KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"scale",3,1000,2000,64,640\n'
)


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    monkeypatch.setenv(INBOX_VARIABLE, str(folder))
    return folder


def drop(inbox: Path, name: str = "run", done: bool = False) -> Path:
    (inbox / name).mkdir()
    (inbox / name / "out_kernel_trace.csv").write_text(KERNELS)
    if done:
        (inbox / name / ".done").touch()
    return inbox / name


def names(found: list[Arrival]) -> list[str]:
    return [arrival.path.name for arrival in found]


def test_the_inbox_is_beside_the_lake_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INBOX_VARIABLE, raising=False)
    assert inbox_of(tmp_path / "lake") == tmp_path / "inbox"
    monkeypatch.setenv(INBOX_VARIABLE, str(tmp_path / "drop"))
    assert inbox_of(tmp_path / "lake") == tmp_path / "drop"


def test_a_capture_marked_done_is_finished_at_once(inbox: Path) -> None:
    drop(inbox, "a", done=True)
    (inbox / "t.json.gz").write_bytes(b"x")
    (inbox / "t.json.gz.done").touch()
    assert names(arrivals(inbox, {})[0]) == ["a", "t.json.gz"]


def test_without_a_mark_it_is_finished_when_it_changes_no_more(inbox: Path) -> None:
    folder = drop(inbox)
    found, seen = arrivals(inbox, {})
    assert not found
    with (folder / "out_kernel_trace.csv").open("a") as stream:
        stream.write("more\n")
    found, seen = arrivals(inbox, seen)
    assert not found
    found, _ = arrivals(inbox, seen)
    assert names(found) == ["run"]


def test_the_same_content_has_the_same_key_and_other_content_another(inbox: Path) -> None:
    folder = drop(inbox, done=True)
    first, again = arrivals(inbox, {})[0][0].key, arrivals(inbox, {})[0][0].key
    (folder / "more.csv").write_text("x")
    assert first == again != arrivals(inbox, {})[0][0].key


def test_links_hidden_files_and_what_was_set_aside_are_no_arrivals(inbox: Path, tmp_path: Path) -> None:
    (inbox / "link").symlink_to(tmp_path)
    (inbox / ".partial").mkdir()
    set_aside(drop(inbox, "bad"), "it is bad")
    assert arrivals(inbox, {}) == ([], {})
    assert arrivals(inbox / "none", {}) == ([], {})


def test_a_bad_capture_is_moved_with_its_reason_and_never_over_another(inbox: Path) -> None:
    first = set_aside(drop(inbox, "bad"), "the first reason")
    second = set_aside(drop(inbox, "bad"), "the second reason")
    assert first == inbox / "rejected/bad"
    assert second == inbox / "rejected/bad.2"
    assert (inbox / "rejected/bad.2.reason.txt").read_text() == "the second reason\n"
    assert (first / "out_kernel_trace.csv").is_file()


def evaluated(instance: dg.DagsterInstance, project: Project, cursor: str | None) -> tuple[list[object], str | None]:
    context = dg.build_sensor_context(
        instance, cursor=cursor, resources={"lake": LakeResource(path=str(project.lake))}, sensor_name="capture_inbox"
    )
    made = capture_inbox(context)
    assert isinstance(made, Iterator)
    return list(made), context.cursor


def test_the_sensor_waits_until_nothing_changes_then_asks_once_for_the_run(
    inbox: Path, instance: dg.DagsterInstance, project: Project
) -> None:
    (skip,), cursor = evaluated(instance, project, None)
    assert isinstance(skip, dg.SkipReason)
    folder = drop(inbox)
    (skip,), cursor = evaluated(instance, project, cursor)
    assert isinstance(skip, dg.SkipReason)
    assert "1 captures are not finished yet" in str(skip.skip_message)
    (request,), cursor = evaluated(instance, project, cursor)
    (again,), cursor = evaluated(instance, project, cursor)
    assert isinstance(request, dg.RunRequest)
    assert isinstance(again, dg.RunRequest)
    assert request.run_key == again.run_key  # Dagster runs a key once, however often the sensor asks
    assert request.run_config == {"ops": {"take_in_capture": {"config": {"path": str(folder), "from_inbox": True}}}}
    assert set(json.loads(str(cursor))) == {"run"}


def ingested(instance: dg.DagsterInstance, project: Project, path: Path) -> dg.ExecuteInProcessResult:
    return ingest_capture.execute_in_process(
        instance=instance,
        run_config={
            "ops": {"take_in_capture": {"config": {"path": str(path), "from_inbox": True}}},
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
        },
        resources={"lake": LakeResource(path=str(project.lake))},
        raise_on_error=False,
    )


def test_a_good_capture_becomes_a_session_whose_stages_are_then_asked_for(
    inbox: Path, instance: dg.DagsterInstance, project: Project
) -> None:
    folder = drop(inbox)
    result = ingested(instance, project, folder)
    assert result.success
    assert folder.is_dir()
    (session,) = instance.get_dynamic_partitions("session")
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[SESSION_TAG] == session
    context = dg.build_run_status_sensor_context(
        sensor_name="start_observing",
        dagster_event=result.get_run_success_event(),
        dagster_instance=instance,
        dagster_run=run,
    )
    requests = start_observing(context)
    assert isinstance(requests, Iterator)
    (request,) = requests
    assert isinstance(request, dg.RunRequest)
    assert request.partition_key == session


def test_a_bad_capture_fails_the_run_with_its_reason_and_is_set_aside(
    inbox: Path, instance: dg.DagsterInstance, project: Project
) -> None:
    (inbox / "holiday").mkdir()
    (inbox / "holiday/photo.png").write_bytes(b"png")
    result = ingested(instance, project, inbox / "holiday")
    assert not result.success
    assert instance.get_dynamic_partitions("session") == []
    reason = (inbox / "rejected/holiday.reason.txt").read_text()
    assert "nothing in it is a known capture" in reason
    assert (inbox / "rejected/holiday/photo.png").is_file()
