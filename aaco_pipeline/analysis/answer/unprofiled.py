"""What a repetition of the judged window takes without a profiler, where the session's runs without one tell."""

import polars as pl

from aaco_pipeline.analysis.answer.savings import Unprofiled
from aaco_pipeline.analysis.answer.terms import one_of
from aaco_pipeline.analysis.answer.window import Window
from aaco_pipeline.analysis.steady.parts import CUT_OFF


def unprofiled(iterations: pl.DataFrame, window: Window) -> Unprofiled | None:
    """The time from one measured iteration's beginning to the next one's: the mean of each run, the median of runs.

    None unless the window's repetitions are the traced run's marked iterations and nothing else, and the other runs
    mark as many: whole runs are no steps, and a program that marks something else without a tracer does not compare.
    Iterations of a model are of one loop, however many a pass has.
    """
    if one_of(window.rule) != "iteration" or CUT_OFF in window.rule or not window.repetitions:
        return None
    measured = iterations.filter(pl.col("phase").cast(pl.String) == "measure").drop_nulls("start_ns")
    periods = (
        measured.group_by("pass", "run")
        .agg(
            period_ns=(pl.col("start_ns").max() - pl.col("start_ns").min()) / (pl.len() - 1),
            number=pl.len(),
        )
        .filter(pl.col("number") > 1)
    )
    of = pl.col("pass").cast(pl.String)
    traced = periods.filter(of == "trace")
    if traced.height != 1:
        return None
    alike = pl.col("run").is_null() | (pl.col("number") == traced.item(0, "number"))
    period = periods.filter((of == "latency") & alike).get_column("period_ns").median()
    if not isinstance(period, float):
        return None
    return Unprofiled(window.repetitions, period, float(traced.item(0, "period_ns")))
