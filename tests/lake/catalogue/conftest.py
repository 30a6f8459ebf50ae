"""The cache folder of a test's own."""

from pathlib import Path

import pytest


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the lakes' caches, of the test's own."""
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lakes"
