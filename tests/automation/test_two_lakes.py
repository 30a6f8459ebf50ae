"""Two lakes under one home of Dagster: what belongs to the one is none of the other's business."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import dagster as dg
import pytest

from aaco_pipeline.automation.attempts import PARTITION_TAG
from aaco_pipeline.automation.known_sessions import make_known, once_of, unknown_sessions
from aaco_pipeline.automation.partitions import CAMPAIGN_PARTITIONS_NAME, PARTITIONS_NAME
from aaco_pipeline.lake.removals import Account
from aaco_pipeline.lake.retention import Limits
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.removing import remove_sessions
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.pipeline.retention import clean_up
from tests.lake.conftest import _filled

FIRST, SECOND = "20250101T000000Z-0000000a", "20250102T000000Z-0000000b"
NOW: Final = datetime(2126, 6, 1, tzinfo=UTC)


def lake_with(folder: Path, session: str, campaign: str, instance: dg.DagsterInstance) -> TraceLake:
    """A lake of one session and one campaign, which Dagster shows."""
    lake = TraceLake(folder)
    lake.expect(session, ["capture"])
    lake.publish(session, "capture", {"sessions": _filled("sessions", {"workload": ["w"]})})
    lake.publish(campaign, "comparison", {"campaigns": _filled("campaigns", {"kind": ["compare"]})}, scope="campaign")
    make_known(lake, instance, session, ())
    instance.add_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME, [campaign])
    return lake


@pytest.fixture
def lakes(tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[tuple[TraceLake, TraceLake]]:
    yield (
        lake_with(tmp_path / "one", FIRST, "compare-one", instance),
        lake_with(tmp_path / "other", SECOND, "compare-other", instance),
    )


def partitions_wrong(lake: TraceLake, instance: dg.DagsterInstance) -> list[tuple[str, str]]:
    return [(one.kind, one.subject) for one in examine(lake, instance) if "partition" in one.kind]


def test_neither_lake_calls_the_others_partitions_orphans_nor_mends_them(
    lakes: tuple[TraceLake, TraceLake], instance: dg.DagsterInstance
) -> None:
    for lake in lakes:
        assert partitions_wrong(lake, instance) == []
        assert unknown_sessions(lake, instance) == {}
        for problem in examine(lake, instance):
            assert problem.mend is None or problem.mend()
    assert set(instance.get_dynamic_partitions(PARTITIONS_NAME)) == {FIRST, SECOND}
    assert set(instance.get_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME)) == {"compare-one", "compare-other"}


def test_what_was_once_in_a_lake_is_its_orphan_alone(
    lakes: tuple[TraceLake, TraceLake], instance: dg.DagsterInstance
) -> None:
    one, other = lakes
    assert (once_of(one, instance, [FIRST, SECOND]), once_of(other, instance, [FIRST, SECOND])) == ({FIRST}, {SECOND})
    other.remove(SECOND)  # and its partition was not dropped any more
    assert partitions_wrong(one, instance) == []
    assert partitions_wrong(other, instance) == [("partition without session", SECOND)]
    for problem in examine(other, instance):
        assert problem.mend is None or problem.mend()
    assert instance.get_dynamic_partitions(PARTITIONS_NAME) == [FIRST]


def test_what_a_lake_removed_before_dagster_ever_showed_it_is_known_by_its_account(
    lakes: tuple[TraceLake, TraceLake], instance: dg.DagsterInstance
) -> None:
    one, other = lakes
    begun = "20250103T000000Z-0000000c"
    one.expect(begun, ["capture"])
    remove_sessions(one, None, [begun])  # without the instance, as if killed before its partition went
    instance.add_dynamic_partitions(PARTITIONS_NAME, [begun])
    assert begun in Account(one).named("session")
    assert partitions_wrong(one, instance) == [("partition without session", begun)]
    assert partitions_wrong(other, instance) == []


def test_retention_leaves_the_runs_of_the_other_lakes_sessions(
    lakes: tuple[TraceLake, TraceLake], instance: dg.DagsterInstance
) -> None:
    runs = {}
    for named in (FIRST, SECOND, "compare-one", "compare-other"):
        run = dg.DagsterRun("observe", status=dg.DagsterRunStatus.SUCCESS, tags={PARTITION_TAG: named})
        runs[named] = instance.add_run(run).run_id
    done = clean_up(lakes[0], instance, Limits(keep=timedelta(days=30)), NOW)
    assert {one.name for one in done.removed if one.kind == "run"} == {runs[FIRST], runs["compare-one"]}
    assert set(instance.get_dynamic_partitions(PARTITIONS_NAME)) == {SECOND}
