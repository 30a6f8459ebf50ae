"""Recalling captures by the state of their files: any change to file, table, code or session calls for a new look."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.lake.journal import Journal
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline import known_captures
from aaco_pipeline.pipeline.known_captures import recall, remember, settle, state_of
from tests.conftest import CapturedLake

LONG_AGO = 1_600_000_000


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    folder = tmp_path / "capture"
    (folder / "inner").mkdir(parents=True)
    (folder / "trace.csv").write_text("a")
    (folder / "inner" / "trace.csv").write_text("b")
    return folder


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files made a moment ago count as settled."""
    monkeypatch.setattr(known_captures, "_SETTLED_NS", -(10**12))


@pytest.fixture
def kept(captured: CapturedLake, tmp_path: Path, capture: Path, settled: None) -> tuple[TraceLake, dict[str, Any]]:
    lake = captured.copy(tmp_path / "lake")
    unread = [{"file": str(capture / "trace.csv"), "reason": "unknown"}]
    row = {"session_id": captured.sessions["squeezenet"], "folder": str(capture / "inner"), "unread": unread}
    remember(lake, capture, state_of(capture), [row])
    return lake, row


def test_what_was_said_is_recalled_while_nothing_changes(kept: tuple[TraceLake, dict[str, Any]], capture: Path) -> None:
    lake, row = kept
    assert recall(lake, capture, state_of(capture)) == [row]
    assert str(capture) not in str(Journal(lake).seen(capture))


@pytest.mark.parametrize(
    "change",
    [
        lambda capture: (capture / "trace.csv").write_text("c"),
        lambda capture: os.utime(capture / "inner" / "trace.csv", (LONG_AGO, LONG_AGO)),
        lambda capture: (capture / "more.csv").write_text(""),
        lambda capture: (capture / "inner" / "trace.csv").unlink(),
        lambda capture: (capture / "trace.csv").rename(capture / "other.csv"),
    ],
    ids=["content", "time", "added", "removed", "renamed"],
)
def test_a_change_of_any_file_calls_for_a_new_look(
    kept: tuple[TraceLake, dict[str, Any]], capture: Path, change: Callable[[Path], object]
) -> None:
    change(capture)
    assert recall(kept[0], capture, state_of(capture)) is None


def test_other_tables_a_lost_capture_and_other_code_call_for_a_new_look(
    kept: tuple[TraceLake, dict[str, Any]], capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, row = kept
    manifest = lake.manifest_path(row["session_id"], "session")
    before = manifest.read_bytes()
    manifest.write_bytes(before + b" ")
    assert recall(lake, capture, state_of(capture)) is None
    manifest.write_bytes(before)
    assert recall(lake, capture, state_of(capture)) == [row]
    with monkeypatch.context() as patch:
        patch.setattr(known_captures, "_PACKAGE", capture)
        assert recall(lake, capture, state_of(capture)) is None
    shutil.rmtree(lake.raw(row["session_id"]))
    assert recall(lake, capture, state_of(capture)) is None


def test_files_that_changed_a_moment_ago_are_trusted_once_they_have_settled(
    captured: CapturedLake, tmp_path: Path, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = captured.copy(tmp_path / "lake")
    row = {"session_id": captured.sessions["squeezenet"], "folder": str(capture)}
    monkeypatch.setattr(known_captures, "_SETTLED_NS", 10**18)
    remember(lake, capture, state := state_of(capture), [row])
    assert Journal(lake).seen(capture) == {}
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    settle(state)
    assert [0 < seconds <= 10**9 for seconds in waited] == [True]
    monkeypatch.setattr(known_captures, "_SETTLED_NS", 0)
    settle(state)
    assert len(waited) == 1
    remember(lake, capture, state, [row])
    assert Journal(lake).seen(capture)


def test_a_single_file_and_what_is_not_there(tmp_path: Path, settled: None) -> None:
    file = tmp_path / "trace.json"
    assert state_of(file) is None
    file.write_text("{}")
    state = state_of(file)
    assert state is not None
    file.write_text("{ }")
    assert state_of(file) != state


def test_what_is_kept_goes_with_its_session(kept: tuple[TraceLake, dict[str, Any]], capture: Path) -> None:
    lake, row = kept
    Journal(lake).forget_removed(lake.raw)
    assert Journal(lake).seen(capture)
    lake.remove(row["session_id"])
    Journal(lake).forget_removed(lake.raw)
    assert Journal(lake).seen(capture) == {}
