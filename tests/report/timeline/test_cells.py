"""Sums over cells: whatever the intervals, all cells together hold all of their time, once."""

from collections.abc import Sequence
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import polars as pl
from hypothesis import given

from aaco_pipeline.report.timeline.cells import busy_ns, by_cell, edges_between, in_cells, own_time

SPAN = (0, 1000)
PIECES = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 3)).map(lambda p: (*sorted(p[:2]), p[2]))
)
EDGES = st.sets(st.integers(1, 999)).map(lambda inner: np.array([0, *sorted(inner), 1000], np.int64))


def rows_of(pieces: Sequence[tuple[int, int, int]]) -> pl.DataFrame:
    schema = {"start_ns": pl.Int64, "end_ns": pl.Int64, "kernel_id": pl.Int64}
    return pl.DataFrame(list(pieces), schema, orient="row").with_columns(sign=pl.lit(1, pl.Int64))


@given(PIECES, EDGES)
def test_cells_hold_each_kernels_time_and_every_begin_once(
    pieces: list[tuple[int, int, int]], edges: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> None:
    rows = rows_of(pieces)
    found = in_cells(rows, edges, "kernel_id")
    whole = found.group_by("kernel_id").agg(pl.col("time_ns", "count").sum()).sort("kernel_id")
    expected = rows.group_by("kernel_id").agg(
        time_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(), count=pl.len().cast(pl.Int64)
    )
    assert whole.equals(expected.sort("kernel_id").select("kernel_id", "time_ns", "count"))
    for cell, kernel, time, _ in found.select("cell", "kernel_id", "time_ns", "count").iter_rows():
        inside = range(edges[cell], edges[cell + 1])
        assert time == sum(max(0, min(b, inside.stop) - max(a, inside.start)) for a, b, k in pieces if k == kernel)


@given(PIECES, EDGES)
def test_busy_time_of_the_cells_is_the_union_instant_by_instant(
    pieces: list[tuple[int, int, int]], edges: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> None:
    busy = np.zeros(1000, bool)
    for start, end, _ in pieces:
        busy[start:end] = True
    expected = [int(busy[a:b].sum()) for a, b in pairwise(edges.tolist())]
    assert busy_ns(rows_of(pieces), edges) == expected


def test_what_runs_inside_an_operator_is_no_time_of_its_own() -> None:
    kernels = pl.DataFrame(
        {"start_ns": [0, 10, 60], "end_ns": [100, 30, 90], "kernel_id": [7, 8, 8], "number": [0, 1, 2]}
        | {"inside": [None, 0, 0]}
    )
    found = in_cells(own_time(kernels), np.array([0, 50, 100]), "kernel_id")
    assert found.rows() == [(0, 7, 30, 1), (0, 8, 20, 1), (1, 7, 20, 0), (1, 8, 30, 1)]
    assert by_cell(found, 3, "kernel_id", "time_ns") == [[7, 30, 8, 20], [7, 20, 8, 30], []]


def test_a_window_is_one_cell_and_the_parts_end_at_edges() -> None:
    edges = edges_between((0, 10_000), (5000, 6000), [(2000, 4000)], [1234, 3000]).tolist()
    assert edges == sorted(set(edges))
    assert (edges[0], edges[-1]) == (0, 10_000)
    assert [edge for edge in edges if 2000 <= edge <= 4000] == [2000, 4000]
    assert 1234 in edges
    assert len([edge for edge in edges if 5000 <= edge <= 6000]) > 90
