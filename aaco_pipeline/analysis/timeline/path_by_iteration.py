"""The critical path cut at the iterations' ends: what each iteration's share of the path was made of.

The path of the whole session is cut, and no new one is sought: an iteration that waits for work of the one before it
would otherwise look as if it could start afresh.
"""

import polars as pl

from aaco_pipeline.analysis.timeline.device_timeline import covered_by
from aaco_pipeline.lake.contracts import contract, polars_schema


def path_by_iteration(steps: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    """Rows of `critical_path_summary` with the scope `iteration <n>`, for every iteration that has times.

    `steps` is what `analysis.critical_path.critical_path` gives, `iterations` rows of that table of the pass to cut by.
    category_ns is the time within the iteration that the path spent in the category, in ns; what is left of the
    window is unexplained_ns. An iteration that the path does not touch has one row, category `none` with zero.
    """
    windows = iterations.filter(pl.col("end_ns") > pl.col("start_ns")).sort("iteration")
    starts, ends = (windows.get_column(name).to_numpy() for name in ("start_ns", "end_ns"))
    stretches = _stretches(steps)
    parts = []
    for (category,), own in stretches.group_by("category"):
        covered = covered_by(own.get_column("start_ns").to_numpy(), own.get_column("end_ns").to_numpy())
        inside = pl.Series("category_ns", covered.between(starts, ends), pl.Int64)
        parts.append(windows.select("iteration", inside, category=pl.lit(category, pl.String)))
    empty = pl.DataFrame(schema={"iteration": pl.Int32, "category_ns": pl.Int64, "category": pl.String})
    found = pl.concat([empty, *parts], how="vertical_relaxed").filter(pl.col("category_ns") > 0)
    rows = windows.select("iteration", window_ns=pl.col("end_ns") - pl.col("start_ns")).join(
        found, on="iteration", how="left"
    )
    path = pl.col("category_ns").sum().over("iteration")
    schema = {
        name: dtype for name, dtype in polars_schema(contract("critical_path_summary")).items() if name != "session_id"
    }
    return (
        rows.with_columns(pl.col("category_ns").fill_null(0), pl.col("category").fill_null("none"))
        .with_columns(path_ns=path, unexplained_ns=pl.col("window_ns") - path)
        .with_columns(
            scope=pl.concat_str(pl.lit("iteration "), pl.col("iteration").cast(pl.String)),
            category_ratio=pl.when(pl.col("path_ns") > 0).then(pl.col("category_ns") / pl.col("path_ns")),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        .sort("scope", "category")
    )


def _stretches(steps: pl.DataFrame) -> pl.DataFrame:
    """The observed time of the path: category, start_ns, end_ns; disjoint, without the waits nothing explains.

    A step's lag begins where the step before it was left; the wait follows the lag, as a floor is passed first.
    """
    start = pl.col("start_ns")
    begun = start - pl.col("wait_ns") - pl.col("lag_ns")
    lags = steps.select(pl.col("lag_category").cast(pl.String).alias("category"), begun.alias("start_ns"), "lag_ns")
    own = steps.select(pl.col("category").cast(pl.String), "start_ns", "own_ns")
    found = pl.concat([lags.rename({"lag_ns": "length_ns"}), own.rename({"own_ns": "length_ns"})])
    return (
        found.with_columns(end_ns=pl.col("start_ns") + pl.col("length_ns"))
        .filter(pl.col("length_ns") > 0)
        .select("category", "start_ns", "end_ns")
    )
