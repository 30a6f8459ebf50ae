"""Shared by the tests of confinement: asking a server whose readers do whatever a request says."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.resources.confinement import client
from aaco_pipeline.resources.confinement.requests import Bounds

Ask = Callable[..., Any]
ROOMY = Bounds(1 << 30, 60, 240.0, 1 << 20, 1 << 20)


@pytest.fixture(scope="module")
def misbehaving() -> Iterator[None]:
    """Servers started in this module have readers that misbehave on request."""
    with pytest.MonkeyPatch.context() as patch:
        started: list[client._Server] = []
        patch.setattr(client, "_MODULE", "tests.resources.confinement.misbehaving_server")
        patch.setattr(client, "_STARTED", started)
        yield
        while started:
            started.pop().close()


@pytest.fixture
def ask(misbehaving: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Have a confined child do something beside a capture at `capture`; what came of it. Results lie in `temporary`."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def asked(does: str, bounds: Bounds = ROOMY, writable: tuple[Path, ...] = (), **more: Any) -> Any:
        (tmp_path / "capture").mkdir(exist_ok=True)
        about = tmp_path / "capture"
        with client.answered({"does": does, **more}, about, [about], writable, bounds) as (answer, _):
            return answer["came"]

    return asked
