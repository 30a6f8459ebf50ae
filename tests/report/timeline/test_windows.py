"""What is drawn one by one is bounded, in order, and holds what it says."""

from itertools import pairwise

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given

from aaco_pipeline.report.timeline import windows
from aaco_pipeline.report.timeline.lanes import COLUMNS
from aaco_pipeline.report.timeline.windows import drawn_windows, inside_windows, top_calls

PIECES = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 40)), min_size=1, max_size=120)


def rows_of(kind: str, pieces: list[tuple[int, int]], lane: str = "a") -> pl.DataFrame:
    rows = [{"kind": kind, "lane": lane, "start_ns": at, "end_ns": at + took} for at, took in pieces]
    frame = pl.DataFrame([{**dict.fromkeys(COLUMNS), **row} for row in rows], dict(COLUMNS))
    return frame.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "DRAWN_ACTIVITIES", 20)
    monkeypatch.setattr(windows, "DRAWN_CALLS", 10)
    monkeypatch.setattr(windows, "_OF_AN_ITERATION", 5)


def test_a_small_recording_is_one_window() -> None:
    assert drawn_windows(rows_of("kernel", [(3, 4), (9, 1)]), (0, 50), 7, [(3, 5)]) == [(0, 50)]


@pytest.mark.usefixtures("few")
@given(PIECES, st.integers(0, 500), st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60)), max_size=3))
def test_windows_are_disjoint_and_hold_few(
    pieces: list[tuple[int, int]], steady: int, wanted: list[tuple[int, int]]
) -> None:
    rows = rows_of("kernel", pieces)
    found = drawn_windows(rows, (0, 540), steady, [(at, at + took) for at, took in wanted])
    if len(pieces) <= 20:
        assert found == [(0, 540)]
        return
    assert all(start < end for start, end in found)
    assert all(one[1] < two[0] for one, two in pairwise(found))
    begun = [at for at, _ in pieces if any(start <= at < end for start, end in found)]
    assert len(begun) <= 20
    inside = inside_windows(rows, found)
    expected = [(a, a + n) for a, n in pieces if any(a < e and (a + n > s or a >= s) for s, e in found)]
    assert sorted(inside.select("start_ns", "end_ns").rows()) == sorted(expected)


@given(PIECES)
def test_the_outer_calls_cover_all_that_a_thread_did(pieces: list[tuple[int, int]]) -> None:
    rows = rows_of("call", pieces)
    outer = top_calls(rows).select("start_ns", "end_ns").rows()
    assert {t for a, b in outer for t in range(a, b)} == {t for a, n in pieces for t in range(a, a + n)}


def test_calls_of_other_threads_contain_nothing() -> None:
    rows = pl.concat([rows_of("call", [(0, 100)]), rows_of("call", [(10, 5)], "b")])
    assert top_calls(rows).height == 2
