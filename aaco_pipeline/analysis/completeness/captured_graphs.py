"""Which replays recorded fewer kernels than the graph that was captured has, though all of them lack the same ones.

Kernels are compared by name and number where captures know names; their order is not, for several streams mix it. Where
no capture knows names, only the number is compared, and only where all captured graphs have one size.
"""

from typing import Final

import polars as pl

from aaco_pipeline.analysis.roofline.operators.graphs.replays import Replays, with_kernel_ids

#: A replay that recorded less than this part of a captured graph may be of another one.
_PART: Final = 5


def shortfalls(found: Replays, captured: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """call_id and lost, per graph launch with records: kernels that it lacks at least, 0 for none, null if not known.

    `captured` is the table `captured_launches`. A launch made before the last capture of its own trace is not compared
    by number: it may be of a graph that was captured before the recording.
    """
    own = found.records.filter(pl.col("kind") == "kernel")
    counts = own.group_by("launch", "kernel_id").agg(n=pl.len().cast(pl.Int64))
    have = counts.group_by("launch").agg(have=pl.col("n").sum(), kernels=pl.len())
    known = with_kernel_ids(captured, kernels).filter(pl.col("kind") == "kernel")
    named = known.filter(pl.col("kernel").is_not_null().all().over("graph"))
    if named.height:
        lost = _by_names(counts, have, named)
    else:
        over = pl.lit(known.get_column("launched_ns").max(), pl.Int64)
        later = found.graphs.filter(over.is_null() | (pl.col("start_ns") > over))
        lost = _by_number(have.join(later.select(launch="call_id"), on="launch", how="semi"), known)
    matched = found.graphs.select(launch="call_id", is_matched=pl.col("matched").is_not_null())
    each = matched.join(lost, on="launch", how="left")
    return each.select(call_id="launch", lost=pl.when("is_matched").then(0).otherwise("lost"))


def _by_names(counts: pl.DataFrame, have: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """launch and lost: by the smallest captured graph that has all kernels of the launch as often, or more often."""
    # Replays that recorded the same kernels as often are compared once.
    each = counts.sort("kernel_id").group_by("launch").agg(what=pl.struct("kernel_id", "n").hash(seed=19).sum())
    same = each.group_by("what").agg(first=pl.col("launch").min(), launch="launch")
    sizes = named.group_by("graph").agg(size=pl.len().cast(pl.Int64))
    whole = named.group_by("graph", "kernel_id").agg(most=pl.len().cast(pl.Int64))
    ones = counts.join(same.select(launch="first"), on="launch", how="semi")
    fitting = ones.join(whole, on="kernel_id").filter(pl.col("n") <= pl.col("most"))
    both = fitting.group_by("launch", "graph").agg(fit=pl.len()).join(have, on="launch").join(sizes, on="graph")
    holds = both.filter((pl.col("fit") == pl.col("kernels")) & (pl.col("have") * _PART >= pl.col("size")))
    lost = holds.group_by("launch").agg(lost=(pl.col("size") - pl.col("have")).min())
    spread = same.select("launch", "first").explode("launch")
    return spread.join(lost, left_on="first", right_on="launch", how="inner").select("launch", "lost")


def _by_number(have: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """launch and lost, where all captured graphs are of one size."""
    sizes = known.group_by("graph").agg(size=pl.len().cast(pl.Int64)).get_column("size").unique()
    if len(sizes) != 1:
        return have.select("launch", lost=pl.lit(None, pl.Int64)).clear()
    lost = sizes[0] - pl.col("have")
    return have.filter(lost >= 0).select("launch", lost=lost)
