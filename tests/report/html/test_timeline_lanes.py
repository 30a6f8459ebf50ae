"""Every activity on a lane, whatever is unknown of it.

What is drawn one by one is bounded, in order, and holds what it says.
"""

from itertools import pairwise

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given

from aaco_pipeline.report.html import timeline_lanes
from aaco_pipeline.report.html.timeline_lanes import (
    COLUMNS,
    activities,
    drawn_windows,
    inside_windows,
    lanes_in_order,
    top_calls,
)
from tests.report.html.test_timeline import dispatch, tables_of


def test_what_is_not_known_of_a_place_is_not_said() -> None:
    rows = activities(
        tables_of(
            dispatches=[dispatch(0, 0, 1, device_id=None), dispatch(1, 1, 2, stream_id=5)],
            memory_copies=[{"copy_id": 0, "start_ns": 2, "end_ns": 3}],
            api_calls=[{"call_id": 0, "domain": "x", "name": "f", "process_id": 0, "start_ns": 0, "end_ns": 9}],
        ),
        on_cpu=False,
    )
    assert rows.schema == dict(COLUMNS)
    assert lanes_in_order(rows, 0).rows() == [
        ("Device 0, kernels, stream 5", "kernel", 0),
        ("Device unknown, kernels", "kernel", None),
        ("Device unknown, copies", "copy", None),
        ("Host thread unknown", "call", None),
    ]
    assert rows.filter(kind="copy").get_column("name").to_list() == ["copy, size unknown"]


def test_frames_of_an_interpreter_are_drawn_where_a_thread_has_nothing_else() -> None:
    frame = {
        "call_id": 0,
        "domain": "python",
        "name": "main",
        "process_id": 0,
        "thread_id": 1,
        "start_ns": 0,
        "end_ns": 9,
    }
    rows = activities(tables_of(api_calls=[frame, {**frame, "call_id": 1, "process_id": 1}]), on_cpu=False)
    assert rows.get_column("lane").to_list() == ["Host process 0, thread 1", "Host process 1, thread 1"]
    launch = {**frame, "call_id": 2, "domain": "hip_runtime", "name": "launch"}
    rows = activities(tables_of(api_calls=[frame, launch]), on_cpu=False)
    assert rows.get_column("name").to_list() == ["launch"]


PIECES = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 40)), min_size=1, max_size=120)


def rows_of(kind: str, pieces: list[tuple[int, int]], lane: str = "a") -> pl.DataFrame:
    rows = [{"kind": kind, "lane": lane, "start_ns": at, "end_ns": at + took} for at, took in pieces]
    frame = pl.DataFrame([{**dict.fromkeys(COLUMNS), **row} for row in rows], dict(COLUMNS))
    return frame.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_lanes, "DRAWN_ACTIVITIES", 20)
    monkeypatch.setattr(timeline_lanes, "DRAWN_CALLS", 10)
    monkeypatch.setattr(timeline_lanes, "_OF_AN_ITERATION", 5)


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
