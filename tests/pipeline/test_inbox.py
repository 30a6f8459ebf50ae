"""The inbox: when a capture counts as finished, where it goes, and that nothing in it is followed or opened."""

import os
from pathlib import Path

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.pipeline import inbox as module
from aaco_pipeline.pipeline.inbox import (
    INBOX_VARIABLE,
    STILL_LOOKS,
    STILL_SECONDS,
    Arrival,
    Memory,
    inbox_of,
    look,
    put_away,
    says_done,
    set_aside,
)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


def drop(inbox: Path, name: str = "run", done: bool = False) -> Path:
    (inbox / name).mkdir()
    (inbox / name / "out_kernel_trace.csv").write_text("rows\n")
    if done:
        (inbox / name / ".done").touch()
    return inbox / name


def names(found: list[Arrival]) -> list[str]:
    return [arrival.path.name for arrival in found]


def waited(inbox: Path, memory: Memory, begin: float = 0.0) -> list[Arrival]:
    """Return what is finished after looks every 30 s for as long as a capture has to be still."""
    found = []
    for tick in range(int(STILL_SECONDS / 30) + 1):
        found = look(inbox, memory, begin + 30.0 * tick)
    return found


def test_the_inbox_is_beside_the_lake_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INBOX_VARIABLE, raising=False)
    assert inbox_of(tmp_path / "lake") == tmp_path / "inbox"
    monkeypatch.setenv(INBOX_VARIABLE, str(tmp_path / "drop"))
    assert inbox_of(tmp_path / "lake") == tmp_path / "drop"


def test_a_capture_marked_done_is_finished_at_once(inbox: Path) -> None:
    drop(inbox, "a", done=True)
    (inbox / "t.json.gz").write_bytes(b"x")
    (inbox / "t.json.gz.done").touch()
    found = look(inbox, Memory(), 0.0)
    assert names(found) == ["a", "t.json.gz"]
    assert all(arrival.is_done and says_done(arrival.path) for arrival in found)


def test_without_a_mark_it_is_finished_when_nothing_has_changed_for_two_minutes(inbox: Path) -> None:
    folder, memory = drop(inbox), Memory()
    assert names(look(inbox, memory, 0.0)) == []
    assert names(look(inbox, memory, 90.0)) == []
    with (folder / "out_kernel_trace.csv").open("a") as stream:
        stream.write("more\n")  # a copy that had paused for three ticks
    assert names(look(inbox, memory, 120.0)) == []
    assert names(look(inbox, memory, 210.0)) == []
    assert names(look(inbox, memory, 240.0)) == ["run"]
    assert not says_done(folder)


def test_one_long_pause_of_the_sensor_is_not_stillness(inbox: Path) -> None:
    drop(inbox)
    memory = Memory()
    assert [names(look(inbox, memory, now)) for now in (0.0, 9_000.0, 9_030.0)] == [[], [], ["run"]]
    assert STILL_LOOKS == 3


def test_a_clock_of_another_boot_begins_the_wait_anew(inbox: Path) -> None:
    drop(inbox)
    memory = Memory()
    for now in (90_000.0, 90_030.0):
        look(inbox, memory, now)
    assert [names(look(inbox, memory, now)) for now in (10.0, 40.0, 129.0, 131.0)] == [[], [], [], ["run"]]


def test_files_that_keep_the_times_of_their_originals_count_as_changes(inbox: Path) -> None:
    folder, memory = drop(inbox), Memory()
    os.utime(folder / "out_kernel_trace.csv", (1, 1))
    look(inbox, memory, 0.0)
    late = folder / "deep/er"
    late.mkdir(parents=True)
    (late / "out_memory_copy_trace.csv").write_text("")
    os.utime(late / "out_memory_copy_trace.csv", (1, 1))
    for now in (60.0, 90.0, 120.0):
        assert names(look(inbox, memory, now)) == []


def test_the_key_follows_the_content_and_the_mark_is_none_of_it(inbox: Path) -> None:
    folder = drop(inbox, done=True)
    (first,), (again,) = look(inbox, Memory(), 0.0), look(inbox, Memory(), 0.0)
    (folder / ".done").unlink()
    (unmarked,) = waited(inbox, Memory())
    (folder / "more.csv").write_text("x")
    (more,) = waited(inbox, Memory())
    assert first.key == again.key == unmarked.key != more.key


def test_the_memory_survives_as_text_and_a_cursor_of_another_form_is_an_empty_one(inbox: Path) -> None:
    drop(inbox)
    memory = Memory()
    for now in (0.0, 30.0, 60.0, 90.0):
        look(inbox, memory, now)
        memory = Memory.from_text(memory.to_text())
    assert names(look(inbox, memory, 120.0)) == ["run"]
    for text in (None, "", "{}", '{"run": "1:2:3"}', "not json", "[1]", '{"entries": {"a": [1, 2]}, "next": ""}'):
        assert Memory.from_text(text) == Memory()


def test_links_pipes_hidden_entries_unprintable_names_and_what_was_moved_are_no_captures(
    inbox: Path, tmp_path: Path
) -> None:
    (inbox / "link").symlink_to(drop(tmp_path, "elsewhere", done=True))
    (inbox / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(inbox / "pipe")
    (inbox / ".partial").mkdir()
    for name in ("bell\a", "flipped\u202e", os.fsdecode(b"\xff")):
        drop(inbox, name, done=True)
    set_aside(drop(inbox, "bad"), "it is bad")
    put_away(drop(inbox, "good"))
    assert waited(inbox, memory := Memory()) == []
    assert memory.entries == {}
    assert look(inbox / "none", memory, 0.0) == []


def test_links_and_pipes_inside_a_capture_are_not_opened(inbox: Path, tmp_path: Path) -> None:
    folder = drop(inbox, done=True)
    (secret := tmp_path / "secret").mkdir()
    (folder / "to_a_folder").symlink_to(secret)
    (folder / "to_itself").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    (before,) = look(inbox, Memory(), 0.0)
    (secret / "grows").write_text("x")
    (after,) = look(inbox, Memory(), 0.0)
    assert before.key == after.key


def test_a_look_that_would_take_too_long_goes_on_where_it_stopped(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        drop(inbox, f"run{number}")
    monkeypatch.setattr(module, "_ENTRIES_A_LOOK", 12)  # a folder with one file counts as 11
    memory, seen = Memory(), list[list[str]]()
    for tick in range(5):
        look(inbox, memory, 30.0 * tick)
        seen.append(sorted(name for name, one in memory.entries.items() if one.since == 30.0 * tick))
    assert seen == [["run0", "run1"], ["run2", "run3"], ["run4"], [], []]
    assert {one.looks for one in memory.entries.values()} == {2}


def test_a_bad_capture_is_moved_with_its_reason_and_never_over_another(inbox: Path) -> None:
    first = set_aside(drop(inbox, "bad"), "the first reason")
    second = set_aside(drop(inbox, "bad"), "the second reason")
    assert first == inbox / "rejected/bad"
    assert second == inbox / "rejected/bad.2"
    assert (inbox / "rejected/bad.2.reason.txt").read_text() == "the second reason\n"
    assert (first / "out_kernel_trace.csv").is_file()


def test_a_taken_file_goes_with_its_mark(inbox: Path) -> None:
    (inbox / "t.json.gz").write_bytes(b"x")
    (inbox / "t.json.gz.done").touch()
    assert put_away(inbox / "t.json.gz") == inbox / "taken/t.json.gz"
    assert sorted(path.name for path in inbox.iterdir()) == ["taken"]
    assert sorted(path.name for path in (inbox / "taken").iterdir()) == ["t.json.gz"]


def test_nothing_is_moved_through_a_link(inbox: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (inbox / "taken").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LakeError, match="links in the inbox are not followed"):
        put_away(drop(inbox))
    assert not list((tmp_path / "elsewhere").iterdir())
