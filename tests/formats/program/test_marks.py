"""Files of marks: what pairs with what, and that a file cut or damaged anywhere is read or refused in one line."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.program.marks import INSTANT, ITERATION, PHASE, marks_of, without_secrets
from tests.formats.program.recorded import marks_file

WHOLE = marks_file(
    [(10, 7, 1, 0), (11, 7, 3, 1), (12, 7, 3, 2), (13, 7, 4, 0), (14, 7, 4, 0), (15, 7, 2, 0), (16, 7, 5, 2)],
    ["prefill", "decode of a long name that takes two slots"],
)


def test_ends_are_of_the_newest_open_beginning() -> None:
    rows = marks_of(WHOLE, "marks").ranges.rows()
    assert rows == [
        (7, ITERATION, None, 10, 15),
        (7, PHASE, "prefill", 11, 14),
        (7, PHASE, "decode of a long name that takes two slots", 12, 13),
        (7, INSTANT, "decode of a long name that takes two slots", 16, None),
    ]


def test_an_iteration_that_never_ended_hides_no_later_one_and_holds_none() -> None:
    marks = marks_of(marks_file([(10, 7, 1, 0), (20, 7, 1, 0), (21, 7, 2, 0), (30, 7, 1, 0), (31, 7, 2, 0)]), "marks")
    assert marks.ranges.select("start", "end").rows() == [(20, 21), (30, 31)]
    assert marks.unpaired == 1


def test_an_end_without_a_beginning_is_counted_and_left_out() -> None:
    marks = marks_of(marks_file([(9, 7, 2, 0), (10, 7, 1, 0), (12, 7, 2, 0)]), "marks")
    assert (marks.ranges.select("start", "end").rows(), marks.unpaired) == ([(10, 12)], 1)


def test_threads_are_paired_apart() -> None:
    marks = marks_of(marks_file([(1, 7, 1, 0), (2, 8, 1, 0), (3, 7, 2, 0), (5, 8, 2, 0)]), "marks")
    assert marks.ranges.select("thread", "start", "end").rows() == [(7, 1, 3), (8, 2, 5)]


def test_slots_that_were_not_written_are_passed_over() -> None:
    content = marks_file([(1, 7, 1, 0), (0, 0, 0, 0), (3, 7, 2, 0)]) + bytes(4096)
    assert marks_of(content, "marks").ranges.height == 1


def test_a_name_with_a_secret_is_covered_at_the_door() -> None:
    clean, hits = without_secrets(marks_file([(1, 7, 5, 1)], ["password=hunter2secret"]))
    assert hits == 1
    assert b"hunter2" not in clean
    assert marks_of(clean, "marks").ranges.item(0, "name") == "redacted"
    assert without_secrets(WHOLE) == (WHOLE, 0)


@given(st.integers(0, len(WHOLE)))
def test_every_prefix_is_read_or_refused_in_one_line(length: int) -> None:
    _read_or_refused(WHOLE[:length])


@given(st.lists(st.tuples(st.integers(8, len(WHOLE) - 1), st.integers(0, 255)), max_size=8))
def test_damaged_files_are_read_or_refused_in_one_line(changes: list[tuple[int, int]]) -> None:
    content = bytearray(WHOLE)
    for at, value in changes:
        content[at] = value
    _read_or_refused(bytes(content))
    without_secrets(bytes(content))


def test_a_later_version_is_refused() -> None:
    content = WHOLE[:8] + struct.pack("<I", 2) + WHOLE[12:]
    with pytest.raises(CaptureError, match=r"version 2.*upgrade"):
        marks_of(content, "marks")


def _read_or_refused(content: bytes) -> None:
    try:
        marks = marks_of(content, "place")
    except CaptureError as error:
        assert "place" in str(error)
        assert "\n" not in str(error)
    else:
        assert marks.ranges.filter((marks.ranges["end"] < marks.ranges["start"]).fill_null(value=False)).is_empty()
