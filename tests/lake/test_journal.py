"""Entries of the journal survive, damaged ones are ignored, each capture has one holder, and no path is stored."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import journal as module
from aaco_pipeline.lake.journal import Journal, JournalEntry
from aaco_pipeline.lake.layout import LakeFolder

DIGEST = "ab" * 32
ENTRY = JournalEntry(DIGEST, "20261122T044130Z-2e851ad6-run", 3, is_captured=True, writer="test", version=2)


@pytest.fixture
def journal(lake_path: Path) -> Journal:
    return Journal(LakeFolder(lake_path))


def test_an_entry_is_kept_replaced_and_forgotten(journal: Journal) -> None:
    assert journal.entry(DIGEST) is None
    journal.keep(ENTRY)
    assert journal.entry(DIGEST) == ENTRY
    journal.forget(DIGEST)
    assert journal.entry(DIGEST) is None


def test_an_entry_with_any_byte_changed_is_unknown(journal: Journal) -> None:
    journal.keep(ENTRY)
    path = journal.folder / f"{DIGEST}.json"
    content = path.read_bytes()
    for place in range(len(content) - 1):
        flipped = bytes([content[place] ^ 1])
        path.write_bytes(content[:place] + flipped + content[place + 1 :])
        assert journal.entry(DIGEST) in (None, ENTRY)


def test_a_place_is_remembered_until_it_is_left_and_its_name_stands_nowhere(journal: Journal, tmp_path: Path) -> None:
    place = tmp_path / "token-hunter2"
    journal.keep_place(place, {"0": DIGEST})
    assert journal.at(place) == {"0": DIGEST}
    assert journal.at(tmp_path / "other") == {}
    written = [path for path in journal.folder.rglob("*") if path.is_file()]
    assert all("hunter2" not in f"{path}{path.read_text()}" for path in written)
    journal.leave_place(place)
    assert journal.at(place) == {}


def test_a_second_holder_waits_and_learns_whom_for(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.0)
    with journal.held(DIGEST), pytest.raises(LakeError, match=f"locked by process {os.getpid()}"), journal.held(DIGEST):
        pass
    with journal.held(DIGEST):
        pass
    assert list((journal.folder).glob("*.lock")) == []


def test_the_lock_dies_with_its_holder(journal: Journal, lake_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, sys; from aaco_pipeline.lake.journal import Journal; "
        "from aaco_pipeline.lake.layout import LakeFolder; "
        "held = Journal(LakeFolder(sys.argv[1])).held(sys.argv[2]); held.__enter__(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(lake_path), DIGEST], check=False)
    assert list(journal.folder.glob("*.lock"))
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.0)
    with journal.held(DIGEST):
        pass
    assert list(journal.folder.glob("*.lock")) == []


def test_an_error_inside_the_block_stays_what_it_is(journal: Journal) -> None:
    with pytest.raises(FileNotFoundError), journal.held(DIGEST):
        raise FileNotFoundError


def test_a_folder_that_cannot_be_written_is_the_lakes_error(lake_path: Path) -> None:
    lake_path.write_text("a file")
    with pytest.raises(LakeError, match="check that the lake's disk"), Journal(LakeFolder(lake_path)).held(DIGEST):
        pass


def test_entries_of_removed_sessions_are_forgotten_and_those_of_captures_under_way_are_not(
    journal: Journal, lake_path: Path
) -> None:
    begun = JournalEntry("cd" * 32, ENTRY.session_id, 1, is_captured=False, writer="test")
    kept = JournalEntry("ef" * 32, "20261122T044130Z-2e851ad7", 1, is_captured=True, writer="test")
    for entry in (ENTRY, begun, kept):
        journal.keep(entry)
    raw = LakeFolder(lake_path).raw
    raw(kept.session_id).mkdir(parents=True)
    with journal.held(DIGEST):
        assert journal.is_held(DIGEST)
        journal.forget_removed(raw)
        assert list(journal.entries()) == [ENTRY, begun, kept], "somebody is at work on it"
    (journal.folder / f"{DIGEST}.lock").touch()
    journal.forget_removed(raw)
    assert list(journal.entries()) == [begun, kept]
    assert list(journal.folder.glob("*.lock")) == []
