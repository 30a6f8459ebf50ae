"""Exact arithmetic on half-open int64 intervals: union, complement, clipping and overlap, group by group.

What the intervals mean, and which window they are held against, is decided by the callers in `analysis`.
Every function takes columns `start_ns` and `end_ns` (int64) and leaves empty intervals (end_ns <= start_ns) out;
`by` names the columns whose values keep groups of intervals apart.
"""

from collections.abc import Sequence

import polars as pl


def union(intervals: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """The union of the intervals as disjoint ones, in order of start within each group; touching ones are joined.

    Sorted by start, an interval opens a new stretch when it starts after every earlier one has ended.
    Gives columns `by`, `start_ns`, `end_ns`. Linear after the sort.
    """
    real = _real(intervals.select(*by, "start_ns", "end_ns")).sort(*by, "start_ns")
    ended_before = _within(pl.col("end_ns").cum_max().shift(1), by)
    opens = (pl.col("start_ns") > ended_before).fill_null(True)
    return (
        real.with_columns(stretch=opens.cum_sum())
        .group_by(*by, "stretch", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").max())
        .drop("stretch")
    )


def overlapped(intervals: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """The disjoint stretches in which at least two of a group's intervals are open.

    Every start counts +1 and every end -1; at equal times the sum is taken first, so an interval that starts where
    another ends does not overlap it. Gives columns `by`, `start_ns`, `end_ns`.
    """
    real = _real(intervals)
    steps = (
        pl.concat(
            [
                real.select(*by, time_ns="start_ns", step=pl.lit(1, pl.Int64)),
                real.select(*by, time_ns="end_ns", step=pl.lit(-1, pl.Int64)),
            ]
        )
        .group_by(*by, "time_ns")
        .agg(pl.col("step").sum())
        .sort(*by, "time_ns")
    )
    stretches = steps.select(
        *by,
        start_ns=pl.col("time_ns"),
        end_ns=_within(pl.col("time_ns").shift(-1), by),
        open=_within(pl.col("step").cum_sum(), by),
    )
    return union(stretches.filter((pl.col("open") >= 2) & pl.col("end_ns").is_not_null()), by)


def complement(stretches: pl.DataFrame, window_start_ns: int, window_end_ns: int) -> pl.DataFrame:
    """What the disjoint, sorted `stretches` within the window leave open, in order.

    Exact: the length of `stretches` plus the length of the result is the window's length.
    """
    starts = pl.concat([pl.Series([window_start_ns], dtype=pl.Int64), stretches.get_column("end_ns")])
    ends = pl.concat([stretches.get_column("start_ns"), pl.Series([window_end_ns], dtype=pl.Int64)])
    return _real(pl.DataFrame({"start_ns": starts, "end_ns": ends}))


def clip(intervals: pl.DataFrame, start: str, end: str) -> pl.DataFrame:
    """The parts of the intervals within the window that the columns `start` and `end` name; other columns stay."""
    return _real(
        intervals.with_columns(
            start_ns=pl.max_horizontal("start_ns", start),
            end_ns=pl.min_horizontal("end_ns", end),
        )
    )


def length_ns(intervals: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Columns `by` and `length_ns`: the summed length per group, which is its measure when they are disjoint."""
    return intervals.group_by(by, maintain_order=True).agg(length_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())


def _real(intervals: pl.DataFrame) -> pl.DataFrame:
    return intervals.filter(pl.col("end_ns") > pl.col("start_ns"))


def _within(expression: pl.Expr, by: Sequence[str]) -> pl.Expr:
    return expression.over(by) if by else expression
