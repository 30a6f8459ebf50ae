"""Time of each device in a window: busy, idle, computing, and exposed copies and communication.

Every start and end is an event; between two events the set of open activities is constant. The covered time up to any
instant is a running sum, and a window's figure is the difference of two of them, so one sort serves every figure and
window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.activities import COMMUNICATION, COMPUTE, COPY
from aaco_pipeline.lake.contracts import polars_types

FIRST_TO_LAST: Final = "first_to_last_activity"
HOST_AND_DEVICE: Final = "host_and_device"
ITERATION: Final = "iteration"
Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Coverage:
    """Cumulative time for which a condition held, as a function of time, linear between `times`."""

    times: Times
    covered: Times

    def between(self, starts: Times, ends: Times) -> Times:
        """Return the covered time of each interval [start, end), in ns; zero for intervals of negative length."""
        covered: Times = np.maximum(self._until(ends) - self._until(starts), 0)
        return covered

    def within(self, intervals: pl.DataFrame) -> int:
        """Return the covered time, in ns, summed over disjoint intervals (start_ns, end_ns)."""
        return int(self.between(*bounds(intervals)).sum())

    def _until(self, instants: Times) -> Times:
        if not len(self.times):
            return np.zeros(len(instants), np.int64)
        segment = np.searchsorted(self.times, instants, side="right") - 1
        inside = np.clip(segment, 0, len(self.times) - 1)
        following = np.minimum(inside + 1, len(self.times) - 1)
        grows = self.covered[following] - self.covered[inside]
        # The number of open activities is constant within a segment, so the growth is linear.
        span = np.maximum(self.times[following] - self.times[inside], 1)
        rate = grows // span
        value = self.covered[inside] + rate * np.minimum(instants - self.times[inside], span)
        return np.where(segment < 0, 0, value)


def covered_by(starts: Times, ends: Times) -> Coverage:
    """The union of the intervals [start, end), which may overlap."""
    real = ends > starts
    order = np.argsort(starts[real], kind="stable")
    begun, over = starts[real][order], np.maximum.accumulate(ends[real][order])
    if not len(begun):
        return Coverage(begun, over)
    opens = np.append(True, begun[1:] > over[:-1])
    first, last = begun[opens], over[np.append(opens[1:], True)]
    length = np.cumsum(last - first)
    times = np.stack([first, last], axis=1).ravel()
    return Coverage(times, np.stack([np.append(0, length[:-1]), length], axis=1).ravel())


def bounds(intervals: pl.DataFrame) -> tuple[Times, Times]:
    """Return the start_ns and end_ns of intervals as arrays."""
    return intervals.get_column("start_ns").to_numpy(), intervals.get_column("end_ns").to_numpy()


def coverage(intervals: pl.DataFrame) -> Coverage:
    """The union of intervals (start_ns, end_ns), which may overlap."""
    return covered_by(*bounds(intervals))


def timeline(
    activities: pl.DataFrame, api_calls: pl.DataFrame, iterations: pl.DataFrame, *, copies_traced: bool = True
) -> pl.DataFrame:
    """Compute rows of the table `timeline` without the session and `busy_bound`.

    `activities` comes from `activities.device_activities`; those of unknown devices are omitted. Windows by
    `window_rule`: from each device's first activity to its last; the same including host calls of the processes that
    used it; each measured iteration of the pass `trace` that has times. If several processes ran, a device whose work
    in an iteration was launched outside its times has no iteration windows, because the iterations belong to another
    rank.

    busy_ns is the union over kernels, copies and fills; compute_ns that of compute alone; exposed_copy_ns is
    |all| - |all without copies|; exposed_communication_ns the time in which communication ran and no compute did;
    overlapped_ns |compute| + |copies and communication| - |all|; activity_time_sum_ns the summed durations. All exact.
    """
    rows = []
    several = activities.get_column("process_id").n_unique() > 1
    for (device,), own in activities.drop_nulls("device_id").group_by("device_id", maintain_order=True):
        calls = api_calls.join(own.select("process_id").unique(), on="process_id", how="semi")
        elsewhere = several and _launched_elsewhere(own, iterations)
        windows = _windows(own, calls, iterations.clear() if elsewhere else iterations)
        rows.append(
            windows.select(pl.lit(device, pl.Int32).alias("device_id"), pl.all()).hstack(_figures(own, windows))
        )
    frame = pl.concat(rows) if rows else pl.DataFrame(schema=_TIMELINE)
    if not copies_traced:
        frame = frame.with_columns(exposed_copy_ns=pl.lit(None, pl.Int64))
    return frame.sort("device_id", "iteration", "window_rule", "window_start_ns", "window_end_ns")


def _launched_elsewhere(own: pl.DataFrame, iterations: pl.DataFrame) -> bool:
    """Return whether activities of an iteration were launched, or began without a launch, outside its times."""
    traced = iterations.filter(pl.col("pass") == "trace").drop_nulls(["start_ns", "end_ns"])
    windows = traced.select(pl.col("iteration").cast(pl.Int32), first_ns="start_ns", last_ns="end_ns")
    placed = own.select(pl.col("iteration").cast(pl.Int32), at_ns=pl.coalesce("call_start_ns", "start_ns"))
    placed = placed.drop_nulls("iteration").join(windows, on="iteration")
    return placed.filter(~pl.col("at_ns").is_between("first_ns", "last_ns")).height > 0


def _windows(own: pl.DataFrame, api_calls: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    first, last = own.select(first=pl.col("start_ns").min(), last=pl.col("end_ns").max()).row(0)
    called = api_calls.select(first=pl.col("start_ns").min(), last=pl.col("end_ns").max()).row(0)
    rules = [(None, first, last, FIRST_TO_LAST)]
    if called[0] is not None:
        rules.append((None, min(first, called[0]), max(last, called[1]), HOST_AND_DEVICE))
    schema = {name: _TIMELINE[name] for name in ("iteration", "window_start_ns", "window_end_ns", "window_rule")}
    measured = iterations.filter((pl.col("pass") == "trace") & (pl.col("phase") == "measure"))
    measured = measured.drop_nulls(["start_ns", "end_ns"]).select(
        pl.col("iteration").cast(pl.Int32),
        window_start_ns="start_ns",
        window_end_ns="end_ns",
        window_rule=pl.lit(ITERATION),
    )
    return pl.concat([pl.DataFrame(rules, schema=schema, orient="row"), measured])


def _figures(own: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    starts, ends = _times(own, "start_ns"), _times(own, "end_ns")
    categories = own.get_column("category")
    kinds = {kind: (categories == kind).to_numpy() for kind in _CATEGORIES}
    opened, closed = _times(windows, "window_start_ns"), _times(windows, "window_end_ns")
    figures = {name: measure.between(opened, closed) for name, measure in _sweep(starts, ends, kinds).items()}
    length = closed - opened
    ratio = np.divide(figures["busy_ns"], length, out=np.full(len(length), np.nan), where=length > 0)
    counts = _touching(starts, ends, windows)
    linked = own.get_column("call_id").is_not_null().to_numpy()
    with_launch = _touching(starts[linked], ends[linked], windows)
    share = np.divide(with_launch, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return pl.DataFrame(
        {**figures, "active_ratio": ratio, "linked_ratio": share, "activity_count": counts}
    ).with_columns(pl.col("active_ratio", "linked_ratio").fill_nan(None))


def _touching(starts: Times, ends: Times, windows: pl.DataFrame) -> Times:
    """Count the activities that overlap each window; windows around all of them contain all."""
    opened, closed = _times(windows, "window_start_ns"), _times(windows, "window_end_ns")
    begun = np.searchsorted(np.sort(starts), closed, side="left")
    over = np.searchsorted(np.sort(ends), opened, side="right")
    at_once = starts[starts == ends]
    at_start = np.searchsorted(np.sort(at_once), opened, "right") - np.searchsorted(np.sort(at_once), opened, "left")
    whole = (windows.get_column("window_rule") != ITERATION).to_numpy()
    return np.where(whole, len(starts), begun - over + at_start).astype(np.int64)


def _sweep(starts: Times, ends: Times, kinds: Mapping[str, npt.NDArray[np.bool_]]) -> dict[str, Coverage]:
    """Return each measure of the timeline as a function of time; `kinds` masks the activities of each category."""
    real = ends > starts
    count = int(real.sum())
    moments = np.concatenate([starts[real], ends[real]])
    order = np.argsort(moments, kind="stable")
    times = moments[order]
    opening = order < count
    which = order - np.where(opening, 0, count)
    step = np.where(opening, np.int32(1), np.int32(-1))
    opens = {kind: np.cumsum(step * mask[real][which], dtype=np.int32) for kind, mask in kinds.items() if mask.any()}
    everything = np.cumsum(step, dtype=np.int32)
    length = np.diff(times, append=times[-1:])
    nothing = np.zeros(len(times), np.bool_)
    computing, moving, talking = (opens[kind] > 0 if kind in opens else nothing for kind in _CATEGORIES)

    def measure(weight: npt.NDArray[np.bool_] | npt.NDArray[np.int32]) -> Coverage:
        covered = np.zeros(len(times), np.int64)
        np.cumsum((weight * length)[:-1], out=covered[1:])
        return Coverage(times, covered)

    return {
        "busy_ns": measure(everything > 0),
        "compute_ns": measure(computing),
        "exposed_copy_ns": measure(moving & ~computing & ~talking),
        "exposed_communication_ns": measure(talking & ~computing),
        "overlapped_ns": measure(computing & (moving | talking)),
        "activity_time_sum_ns": measure(everything),
    }


def _times(frame: pl.DataFrame, column: str) -> Times:
    return frame.get_column(column).cast(pl.Int64).to_numpy()


_CATEGORIES: Final = (COMPUTE, COPY, COMMUNICATION)
_TIMELINE: Final = polars_types("timeline")
