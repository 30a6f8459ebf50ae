"""One frame of activities: what is in it, what kind of work it is, and which call launched it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.timeline.activities import (
    before_in_group,
    group_codes,
    host_calls,
    launching,
    once_per_call,
)


@given(st.lists(st.tuples(st.none() | st.integers(-3, 3), st.none() | st.integers(0, 2**40))))
def test_codes_are_equal_where_all_columns_are(rows: list[tuple[int | None, int | None]]) -> None:
    frame = pl.DataFrame(rows, schema={"a": pl.Int32, "b": pl.Int64}, orient="row")
    codes = group_codes(frame, ("a", "b")).tolist()
    for left, code in zip(rows, codes, strict=True):
        assert [left == right for right in rows] == [code == other for other in codes]


@given(st.lists(st.integers(0, 4) | st.just(2**40)))
def test_the_row_before_in_the_group(codes: list[int]) -> None:
    expected = [max((j for j in range(i) if codes[j] == code), default=-1) for i, code in enumerate(codes)]
    assert before_in_group(np.array(codes, np.int64)).tolist() == expected


@given(st.lists(st.none() | st.integers(0, 5)))
def test_the_first_of_several_activities_of_one_call_stays(calls: list[int | None]) -> None:
    frame = pl.DataFrame({"call_id": calls}, schema={"call_id": pl.Int32}).with_row_index("row")
    firsts = [row for row, call in enumerate(calls) if call is not None and call not in calls[:row]]
    assert once_per_call(frame).get_column("row").to_list() == firsts


@given(st.lists(st.integers(0, 5), unique=True), st.lists(st.none() | st.integers(0, 9)))
def test_calls_that_launched_something_are_found_by_their_number(calls: list[int], launches: list[int | None]) -> None:
    frames = (pl.DataFrame({"call_id": ids}, schema={"call_id": pl.Int32}) for ids in (calls, launches))
    assert launching(*frames).get_column("call_id").to_list() == [call for call in calls if call in launches]


@pytest.mark.parametrize(
    ("kernel", "category", "work"),
    [
        ({"name": "ncclDevKernel_Generic(x)"}, "communication", "communication"),
        ({"name": "rcclSum", "family": None}, "communication", "communication"),
        ({"name": "nccl_lookalike", "family": "gemm"}, "compute", "gemm"),
        ({"name": "all_reduce", "family": "comm"}, "communication", "communication"),
        ({"name": "direct_copy", "family": "copy/memset"}, "compute", "copy/memset"),
        ({"name": "__amd_rocclr_copyBuffer"}, "copy", "copy"),
        ({"name": "softmax"}, "compute", "compute"),
    ],
)
def test_the_category_of_a_kernel(
    kernel: dict[str, Any], category: str, work: str, session: Callable[..., Any]
) -> None:
    row = session([{"start_ns": 0, "end_ns": 5}], kernels=[kernel]).activities.row(0, named=True)
    assert (row["category"], row["work"]) == (category, work)


def test_launches_are_found_within_the_process_and_the_outer_call_counts(session: Callable[..., Any]) -> None:
    largest = 2**64 - 1
    found = session(
        [
            {"start_ns": 20, "end_ns": 30, "correlation_id": largest},
            {"start_ns": 40, "end_ns": 50, "correlation_id": largest, "process_id": 1},
            {"start_ns": 60, "end_ns": 70, "correlation_id": 3},
            {"start_ns": 80, "end_ns": 90},
            {"start_ns": 82, "end_ns": 85, "parent_dispatch_id": 3},
        ],
        calls=[
            {"start_ns": 2, "end_ns": 4, "name": "cuLaunchKernel", "correlation_id": largest},
            {"start_ns": 1, "end_ns": 5, "name": "cudaLaunchKernel", "correlation_id": largest},
            {"start_ns": 0, "end_ns": 9, "name": "aten::mm", "domain": "operator", "correlation_id": 3},
        ],
        copies=[{"start_ns": 10, "end_ns": 12}],
    ).activities
    assert found["call_id"].to_list() == [None, 1, None, None, None]
    assert found["activity_kind"].to_list() == ["memory_copy", *["dispatch"] * 4]
    assert found["activity_id"].to_list() == [0, 0, 1, 2, 3]
    assert found["category"][0] == "copy"


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 20)), max_size=8))
def test_a_call_belongs_to_the_outermost_one_around_it(rows: list[tuple[int, int, int]]) -> None:
    frame = pl.DataFrame(
        {
            "call_id": range(len(rows)),
            "process_id": [0] * len(rows),
            "thread_id": [row[0] for row in rows],
            "domain": ["hip_runtime"] * len(rows),
            "name": ["f"] * len(rows),
            "correlation_id": [None] * len(rows),
            "start_ns": [row[1] for row in rows],
            "end_ns": [row[1] + row[2] for row in rows],
        },
        schema_overrides=dict.fromkeys(("call_id", "process_id", "thread_id", "start_ns", "end_ns"), pl.Int64),
    )
    calls = host_calls(frame)
    spans = {row["call_id"]: row for row in calls.iter_rows(named=True)}
    for row in spans.values():
        outer = spans[row["outermost_call_id"]]
        assert outer["outermost_call_id"] == outer["call_id"]
        assert outer["thread_id"] == row["thread_id"]
        assert outer["start_ns"] <= row["start_ns"] and row["end_ns"] <= outer["end_ns"]
        around = [
            one
            for one in spans.values()
            if one["thread_id"] == row["thread_id"]
            and one["start_ns"] <= row["start_ns"]
            and one["end_ns"] > row["end_ns"]
        ]
        if around:
            assert row["outermost_call_id"] != row["call_id"]
