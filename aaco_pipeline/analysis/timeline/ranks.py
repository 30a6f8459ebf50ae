"""Align the clocks of a job's processes.

Processes of one host whose tracer used one clock already share a time axis. Others are compared through the collectives
in which both took part. An operation that no rank can finish before the last has begun ends everywhere at nearly the
same moment, so the difference of its ends is the clock offset. There is also a strict bound: on every rank, such an
operation ends after it has begun on every other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.activities import COMMUNICATION, device_activities, timed
from aaco_pipeline.analysis.timeline.collectives import (
    SYNCHRONIZING,
    Matched,
    collectives,
    matched,
    parts,
    put_together,
)
from aaco_pipeline.lake.contracts import polars_types

SAME_PROCESS: Final = "same_process"
SAME_HOST: Final = "same_host"
COLLECTIVES: Final = "collectives"
NONE: Final = "none"
#: From this many collectives on, their spread counts: the probability that all ends err to one side is then 2 in 1,024.
ENOUGH: Final = 10
#: A drift is accepted if its slope is this many standard errors away from zero.
SIGNIFICANCE: Final = 5.0
_ONE_CLOCK: Final = "one clock was read; how well the tracer places device times on it is not stated"
Numbers = npt.NDArray[np.int64]
_ROW: Final = {**polars_types("rank_clocks"), "clock": pl.Int32()}


@dataclass(frozen=True)
class Estimate:
    """The offset to add to a clock, correct within `uncertainty_ns`; None with a reason."""

    offset_ns: int | None
    uncertainty_ns: int | None
    drift_ratio: float | None
    anchor_ns: int | None
    collectives: int
    reason: str | None


@dataclass(frozen=True)
class Ends:
    """The last start and the first end of each collective, in ns, on the clock to align and on the reference's."""

    start: Numbers
    end: Numbers
    reference_start: Numbers
    reference_end: Numbers


@dataclass(frozen=True)
class Ranks:
    """The processes' clocks and parts in collectives, in analysis columns, and the reasons for unmatched parts.

    `numbered`: the capture numbers the collectives; `described`: it states the communicator of at least one.
    """

    clocks: pl.DataFrame
    collectives: pl.DataFrame
    unmatched: pl.DataFrame
    numbered: bool
    described: bool


def ranks_of(tables: Mapping[str, pl.DataFrame], activities: pl.DataFrame, calls: pl.DataFrame) -> Ranks:
    """Clocks and collectives over the complete capture, because communicator sequence numbers start with it.

    `tables` are dispatches, memory_copies, kernels, api_calls, markers, processes and clock_domains; `activities` and
    `calls` come from `recorded` and cover only the measured iterations.
    """
    if (activities.get_column("category") == COMMUNICATION).any():
        activities = device_activities(timed(tables["dispatches"]), tables["memory_copies"], tables["kernels"], calls)
    own = parts(activities, tables["markers"], tables["api_calls"])
    described = own.is_empty() or own.get_column("communicator").is_not_null().any()
    if not described:
        clocks_read = _clocks(tables["processes"], tables["clock_domains"])
        own = put_together(own, activities, tables["kernels"], clocks_read)
    together = matched(own)
    clocks = rank_clocks(tables["processes"], tables["clock_domains"], together)
    found = collectives(together, clocks, activities)
    if not described:  # the number of matched parts is not a number stated by the capture
        found = found.with_columns(expected_participants=pl.lit(None, pl.Int64))
    numbered = bool(together.parts.get_column("numbered").all())
    return Ranks(clocks, found, together.unmatched, numbered, described)


def rank_clocks(processes: pl.DataFrame, clock_domains: pl.DataFrame, matched: Matched) -> pl.DataFrame:
    """Compute rows of the table `rank_clocks` without the session, and `clock`, equal for processes with one clock.

    The reference is the process with the lowest rank, or the lowest number if no rank is stated. An estimate uses
    collectives in which processes of both clocks took part; clocks connected only through a third one have no estimate.
    """
    if not processes.height:
        return pl.DataFrame(schema=_ROW)
    own = _clocks(processes, clock_domains)
    reference = own.sort("rank", "process_id", nulls_last=True).row(0, named=True)
    shared = _shared(matched.parts, own.select("process_id", "clock"), reference["clock"])
    estimates = {clock: _from_collectives(shared, clock) for clock in own.get_column("clock").unique()}
    rows = []
    for process, clock in own.select("process_id", "clock").iter_rows():
        if process == reference["process_id"]:
            method, found = SAME_PROCESS, Estimate(0, 0, None, None, 0, None)
        elif clock == reference["clock"]:
            method, found = SAME_HOST, Estimate(0, 0, None, None, 0, _ONE_CLOCK)
        else:
            found = estimates[clock]
            method = NONE if found.offset_ns is None else COLLECTIVES
        rows.append(
            {"process_id": process, "reference_process_id": reference["process_id"], "method": method, "clock": clock}
            | vars(found)
        )
    return pl.DataFrame(rows, schema=_ROW).sort("process_id")


def estimate(ends: Ends) -> Estimate:
    """Estimate the offset to add to a clock's times, from the collectives that both clocks recorded.

    It is the median difference of the ends, after removing a linear drift if that is significant (least squares). Its
    uncertainty is the largest deviation from it, from `ENOUGH` collectives on, and at most the bound set by the
    collectives: max(reference start - end) <= offset <= min(reference end - start).
    """
    count = len(ends.end)
    if not count:
        reason = "no collective that holds all ranks until the last has begun was found on both clocks"
        return Estimate(None, None, None, None, 0, reason)
    difference = ends.reference_end - ends.end
    anchor = int(ends.end[np.argsort(ends.end, kind="stable")[count // 2]])
    drift = _drift(ends.end - anchor, difference) if count >= ENOUGH else None
    grown = np.zeros(count, np.int64) if drift is None else np.rint((ends.end - anchor) * drift).astype(np.int64)
    lowest = int((ends.reference_start - ends.end - grown).max())
    highest = int((ends.reference_end - ends.start - grown).min())
    if lowest > highest:
        reason = "the collectives contradict one another: no offset lets each end after all ranks have begun it"
        return Estimate(None, None, None, None, count, reason)
    offset = min(max(_median(difference - grown), lowest), highest)
    bound = max(highest - offset, offset - lowest)
    spread = int(np.abs(difference - grown - offset).max())
    if drift is not None:
        return Estimate(offset, min(bound, spread), drift, anchor, count, "the clocks drift: the offset changes")
    if count >= ENOUGH:
        return Estimate(offset, min(bound, spread), None, None, count, None)
    reason = f"fewer than {ENOUGH} collectives: the uncertainty is what their lengths allow, not their spread"
    return Estimate(offset, bound, None, None, count, reason)


def _clocks(processes: pl.DataFrame, clock_domains: pl.DataFrame) -> pl.DataFrame:
    """Processes (process_id, rank) with a number that is equal if their times were read from one clock."""
    hosts = processes.get_column("host").n_unique()
    # A host's clock that could not be linked to another has no uncertainty. If there are more of these than hosts, one
    # host was traced with several clocks, and it is unknown which process used which.
    untied = clock_domains.filter((pl.col("domain") != "realtime") & pl.col("uncertainty_ns").is_null()).height
    one_each = pl.lit(untied < hosts)
    name = (
        pl.when(one_each & pl.col("host").is_not_null())
        .then(pl.format("host {}", "host"))
        # Processes with the same identifier belong to one capture.
        .when(pl.col("guid").is_not_null())
        .then(pl.format("capture {}", "guid"))
        .otherwise(pl.format("process {}", "process_id"))
    )
    return processes.select("process_id", "rank", clock=(name.rank("dense") - 1).cast(pl.Int32))


def _shared(parts: pl.DataFrame, clocks: pl.DataFrame, reference: int) -> pl.DataFrame:
    """Return the columns of `Ends` for each collective and non-reference clock, if both took part."""
    usable = parts.filter(pl.col("matched") & pl.col("name").is_in(SYNCHRONIZING) & (pl.col("participants") > 1))
    each = (
        usable.join(clocks, on="process_id")
        .group_by("collective_id", "clock")
        .agg(start=pl.col("start_ns").max(), end=pl.col("end_ns").min())
    )
    there = each.filter(pl.col("clock") == reference).select(
        "collective_id", reference_start="start", reference_end="end"
    )
    return each.filter(pl.col("clock") != reference).join(there, on="collective_id").sort("clock", "end")


def _from_collectives(shared: pl.DataFrame, clock: int) -> Estimate:
    own = shared.filter(pl.col("clock") == clock)
    columns = (own.get_column(name).to_numpy() for name in ("start", "end", "reference_start", "reference_end"))
    return estimate(Ends(*columns))


def _drift(time: Numbers, difference: Numbers) -> float | None:
    """Return the slope of the differences over time if it is significant, else None."""
    x = time - time.mean()
    y = (difference - difference[0]).astype(np.float64)
    y -= y.mean()
    spread = float(x @ x)
    if not spread:
        return None
    slope = float(x @ y) / spread
    residual = y - slope * x
    error = float(np.sqrt((residual @ residual) / max(len(x) - 2, 1) / spread))
    # A slope that changes no time by a nanosecond is a rounding error.
    if abs(slope) <= SIGNIFICANCE * error or abs(slope) * float(np.ptp(time)) < 2:
        return None
    return slope


def _median(values: Numbers) -> int:
    """Return the median in whole ns, rounded down between two values."""
    ordered = np.sort(values)
    return int(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2
