"""Opening the instance that goes with a lake: made at first use, with the project's settings, found by children."""

import os
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from aaco_pipeline.automation.instance import open_instance, prepare_home
from aaco_pipeline.automation.stage_events import expected_errors
from aaco_pipeline.errors import CaptureError, LakeError
from aaco_pipeline.resources.project import DEFAULTS, Project


@pytest.fixture
def fresh(project: Project, tmp_path: Path) -> Project:
    """A project whose instance has no home yet."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return replace(project, root=root, dagster_home=tmp_path / "a" / "home")


def test_the_home_is_made_with_a_relative_link_to_the_settings(fresh: Project) -> None:
    prepare_home(fresh)
    link = fresh.dagster_home / "dagster.yaml"
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == fresh.root / "dagster.yaml"
    prepare_home(fresh)


def test_this_process_and_its_children_are_pointed_to_the_same_lake_and_instance(fresh: Project) -> None:
    prepare_home(fresh)
    assert os.environ["DAGSTER_HOME"] == str(fresh.dagster_home)
    assert os.environ["AACO_LAKE"] == str(fresh.lake)


def test_a_link_to_a_project_that_has_moved_is_renewed(fresh: Project) -> None:
    fresh.dagster_home.mkdir(parents=True)
    link = fresh.dagster_home / "dagster.yaml"
    link.symlink_to("/nowhere/dagster.yaml")
    prepare_home(fresh)
    assert link.resolve() == fresh.root / "dagster.yaml"


def test_settings_of_the_users_own_are_kept(fresh: Project) -> None:
    fresh.dagster_home.mkdir(parents=True)
    own = fresh.dagster_home / "dagster.yaml"
    own.write_text("telemetry: {enabled: false}\n")
    prepare_home(fresh)
    assert not own.is_symlink()


@pytest.mark.parametrize("place", ["home", "above"])
def test_a_home_that_cannot_be_made_is_a_lake_error(place: str, fresh: Project, tmp_path: Path) -> None:
    """A file lies where the home, or the folder above it, should be."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    home = blocked if place == "home" else blocked / "home"
    with pytest.raises(LakeError, match="Dagster's home must be writable, set DAGSTER_HOME"):
        prepare_home(replace(fresh, dagster_home=home))


def test_without_settings_of_its_own_a_project_has_the_packages(fresh: Project) -> None:
    (fresh.root / "dagster.yaml").unlink()
    prepare_home(fresh)
    assert (fresh.dagster_home / "dagster.yaml").samefile(DEFAULTS / "dagster.yaml")


def test_a_link_to_the_defaults_gives_way_to_settings_made_later_and_to_another_installations(
    fresh: Project, tmp_path: Path
) -> None:
    other = tmp_path / "old_venv" / "aaco_pipeline" / "defaults" / "dagster.yaml"
    other.parent.mkdir(parents=True)
    other.write_text("telemetry: {enabled: true}\n")
    fresh.dagster_home.mkdir(parents=True)
    link = fresh.dagster_home / "dagster.yaml"
    link.symlink_to(other)
    prepare_home(replace(fresh, root=tmp_path))
    assert link.samefile(DEFAULTS / "dagster.yaml")
    prepare_home(fresh)
    assert link.samefile(fresh.root / "dagster.yaml")
    assert [path.name for path in fresh.dagster_home.iterdir()] == ["dagster.yaml"]


def test_a_link_that_the_user_made_is_kept(fresh: Project, tmp_path: Path) -> None:
    fresh.dagster_home.mkdir(parents=True)
    link = fresh.dagster_home / "dagster.yaml"
    (tmp_path / "fleet.yaml").write_text("telemetry: {enabled: false}\n")
    link.symlink_to(tmp_path / "fleet.yaml")
    prepare_home(fresh)
    assert link.samefile(tmp_path / "fleet.yaml")


def test_the_instance_is_the_homes_own(project: Project) -> None:
    with open_instance(project) as instance:
        instance.add_dynamic_partitions("session", ["a"])
        assert Path(instance.root_directory) == project.dagster_home
    with dg.DagsterInstance.from_config(str(project.dagster_home)) as again:
        assert again.get_dynamic_partitions("session") == ["a"]


@pytest.mark.parametrize("left", ["", "CREATE TABLE event_logs (id INTEGER); CREATE TABLE asset_keys (id INTEGER)"])
def test_a_kill_while_dagster_made_its_databases_does_not_last(left: str, fresh: Project) -> None:
    folder = fresh.dagster_home / "history" / "runs"
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "index.db")) as database:
        database.executescript(f"PRAGMA user_version = 0; {left}")
    with open_instance(fresh) as instance:
        instance.add_dynamic_partitions("session", ["one"])
    with open_instance(fresh) as instance:
        assert instance.get_dynamic_partitions("session") == ["one"]


def test_databases_that_hold_anything_are_left_alone(fresh: Project) -> None:
    with open_instance(fresh) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("kept"))
    index = fresh.dagster_home / "history" / "runs" / "index.db"
    with closing(sqlite3.connect(index)) as database, database:
        database.execute("DELETE FROM alembic_version")
    before = index.stat().st_ino
    with open_instance(fresh):
        assert index.stat().st_ino == before


def test_two_that_open_a_new_home_at_once_make_its_databases_one_after_the_other(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster makes them without asking who else does: `table alembic_version already exists`."""
    inside, met = threading.Lock(), list[bool]()

    def get() -> None:
        met.append(inside.acquire(blocking=False))
        time.sleep(0.05)
        inside.release()

    monkeypatch.setattr(dg.DagsterInstance, "get", get)
    openers = [threading.Thread(target=open_instance, args=(project,)) for _ in range(3)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join()
    assert met == [True] * 3


def test_what_a_failed_step_died_of_is_kept_with_its_stack_and_shown_to_the_interface(project: Project) -> None:
    """Why dagster.yaml can do without captured logs: read from an instance opened anew, as the interface reads it."""

    def divided() -> None:
        raise ZeroDivisionError("a bug for the test")

    @dg.op
    def bug() -> None:
        divided()

    @dg.op
    def refused() -> None:
        with expected_errors():
            raise CaptureError("the capture is torn")

    @dg.job(executor_def=dg.in_process_executor)
    def both() -> None:
        bug()
        refused()

    with open_instance(project) as instance:
        run = both.execute_in_process(instance=instance, raise_on_error=False).run_id
    with open_instance(project) as instance:
        entries = instance.all_logs(run, of_type=dg.DagsterEventType.STEP_FAILURE)
    failed = {}
    for event in (entry.get_dagster_event() for entry in entries):
        error = event.step_failure_data.error
        assert error is not None
        failed[event.step_key] = [error, *([error.cause] if error.cause else [])]
    for step, message, place in (("bug", "a bug for the test", "in divided"), ("refused", "is torn", "in refused")):
        assert any(message in error.message for error in failed[step])
        assert any(place in frame for error in failed[step] for frame in error.stack)
