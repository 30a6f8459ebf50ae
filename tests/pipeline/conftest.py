"""Captured sessions whose raw files alone, or all of whose tables, lie in a lake of the test's own."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.assets.stage import Outcome, Session, Stage
from aaco_pipeline.lake.store import TraceLake
from tests.conftest import CapturedLake


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def raw_only(captured: CapturedLake, folder: Path) -> TraceLake:
    """A lake that holds the captured sessions' raw files, and nothing made of them."""
    lake = TraceLake(folder)
    for session in captured.sessions.values():
        shutil.copytree(captured.lake.raw(session), lake.raw(session))
    return lake


@pytest.fixture
def unanalysed(captured: CapturedLake, lake_path: Path) -> TraceLake:
    """The captured sessions' raw files alone, for a test to do anything with."""
    return raw_only(captured, lake_path)


@pytest.fixture
def analysed(captured: CapturedLake, lake_path: Path) -> TraceLake:
    """A copy of the captured sessions with all their tables."""
    return captured.copy(lake_path)


@pytest.fixture
def session(captured: CapturedLake) -> str:
    """The smaller of the captured sessions."""
    return captured.sessions["control_flow"]


Before = Callable[[str, Callable[[str], None]], None]


@pytest.fixture
def before_stage(monkeypatch: pytest.MonkeyPatch) -> Before:
    """Have a function called with the session's id before a stage does its work."""

    def arrange(name: str, before: Callable[[str], None]) -> None:
        def called(one: Stage, session: Session) -> Outcome:
            if one.name == name:
                before(session.id)
            return one.function(session)

        monkeypatch.setattr(Stage, "__call__", called)

    return arrange
