"""The kernel's switches as a viewer takes them: on every CPU one after the other, who leaves being who came before."""

from typing import Final

import polars as pl

#: The columns of `kernel_events` that the scheduling view is made of.
SWITCHING: Final = ("time_ns", "cpu", "thread_id", "kind", "name", "other_thread_id", "state", "value")


def whole_switches(switches: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
    """The switches of `kernel_events`, with those that the kernel left out put between: cpu, time_ns, thread_id,
    other_thread_id, state.

    Where a CPU's next switch is of another thread than came last, one is missing. It is put where that thread's states
    say that it began to run, else directly before it left again.
    """
    columns = ("cpu", "time_ns", "thread_id", "other_thread_id", "state")
    ordered = switches.select(columns).sort("cpu", "time_ns", maintain_order=True).with_row_index("place")
    following = ordered.with_columns(
        next_ns=pl.col("time_ns").shift(-1).over("cpu"), who=pl.col("thread_id").shift(-1).over("cpu")
    )
    missing = following.filter(pl.col("who") != pl.col("other_thread_id")).sort("next_ns")
    began = states.filter(pl.col("state") == "running").select(
        pl.col("cpu"), who=pl.col("thread_id"), began_ns=pl.col("start_ns")
    )
    missing = missing.join_asof(
        began.sort("began_ns"), left_on="next_ns", right_on="began_ns", by=["cpu", "who"], check_sortedness=False
    )
    known = pl.col("began_ns") > pl.col("time_ns")
    put = missing.select(
        "place",
        "cpu",
        time_ns=pl.when(known).then("began_ns").otherwise("next_ns"),
        thread_id="other_thread_id",
        other_thread_id="who",
        state=pl.when(pl.col("other_thread_id") == 0).then(pl.lit("idle")).otherwise(pl.lit("runnable")),
    )
    both = pl.concat([ordered.with_columns(after=pl.lit(False)), put.with_columns(after=pl.lit(True))])
    return both.sort("place", "after").select(columns)
