"""A search whose target, proposers and static verdict are stand-ins; everything between them is the real one."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from aaco_pipeline.pipeline.optimizing import search
from tests.pipeline.optimizing.stand_in import InProcess, Offers, written


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source with its harness, in a folder of a person's."""
    (folder := tmp_path / "mine").mkdir()
    return written(folder)


@pytest.fixture
def offering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes these sources what is proposed."""

    def offer(*sources: bytes) -> None:
        monkeypatch.setenv("AACO_CACHE", str(tmp_path / "cache"))
        # Nothing is measured here, so nobody else's measurement is waited for.
        monkeypatch.setattr(search, "measurement_slot", lambda on_wait: nullcontext())
        monkeypatch.setattr(search, "choose_target", lambda choice: InProcess())
        monkeypatch.setattr(search, "static_of", lambda folder, launch: (None, "no compiler for AMD GPUs"))
        monkeypatch.setattr(search, "proposers_of", lambda configs, kept: (Offers(*sources),))

    return offer
