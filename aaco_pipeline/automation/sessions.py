"""Beginning and forgetting a session: its launch request in the lake and its partition in Dagster, kept in step.

What a launch is lives in `aaco_pipeline.capture.request`; when a session's stages run is decided by jobs and sensors.
"""

import dagster as dg

from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake

assert session_partitions.name is not None
PARTITIONS_NAME: str = session_partitions.name


def register(lake: TraceLake, instance: dg.DagsterInstance, launch: MeasurementRequest) -> str:
    """A new session for `launch`: the request first, then the partition, so that no partition is without one."""
    session = new_session_id()
    lake.request(session, launch.to_json())
    instance.add_dynamic_partitions(PARTITIONS_NAME, [session])
    return session


def forget(lake: TraceLake, instance: dg.DagsterInstance, session: str) -> None:
    """Undo `register` for a session that was never captured."""
    instance.delete_dynamic_partition(PARTITIONS_NAME, session)
    lake.withdraw(session)
