"""What the launching thread does in the steps: its work outside waits, and its calls of the device's runtime."""

from typing import Final

import polars as pl

from aaco_pipeline.statistics.causes.steps import Axis

_TEXT: Final = pl.String
_WAITING: Final = r"^(?:hip|cuda|cu)(?:Device|Ctx|Thread|Stream|Event)Synchronize"
_RUNTIME: Final = r"^(?:hip|cuda|cu|hsa_)[A-Z_a-z]"
_CALLS: Final = {"name": pl.String(), "count": pl.Int64(), "busy_ns": pl.Int64()}


def on_the_host(calls: pl.DataFrame, inside: Axis) -> tuple[int | None, int | None, pl.DataFrame]:
    """The launching thread's time in the steps outside waits for the device in ns, how often it waited, its calls.

    The calls are those of the device's runtime on every thread, because a framework shares its launches out among
    threads: name, count, busy_ns in the steps. Without a launch nothing tells which thread it is: null, null and no
    calls.
    """
    name = pl.col("name").cast(_TEXT)
    launching = calls.filter(name.str.contains("(?i)launch"))
    if launching.is_empty():
        return None, None, pl.DataFrame(schema=_CALLS)
    thread = launching.group_by("process_id", "thread_id").len().sort("len", "process_id", descending=[True, False])
    own = calls.join(thread.head(1), on=("process_id", "thread_id"), nulls_equal=True).sort("start_ns")
    own = own.with_columns(
        name=name, at_ns=inside.of(own.get_column("start_ns")), until_ns=inside.of(own.get_column("end_ns"))
    )
    waiting = own.filter(pl.col("name").str.contains(_WAITING))
    reached = waiting.get_column("until_ns").cum_max().shift(1, fill_value=0)
    began = pl.select(pl.max_horizontal(waiting.get_column("at_ns"), reached)).to_series()
    waited = int((waiting.get_column("until_ns") - began).clip(0).sum())
    of_runtime = calls.filter(name.str.contains(_RUNTIME) & inside.holds(calls.get_column("start_ns")))
    took = inside.of(of_runtime.get_column("end_ns")) - inside.of(of_runtime.get_column("start_ns"))
    counted = (
        of_runtime.with_columns(name=name, took=took)
        .group_by("name")
        .agg(count=pl.len().cast(pl.Int64), busy_ns=pl.col("took").sum())
    )
    waits = waiting.filter(pl.col("until_ns") > pl.col("at_ns")).height
    return inside.length - waited, waits, counted.sort("name")
