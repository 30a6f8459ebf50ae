"""A lake of two sessions to compact."""

import pytest

from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Metrics


@pytest.fixture
def two_sessions(lake: TraceLake, metrics: Metrics) -> TraceLake:
    for session, first in ((SESSION, 0.0), (LATER, 10.0)):
        lake.publish(session, "a", {"session_metrics": metrics(first, first + 1)})
    return lake
