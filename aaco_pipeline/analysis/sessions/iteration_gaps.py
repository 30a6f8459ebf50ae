"""What lay between the iterations of a measured session, and what its process used over them.

A delay between two iterations is in no latency. With the gaps as rows the time of each pass adds up, and shows it.
"""

from dataclasses import dataclass

import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import to_contract


@dataclass(frozen=True)
class Usage:
    """Over the measured iterations of one pass: how many, how long, CPU time of all threads and their run-queue delay.

    `length_ns` is the time that the other two were read over; those are null where they were not.
    """

    iterations: int
    length_ns: int
    cpu_time_ns: int | None
    run_delay_ns: int | None


def usage(iterations: pl.DataFrame, blocks: pl.DataFrame, name: str) -> Usage:
    """Usage in the pass `name`: over its blocks, else, of a loop that read it there, over its timed iterations."""
    measured = (pl.col("pass") == name) & (pl.col("phase") == "measure")
    own = blocks.filter(measured).with_columns(length_ns=pl.col("end_ns") - pl.col("start_ns"))
    if own.is_empty():
        own = iterations.filter(measured).drop_nulls("latency_ns").with_columns(iterations=1, length_ns="latency_ns")
    cpu, delay = (
        None if own.is_empty() or own.get_column(column).null_count() else int(own.get_column(column).sum())
        for column in ("cpu_time_ns", "run_delay_ns")
    )
    return Usage(int(own.get_column("iterations").sum()), int(own.get_column("length_ns").sum()), cpu, delay)


def iteration_gaps(iterations: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Canonical rows of `iteration_gaps`: the time before, between and after the iterations of each pass.

    A pass begins and ends where its blocks do, else with its first and last iteration. Iterations without times have
    no gaps.
    """
    whole = blocks.group_by("pass").agg(pass_start_ns=pl.col("start_ns").min(), pass_end_ns=pl.col("end_ns").max())
    timed = (
        iterations.drop_nulls(["start_ns", "end_ns"])
        .sort("pass", "iteration")
        .join(whole, on="pass", how="left", maintain_order="left")
        .with_columns(counted=pl.col("cpu_time_ns").is_not_null())
    )
    columns = ("pass", "before_iteration", "phase", "start_ns", "end_ns", "counted")
    before = timed.select(
        "pass",
        "counted",
        before_iteration="iteration",
        phase=pl.col("phase").shift(1).over("pass").fill_null(pl.col("phase")),
        start_ns=pl.col("end_ns").shift(1).over("pass").fill_null(pl.col("pass_start_ns")),
        end_ns="start_ns",
    )
    last = timed.unique("pass", keep="last", maintain_order=True)
    after = last.select(
        "pass", "counted", "phase", before_iteration=pl.col("iteration") + 1, start_ns="end_ns", end_ns="pass_end_ns"
    )
    borders = pl.concat(
        blocks.select("pass", before_iteration=pl.col("first_iteration") + further, border=True)
        for further in (pl.lit(0, pl.Int32), pl.col("iterations").cast(pl.Int32))
    ).unique()
    gaps = pl.concat([before.select(columns), after.select(columns)]).drop_nulls(["start_ns", "end_ns"])
    return to_contract(
        "iteration_gaps",
        gaps.join(borders, on=["pass", "before_iteration"], how="left")
        .with_columns(
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            reads_counters=pl.col("counted") | pl.col("border").fill_null(False),
        )
        .drop("counted", "border")
        .sort("pass", "before_iteration"),
    )


def gap_metrics(iterations: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Rows of `session_metrics` for each pass with gaps: gap_ratio and gap_longest, over its measured part.

    gap_ratio = time of the gaps after measured iterations / (that time + the iterations'); gap_longest is in ns.
    """
    measured = pl.col("phase") == "measure"
    inside = iterations.filter(measured).group_by("pass").agg(inside_ns=pl.col("latency_ns").sum())
    lay = (
        gaps.filter(measured)
        .group_by("pass")
        .agg(between_ns=pl.col("duration_ns").sum(), longest_ns=pl.col("duration_ns").max(), n=pl.len())
    )
    rows = [
        {"metric": metric, "pass": row["pass"], "phase": "measure", "value": float(value), "unit": unit, "n": row["n"]}
        for row in lay.join(inside, on="pass").sort("pass").iter_rows(named=True)
        for metric, value, unit in (
            ("gap_ratio", row["between_ns"] / (row["between_ns"] + row["inside_ns"]), "ratio"),
            ("gap_longest", row["longest_ns"], "ns"),
        )
    ]
    return pl.DataFrame(rows, schema=polars_types("session_metrics"))
