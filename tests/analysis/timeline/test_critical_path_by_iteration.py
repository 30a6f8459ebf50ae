"""The path cut by iterations: nothing is lost or counted twice at the cuts, and real captures keep their sums."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.timeline.critical_path import path_by_iteration
from aaco_pipeline.lake.contracts import contract, polars_schema


def steps_of(rows: list[tuple[int, int, int]]) -> pl.DataFrame:
    """A path from (wait, lag, own) of each step, beginning at 100."""
    start, made = 100, []
    for number, (wait, lag, own) in enumerate(rows):
        start += wait + lag
        category = ("compute", "copy", "host")[number % 3]
        made.append((category, "launch" if lag else "none", start, lag, wait, own))
        start += own
    columns = ("category", "lag_category", "start_ns", "lag_ns", "wait_ns", "own_ns")
    return pl.DataFrame(made, schema=dict(zip(columns, [pl.String] * 2 + [pl.Int64] * 4, strict=True)), orient="row")


def iterations_of(cuts: list[int]) -> pl.DataFrame:
    return pl.DataFrame(
        {"iteration": range(len(cuts) - 1), "start_ns": cuts[:-1], "end_ns": cuts[1:]},
        schema={"iteration": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
    )


def test_a_step_across_a_cut_is_divided_and_the_lag_comes_before_the_wait() -> None:
    # 100 wait 110 own compute 130, lag 130..135, wait 135..140, own copy 140..160
    steps = steps_of([(10, 0, 20), (5, 5, 20)])
    found = path_by_iteration(steps, iterations_of([100, 120, 133, 150]))
    assert found.select("scope", "category", "category_ns", "path_ns", "unexplained_ns", "window_ns").rows() == [
        ("iteration 0", "compute", 10, 10, 10, 20),
        ("iteration 1", "compute", 10, 13, 0, 13),
        ("iteration 1", "launch", 3, 13, 0, 13),
        ("iteration 2", "copy", 10, 12, 5, 17),
        ("iteration 2", "launch", 2, 12, 5, 17),
    ]


def test_an_iteration_beside_the_path_is_unexplained_throughout() -> None:
    found = path_by_iteration(steps_of([(0, 0, 5)]), iterations_of([300, 340]))
    assert found.select("category", "category_ns", "path_ns", "unexplained_ns", "category_ratio").rows() == [
        ("none", 0, 0, 40, None)
    ]


@given(
    st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=9),
    st.lists(st.integers(0, 1000), max_size=5),
)
def test_iterations_without_a_gap_add_up_to_the_whole(rows: list[tuple[int, int, int]], inner: list[int]) -> None:
    steps = steps_of(rows)
    end = 100 + sum(map(sum, rows))
    cuts = sorted({0, end + 1, *(100 + cut % (end - 99) for cut in inner)})
    found = path_by_iteration(steps, iterations_of(cuts))
    by_category = dict(found.group_by("category").agg(pl.col("category_ns").sum()).iter_rows())
    expected: dict[str, int] = {}
    for category, lag_category, _, lag, _, own in steps.iter_rows():
        expected[category] = expected.get(category, 0) + own
        expected[lag_category] = expected.get(lag_category, 0) + lag
    assert {k: v for k, v in by_category.items() if v} == {k: v for k, v in expected.items() if v}
    whole = found.unique("scope")
    assert (whole["path_ns"] + whole["unexplained_ns"] == whole["window_ns"]).all()
    assert (found["unexplained_ns"] >= 0).all()


@pytest.mark.parametrize("name", ["two_streams_overlap", "item_each_kernel"])
def test_a_real_path_is_conserved_over_its_iterations(name: str, analysed: Callable[[str], Any]) -> None:
    run = analysed(f"gpu_sessions/traces/{name}.json.gz")
    start, end = int(run.network.start_ns.min()), int((run.network.start_ns + run.network.weight_ns).max())
    found = path_by_iteration(run.path.steps, iterations_of(np.linspace(start, end, 6).astype(int).tolist()))
    session = dict(run.path.summary.select("category", "category_ns").iter_rows())
    assert dict(found.group_by("category").agg(pl.col("category_ns").sum()).iter_rows()) == session


def test_rows_have_the_columns_of_their_table() -> None:
    found = path_by_iteration(steps_of([(0, 1, 5)]), iterations_of([100, 106]))
    expected = dict(polars_schema(contract("critical_path_summary")))
    del expected["session_id"]
    assert dict(found.schema) == expected
