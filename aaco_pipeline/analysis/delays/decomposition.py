"""Decompose each iteration's latency into parts that sum to it, including the system calls that took the time.

`thread_states` derives thread states; `grades` decides whether an iteration was disturbed.
"""

from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.delays.interference import (
    DISK,
    INTERRUPTS,
    MAJOR_FAULT,
    ON_CPU,
    Costs,
    fault_costs,
    on_cpu_parts,
)
from aaco_pipeline.analysis.delays.thread_states import (
    BLOCKED,
    INTERRUPT,
    PREEMPTED,
    QUEUED,
    RUNNING,
    STOPPED,
    THROTTLED,
    UNKNOWN,
    Numbers,
    meetings,
)
from aaco_pipeline.analysis.timeline.device_timeline import bounds
from aaco_pipeline.lake.contracts import polars_types

CALL: Final = "call"
#: A call is named if its time beyond its median is at least this fraction of the part.
_LEAST_SHARE: Final = 0.5


def calls_that_took_most(path: pl.DataFrame, events: pl.DataFrame, iterations: int) -> pl.DataFrame:
    """Find the call that took most of a part of an iteration, unless it usually does: row, cause, call.

    `path`: row, thread_id, start_ns, end_ns and cause of the pieces of this many iterations.
    """
    returned = events.filter((pl.col("kind") == "syscall") & pl.col("duration_ns").is_not_null()).select(
        "thread_id", "name", start_ns="time_ns", end_ns=pl.col("time_ns") + pl.col("duration_ns")
    )
    found = [path.select("row", "cause").clear().with_columns(call=pl.lit(""), ns=pl.lit(0, pl.Int64))]
    for (thread,), some in path.group_by("thread_id", maintain_order=True):
        of_thread = returned.filter(pl.col("thread_id") == thread).sort("start_ns")
        piece, call, since, until = meetings(*bounds(some), *bounds(of_thread))
        names = of_thread.get_column("name").gather(call)
        found.append(some.select("row", "cause")[piece].with_columns(call=names, ns=pl.Series(until - since)))
    each = pl.concat(found).group_by("row", "cause", "call").agg(pl.col("ns").sum())
    usual = [
        {"cause": cause, "call": call, "usual_ns": float(np.median(_of_all(some.get_column("ns"), iterations)))}
        for (cause, call), some in each.group_by("cause", "call")
    ]
    whole = path.group_by("row", "cause").agg(whole_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    schema = {"cause": pl.String, "call": pl.String, "usual_ns": pl.Float64}
    more = pl.col("ns") - pl.col("usual_ns")
    return (
        each.join(pl.DataFrame(usual, schema=schema), on=["cause", "call"])
        .join(whole, on=["row", "cause"])
        .filter((more > 0) & (more >= _LEAST_SHARE * pl.col("whole_ns")))
        .sort(more, "call", descending=[True, False])
        .unique(["row", "cause"], keep="first", maintain_order=True)
        .select("row", "cause", "call")
    )


def _of_all(some: pl.Series, iterations: int) -> Numbers:
    """Return a call's time in each iteration; zero if it was not called."""
    return np.pad(some.to_numpy(), (0, max(iterations - len(some), 0)))


LOCK: Final = "lock"
SLEEP: Final = "sleep"
#: Blocking causes, by the awaited object.
_BLOCKED_BY: Final = {"page_fault": MAJOR_FAULT, "disk": DISK, "lock": LOCK, "sleep": SLEEP}
#: Time in which a thread could have run but did not, or may have; if unknown, the deciding thread is unknown too.
_LOST: Final = (PREEMPTED, THROTTLED, QUEUED, STOPPED, MAJOR_FAULT, DISK, UNKNOWN)
#: Another thread decides if it lost this much more than the main one; a wake-up takes up to this long.
_LEAST_MORE_NS: Final = 20_000
#: A thread that ran in this fraction of the iterations takes part in the work, so its absence counts as lost time.
_TAKES_PART: Final = 0.5
#: Causes due to the thread itself, whoever wakes it afterwards.
_OWN_DOING: Final = (ON_CPU, MAJOR_FAULT, DISK, SLEEP)
#: Maximum length of a chain of threads that wait for each other.
_DEPTH: Final = 4
_PIECES: Final = ("row", "thread_id", "start_ns", "end_ns", "cause", "by_thread_id", "by_name")


def iteration_delays(
    iterations: pl.DataFrame,
    states: pl.DataFrame,
    threads: pl.DataFrame,
    events: pl.DataFrame,
    costs: Costs,
    *,
    main_thread: int | None = None,
) -> pl.DataFrame:
    """Compute `iteration_delays` for the iterations of one process.

    Args:
        iterations: Rows of the table; those without times have no result.
        states: `thread_states`.
        threads: The process's rows of `kernel_threads`.
        events: `kernel_events`.
        costs: Calibrated costs of events.
        main_thread: The thread that runs the iterations; by default the first one of the process.
    """
    spans = iterations.drop_nulls(["start_ns", "end_ns"]).sort("start_ns").with_row_index("row")
    ordered = threads.sort("start_ns", "thread_id").get_column("thread_id").to_list()
    if not spans.height or not ordered:
        return pl.DataFrame(schema=_SCHEMA)
    own = set(ordered)
    main = ordered[0] if main_thread is None or main_thread not in own else main_thread
    of_own = states.filter(pl.col("thread_id").is_in(list(own)))
    if not of_own.height:
        return pl.DataFrame(schema=_SCHEMA)
    pieces = _pieces(spans, of_own)
    deciding = _deciding(spans, pieces, main, _cost_on_cpu(pieces, events, costs))
    path = pieces.join(deciding, on=["row", "thread_id"], how="semi")
    path = pl.concat([path, _outlived(path, pieces, main)])
    for _ in range(_DEPTH):
        path, moved = _followed(path, pieces, own)
        if not moved:
            break
    taken = _in_calls(_taken(_doing_so(path, threads, main)), path, events, spans.height)
    parts = pl.concat(
        [
            taken.filter(pl.col("cause") != ON_CPU).with_columns(on_cpu=pl.lit(False)),
            *(part.with_columns(on_cpu=pl.lit(True)) for part in on_cpu_parts(path, states, events, costs)),
        ],
        how="diagonal",
    )
    parts = _within(spans, parts, taken)
    keyed = parts.join(spans.select("row", "pass", "iteration"), on="row").join(deciding, on="row", how="left")
    return keyed.select(*_SCHEMA).sort("pass", "iteration", "cause")


_SCHEMA: Final = polars_types("iteration_delays")


def _pieces(spans: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
    """Each thread's states clipped to each iteration: `_PIECES`, with the cause to which a state belongs."""
    blocked = pl.col("wait").replace_strict(_BLOCKED_BY, default=BLOCKED, return_dtype=pl.String)
    # Softirqs that exceed the interrupt's budget run in a kernel thread.
    deferred = (pl.col("state") == PREEMPTED) & pl.col("by_name").str.starts_with("ksoftirqd/")
    caused = states.sort("thread_id", "start_ns").with_columns(
        cause=pl.when(pl.col("state") == BLOCKED)
        .then(blocked)
        .when(deferred)
        .then(pl.lit(INTERRUPTS))
        .when(pl.col("state") == RUNNING)
        .then(pl.lit(ON_CPU))
        .otherwise("state")
    )
    # Storage has answered and the CPU is free, so the CPU's idle-exit latency is part of the wait.
    following = [pl.col(name).shift(-1).over("thread_id") for name in ("start_ns", "cause", "by_thread_id", "end_ns")]
    caused = caused.with_columns(
        woken_ns=pl.when(
            pl.col("cause").is_in([DISK, MAJOR_FAULT])
            & (following[0] == pl.col("end_ns"))
            & (following[1] == QUEUED)
            & following[2].is_null()
        ).then(following[3])
    )
    belongs = pl.col("woken_ns").shift(1).over("thread_id").is_not_null()
    caused = caused.filter(~belongs).with_columns(end_ns=pl.coalesce("woken_ns", "end_ns"))
    found = []
    for _, some in caused.group_by("thread_id", maintain_order=True):
        row, piece, start, end = meetings(*bounds(spans), *bounds(some))
        cut = some.select("thread_id", "cause", "by_thread_id", "by_name")[piece]
        found.append(
            cut.with_columns(row=pl.Series(row, dtype=pl.UInt32), start_ns=pl.Series(start), end_ns=pl.Series(end))
        )
    return pl.concat(found).select(_PIECES)


def _cost_on_cpu(pieces: pl.DataFrame, events: pl.DataFrame, costs: Costs) -> pl.DataFrame:
    """Cost of faults and interrupts on a CPU to each thread in each iteration: row, thread_id, cost_ns."""
    found = []
    for (thread,), some in pieces.filter(pl.col("cause") == ON_CPU).group_by("thread_id", maintain_order=True):
        own, (start, end) = events.filter(pl.col("thread_id") == thread), bounds(ordered := some.sort("start_ns"))
        at = np.sort(own.filter(pl.col("kind") == "interrupt").get_column("time_ns").to_numpy())
        cost = (costs.interrupt_ns or 0.0) * (np.searchsorted(at, end) - np.searchsorted(at, start)).astype(np.float64)
        which, of_faults = fault_costs(own.filter(pl.col("kind") == "page_fault"), start, end, costs)
        np.add.at(cost, which, of_faults)
        found.append(ordered.select("row", "thread_id").with_columns(cost_ns=pl.Series(cost)))
    nothing = pieces.select("row", "thread_id").clear().with_columns(cost_ns=pl.lit(0.0))
    return pl.concat([nothing, *found]).group_by("row", "thread_id").agg(pl.col("cost_ns").sum())


def _deciding(spans: pl.DataFrame, pieces: pl.DataFrame, main: int, cost: pl.DataFrame) -> pl.DataFrame:
    """Find the thread that decides each iteration's latency: row, thread_id. Time lost to another one is no loss.

    A thread other than the main one decides only if it ran or was ready to run: an idle thread loses nothing.
    """
    to_own = pl.col("by_thread_id").is_in(pieces.get_column("thread_id").unique().implode()).fill_null(False)
    is_lost = pl.col("cause").is_in(_LOST) & ~(pl.col("cause").is_in([PREEMPTED, QUEUED]) & to_own)
    lost = pl.when(is_lost).then(pl.col("end_ns") - pl.col("start_ns")).otherwise(0)
    each = pieces.group_by("row", "thread_id").agg(lost_ns=lost.sum(), ran=(pl.col("cause") == ON_CPU).any())
    each = each.join(cost, on=["row", "thread_id"], how="left").with_columns(
        lost_ns=pl.col("lost_ns") + pl.col("cost_ns").fill_null(0.0)
    )
    takes_part = pl.col("ran").sum().over("thread_id") >= _TAKES_PART * spans.height
    each = each.with_columns(ran=pl.col("ran") | takes_part)
    of_main = each.filter(pl.col("thread_id") == main).select("row", main_ns="lost_ns")
    others = (
        each.filter((pl.col("thread_id") != main) & pl.col("ran"))
        .sort("lost_ns", "thread_id", descending=[True, False])
        .unique("row", keep="first", maintain_order=True)
        .select("row", other="thread_id", other_ns="lost_ns")
    )
    chosen = spans.select("row").join(of_main, on="row", how="left").join(others, on="row", how="left")
    more = pl.col("other_ns") > pl.col("main_ns").fill_null(0) + _LEAST_MORE_NS
    return chosen.select("row", thread_id=pl.when(more).then("other").otherwise(pl.lit(main, pl.Int64)))


def _outlived(path: pl.DataFrame, pieces: pl.DataFrame, main: int) -> pl.DataFrame:
    """Return the main thread's states in an iteration before the deciding thread began and after it ended."""
    lives = path.filter(pl.col("thread_id") != main).group_by("row")
    life = lives.agg(first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max())
    of_main = pieces.filter(pl.col("thread_id") == main).join(life, on="row")
    before = of_main.with_columns(end_ns=pl.min_horizontal("end_ns", "first_ns"))
    after = of_main.with_columns(start_ns=pl.max_horizontal("start_ns", "last_ns"))
    return pl.concat([before, after]).filter(pl.col("end_ns") > pl.col("start_ns")).select(_PIECES)


def _followed(path: pl.DataFrame, pieces: pl.DataFrame, own: set[int]) -> tuple[pl.DataFrame, bool]:
    """Replace each wait on the path by the states of the thread in the process that ended it, one level deeper."""
    waits = path.filter(
        pl.col("cause").is_in([LOCK, BLOCKED])
        & pl.col("by_thread_id").is_in(list(own))
        & (pl.col("by_thread_id") != pl.col("thread_id"))
    )
    if not waits.height:
        return path, False
    waits = waits.with_row_index("wait")
    found = []
    for (waker,), some in waits.group_by("by_thread_id", maintain_order=True):
        of_waker = pieces.filter(pl.col("thread_id") == waker).sort("start_ns")
        wait, piece, start, end = meetings(*bounds(some), *bounds(of_waker))
        cut = of_waker.select("thread_id", "cause", "by_thread_id", "by_name")[piece]
        found.append(
            cut.with_columns(
                some.get_column("row")[wait],
                some.get_column("wait")[wait],
                start_ns=pl.Series(start),
                end_ns=pl.Series(end),
            )
        )
    instead = pl.concat(found)
    # Two threads that wait for each other would recurse forever, so such a wait stays.
    back = waits.select("wait", waiting="thread_id")
    instead = instead.join(back, on="wait").filter(pl.col("thread_id") != pl.col("waiting"))
    covered = instead.group_by("wait").agg(covered_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    whole = (
        waits.join(covered, on="wait")
        .filter(pl.col("covered_ns") == pl.col("end_ns") - pl.col("start_ns"))
        .select("wait")
    )
    replaced = waits.join(whole, on="wait", how="semi")
    rest = path.join(replaced, on=["row", "thread_id", "start_ns"], how="anti")
    return pl.concat([rest, instead.join(whole, on="wait", how="semi").select(_PIECES)]), bool(replaced.height)


def _doing_so(path: pl.DataFrame, threads: pl.DataFrame, main: int) -> pl.DataFrame:
    """Attribute a thread's own actions to that thread, unless it is the main one.

    A thread that is merely interrupted by a storage or timer interrupt has caused no wait.
    """
    names = threads.select("thread_id", own_name="name")
    is_own, is_other = pl.col("cause").is_in(_OWN_DOING), pl.col("thread_id") != main
    return path.join(names, on="thread_id", how="left").select(
        *_PIECES[:-2],
        by_thread_id=pl.when(~is_own).then("by_thread_id").when(is_other).then("thread_id"),
        by_name=pl.when(~is_own).then("by_name").when(is_other).then("own_name"),
    )


def _taken(path: pl.DataFrame) -> pl.DataFrame:
    """Time and count of each cause in each iteration, and its largest contributor."""
    length = pl.col("end_ns") - pl.col("start_ns")
    each = path.group_by("row", "cause", "by_thread_id", "by_name").agg(length.sum().alias("ns"), pl.len().alias("n"))
    each = each.sort("row", "cause", "ns", "by_thread_id", "by_name", descending=[False, False, True, False, False])
    summed = each.group_by("row", "cause", maintain_order=True).agg(
        duration_ns=pl.col("ns").sum(),
        occurrences=pl.col("n").sum().cast(pl.Int64),
        by_thread_id=pl.col("by_thread_id").first(),
        by_name=pl.col("by_name").first(),
    )
    by_kind = (
        pl.when(pl.col("by_name") == INTERRUPT)
        .then(pl.lit("interrupt"))
        .when(pl.col("cause") == STOPPED)
        .then(pl.lit("signal"))
        .when(pl.col("by_thread_id").is_not_null())
        .then(pl.lit("thread"))
    )
    grade = pl.when(pl.col("cause") == UNKNOWN).then(pl.lit("rest")).otherwise(pl.lit("observed"))
    return summed.with_columns(by_kind=by_kind, grade=grade)


def _in_calls(taken: pl.DataFrame, path: pl.DataFrame, events: pl.DataFrame, iterations: int) -> pl.DataFrame:
    """Name the call that took most of the work, and of the waits that no known thread ended."""
    calls = calls_that_took_most(path.filter(pl.col("cause").is_in([ON_CPU, BLOCKED])), events, iterations)
    named = taken.join(calls, on=["row", "cause"], how="left")
    is_call = pl.col("by_thread_id").is_null() & pl.col("call").is_not_null()
    return named.with_columns(
        by_kind=pl.when(is_call).then(pl.lit(CALL)).otherwise("by_kind"),
        by_name=pl.when(is_call).then("call").otherwise("by_name"),
    ).drop("call")


def _within(spans: pl.DataFrame, parts: pl.DataFrame, taken: pl.DataFrame) -> pl.DataFrame:
    """Add the remaining CPU time and the time without a state; the sum is the latency, to the nanosecond."""
    by = ("by_kind", "by_thread_id", "by_name")
    running = taken.filter(pl.col("cause") == ON_CPU)
    on_cpu = running.select("row", cpu_ns="duration_ns")
    covered = taken.group_by("row").agg(covered_ns=pl.col("duration_ns").sum())
    rows = spans.select("row", latency_ns=pl.col("end_ns") - pl.col("start_ns"))
    rows = rows.join(on_cpu, on="row", how="left").join(covered, on="row", how="left").fill_null(0)
    parts = parts.join(rows, on="row").sort("row", "cause")
    # Parts of the CPU time are limited to it, in the order of the causes.
    before = pl.when("on_cpu").then("duration_ns").otherwise(0).cum_sum().over("row", order_by="cause")
    left = (pl.col("cpu_ns") - before + pl.col("duration_ns")).clip(lower_bound=0)
    parts = parts.with_columns(
        duration_ns=pl.when("on_cpu").then(pl.min_horizontal("duration_ns", left)).otherwise("duration_ns")
    )
    used = parts.filter("on_cpu").group_by("row").agg(used_ns=pl.col("duration_ns").sum())
    rest = rows.join(used, on="row", how="left").with_columns(pl.col("used_ns").fill_null(0))
    work = rest.select(
        "row", cause=pl.lit(ON_CPU), duration_ns=pl.col("cpu_ns") - pl.col("used_ns"), grade=pl.lit("rest")
    ).join(running.select("row", *by), on="row", how="left")
    unseen = rest.select(
        "row", cause=pl.lit(UNKNOWN), duration_ns=pl.col("latency_ns") - pl.col("covered_ns"), grade=pl.lit("rest")
    ).filter(pl.col("duration_ns") > 0)
    both = pl.concat([parts.drop("latency_ns", "cpu_ns", "covered_ns", "on_cpu"), work, unseen], how="diagonal")
    # Uncovered time and lost events form one part, as do softirqs in interrupts and in threads.
    is_estimated = (pl.col("grade") == "estimated").any()
    both = both.sort(pl.col("by_name").is_null(), "duration_ns", descending=[False, True], maintain_order=True)
    return both.group_by("row", "cause", maintain_order=True).agg(
        pl.col("duration_ns").sum(),
        occurrences=pl.when(pl.col("occurrences").is_not_null().any()).then(pl.col("occurrences").sum()),
        grade=pl.when(is_estimated).then(pl.lit("estimated")).otherwise(pl.col("grade").first()),
        by_kind=pl.col("by_kind").first(),
        by_thread_id=pl.col("by_thread_id").first(),
        by_name=pl.col("by_name").first(),
    )
