"""Shared by the tests of the `cpu` target. Without a C++ compiler they are skipped."""

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.resources.targets.cpu.compiler import find_compiler


@pytest.fixture(autouse=True, scope="session")
def _compiler() -> None:
    try:
        find_compiler()
    except UsageError as error:
        pytest.skip(str(error))
