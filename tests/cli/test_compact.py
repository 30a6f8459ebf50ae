"""`aaco compact`: it tells what it put together and what waits, and a dry run only what would be."""

import json
from pathlib import Path

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco
from tests.cli.old_sessions import OLD, OLDER, old_sessions


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A lake of two sessions that Dagster has never seen, and a project without settings of its own."""
    return old_sessions(tmp_path, tmp_path)


def own_files(project: Project) -> list[Path]:
    return sorted(project.lake.glob("sessions/*/*.parquet"))


def test_a_dry_run_says_what_would_be_and_a_run_does_it(aaco: Aaco, project: Project) -> None:
    answer = aaco("compact", "--dry-run", project=project)
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert lines[0] == "Would put together 2 files of sessions and 0 segments; 0 replaced files would go"
    assert lines[-1] == "Nothing was changed: run it again without --dry-run"
    assert not (project.lake / "segments").exists()
    (dry,) = json.loads(aaco("compact", "--dry-run", "--json", project=project).stdout)["tables"]
    assert (dry["table"], dry["sessions"], dry["taken"]["files"], dry["written"]) == ("sessions", 2, 2, None)
    document = json.loads(aaco("compact", "--json", project=project).stdout)
    assert (document["dry_run"], document["grace_seconds"]) == (False, 86400)
    (done,) = document["tables"]
    assert done["taken"] == dry["taken"]
    assert (done["written"]["files"], done["waiting"]) == (1, done["taken"])
    assert done["waiting_until"] is not None
    assert TraceLake(project.lake).read("sessions").height == 2
    assert len(own_files(project)) == 2


def test_the_grace_is_that_of_the_settings(aaco: Aaco, project: Project) -> None:
    (project.root / "configs").mkdir()
    (project.root / "configs" / "retention.yaml").write_text("grace: 3d")
    assert json.loads(aaco("compact", "--json", project=project).stdout)["grace_seconds"] == 3 * 86400
    told = aaco("compact", project=project).stdout
    assert told.startswith("Nothing to compact\n")
    assert "wait for their grace, the first until 2" in told
    (project.root / "configs" / "retention.yaml").write_text("grace: soon")
    answer = aaco("compact", project=project)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "retention.yaml: grace: found" in answer.stderr


def test_an_empty_lake_has_nothing_to_compact(aaco: Aaco, project: Project) -> None:
    for session in (OLDER, OLD):
        TraceLake(project.lake).remove(session)
    assert aaco("compact", project=project).stdout == "Nothing to compact\n"


def test_a_second_compaction_is_refused_by_name_of_the_first(aaco: Aaco, project: Project) -> None:
    with TraceLake(project.lake).compacting():
        answer = aaco("compact", project=project)
    assert (answer.returncode, answer.stdout) == (8, "")
    assert "the lake's compaction is locked by process" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_removing_a_compacted_session_says_what_goes_with_the_next_compaction(
    aaco: Aaco, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    aaco("compact", project=project)
    for path in own_files(project):
        path.unlink()
    told = aaco("rm", "--yes", OLD, project=project).stdout.splitlines()
    assert told[0].startswith("removed 1 session, ")
    assert told[1].endswith(" in segments leave the disk with the next `aaco compact`")
    aaco("compact", project=project)
    assert TraceLake(project.lake).read("sessions").get_column("session_id").to_list() == [OLDER]
    files = [path for path in project.lake.rglob("*") if path.is_file() and path.name != "removals.jsonl"]
    assert OLD.encode() not in b"".join(path.read_bytes() for path in files)
