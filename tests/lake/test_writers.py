"""Whose temporaries are whose: a writer is looked for only where it would be seen, and given up after a stated time."""

import os
import time
from pathlib import Path

import pytest

from aaco_pipeline.lake import files
from aaco_pipeline.lake.files import STALE_DAYS, TEMPORARY_PREFIX, temporary_beside, writer_is_gone
from tests.lake.published import dead_process


def of_process(tmp_path: Path, process: int) -> Path:
    """A temporary as that process of this host would name it."""
    host, boot, _, chance = temporary_beside(tmp_path / "x").name.removeprefix(TEMPORARY_PREFIX).split("-")
    made = tmp_path / f"{TEMPORARY_PREFIX}{host}-{boot}-{process}-{chance}"
    made.touch()
    return made


def unchanged_for(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


def test_a_temporary_name_says_who_writes_it_and_never_repeats(tmp_path: Path) -> None:
    names = {temporary_beside(tmp_path / "x") for _ in range(100)}
    assert len(names) == 100
    assert all(name.parent == tmp_path and f"-{os.getpid()}-" in name.name for name in names)
    assert all(name.name.startswith(TEMPORARY_PREFIX) for name in names)


def test_a_writer_of_this_host_is_gone_when_its_process_is(tmp_path: Path) -> None:
    assert not writer_is_gone(of_process(tmp_path, os.getpid()))
    assert writer_is_gone(of_process(tmp_path, dead_process()))
    for earlier in (tmp_path / f".tmp-{os.getpid()}-0a", tmp_path / f".tmp-{dead_process()}-0a"):
        assert writer_is_gone(earlier) == (str(os.getpid()) not in earlier.name)


def test_a_writer_of_an_earlier_boot_is_gone_whatever_runs_under_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = of_process(tmp_path, os.getpid())
    monkeypatch.setattr(files, "_boot", lambda: "0" * 8)
    assert writer_is_gone(made)


def test_a_writer_of_another_host_is_never_looked_for_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [of_process(tmp_path, process) for process in (os.getpid(), dead_process())]
    folder = tmp_path / f"{made[1].name}0"
    folder.mkdir()
    (folder / "file").touch()
    unchanged_for(folder, STALE_DAYS + 1)  # what is in it has changed
    monkeypatch.setattr(files, "_host", lambda: "0" * 8)
    assert not any(map(writer_is_gone, [*made, folder]))
    for path in (*made, folder / "file"):
        unchanged_for(path, STALE_DAYS + 0.1)
    assert all(map(writer_is_gone, [*made, folder]))


def test_what_no_writer_names_so_has_no_writer(tmp_path: Path) -> None:
    assert writer_is_gone(tmp_path / ".tmp-without-a-number")
