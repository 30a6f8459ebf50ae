"""Beginning and forgetting a session: its measurement request in the lake and its partition in Dagster, kept in step.

What a request is lives in `aaco_pipeline.capture.request`; when a session's stages run is decided by jobs and sensors.
"""

from pathlib import Path

import dagster as dg

from aaco_pipeline.assets.stage import stages_of
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.capture.face import Kind
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.formats.parsing.redaction import safe_name
from aaco_pipeline.lake.store import TraceLake


def add_partition(instance: dg.DagsterInstance, *sessions: str) -> None:
    """Make sessions known to Dagster; those it knows already stay as they are."""
    instance.add_dynamic_partitions(PARTITIONS_NAME, list(sessions))


def drop_partition(instance: dg.DagsterInstance, session: str) -> None:
    """Make Dagster forget a session's key; its runs stay in the history."""
    instance.delete_dynamic_partition(PARTITIONS_NAME, session)


def register(lake: TraceLake, instance: dg.DagsterInstance, request: MeasurementRequest) -> str:
    """A new session for `request`: its request first, so that no partition is without one."""
    session = lake.new_session(safe_name(Path(request.model).stem))
    lake.request(session, request.to_json())
    lake.expect(session, stages_of(kind_asked(request)))
    add_partition(instance, session)
    return session


def kind_asked(request: MeasurementRequest) -> Kind:
    """The kind of session that measuring `request` makes."""
    return "timed" if request.untraced else "profiled" if request.profile else "measured"


def forget(lake: TraceLake, instance: dg.DagsterInstance, session: str) -> None:
    """Undo `register` for a session that was never captured."""
    drop_partition(instance, session)
    lake.remove(session)
