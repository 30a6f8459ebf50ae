"""What every stage promises, called without Dagster on really measured sessions; and ids and times across stages."""

from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.assets.stage import Session, failure_recorded, materialize, publish, stages, views
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import conform
from tests.conftest import CapturedLake
from tests.places import CONFIGS
from tests.sessions import made_by

#: The one that ends a request to measure.
WRITING = ("capture",)


def files_of(lake: TraceLake) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in lake.path.rglob("*") if path.is_file() and ".locks" not in path.parts}


@pytest.mark.parametrize("stage", stages())
def test_a_stage_gives_exactly_its_tables_and_each_fulfils_its_contract(
    stage: str, lake: TraceLake, session: str
) -> None:
    outcome = made_by(lake, session, stage)
    assert set(outcome.tables) == set(stages()[stage].publishes)
    for name, frame in outcome.tables.items():
        conform(contract(name), frame, session)
    assert all(value is None or isinstance(value, int | float | str) for value in outcome.headline.values())


@pytest.mark.parametrize("stage", stages())
def test_a_stage_computed_again_is_published_as_the_same_bytes(
    stage: str, captured: CapturedLake, session: str, lake_path: Path
) -> None:
    copied = captured.copy(lake_path)
    before = files_of(copied)
    materialize(Session(copied, session, CONFIGS), [stage])
    assert files_of(copied) == before


@pytest.mark.parametrize("stage", [stage for stage in stages() if stage not in WRITING])
def test_a_stage_looks_at_the_lake_and_changes_nothing(
    stage: str, captured: CapturedLake, session: str, lake_path: Path
) -> None:
    copied = captured.copy(lake_path)
    before = {path: path.stat().st_mtime_ns for path in copied.path.rglob("*")}
    made_by(copied, session, stage)
    assert {path: path.stat().st_mtime_ns for path in copied.path.rglob("*")} == before


@pytest.mark.parametrize("stage", stages())
def test_every_stage_says_what_it_had_and_why_something_is_missing(stage: str, lake: TraceLake, session: str) -> None:
    evidence = made_by(lake, session, stage).evidence
    assert evidence
    conform(contract("evidence"), evidence_frame(stage, evidence), session)
    assert [one.item for one in evidence if one.status != "present" and not one.reason] == []


@pytest.mark.parametrize("view", views())
def test_a_view_makes_its_file_and_publishes_nothing(
    view: str, captured: CapturedLake, session: str, lake_path: Path
) -> None:
    copied, one = captured.copy(lake_path), views()[view]
    before = copied.manifest(session)
    opened = Session(copied, session, CONFIGS)
    outcome = one(opened)
    assert publish(opened, one, outcome) == ()
    assert outcome.tables == {}
    assert None not in outcome.headline.values()
    after = copied.manifest(session)
    assert (after.entries, after.stages, after.expected) == (before.entries, before.stages, before.expected)
    assert one.file is not None
    assert one.file[1](copied, session).is_file()
    assert copied.progress(session).is_whole


@pytest.mark.parametrize("view", views())
def test_a_view_that_fails_is_no_failure_of_its_session(
    view: str, captured: CapturedLake, session: str, lake_path: Path
) -> None:
    copied = captured.copy(lake_path)
    manifest = copied.manifest_path(session, "session")
    before = manifest.read_bytes()
    with pytest.raises(OSError, match="full"), failure_recorded(Session(copied, session, CONFIGS), views()[view]):
        raise OSError("full")
    assert manifest.read_bytes() == before


def test_all_times_are_on_the_sessions_axis(lake: TraceLake, session: str) -> None:
    iterations = lake.read("iterations", session)
    first, last = iterations.get_column("start_ns").min(), iterations.get_column("end_ns").max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    assert 0 < first < last < 600_000_000_000
    for row in lake.read("dispatches", session).rows(named=True):
        assert first <= row["start_ns"] <= row["end_ns"] <= last + 1_000


def test_every_id_that_is_named_exists(lake: TraceLake, session: str) -> None:
    def ids(table: str, column: str) -> set[Any]:
        return set(lake.read(table, session).get_column(column).drop_nulls())

    assert ids("dispatches", "kernel_id") == ids("kernels", "kernel_id")
    assert ids("dispatches", "parent_dispatch_id") <= ids("dispatches", "dispatch_id")
    assert ids("dispatches", "process_id") <= ids("processes", "process_id")
    assert ids("dispatches", "device_id") <= ids("devices", "device_id")
    assert ids("kernel_stats", "kernel_id") <= ids("kernels", "kernel_id")
    assert ids("gaps", "device_id") <= ids("timeline", "device_id") <= ids("devices", "device_id")
