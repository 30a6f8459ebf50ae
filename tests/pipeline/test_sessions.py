"""A session begins with its request and its partition, and is forgotten with both."""

import dagster as dg
import pytest

from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.identity import SESSION_ID
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.sessions import forget, register
from aaco_pipeline.resources.project import Project

LAUNCH = MeasurementRequest(model="control_flow", iterations=7, input_shapes={"x": [2, 64]})


@pytest.fixture
def lake(project: Project) -> TraceLake:
    return TraceLake(project.lake)


def test_a_session_is_registered_with_its_request_and_its_partition(
    lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    session = register(lake, instance, LAUNCH)
    assert SESSION_ID.fullmatch(session)
    assert instance.has_dynamic_partition(PARTITIONS_NAME, session)
    assert lake.requests() == [session]
    requested = lake.requested(session)
    assert requested is not None
    assert MeasurementRequest.from_json(requested, "test") == LAUNCH
    assert lake.sessions() == [session]


def test_every_session_is_a_new_one(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    assert len({register(lake, instance, LAUNCH) for _ in range(5)}) == 5


def test_no_partition_is_without_a_request(project: Project, instance: dg.DagsterInstance) -> None:
    """The lake cannot be written here, so Dagster is told nothing."""
    project.lake.write_text("a file where the lake should be")
    with pytest.raises(LakeError):
        register(TraceLake(project.lake), instance, LAUNCH)
    assert instance.get_dynamic_partitions(PARTITIONS_NAME) == []


def test_a_forgotten_session_leaves_nothing(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    kept, forgotten = register(lake, instance, LAUNCH), register(lake, instance, LAUNCH)
    forget(lake, instance, forgotten)
    assert instance.get_dynamic_partitions(PARTITIONS_NAME) == [kept]
    assert lake.requests() == [kept]
    forget(lake, instance, forgotten)
    assert lake.requests() == [kept]
