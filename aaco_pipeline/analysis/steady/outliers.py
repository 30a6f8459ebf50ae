"""Dispatches that took far longer, or shorter, than their kernel's others do in the steady part."""

from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.timeline.activities import group_codes

#: With fewer warm dispatches nothing is known of what is usual.
_LEAST_WARM: Final = 8
#: The outer fence of Tukey (1977): so many interquartile ranges beyond the quartiles.
_FENCE: Final = 3
#: Nor is a dispatch far off that differs by less than this share of the median: clocks and caches do that.
_LEAST_SHARE: Final = 0.5
#: What more dispatches of a part than this share do is another way of working, such as another shape, and no outlier.
_MOST_SHARE: Final = 0.1
#: An idle time before a dispatch of at least so many of its usual durations, and nanoseconds, lets clocks fall.
_IDLE_DURATIONS: Final = 10
_IDLE_NS: Final = 1_000_000
COLUMNS: Final = pl.Schema(
    {
        "dispatch_id": pl.Int32(),
        "kernel_id": pl.Int32(),
        "device_id": pl.Int32(),
        "part": pl.String(),
        "start_ns": pl.Int64(),
        "duration_ns": pl.Int64(),
        "warm_median_ns": pl.Int64(),
        "warm_spread_ns": pl.Int64(),
        "warm_dispatches": pl.Int64(),
        "possible_causes": pl.List(pl.String()),
    }
)
_ALIKE: Final = ("device_id", "kernel_id", "work_items", "group")


def outliers(activities: pl.DataFrame, dispatches: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Dispatches beyond the outer fences of the warm ones of their kernel, device, grid and work-group size.

    Warm are those that begin in a steady part. The fences are Q1 - 3 (Q3 - Q1) and Q3 + 3 (Q3 - Q1) by nearest rank,
    and at least half the median from the quartile; `warm_spread_ns` is Q3 - Q1. Causes are what the recording makes
    possible, the likeliest first, not what happened; the list is empty where it shows nothing. `activities` as
    `timeline.activities` gives them.
    """
    run = _with_parts(_with_sizes(activities, dispatches), parts)
    length = pl.col("duration_ns")
    # A kernel's first dispatch of all is never among the warm ones that it is compared with.
    warm = run.filter((pl.col("part") == "steady") & ~pl.col("first"))
    usual = _usual(warm).with_columns(warm_spread_ns=pl.col("high") - pl.col("low"))
    away = pl.max_horizontal(_FENCE * pl.col("warm_spread_ns"), _LEAST_SHARE * pl.col("warm_median_ns"))
    slow, fast = length > pl.col("high") + away, length < pl.col("low") - away
    judged = run.join(usual, on=_ALIKE, nulls_equal=True).with_columns(slow=slow, far=slow | fast)
    in_part = (*_ALIKE, "part")
    many = (pl.len().over(in_part) >= _LEAST_WARM) & (pl.col("far").mean().over(in_part) > _MOST_SHARE)
    found = judged.filter(~many).filter("far")
    return found.with_columns(possible_causes=_causes()).select(COLUMNS.names()).sort("start_ns", "dispatch_id")


def _with_sizes(activities: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """The dispatches among the activities with their sizes, how long the device was idle before, and who ran beside."""
    reached = pl.col("end_ns").cum_max().shift(1).over("device_id")
    following = pl.col("start_ns").shift(-1).over("device_id")
    grid = pl.coalesce("grid_work_items", pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z"))
    group = pl.coalesce("workgroup_work_items", pl.col("workgroup_x") * pl.col("workgroup_y") * pl.col("workgroup_z"))
    sizes = dispatches.select(pl.col("dispatch_id").cast(pl.Int32), work_items=grid, group=group)
    return (
        activities.select(
            "activity_kind",
            "device_id",
            "kernel_id",
            "category",
            "start_ns",
            dispatch_id="activity_id",
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            idle_ns=pl.col("start_ns") - reached,
            beside=(reached > pl.col("start_ns")) | (following < pl.col("end_ns")),
        )
        .filter(pl.col("activity_kind") == "dispatch")
        .with_columns(first=pl.struct("device_id", "kernel_id").is_first_distinct())
        .join(sizes, on="dispatch_id", how="left", maintain_order="left")
    )


def _with_parts(run: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Each dispatch with the part of its device in which it begins."""
    borders = parts.select("device_id", "part", since_ns="start_ns").sort("since_ns")
    return run.sort("start_ns", maintain_order=True).join_asof(
        borders, left_on="start_ns", right_on="since_ns", by="device_id", strategy="backward", check_sortedness=False
    )


def _causes() -> pl.Expr:
    slow = pl.col("slow")
    idle = (pl.col("idle_ns") >= _IDLE_NS) & (pl.col("idle_ns") >= _IDLE_DURATIONS * pl.col("warm_median_ns"))
    causes = (
        (
            slow & pl.col("first"),
            "first recorded dispatch of its kernel: first touch of its memory, page faults, cold caches",
        ),
        (slow & (pl.col("part") == "set_up"), "before the steady part: clocks and caches not warm yet"),
        (slow & (pl.col("category") == "communication"), "a collective: it waits for the last of the ranks"),
        (slow & idle.fill_null(False), "the device had been idle: clocks fell, caches were lost"),
        (slow & pl.col("beside").fill_null(False), "other work ran on the device beside it"),
        (~slow, "shorter than the others: it may have had less to do"),
    )
    named = pl.concat_list(pl.when(holds).then(pl.lit(cause)) for holds, cause in causes)
    return named.list.drop_nulls()


def _usual(warm: pl.DataFrame) -> pl.DataFrame:
    """What dispatches alike in `_ALIKE` usually take, where there are enough: median, lower and upper quartile.

    One sort of all durations answers every group: there may be nearly as many groups as dispatches.
    """
    codes = group_codes(warm, _ALIKE)
    lengths = warm.get_column("duration_ns").to_numpy()
    order = np.lexsort((lengths, codes))
    opens = np.flatnonzero(np.diff(codes[order], prepend=-1))
    number = np.diff(opens, append=len(order))
    enough = number >= _LEAST_WARM
    opens, number = opens[enough], number[enough]

    def rank(share: float) -> pl.Series:
        """By nearest rank, the value with so much of the group at or below it."""
        place = np.maximum(np.ceil(number * share).astype(np.int64), 1) - 1
        return pl.Series(lengths[order[opens + place]], dtype=pl.Int64)

    return warm[order[opens]].select(
        *_ALIKE,
        warm_median_ns=rank(0.5),
        low=rank(0.25),
        high=rank(0.75),
        warm_dispatches=pl.Series(number, dtype=pl.Int64),
    )
