"""Select the steady part of a recording, the interval that represents the workload, and find its outliers.

`sections` finds the candidates, `repetition` the repeating patterns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.steady.first_calls import LOADING, autotuning, copies_beside, first_calls, time_of
from aaco_pipeline.analysis.steady.repetition import LEAST_LENGTH
from aaco_pipeline.analysis.steady.sections import (
    LEAST_INTERRUPTION_NS,
    LONG_PERIODS,
    MARKED,
    Section,
    few_alike,
    marked,
    repeated,
)
from aaco_pipeline.analysis.timeline.activities import Recorded, device_activities, group_codes, host_calls, timed
from aaco_pipeline.lake.contracts import polars_types

#: With fewer warm dispatches, the usual duration is unknown.
_LEAST_WARM: Final = 8
#: The outer fence of Tukey (1977): this many interquartile ranges beyond the quartiles.
_FENCE: Final = 3
#: A dispatch that differs by less than this fraction of the median is no outlier: clocks and caches vary by as much.
_LEAST_SHARE: Final = 0.5
#: Dispatches that exceed this fraction of a part are a different mode, such as another shape, not outliers.
_MOST_SHARE: Final = 0.1
#: Clocks drop in idle time before a dispatch if it is this many usual durations, and nanoseconds, long.
_IDLE_DURATIONS: Final = 10
_IDLE_NS: Final = 1_000_000
_ALIKE: Final = ("device_id", "kernel_id", "work_items", "group")


def outliers(activities: pl.DataFrame, dispatches: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Dispatches beyond the outer fences of the warm ones of their kernel, device, grid and work-group size.

    Warm dispatches begin in a steady part. The fences are Q1 - 3 (Q3 - Q1) and Q3 + 3 (Q3 - Q1) by nearest rank, and at
    least half the median from the quartile; `warm_spread_ns` is Q3 - Q1. Causes are possibilities that the recording
    does not rule out, most likely first; the list is empty without evidence.
    """
    run = _with_parts(_with_sizes(activities, dispatches), parts)
    length = pl.col("duration_ns")
    # A kernel's very first dispatch never counts among its warm ones.
    warm = run.filter((pl.col("part") == "steady") & ~pl.col("first"))
    usual = _usual(warm).with_columns(warm_spread_ns=pl.col("high") - pl.col("low"))
    away = pl.max_horizontal(_FENCE * pl.col("warm_spread_ns"), _LEAST_SHARE * pl.col("warm_median_ns"))
    slow, fast = length > pl.col("high") + away, length < pl.col("low") - away
    judged = run.join(usual, on=_ALIKE, nulls_equal=True).with_columns(slow=slow, far=slow | fast)
    in_part = (*_ALIKE, "part")
    many = (pl.len().over(in_part) >= _LEAST_WARM) & (pl.col("far").mean().over(in_part) > _MOST_SHARE)
    found = judged.filter(~many).filter("far")
    columns = polars_types("outlier_dispatches")
    return found.with_columns(possible_causes=_causes()).select(*columns).sort("start_ns", "dispatch_id")


def _with_sizes(activities: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Add sizes to the dispatches, the device's previous idle time, and whether other work overlapped."""
    reached = pl.col("end_ns").cum_max().shift(1).over("device_id")
    following = pl.col("start_ns").shift(-1).over("device_id")
    grid = pl.coalesce("grid_work_items", pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z"))
    group = pl.coalesce("workgroup_work_items", pl.col("workgroup_x") * pl.col("workgroup_y") * pl.col("workgroup_z"))
    sizes = dispatches.select(pl.col("dispatch_id").cast(pl.Int32), work_items=grid, group=group)
    return (
        activities.select(
            "activity_kind",
            "device_id",
            "kernel_id",
            "category",
            "start_ns",
            dispatch_id="activity_id",
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            idle_ns=pl.col("start_ns") - reached,
            beside=(reached > pl.col("start_ns")) | (following < pl.col("end_ns")),
        )
        .filter(pl.col("activity_kind") == "dispatch")
        .with_columns(first=pl.struct("device_id", "kernel_id").is_first_distinct())
        .join(sizes, on="dispatch_id", how="left", maintain_order="left")
    )


def _with_parts(run: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Add to each dispatch the part of its device in which it begins."""
    borders = parts.select("device_id", "part", since_ns="start_ns").sort("since_ns")
    return run.sort("start_ns", maintain_order=True).join_asof(
        borders, left_on="start_ns", right_on="since_ns", by="device_id", strategy="backward", check_sortedness=False
    )


def _causes() -> pl.Expr:
    slow = pl.col("slow")
    idle = (pl.col("idle_ns") >= _IDLE_NS) & (pl.col("idle_ns") >= _IDLE_DURATIONS * pl.col("warm_median_ns"))
    causes = (
        (
            slow & pl.col("first"),
            "first recorded dispatch of its kernel: first touch of its memory, page faults, cold caches",
        ),
        (slow & (pl.col("part") == "set_up"), "before the steady part: clocks and caches not warm yet"),
        (slow & (pl.col("category") == "communication"), "a collective: it waits for the last of the ranks"),
        (slow & idle.fill_null(False), "the device had been idle: clocks fell, caches were lost"),
        (slow & pl.col("beside").fill_null(False), "other work ran on the device beside it"),
        (~slow, "shorter than the others: it may have had less to do"),
    )
    named = pl.concat_list(pl.when(holds).then(pl.lit(cause)) for holds, cause in causes)
    return named.list.drop_nulls()


def _usual(warm: pl.DataFrame) -> pl.DataFrame:
    """Usual durations of dispatches equal in `_ALIKE`, if there are enough: median, lower and upper quartile.

    One sort of all durations serves every group: there may be nearly as many groups as dispatches.
    """
    codes = group_codes(warm, _ALIKE)
    lengths = warm.get_column("duration_ns").to_numpy()
    order = np.lexsort((lengths, codes))
    opens = np.flatnonzero(np.diff(codes[order], prepend=-1))
    number = np.diff(opens, append=len(order))
    enough = number >= _LEAST_WARM
    opens, number = opens[enough], number[enough]

    def rank(share: float) -> pl.Series:
        """The smallest value that at least this fraction of the group does not exceed, by nearest rank."""
        place = np.maximum(np.ceil(number * share).astype(np.int64), 1) - 1
        return pl.Series(lengths[order[opens + place]], dtype=pl.Int64)

    return warm[order[opens]].select(
        *_ALIKE,
        warm_median_ns=rank(0.5),
        low=rank(0.25),
        high=rank(0.75),
        warm_dispatches=pl.Series(number, dtype=pl.Int64),
    )


#: Tables that `steady_part` reads.
STEADY_FROM: Final = ("dispatches", "iterations", "memory_copies", "kernels", "api_calls")
SET_UP: Final = "set_up"
STEADY: Final = "steady"
TEAR_DOWN: Final = "tear_down"
INTERRUPTION: Final = "interruption"
#: Remark on a steady part that contains more than complete repetitions.
CUT_OFF: Final = "with the work beside them that the recording cut off"
COLD_START: Final = "cold_start"
INCOMPLETE: Final = "incomplete"
#: Long idle times interrupt the steady part if they are rare: at most one in this many repetitions. Fewer repetitions
#: cannot show rarity.
_RARE: Final = 20
_REPETITIONS_TO_BE_RARE: Final = 10
_UNITS: Final = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000))
_FOREIGN_SHARE: Final = 0.5
#: A recording is cold when first-call work takes this share of its window, and loading and initializing alone this one.
#: A recording is cold when first-call work takes this share of its window, and loading and initializing alone this one.
_COLD_RECORDING: Final = 0.1
_COLD_LOADING: Final = 0.01
_PARTS: Final = polars_types("session_parts", "device_id", "part", "start_ns", "end_ns", "reason", "phase", "lacking")


@dataclass(frozen=True)
class Repetition:
    """Repeated work in a device's steady part; `median_period_ns` is measured from one start to the next."""

    device_id: int
    period_activities: int
    repetitions: int
    median_period_ns: int


@dataclass(frozen=True)
class SteadyPart:
    """The steady part of a session and the parts around it.

    `parts`: device_id, part (`set_up`, `steady`, `tear_down` or `interruption`), start_ns, end_ns, reason, phase and
    lacking, by device and time; the parts of a device add up exactly to its window from first to last activity. phase
    numbers the other intervals that repeat something different; it is null for all other parts. A device without a
    steady part has one `set_up`, and lacking is the reason: `cold_start` or `incomplete`; null otherwise. `repetition`:
    that of the device with the longest steady part; None if nothing repeats. `outliers`: see `outliers`. `first_calls`:
    the table's columns, including copies before and after the steady part.
    """

    parts: pl.DataFrame
    repetition: Repetition | None
    outliers: pl.DataFrame
    first_calls: pl.DataFrame


def steady_part(tables: Mapping[str, pl.DataFrame], run: Recorded | None = None) -> SteadyPart:
    """Find the steady part of a session from its tables named in `STEADY_FROM`, as stored in the lake.

    `run` is the result of `recorded` on the same tables, if available, to avoid repeating work.
    """
    dispatches, copies = timed(tables["dispatches"]), timed(tables["memory_copies"])
    calls = host_calls(tables["api_calls"]) if run is None else run.calls
    # Measured iterations may omit dispatches, and a copy may have unusable times.
    usable = (dispatches.height, copies.height)
    if run is not None and (run.dispatches.height, tables["memory_copies"].height) == usable:
        every = run.activities
    else:
        every = device_activities(dispatches, copies, tables["kernels"], calls)
    activities = every.drop_nulls("device_id")
    first = first_calls(calls, activities, copies)
    coded = _coded(activities, dispatches, copies)
    rows: list[dict[str, Any]] = []
    found: list[tuple[int, Repetition]] = []
    for (device,), own in coded.group_by("device_id", maintain_order=True):
        judged_rows, section = _device(own, tables["iterations"], first)
        rows += [{"device_id": device, **row} for row in judged_rows]
        length = sum(row["end_ns"] - row["start_ns"] for row in judged_rows if row["part"] == STEADY)
        if section is not None:
            size = section.period_activities, section.repetitions, section.period_ns
            found.append((length, Repetition(int(str(device)), *size)))
    parts = pl.DataFrame(rows, schema=_PARTS)
    return SteadyPart(
        parts,
        max(found, key=lambda one: one[0])[1] if found else None,
        outliers(activities, dispatches, parts),
        _with_surroundings(first, parts, calls, activities),
    )


def _coded(activities: pl.DataFrame, dispatches: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """Add `code`, the kernel or the direction of a copy, and `size`, its work-items or -1 if unknown."""
    kinds = activities.schema["activity_kind"]
    grid = pl.coalesce("grid_work_items", pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z"))
    kernels = dispatches.select(
        pl.lit("dispatch", kinds).alias("activity_kind"),
        pl.col("dispatch_id").cast(pl.Int32).alias("activity_id"),
        code=pl.col("kernel_id").cast(pl.Int64),
        size=grid.fill_null(-1),
    )
    ways = copies.select(
        pl.lit("memory_copy", kinds).alias("activity_kind"),
        pl.col("copy_id").cast(pl.Int32).alias("activity_id"),
        code=-1 - pl.col("direction").fill_null("").rank("dense").cast(pl.Int64),
        size=pl.lit(0, pl.Int64),
    )
    return activities.join(
        pl.concat([kernels, ways]), on=["activity_kind", "activity_id"], how="left", maintain_order="left"
    )


def _device(
    own: pl.DataFrame, iterations: pl.DataFrame, first: pl.DataFrame
) -> tuple[list[dict[str, Any]], Section | None]:
    """Return the parts of one device, and the repeating section in its steady part."""
    window = _window(own)
    calls_known = own.get_column("call_id").null_count() < own.height
    since = min(window[0], int(first.item(0, "start_ns"))) if first.height else window[0]
    loading = first.filter(pl.col("kind").is_in(LOADING))
    cold_ns, loading_ns = (_taken(some, (since, window[1])) for some in (first, loading))
    length = max(window[1] - window[0], 1)
    cold = cold_ns >= _COLD_RECORDING * length or loading_ns >= _COLD_LOADING * length
    section = marked(own, iterations, first)
    if section is None and not _is_marked(own, iterations):
        short = own.height < LEAST_LENGTH
        section = few_alike(own) if short else repeated(own, first, warm=calls_known and not cold)
    if section is not None:
        span = (section.start_ns, section.end_ns)
        # A program run by this package is recorded completely, so nothing is cut off.
        whole = (iterations.get_column("phase") == "warmup").any() or iterations.get_column("run").is_not_null().any()
        if calls_known and not cold and not whole:
            span = _widened(own, section)
        return _around(own, section, span, first), section
    if calls_known and not cold and own.height >= LEAST_LENGTH and not _is_marked(own, iterations):
        reason = "recording began and ended in the midst of work: no host call in it does the work of a first time"
        return [_row(STEADY, window, reason)], None
    return [_without(own, window, cold_ns if cold else None, calls_known=calls_known)], None


def _taken(first: pl.DataFrame, span: tuple[int, int]) -> int:
    return int(time_of(first, np.array([span[0]]), np.array([span[1]]))[0])


def _window(own: pl.DataFrame) -> tuple[int, int]:
    return int(own.get_column("start_ns").to_numpy().min()), int(own.get_column("end_ns").to_numpy().max())


def _is_marked(own: pl.DataFrame, iterations: pl.DataFrame) -> bool:
    """Return whether this device's work lies in marked iterations."""
    return bool((iterations.get_column("pass") == "trace").any() and own.get_column("iteration").is_not_null().any())


def _widened(own: pl.DataFrame, section: Section) -> tuple[int, int]:
    """Extend the section by the surrounding work if the recording began and ended in the middle of work.

    Work before and after belongs to a repetition that was cut off, unless it is longer than one and mostly consists of
    kernels that the repetition does not have. Anything longer than a few marked iterations was left unmarked on
    purpose, such as a set-up or a warm-up.
    """
    window = _window(own)
    inside = (pl.col("start_ns") >= section.start_ns) & (pl.col("end_ns") <= section.end_ns)
    codes = own.filter(inside).get_column("code").unique()
    span = [section.start_ns, section.end_ns]
    for side, outside in enumerate((pl.col("start_ns") < span[0], pl.col("end_ns") > span[1])):
        around = own.filter(outside)
        foreign = around.filter(~pl.col("code").is_in(codes.implode())).height
        known = foreign < _FOREIGN_SHARE * around.height
        if section.found_by == MARKED:
            known &= abs(span[side] - window[side]) <= LONG_PERIODS * section.period_ns
        cut_off = around.height <= section.period_activities or known
        if cut_off and not section.phases:
            span[side] = window[side]
    return span[0], span[1]


def _around(own: pl.DataFrame, section: Section, span: tuple[int, int], first: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the parts around and in a steady section that covers `span`."""
    window = _window(own)
    what = "marked iteration" if section.found_by == MARKED else "repetition"
    steady = f"{_number(section.repetitions, what)} of {_number(section.period_activities, 'activity')}"
    if span != (section.start_ns, section.end_ns):
        steady += f", {CUT_OFF}"
    rows = _cut(SET_UP, own, (window[0], span[0]), section.phases, first)
    inside = sorted([*_idle(own, section), *section.foreign])
    at = span[0]
    for start, end, reason in inside:
        begin, over = max(start, at), min(end, span[1])
        if begin < over:
            rows += [_row(STEADY, (at, begin), steady), _row(INTERRUPTION, (begin, over), reason)]
            at = over
    rows.append(_row(STEADY, (at, span[1]), steady))
    rows += _cut(TEAR_DOWN, own, (span[1], window[1]), section.phases, first)
    return [row for row in rows if row["end_ns"] > row["start_ns"]] or [_row(STEADY, window, steady)]


def _cut(
    part: str, own: pl.DataFrame, span: tuple[int, int], phases: tuple[tuple[int, int, str], ...], first: pl.DataFrame
) -> list[dict[str, Any]]:
    """Return the parts outside the steady part, with their phases as separate rows."""
    rows, at = [], span[0]
    for number, (start, end, what) in enumerate(sorted(phases)):
        # Idle time after a phase belongs to that phase.
        following = own.filter(pl.col("start_ns") >= end).get_column("start_ns").min()
        begin, over = max(start, at), min(span[1] if following is None else int(str(following)), span[1])
        if begin < over:
            rows.append(_row(part, (at, begin), _contents(own, (at, begin), first)))
            rows.append({**_row(part, (begin, over), f"another phase: {what}"), "phase": number})
            at = over
    return [*rows, _row(part, (at, span[1]), _contents(own, (at, span[1]), first))]


def _contents(own: pl.DataFrame, span: tuple[int, int], first: pl.DataFrame) -> str:
    """Describe the activities of a non-steady interval, and the amount of first-call work in it."""
    kinds = own.filter((pl.col("start_ns") >= span[0]) & (pl.col("start_ns") < span[1])).get_column("activity_kind")
    copies = int((kinds == "memory_copy").sum())
    counted = ((len(kinds) - copies, "dispatch"), (copies, "copy"))
    began = " and ".join(_number(count, what) for count, what in counted if count) or "nothing began"
    cold_ns = _taken(first, span)
    cold = f"; first-call work took {_time(cold_ns)} of it" if cold_ns else ""
    return f"{began} outside the repetition{cold}"


def _number(count: int, what: str) -> str:
    several = {"activity": "activities", "dispatch": "dispatches", "copy": "copies"}
    return f"{count} {what if count == 1 else several.get(what, what + 's')}"


def _idle(own: pl.DataFrame, section: Section) -> list[tuple[int, int, str]]:
    """Find rare long idle times of the device between the first and last activity of the section."""
    if section.repetitions < _REPETITIONS_TO_BE_RARE:
        return []
    limit = max(LONG_PERIODS * section.period_ns, LEAST_INTERRUPTION_NS)
    gaps = (
        own.select("start_ns", reached=pl.col("end_ns").cum_max().shift(1))
        .filter((pl.col("reached") >= section.start_ns) & (pl.col("start_ns") <= section.end_ns))
        .filter(pl.col("start_ns") - pl.col("reached") > limit)
    )
    if gaps.height > max(1, section.repetitions // _RARE):
        return []
    return [
        (end, start, f"the device was idle for {(start - end) / section.period_ns:.3g} periods")
        for start, end in gaps.iter_rows()
    ]


def _without(own: pl.DataFrame, window: tuple[int, int], cold_ns: int | None, *, calls_known: bool) -> dict[str, Any]:
    """Return the single part of a device without a steady part."""
    spent = int(own.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item())
    what = f"{_number(own.height, 'activity')} of {_time(spent)} in {_time(window[1] - window[0])}"
    if cold_ns is not None:
        reason = f"{what}; first calls take {_time(cold_ns)} before and between them, and nothing repeats"
        return {**_row(SET_UP, window, reason), "lacking": COLD_START}
    if own.height < LEAST_LENGTH:
        reason = f"{what} are too few to tell steady work from set-up"
    elif calls_known:
        reason = f"{what}, and no warm iteration is whole"
    else:
        reason = f"nothing repeats in {what}, and no host calls were recorded"
    return {**_row(SET_UP, window, reason), "lacking": INCOMPLETE}


def _time(nanoseconds: float) -> str:
    """Format a time with three significant digits in the largest unit that does not exceed it."""
    unit, length = next(((unit, length) for unit, length in _UNITS if nanoseconds >= length), ("ns", 1))
    return f"{nanoseconds / length:.3g} {unit}"


def _row(part: str, span: tuple[int, int], reason: str) -> dict[str, Any]:
    return {"part": part, "start_ns": span[0], "end_ns": span[1], "reason": reason, "phase": None, "lacking": None}


def _with_surroundings(
    first: pl.DataFrame, parts: pl.DataFrame, calls: pl.DataFrame, activities: pl.DataFrame
) -> pl.DataFrame:
    """Return the first calls, with copies outside the steady part and trials of kernels before it."""
    steady = parts.filter(pl.col("part") == STEADY)
    if steady.is_empty():
        return pl.concat([first, autotuning(activities, pl.Series([], dtype=pl.Int32))], how="diagonal").sort(
            "start_ns", "end_ns"
        )
    started = int(steady.get_column("start_ns").to_numpy().min())
    ended = int(steady.get_column("end_ns").to_numpy().max())
    inside = (pl.col("start_ns") >= started) & (pl.col("end_ns") <= ended)
    kernels = activities.filter(inside).get_column("kernel_id").drop_nulls().unique()
    tried = autotuning(activities.filter(pl.col("start_ns") < started), kernels)
    beside = copies_beside(calls, started, ended).join(first.select("call_id"), on="call_id", how="anti")
    return (
        pl.concat([first, tried, beside], how="diagonal")
        .select(*first.columns)
        .sort("start_ns", "end_ns", maintain_order=True)
    )
