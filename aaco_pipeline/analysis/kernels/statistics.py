"""Which dispatches count, and what each kernel took over them.

Windows and idle time are `aaco_pipeline.analysis.timeline.device_timeline`; figures over iterations are
`aaco_pipeline.analysis.sessions.metrics`.
"""

import polars as pl


def timed(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows whose times can be used: both are known, and the end is not before the start."""
    usable = (rows.get_column("end_ns") >= rows.get_column("start_ns")).fill_null(False)
    # Mostly all of them are, and a copy of a large table is most of what a stage takes.
    return rows if usable.all() else rows.filter(usable)


def measured_dispatches(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    """The dispatches that count: those of measured iterations, or all where the session has at most one in its trace.

    Warm-up is kept in `dispatches` and excluded here, as from every statistic; one marked iteration alone says nothing
    of what lies around it. Of several processes, one none of whose dispatches lies in an iteration counts whole: where
    its iterations are is then not known.
    """
    traced = iterations.filter(pl.col("pass") == "trace")
    if traced.height < 2:
        return dispatches
    measured = traced.filter(pl.col("phase") == "measure").get_column("iteration")
    counts = pl.col("iteration").is_in(measured.implode()).fill_null(False)
    if dispatches.get_column("process_id").n_unique() > 1:
        counts |= pl.col("iteration").is_null().all().over("process_id")
    return dispatches.filter(counts)


def kernel_stats(dispatches: pl.DataFrame) -> pl.DataFrame:
    """One row per kernel over its dispatches' self time; quantiles are observed values (nearest rank)."""
    total = pl.col("self_ns").sum()
    stats = dispatches.group_by("kernel_id").agg(
        dispatch_count=pl.len().cast(pl.Int64),
        total_ns=total,
        mean_ns=(total / pl.len()).round().cast(pl.Int64),
        min_ns=pl.col("self_ns").min(),
        p50_ns=_nearest_rank("self_ns", 0.50),
        p99_ns=_nearest_rank("self_ns", 0.99),
        max_ns=pl.col("self_ns").max(),
    )
    everything = stats.get_column("total_ns").sum()
    share = pl.col("total_ns") / everything if everything else pl.lit(None, pl.Float64)
    return stats.with_columns(share_ratio=share).sort("kernel_id")


def _nearest_rank(column: str, quantile: float) -> pl.Expr:
    """The smallest observed value with at least the share `quantile` of the values at or below it."""
    rank = (pl.len() * quantile).ceil().cast(pl.Int64).clip(lower_bound=1) - 1
    return pl.col(column).sort().get(rank)
