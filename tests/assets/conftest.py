"""Measured sessions of two models, as published by their stages."""

import pytest

from aaco_pipeline.lake.store import TraceLake
from tests.conftest import CAPTURED_MODELS, CapturedLake


@pytest.fixture(params=CAPTURED_MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lake(captured: CapturedLake) -> TraceLake:
    """Look, do not touch."""
    return captured.lake


@pytest.fixture
def session(captured: CapturedLake, model: str) -> str:
    return captured.sessions[model]
