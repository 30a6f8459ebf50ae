"""Switches as a viewer takes them: on every CPU who leaves is who came, also where the kernel left one out."""

from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.report.trace_scheduling import whole_switches
from tests.analysis.delays.recorded import MAIN, OTHER, states, table


def switches(*rows: tuple[int, int, int, int, str]) -> pl.DataFrame:
    """Switches as CPU, time, who left, who came, state."""
    made: list[dict[str, Any]] = [
        {"cpu": cpu, "time_ns": at, "kind": "switch", "thread_id": left, "other_thread_id": came, "state": state}
        for cpu, at, left, came, state in rows
    ]
    return table("kernel_events", made)


def test_one_that_is_missing_is_put_where_the_thread_began_to_run() -> None:
    pushed_off = (0, 20_000, MAIN, OTHER, "runnable")
    seen = switches((0, 10_000, 0, MAIN, "idle"), pushed_off, (0, 90_000, MAIN, 0, "sleeping"))
    known = states((MAIN, 10, 20, "running", {"cpu": 0}), (MAIN, 70, 90, "running", {"cpu": 0}))
    found = whole_switches(seen, known)
    put = found.select("time_ns", "thread_id", "other_thread_id", "state").rows()[2]
    assert put == (70_000, OTHER, MAIN, "runnable")
    unknown = whole_switches(seen, known[:1])
    assert unknown.select("time_ns", "other_thread_id").rows()[2:] == [(90_000, MAIN), (90_000, 0)]


ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 50), st.integers(0, 3), st.integers(0, 3)), max_size=12)


@given(ROWS)
def test_who_leaves_is_who_came_whatever_was_left_out(rows: list[tuple[int, int, int, int]]) -> None:
    found = whole_switches(switches(*((*row, "runnable") for row in rows)), states())
    chained = found.with_columns(before=pl.col("other_thread_id").shift(1).over("cpu")).drop_nulls("before")
    assert (chained.get_column("before") == chained.get_column("thread_id")).all()
    assert found.height >= len(rows)
    assert found.equals(found.sort("cpu", "time_ns", maintain_order=True))
