"""The journal is whole line by line, survives a kill, and refuses what is none; sources of any bytes come back."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.optimization.journal import VERSION, JournalError, JournalWriter, bytes_of, read_journal, text_of

BEGIN = {"kind": "begin", "version": VERSION}


def written(path: Path) -> bytes:
    with JournalWriter(path) as writer:
        writer.write(BEGIN)
        writer.write({"kind": "attempt", "reason": "not faster"})
        writer.write({"kind": "end"})
    return path.read_bytes()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    journal = read_journal(written(tmp_path / "journal"))
    assert [line["line"] for line in journal.lines] == [0, 1, 2]
    assert journal.notes == () and journal.is_ended and journal.of_kind("attempt")[0]["reason"] == "not faster"


def test_a_journal_is_never_written_over(tmp_path: Path) -> None:
    written(tmp_path / "journal")
    with pytest.raises(FileExistsError):
        JournalWriter(tmp_path / "journal")


def test_cut_anywhere_the_whole_lines_are_read_and_half_a_line_is_reported(tmp_path: Path) -> None:
    content = written(tmp_path / "journal")
    first = content.index(b"\n") + 1
    for length in range(first, len(content)):
        journal = read_journal(content[:length])
        assert len(journal.lines) == content[:length].count(b"\n")
        assert bool(journal.notes) == (not content[:length].endswith(b"\n"))
        assert not journal.is_ended


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "does not begin"),
        (b'{"line": 0', "does not begin"),
        (b"no json\n", "line 1 is no JSON"),
        (b'{"line": 1, "kind": "begin"}\n', "not line 1"),
        (b'{"line": 0, "kind": "attempt"}\n', "does not begin"),
        (json.dumps({"line": 0, "kind": "begin", "version": VERSION + 1}).encode() + b"\n", "version"),
    ],
)
def test_what_is_no_journal_is_refused(content: bytes, told: str) -> None:
    with pytest.raises(JournalError, match=told):
        read_journal(content)


def test_a_line_that_is_missing_in_the_middle_is_seen(tmp_path: Path) -> None:
    lines = written(tmp_path / "journal").splitlines(keepends=True)
    with pytest.raises(JournalError, match="not line 2"):
        read_journal(lines[0] + lines[2])


def test_a_figure_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "journal") as writer, pytest.raises(ValueError, match="JSON"):
        writer.write({"kind": "begin", "ratio": float("nan")})


@given(st.binary())
def test_any_bytes_come_back_from_json(source: bytes) -> None:
    assert bytes_of(json.loads(json.dumps(text_of(source)))) == source
