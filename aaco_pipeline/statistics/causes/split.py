"""Arithmetic of splitting a change: sessions as matrices, rows from two arms' means, the clock's contribution."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.statistics.causes.accounts import (
    AT_THE_ENDS,
    COMMUNICATION,
    COPY,
    GROUP,
    HOST_WAIT,
    SYNC,
    UNKNOWN,
    Account,
)
from aaco_pipeline.statistics.causes.matching import Replaced

Floats = npt.NDArray[np.float64]

#: Minimum difference of log clocks: sampled clocks vary by as much within a run.
LEAST_DIFFERENCE: Final = 0.005
#: Bounds on the slope of the durations relative to the logarithm of the clock ratio.
_AGREES: Final = (0.5, 2.0)


def clock_part(
    before: Floats, after: Floats, mean_count: Floats, compute_ratio: Floats, clocks: tuple[Floats, Floats]
) -> Floats:
    """Part of each kernel's change in duration that the engine clock explains, in ns per iteration.

    `before` and `after` are mean durations (resamples x kernels), `mean_count` the midpoint of counts, `compute_ratio`
    (kernels) as in `Account`, `clocks` the arms' mean clocks in MHz (resamples), NaN without samples. Fits
    log(after / before) = a * compute_ratio, weighted by time; the fit must agree with log(clock before / clock after)
    within a factor of two. The part is then the change that the measured clocks imply, limited to the kernel's own
    change in that direction. Zero otherwise.
    """
    known = (before > 0) & (after > 0)
    ratio = np.log(np.divide(after, before, out=np.ones_like(after), where=known))
    weight = np.where(known, before * mean_count, 0.0)
    moment = (weight * compute_ratio**2).sum(axis=1)
    slope = np.divide((weight * compute_ratio * ratio).sum(axis=1), moment, out=np.zeros_like(moment), where=moment > 0)
    expected = np.nan_to_num(np.log(clocks[0] / clocks[1]))
    moved = np.abs(expected) > LEAST_DIFFERENCE
    agreement = np.divide(slope, expected, out=np.zeros_like(slope), where=moved)
    applies = moved & (agreement > _AGREES[0]) & (agreement < _AGREES[1])
    implied = before * np.expm1(expected[:, None] * compute_ratio) * mean_count
    change = (after - before) * mean_count
    same_way = np.sign(implied) == np.sign(change)
    part = np.sign(implied) * np.minimum(np.abs(implied), np.abs(change))
    return np.where(applies[:, None] & known & same_way, part, 0.0)


#: Kinds of rows.
SELECTION: Final = "selection"
LAUNCHES: Final = "launches"
DURATION: Final = "duration"
COPIES: Final = "copies"
GAPS: Final = "gaps"
OVERLAP: Final = "overlap"
CLOCK: Final = "clock"
UNEXPLAINED: Final = "unexplained"
HIDDEN_HOST: Final = "hidden_host"
HOST_CALLS: Final = "host_calls"
#: Causes of idle time by the host.
_OF_THE_HOST: Final = (HOST_WAIT, "launch_latency", AT_THE_ENDS)
#: Lower bounds on the idle time that belongs to a launch: absolute, and as a fraction of an iteration.
_LAUNCH_PACE_NS: Final = 30_000.0
_OF_ITERATION: Final = 0.1
#: Fraction of launches that are typical.
_OF_TYPICAL: Final = 0.9
#: Without unprofiled latencies, host work can be hidden only if the host waited for the device for at least, and the
#: device for the host for at most, these fractions of an iteration.
_HOST_WAITED: Final = 0.02
_DEVICE_WAITED: Final = 0.1
_REPLACED: Final = ("operator", "position", "normalized_name")


@dataclass(frozen=True)
class Means:
    """Means per iteration over an arm's sessions: resamples, or resamples x groups (x causes)."""

    count: Floats
    busy: Floats
    idle: Floats
    idle_of_none: Floats
    time: Floats
    overlap: Floats
    host: Floats
    waits: Floats
    clock: Floats
    latency: Floats


@dataclass(frozen=True)
class Side:
    """Sessions of an arm as matrices, per iteration: sessions x groups (x causes)."""

    means_of: Means

    @property
    def sessions(self) -> int:
        """The number of sessions."""
        return len(self.means_of.time)

    @classmethod
    def of(cls, accounts: Sequence[Account], groups: pl.DataFrame, causes: Sequence[str]) -> Self:
        """Build the matrices of accounts, with the groups of `matching.groups_of`."""
        number = int(groups.get_column("group").n_unique())
        busy, count = (np.zeros((len(accounts), number)) for _ in range(2))
        idle = np.zeros((len(accounts), number, len(causes)))
        of_none = np.zeros((len(accounts), len(causes)))
        place = {cause: at for at, cause in enumerate(causes)}
        for at, one in enumerate(accounts):
            own = one.groups.join(groups, on=GROUP)
            np.add.at(count[at], own.get_column("group").to_numpy(), own.get_column("count").to_numpy() / one.steps)
            np.add.at(busy[at], own.get_column("group").to_numpy(), own.get_column("busy_ns").to_numpy() / one.steps)
            gaps = one.idle.join(groups, on=GROUP, how="left")
            for group, cause, time in gaps.select("group", "cause", "idle_ns").iter_rows():
                if group is None:
                    of_none[at, place[cause]] += time / one.steps
                else:
                    idle[at, group, place[cause]] += time / one.steps
        return cls(
            Means(
                count=count,
                busy=busy,
                idle=idle,
                idle_of_none=of_none,
                time=np.array([one.time_ns / one.steps for one in accounts]),
                overlap=np.array([one.overlap_ns / one.steps for one in accounts]),
                host=np.array([np.nan if one.host_ns is None else one.host_ns / one.steps for one in accounts]),
                waits=np.array([np.nan if one.waits is None else one.waits / one.steps for one in accounts]),
                clock=np.array([np.nan if one.clock_mhz is None else one.clock_mhz for one in accounts]),
                latency=np.array([np.nan if one.latency_ns is None else one.latency_ns for one in accounts]),
            )
        )

    def means(self, weights: Floats) -> Means:
        """Weighted means; `weights` is resamples x sessions, each row adding up to one."""
        own = self.means_of
        return Means(
            **{name: np.tensordot(weights, getattr(own, name), axes=(1, 0)) for name in Means.__dataclass_fields__}
        )


@dataclass(frozen=True)
class Subjects:
    """Category, subject, short subject, kind of match and compute_ratio of each group."""

    category: tuple[str, ...]
    name: tuple[str, ...]
    short: tuple[str, ...]
    matched_by: tuple[str, ...]
    compute_ratio: Floats

    @classmethod
    def of(cls, groups: pl.DataFrame, arms: Sequence[Sequence[Account]], replaced: Sequence[Replaced]) -> Self:
        """The subjects of the groups of `matching.groups_of`; a replacement is named `before → after`."""
        known = pl.concat([one.groups for side in arms for one in side], how="diagonal_relaxed")
        short = dict(known.select("name", "short_name").unique("name", maintain_order=True).iter_rows())
        ratio = known.group_by("name").agg(pl.col("compute_ratio").mean())
        of_group = (
            groups.join(ratio, on="name", how="left")
            .group_by("group")
            .agg(
                pl.col("category", "matched_by").first(),
                names=pl.col("name").unique().sort(),
                ratio=pl.col("compute_ratio").mean(),
            )
        )
        left = {name for one in replaced for name in one.before}
        came = {name for one in replaced for name in one.after}
        category, name, shorter, by = [], [], [], []
        for row in of_group.sort("group").iter_rows(named=True):
            sides = [row["names"]]
            if row["matched_by"] in _REPLACED:
                sides = [[one for one in row["names"] if one in side] for side in (left, came)]
            category.append(row["category"])
            name.append(" → ".join(" + ".join(side) for side in sides))
            shorter.append(" → ".join(" + ".join(dict.fromkeys(short[one] or one for one in side)) for side in sides))
            by.append(row["matched_by"])
        ratios = of_group.sort("group").get_column("ratio").fill_null(0.0).to_numpy()
        return cls(tuple(category), tuple(name), tuple(shorter), tuple(by), ratios)


@dataclass(frozen=True)
class Row:
    """One cause: its part of the change, split into count and duration, with counts and times on both sides."""

    kind: str
    subject: str
    short: str
    delta: Floats
    count_part: Floats | None = None
    duration_part: Floats | None = None
    counts: tuple[Floats | None, Floats | None] = (None, None)
    times: tuple[Floats | None, Floats | None] = (None, None)
    matched_by: str | None = None
    in_sum: bool = True


def pace_ns(sides: Sequence[Side]) -> float:
    """Return the longest idle time that belongs to a launch: not exceeded by nine in ten launches of both arms.

    It is at least 30 us, or a tenth of an iteration if that is longer. For a kernel that only one arm runs, up to this
    much idle time before each launch is attributed to the kernel; longer idle time has another cause.
    """
    counts = np.concatenate([side.means_of.count.sum(axis=0) / side.sessions for side in sides])
    idle = np.concatenate([side.means_of.idle.sum(axis=(0, 2)) / side.sessions for side in sides])
    ran = counts > 0
    each, weight = idle[ran] / counts[ran], counts[ran]
    order = np.argsort(each, kind="stable")
    reached = np.cumsum(weight[order])
    usual = float(each[order][np.searchsorted(reached, _OF_TYPICAL * reached[-1])]) if len(reached) else 0.0
    shortest = min(float(side.means_of.time.min()) for side in sides)
    return max(usual, _LAUNCH_PACE_NS, _OF_ITERATION * shortest)


def rows_of(before: Means, after: Means, subjects: Subjects, causes: Sequence[str], pace: float) -> list[Row]:
    """Return all rows of the split of two arms' means, in the same order for all resamples; `pace` as in `pace_ns`."""
    by_count, by_duration = _midpoint(before.count, before.busy, after.count, after.busy)
    both = ((before.count > 0) & (after.count > 0))[..., None]
    paced = [np.where(both, side.idle, _at_pace(side, pace)) for side in (before, after)]
    idle_count, _ = _midpoint(before.count[..., None], paced[0], after.count[..., None], paced[1])
    idle_rest = after.idle - before.idle - idle_count
    idle_count = idle_count.sum(axis=2)
    of_clock = _of_clock(before, after, subjects, by_duration)
    by_duration = by_duration - of_clock
    rows = list(_of_kernels(before, after, subjects, by_count + idle_count, by_duration))
    known = [at for at, cause in enumerate(causes) if cause != UNKNOWN]
    between = idle_rest.sum(axis=1) + after.idle_of_none - before.idle_of_none
    whole = [side.idle.sum(axis=1) + side.idle_of_none for side in (before, after)]
    rows += [
        Row(
            GAPS,
            causes[at],
            causes[at],
            between[:, at],
            counts=(before.waits, after.waits) if causes[at] == SYNC else (None, None),
            times=(whole[0][:, at], whole[1][:, at]),
        )
        for at in known
    ]
    rows.append(Row(OVERLAP, OVERLAP, OVERLAP, before.overlap - after.overlap, times=(before.overlap, after.overlap)))
    if not (np.isnan(before.clock) | np.isnan(after.clock)).any():
        rows.append(Row(CLOCK, CLOCK, CLOCK, of_clock.sum(axis=1), counts=(before.clock, after.clock)))
    rows.append(Row(UNEXPLAINED, UNKNOWN, UNKNOWN, between[:, list(causes).index(UNKNOWN)]))
    if _may_hide(before, causes) and _may_hide(after, causes):
        hidden = _hidden(before, after, causes)
        rows.append(Row(HIDDEN_HOST, "host", "host", hidden, times=(before.host, after.host), in_sum=False))
    return rows


def _midpoint(count0: Floats, time0: Floats, count1: Floats, time1: Floats) -> tuple[Floats, Floats]:
    """Split time1 - time0 by count and by duration; all by count if one side never ran."""
    both = (count0 > 0) & (count1 > 0)
    each0, each1 = (
        np.divide(time, count, out=np.zeros(np.broadcast(time, count).shape), where=np.broadcast_to(both, time.shape))
        for time, count in ((time0, count0), (time1, count1))
    )
    of_count = np.where(both, (count1 - count0) * (each0 + each1) / 2, time1 - time0)
    return of_count, np.where(both, (each1 - each0) * (count0 + count1) / 2, 0.0)


def _at_pace(side: Means, pace: float) -> Floats:
    """Return the idle time before each group's launches, limited to `pace` per launch."""
    whole = side.idle.sum(axis=2)
    part = np.divide(side.count * pace, whole, out=np.zeros_like(whole), where=whole > 0)
    paced: Floats = side.idle * np.minimum(part, 1.0)[..., None]
    return paced


def _of_clock(before: Means, after: Means, subjects: Subjects, by_duration: Floats) -> Floats:
    """Return the part of each kernel's duration by `clock_part`; zero for replaced kernels, copies and collectives."""
    kept = np.array([category not in (COPY, COMMUNICATION) for category in subjects.category])
    kept &= np.array([by not in _REPLACED for by in subjects.matched_by])
    means = [
        np.divide(side.busy, side.count, out=np.zeros_like(side.busy), where=side.count > 0) for side in (before, after)
    ]
    ratios = np.where(kept, subjects.compute_ratio, 0.0)
    part = clock_part(means[0], means[1], (before.count + after.count) / 2, ratios, (before.clock, after.clock))
    return np.where(by_duration == 0.0, 0.0, part)


def _of_kernels(
    before: Means, after: Means, subjects: Subjects, by_count: Floats, by_duration: Floats
) -> Iterator[Row]:
    """Rows of kernels and copies, by name."""
    members: dict[tuple[str, str, str], list[int]] = {}
    for at, (category, name, by) in enumerate(zip(subjects.category, subjects.name, subjects.matched_by, strict=True)):
        kind = {COPY: COPIES, COMMUNICATION: COMMUNICATION}.get(category, LAUNCHES)
        members.setdefault((SELECTION if by in _REPLACED else kind, category, name), []).append(at)
    for (kind, _, name), own in members.items():
        of_count, of_duration, counts0, counts1, times0, times1 = (
            values[:, own].sum(axis=1)
            for values in (by_count, by_duration, before.count, after.count, before.busy, after.busy)
        )
        both = partial(
            Row,
            subject=name,
            short=subjects.short[own[0]],
            matched_by=subjects.matched_by[own[0]],
            counts=(counts0, counts1),
            times=(times0, times1),
        )
        if kind == LAUNCHES:
            yield both(LAUNCHES, delta=of_count, count_part=of_count)
            yield both(DURATION, delta=of_duration, duration_part=of_duration)
        else:
            yield both(kind, delta=of_count + of_duration, count_part=of_count, duration_part=of_duration)


def _may_hide(side: Means, causes: Sequence[str]) -> bool:
    """Return whether host work may overlap with the device; false if the device waits for the host."""
    if np.isnan(side.host).any():
        return False
    if not np.isnan(side.latency).any():
        return True
    idle = (side.idle.sum(axis=1) + side.idle_of_none)[:, _of_the_host(causes)].sum(axis=1)
    waited = (side.time - side.host).mean() >= _HOST_WAITED * side.time.mean()
    return bool(waited and idle.mean() <= _DEVICE_WAITED * side.time.mean())


def _of_the_host(causes: Sequence[str]) -> list[int]:
    return [place for place, cause in enumerate(causes) if cause in _OF_THE_HOST]


def _hidden(before: Means, after: Means, causes: Sequence[str]) -> Floats:
    """Return the change of host work that did not change the iteration.

    The visible part is the change of the unprofiled latency if both arms have it, because a recorder slows the host;
    else the change of idle time caused by the host.
    """
    longer = after.host - before.host
    shown = after.latency - before.latency
    idle = [
        (side.idle.sum(axis=1) + side.idle_of_none)[:, _of_the_host(causes)].sum(axis=1) for side in (before, after)
    ]
    shown = np.where(np.isnan(shown), idle[1] - idle[0], shown)
    return longer - np.clip(shown, np.minimum(longer, 0.0), np.maximum(longer, 0.0))
