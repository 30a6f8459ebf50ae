"""A folder that the property tests of one module share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")
