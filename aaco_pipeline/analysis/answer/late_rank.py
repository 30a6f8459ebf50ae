"""Which rank the others wait for at their collectives, and what makes it late, from several ranks of one session.

What a rank does between two of its collectives is compared with what the others do in theirs; each rank's times are
differences on its own clock, so that how clocks are aligned does not enter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from aaco_pipeline.analysis.timeline.activities import COMMUNICATION_FAMILY
from aaco_pipeline.analysis.timeline.device_timeline import covered_by

Cause = Literal["work", "device", "host", "data"]
#: A rank is the late one when it comes last to at least this part of the collectives to which anybody comes late.
_MOSTLY: Final = 0.5
#: What makes it late is told where it explains at least this part of the others' shorter time.
_EXPLAINS: Final = 0.5
#: A rank that is late by less than this part of the time is not worth a word: of two, one always comes last.
_WORTH_TELLING: Final = 0.01
#: Kernels that take longer by less than this are said to by so many percent.
_IN_PERCENT: Final = 1.1
_MS: Final = 1e6
#: Of a dispatch, what makes launches of a kernel alike.
GRID: Final = ("grid_x", "grid_y", "grid_z", "workgroup_x", "workgroup_y", "workgroup_z")


@dataclass(frozen=True)
class LateRank:
    """The late rank, None where the capture does not number it.

    `late_ns` is by how much it comes after the first to the collectives to which it comes last, the median of their
    sums over an iteration, or of each where none is `in_iterations`; `operation` is where most of that is waited.
    `cause`: `work` (more kernels, or others), `device` (the same kernels and grids take longer), `data` (the same
    kernels on other grids) or `host` (its device is idle before the collective); None where none explains most of it.
    `times` is how many times as long its kernels take where the device is the cause; null otherwise.
    """

    process_id: int
    rank: int | None
    late_ns: int
    cause: Cause | None
    times: float | None
    in_iterations: bool = False
    operation: str | None = None


def late_rank(tables: Mapping[str, pl.DataFrame]) -> LateRank | None:
    """The late rank of the tables collectives, dispatches, kernels and processes; None where no one rank is.

    The excess of its time between collectives over the others' median is divided among idle time, calls of the same
    kernels and grids that take longer, calls on grids that only it has, and the rest, which is more work.
    """
    known = tables["collectives"].drop_nulls("wait_ns")
    behind = known.filter(pl.col("is_straggler").fill_null(False))
    if behind.is_empty():
        return None
    counts = behind.group_by("process_id").agg(n=pl.len()).sort("n", "process_id", descending=[True, False])
    process, times = counts.row(0)
    if times < _MOSTLY * behind.get_column("collective_id").n_unique():
        return None
    late = _lateness(int(process), known, tables["dispatches"])
    in_iterations = late.get_column("iteration").is_not_null().any()
    late = late.drop_nulls("iteration") if in_iterations else late.filter("is_last")
    each = late.group_by("iteration" if in_iterations else "collective_id").agg(pl.col("late_ns").sum())
    late_ns = _median(each.get_column("late_ns").to_list())
    lasted = int(late.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item())
    if late_ns * each.height < _WORTH_TELLING * lasted:
        return None
    named = late.drop_nulls("name").group_by("name").agg(pl.col("late_ns").sum())
    most = named.sort("late_ns", "name", descending=[True, False]).get_column("name").to_list()
    cause, longer = _cause(int(process), tables)
    return LateRank(
        int(process),
        _rank(int(process), tables),
        round(late_ns),
        cause,
        longer,
        in_iterations=in_iterations,
        operation=most[0] if most else None,
    )


def in_words(late: LateRank) -> str:
    """`rank 1 is late by 2.1 ms an iteration (median), because it runs more kernels: the others wait for it in
    all_reduce`, without a full stop.
    """
    name = f"rank {late.rank}" if late.rank is not None else f"process {late.process_id}"
    by = f"{late.late_ns / 1e6:.3g} ms" if late.late_ns >= _MS else f"{late.late_ns / 1e3:,.0f} µs"
    one = "an iteration" if late.in_iterations else "a collective"
    where = f" in {late.operation}" if late.operation is not None else ""
    times = late.times or 0.0
    longer = f"{times:.2g} times as long" if times >= _IN_PERCENT else f"{100 * (times - 1):.0f} % longer"
    because = {
        "work": "because it runs more kernels",
        "device": f"because its same kernels take {longer}",
        "data": "because its kernels run on other grids",
        "host": "because its device waits for its host",
        None: "and nothing recorded says why",
    }[late.cause]
    return f"{name} is late by {by} {one} (median), {because}: the others wait for it{where}"


# ---- inside ----------------------------------------------------------------------------------------------------------


def _cause(process: int, tables: Mapping[str, pl.DataFrame]) -> tuple[Cause | None, float | None]:
    spans = _between(tables["collectives"], tables["dispatches"])
    communicating = tables["kernels"].filter(pl.col("family").cast(pl.String) == COMMUNICATION_FAMILY)
    computing = (
        tables["dispatches"]
        .drop_nulls(["start_ns", "end_ns"])
        .join(tables["collectives"].select("dispatch_id"), on="dispatch_id", how="anti")
        .join(communicating.select("kernel_id"), on="kernel_id", how="anti")
    )
    busy = {
        one: _busy(spans.filter(pl.col("process_id") == one), computing.filter(pl.col("process_id") == one))
        for one in spans.get_column("process_id").unique()
    }
    lengths = dict(spans.group_by("process_id").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).iter_rows())
    others = [one for one in busy if one != process]
    if process not in busy or not others:
        return None, None
    idle = {one: lengths[one] - busy[one] for one in busy}
    excess = lengths[process] - _median([lengths[one] for one in others])
    if excess <= 0:
        return None, None
    longer, times, elsewhere = _of_kernels(process, computing, spans, len(others))
    waiting = idle[process] - _median([idle[one] for one in others])
    working = excess - waiting - longer - elsewhere
    parts: list[tuple[float, Cause]] = [(waiting, "host"), (longer, "device"), (elsewhere, "data"), (working, "work")]
    most, cause = max(parts)
    if most < _EXPLAINS * excess:
        return None, None
    return cause, times if cause == "device" else None


def _rank(process: int, tables: Mapping[str, pl.DataFrame]) -> int | None:
    """The process's rank; None where none is stated, or another process that takes part has the same.

    All that one starter's variable reached state it.
    """
    ranked = tables["processes"].join(tables["collectives"].select("process_id").unique(), on="process_id", how="semi")
    ranks = dict(ranked.drop_nulls("rank").select("process_id", "rank").iter_rows())
    own = ranks.get(process)
    return own if list(ranks.values()).count(own) == 1 else None


def _lateness(process: int, known: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Of each collective of the process its name, iteration and times, whether it came last, and how long after the
    first: 0 where it did not.
    """
    own = known.filter(pl.col("process_id") == process).join(
        dispatches.select("dispatch_id", "iteration", "start_ns", "end_ns"), on="dispatch_id"
    )
    longest = known.group_by("collective_id").agg(longest_ns=pl.col("wait_ns").max())
    last = pl.col("is_straggler").fill_null(False)
    return own.join(longest, on="collective_id").select(
        *("collective_id", pl.col("name").cast(pl.String), "iteration", "start_ns", "end_ns"),
        is_last=last,
        late_ns=pl.when(last).then("longest_ns").otherwise(0),
    )


def _between(collectives: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Per process the stretches from one collective's end to the next one's beginning, on its own clock."""
    own = dispatches.join(collectives.select("dispatch_id").unique(), on="dispatch_id", how="semi")
    ordered = own.drop_nulls(["start_ns", "end_ns"]).sort("process_id", "start_ns")
    return ordered.select(
        "process_id",
        start_ns=pl.col("end_ns").shift(1).over("process_id"),
        end_ns="start_ns",
    ).filter(pl.col("start_ns") < pl.col("end_ns"))


def _busy(spans: pl.DataFrame, computing: pl.DataFrame) -> int:
    union = covered_by(computing.get_column("start_ns").to_numpy(), computing.get_column("end_ns").to_numpy())
    return int(union.between(spans.get_column("start_ns").to_numpy(), spans.get_column("end_ns").to_numpy()).sum())


def _of_kernels(
    process: int, computing: pl.DataFrame, spans: pl.DataFrame, others: int
) -> tuple[float, float | None, float]:
    """Time that its same launches take longer, by how many times that is, and time on grids that only it has.

    The first is of launches of kernels and grids that others have, too; the last is beyond what others spend in the
    same kernels on grids that it does not have.
    """
    bounds = spans.group_by("process_id").agg(first=pl.col("start_ns").min(), last=pl.col("end_ns").max())
    within = computing.join(bounds, on="process_id").filter(
        (pl.col("start_ns") >= pl.col("first")) & (pl.col("end_ns") <= pl.col("last"))
    )
    is_late = pl.col("process_id") == process
    time = pl.col("end_ns") - pl.col("start_ns")
    by_grid = within.group_by("kernel_id", *GRID).agg(
        own=time.filter(is_late).sum(),
        count=is_late.sum(),
        theirs=time.filter(~is_late).sum(),
        their_count=(~is_late).sum(),
    )
    same = by_grid.filter((pl.col("count") > 0) & (pl.col("their_count") > 0))
    usual = pl.col("theirs") / pl.col("their_count") * pl.col("count")
    took, expected = same.select(pl.col("own").sum(), usual.sum()).row(0)
    longer = float(took - expected)
    by_kernel = by_grid.group_by("kernel_id").agg(
        only_own=pl.col("own").filter(pl.col("their_count") == 0).sum(),
        only_theirs=pl.col("theirs").filter(pl.col("count") == 0).sum() / others,
        shared=pl.col("theirs").sum() > 0,
    )
    moved = by_kernel.filter("shared").select((pl.col("only_own") - pl.col("only_theirs")).sum()).item()
    return longer, float(took / expected) if expected else None, float(moved or 0.0)


def _median(values: list[int]) -> float:
    return float(pl.Series(values).median() or 0.0)  # type: ignore[arg-type]
