"""Two lakes under one home of Dagster: what belongs to the one is none of the other's business."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import dagster as dg
import pytest

from aaco_pipeline.automation.adoption import gone, once_of
from aaco_pipeline.automation.resources import PARTITIONS_NAME
from aaco_pipeline.automation.runs import PARTITION_TAG
from aaco_pipeline.automation.schedules import forget_removed
from aaco_pipeline.lake.retention import Limits
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.retention import clean_up, remove_sessions
from tests.automation.test_adoption import adopted
from tests.lake.conftest import _filled

FIRST, SECOND = "20250101T000000Z-0000000a", "20250102T000000Z-0000000b"
NOW: Final = datetime(2126, 6, 1, tzinfo=UTC)


def lake_with(folder: Path, session: str, campaign: str, instance: dg.DagsterInstance) -> TraceLake:
    """A lake of one session and one campaign, which Dagster shows."""
    lake = TraceLake(folder)
    lake.expect(session, ["capture"])
    lake.publish(session, "capture", {"sessions": _filled("sessions", {"workload": ["w"]})})
    lake.publish(campaign, "comparison", {"campaigns": _filled("campaigns", {"kind": ["compare"]})}, scope="campaign")
    adopted(instance, lake)
    return lake


@pytest.fixture
def lakes(tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[tuple[TraceLake, TraceLake]]:
    yield (
        lake_with(tmp_path / "one", FIRST, "compare-one", instance),
        lake_with(tmp_path / "other", SECOND, "compare-other", instance),
    )


def test_neither_lake_takes_the_others_partitions_for_removed_ones(
    lakes: tuple[TraceLake, TraceLake], instance: dg.DagsterInstance
) -> None:
    for lake in lakes:
        assert gone(lake, instance) == {"session": set(), "campaign": set()}


def test_what_was_once_in_a_lake_is_missed_by_it_alone(
    lakes: tuple[TraceLake, TraceLake], instance: dg.DagsterInstance
) -> None:
    one, other = lakes
    assert (once_of(one, instance, [FIRST, SECOND]), once_of(other, instance, [FIRST, SECOND])) == ({FIRST}, {SECOND})
    other.remove(SECOND)
    assert gone(one, instance) == {"session": set(), "campaign": set()}
    assert gone(other, instance) == {"session": {SECOND}, "campaign": set()}


def test_what_a_lake_removed_before_dagster_ever_showed_it_is_known_by_its_account(
    lakes: tuple[TraceLake, TraceLake], instance: dg.DagsterInstance
) -> None:
    one, other = lakes
    begun = "20250103T000000Z-0000000c"
    one.expect(begun, ["capture"])
    remove_sessions(one, [begun])
    instance.add_dynamic_partitions(PARTITIONS_NAME, [begun])
    assert gone(one, instance)["session"] == {begun}
    assert gone(other, instance)["session"] == set()


def test_retention_forgets_the_runs_and_partitions_of_its_own_lake_alone(
    lakes: tuple[TraceLake, TraceLake], instance: dg.DagsterInstance
) -> None:
    runs = {}
    for named in (FIRST, SECOND, "compare-one", "compare-other"):
        run = dg.DagsterRun("observe", status=dg.DagsterRunStatus.SUCCESS, tags={PARTITION_TAG: named})
        runs[named] = instance.add_run(run).run_id
    clean_up(lakes[0], Limits(keep=timedelta(days=30)), NOW)
    assert forget_removed(lakes[0], instance, NOW) == 1  # the run that showed the session showed a campaign as well
    left = {run.run_id for run in instance.get_runs()}
    assert {name for name, run_id in runs.items() if run_id in left} == {SECOND, "compare-one", "compare-other"}
    assert set(instance.get_dynamic_partitions(PARTITIONS_NAME)) == {SECOND}
