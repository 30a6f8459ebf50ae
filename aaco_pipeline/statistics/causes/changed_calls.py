"""What the host did otherwise, beside the sum: work that the device hides, and calls that became more or longer."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.statistics.causes.accounts import Account
from aaco_pipeline.statistics.causes.split import HOST_CALLS, Row

#: A call is told when its change is this part of the whole change and of an iteration,
_OF_CHANGE: Final = 0.1
_OF_ITERATION: Final = 0.02
#: and it is called more often or less, or each takes so many times as long: recorders and hosts vary by less.
_TIMES: Final = 2.0


def changed_calls(before: Sequence[Account], after: Sequence[Account], change_ns: float) -> Iterator[Row]:
    """A row for each call of the device's runtime that explains a part of the change, the largest first.

    A host that allocates on the device in each step, or waits in each launch, is told by these alone. Times lie beside
    the sum: what the device waited for stands in its idle time.
    """
    sides = []
    for side in (before, after):
        rows = pl.concat([one.calls.with_columns(pl.col("count", "busy_ns") / one.steps) for one in side])
        sides.append(rows.group_by("name").agg(pl.col("count", "busy_ns").sum() / len(side)))
    if sides[0].height and sides[1].height and sides[0].join(sides[1], on="name").is_empty():
        return  # runtimes of two vendors: no call of one is a call of the other
    both = sides[0].join(sides[1], on="name", how="full", coalesce=True, suffix="_after").fill_null(0.0)
    longer = pl.col("busy_ns_after") - pl.col("busy_ns")
    each, each_after = (pl.col(f"busy_ns{one}") / pl.col(f"count{one}") for one in ("", "_after"))
    other_count = pl.col("count").round(1) != pl.col("count_after").round(1)
    other_time = pl.max_horizontal(each / each_after, each_after / each) >= _TIMES
    iteration = min(one.time_ns / one.steps for one in (*before, *after))
    least = max(_OF_CHANGE * abs(change_ns), _OF_ITERATION * iteration)
    # A wait that became longer is the change itself, seen from the host.
    other_time &= ~pl.col("name").str.contains("Synchronize")
    told = both.filter((longer.abs() >= least) & (other_count | other_time))
    for name, count, busy, count_after, busy_after in told.sort(longer.abs(), "name", descending=[True, False]).rows():
        yield Row(
            HOST_CALLS,
            name,
            name,
            np.array([busy_after - busy]),
            counts=(np.array([count]), np.array([count_after])),
            times=(np.array([busy]), np.array([busy_after])),
            in_sum=False,
        )
