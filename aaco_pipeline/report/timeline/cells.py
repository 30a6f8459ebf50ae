"""Exact sums over the cells of a grid, for the stretches of a recording that are not drawn activity by activity.

Everything here is additive over disjoint stretches: the time in which a lane was busy, a kernel's own time, how often
it began, idle time by cause. A range of whole cells has the sum of theirs.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.device_timeline import covered_by

Times = npt.NDArray[np.int64]
#: Cells over the whole recording, and as many once more over its steady part.
CELLS: Final = 100
#: Kernels whose time is kept by name, those with most of it; the others are summed up as one.
NAMED_KERNELS: Final = 24


def edges_between(
    span: tuple[int, int], steady: tuple[int, int] | None, windows: Sequence[tuple[int, int]], parts: Sequence[int]
) -> Times:
    """The cells' edges in order: evenly over `span` and over `steady`, at the parts' ends; a window is one cell."""
    evenly = [np.linspace(*one, CELLS + 1).astype(np.int64) for one in (span, steady) if one is not None]
    ends = np.array([edge for window in windows for edge in window], np.int64)
    edges = np.unique(np.concatenate([*evenly, np.array(parts, np.int64), np.array(span), ends]))
    edges = edges[(edges >= span[0]) & (edges <= span[1])]
    for first, last in windows:
        edges = edges[(edges <= first) | (edges >= last)]
    return edges


def busy_ns(rows: pl.DataFrame, edges: Times) -> list[int]:
    """Length of the union of the rows' intervals in each cell."""
    union = covered_by(rows.get_column("start_ns").to_numpy(), rows.get_column("end_ns").to_numpy())
    found: list[int] = union.between(edges[:-1], edges[1:]).tolist()
    return found


def in_cells(rows: pl.DataFrame, edges: Times, *keys: str) -> pl.DataFrame:
    """Per cell and `keys`: `time_ns`, the rows' own durations clipped to the cell, and how many begin in it (`count`).

    A row with a `sign` counts its time so often, -1 for what is inside another, and nothing where that is below zero.
    """
    start, end = rows.get_column("start_ns").to_numpy(), rows.get_column("end_ns").to_numpy()
    first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, len(edges) - 2)
    last = np.maximum(np.clip(np.searchsorted(edges, end, side="left") - 1, 0, len(edges) - 2), first)
    times = last - first + 1
    row = np.repeat(np.arange(rows.height), times)
    cell = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times) + first[row]
    clipped = np.minimum(end[row], edges[cell + 1]) - np.maximum(start[row], edges[cell])
    sign = rows.get_column("sign").to_numpy()[row]
    return (
        rows.select(keys)[row]
        .with_columns(
            cell=pl.Series(cell, dtype=pl.Int64),
            time_ns=pl.Series(np.maximum(clipped, 0) * sign, dtype=pl.Int64),
            count=pl.Series((cell == first[row]) & (sign > 0)),
        )
        .group_by("cell", *keys)
        .agg(pl.col("time_ns").sum(), pl.col("count").sum().cast(pl.Int64))
        .sort("cell", *keys)
    )


def own_time(kernels: pl.DataFrame) -> pl.DataFrame:
    """The dispatches with `sign` 1, and once more with -1 under the kernel of the one that each is inside."""
    columns = ("start_ns", "end_ns", "kernel_id")
    parents = kernels.select(inside="number", parent="kernel_id")
    children = kernels.drop_nulls("inside").join(parents, on="inside", maintain_order="left")
    return pl.concat(
        [
            kernels.select(*columns, sign=pl.lit(1, pl.Int64)),
            children.select("start_ns", "end_ns", kernel_id="parent", sign=pl.lit(-1, pl.Int64)),
        ]
    )


def by_cell(found: pl.DataFrame, cells: int, *columns: str) -> list[list[Any]]:
    """Of each cell its rows' columns, one after another in one flat list."""
    flat: list[list[Any]] = [[] for _ in range(cells)]
    for (cell,), rows in found.group_by("cell", maintain_order=True):
        flat[int(cell)] = rows.select(columns).to_numpy().ravel().tolist()
    return flat
