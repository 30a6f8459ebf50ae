"""What launching costs: the time it is exposed, and beside it the scores that earlier tools called launch tax.

Latency of a launch into a busy stream is queueing and costs nothing. What costs is the time in which the host was
making the launch, or the launch was on its way, while the device had nothing to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.thresholds import LAUNCH_SIZED_NS
from aaco_pipeline.analysis.timeline.activities import once_per_call, row_before
from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST, covered_by

#: The stretch of a launch that can be exposed ends where its activity starts.
_STRETCH: Final = ("call_start_ns", "start_ns")


@dataclass(frozen=True)
class LaunchCost:
    """`devices`: one row per device. `launches`: one row per launch that found its stream empty."""

    devices: pl.DataFrame
    launches: pl.DataFrame

    @property
    def busiest(self) -> Mapping[str, Any] | None:
        """The row of the device with the most busy time, of equals the first; None without devices.

        Figures of a session are this device's: summed over devices they would be no time that passed.
        """
        ordered = self.devices.sort("busy_ns", "device_id", descending=[True, False], nulls_last=True)
        return ordered.row(0, named=True) if ordered.height else None


def launch_cost(activities: pl.DataFrame, timeline: pl.DataFrame) -> LaunchCost:
    """Launch cost per device over its first-to-last window.

    `activities` is what `activities.device_activities` gives, `timeline` what `device_timeline`
    gives. Columns of `devices`: device_id, window_ns, busy_ns, api_ns (time inside the calls that launched, summed,
    calls of several activities once), launch_latency_ns (from the call to the start, summed over launches that found
    their stream empty), exposed_launch_ns (the part of those stretches in which the device was idle, overlap counted
    once) and exposed_launch_ratio (of the window), launches, unlinked (activities without a known launch), dispatches;
    and for comparison with the predecessors micro_kernel_ratio (dispatches below 10 us over all), dispatch_rate_per_s
    (dispatches over last end minus first start) and launch_tax_score (micro_kernel_ratio times dispatch_rate_per_s /
    1000: unbounded, in kHz, and blind to whether a launch was waited for). What launches cost, and the score, are null
    on a device none of whose launches is known; where only some are, what they cost is a lower bound.
    `launches`: device_id, activity_kind, activity_id, call_id, api_ns, launch_latency_ns.
    """
    first = _first_of_empty(activities)
    windows = timeline.filter(pl.col("window_rule") == FIRST_TO_LAST).select(
        "device_id",
        "window_start_ns",
        "window_end_ns",
        "busy_ns",
        window_ns=pl.col("window_end_ns") - pl.col("window_start_ns"),
    )
    latency = first.group_by("device_id").agg(launch_latency_ns=(pl.col("start_ns") - pl.col("call_start_ns")).sum())
    linked = activities.group_by("device_id").agg(unlinked=pl.col("call_id").null_count().cast(pl.Int64))
    calls = _launches(activities)
    called = calls.group_by("device_id").agg(
        api_ns=(pl.col("call_end_ns") - pl.col("call_start_ns")).sum(), launches=pl.len().cast(pl.Int64)
    )
    devices = windows.with_columns(exposed_launch_ns=_exposed(activities, first, windows))
    for frame in (latency, called, linked, _predecessors(activities)):
        devices = devices.join(frame, on="device_id", how="left")
    ratio = pl.when(pl.col("window_ns") > 0).then(pl.col("exposed_launch_ns") / pl.col("window_ns"))
    devices = devices.with_columns(pl.col("launches", "dispatches").fill_null(0))
    known = pl.when(pl.col("launches") > 0)
    devices = devices.with_columns(
        known.then(pl.col("launch_latency_ns").fill_null(0)),
        *(known.then(name).alias(name) for name in ("exposed_launch_ns", "launch_tax_score")),
    )
    return LaunchCost(
        devices.with_columns(exposed_launch_ratio=ratio).drop("window_start_ns", "window_end_ns").sort("device_id"),
        first.select(
            "device_id",
            pl.col("activity_kind").cast(pl.String),
            "activity_id",
            "call_id",
            api_ns=pl.col("call_end_ns") - pl.col("call_start_ns"),
            launch_latency_ns=pl.col("start_ns") - pl.col("call_start_ns"),
        ),
    )


def _launches(activities: pl.DataFrame) -> pl.DataFrame:
    """An activity of each call that launched, for every device that it launched onto."""
    linked = activities.select("device_id", "call_id", "call_start_ns", "call_end_ns").drop_nulls("call_id")
    if once_per_call(linked).height == linked.height:
        return linked
    return linked.unique(["device_id", "call_id"])


def _first_of_empty(activities: pl.DataFrame) -> pl.DataFrame:
    """The first activity of each call that found its stream empty."""
    ended = pl.col("end_ns").gather(row_before(activities, ("process_id", "device_id", "stream_id")))
    empty = (ended <= pl.col("call_start_ns")).fill_null(True)
    found = activities.with_columns(empty=empty, first=pl.col("call_id").is_first_distinct()).drop_nulls(
        ["device_id", "call_id"]
    )
    return found.filter(pl.col("empty") & pl.col("first") & (pl.col("start_ns") >= pl.col("call_start_ns")))


def _exposed(activities: pl.DataFrame, first: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Per window: |launches and busy| - |busy|, within the window, which is the launches' time without device work."""
    exposed = []
    for device, start, end in windows.select("device_id", "window_start_ns", "window_end_ns").iter_rows():
        own = [activities.filter(device_id=device).get_column(name).to_numpy() for name in ("start_ns", "end_ns")]
        launches = [first.filter(device_id=device).get_column(name).to_numpy() for name in _STRETCH]
        both = [np.concatenate(pair) for pair in zip(own, launches, strict=True)]
        bounds = np.array([start]), np.array([end])
        exposed.append(int(covered_by(*both).between(*bounds)[0] - covered_by(*own).between(*bounds)[0]))
    return pl.Series("exposed_launch_ns", exposed, pl.Int64)


def _predecessors(activities: pl.DataFrame) -> pl.DataFrame:
    """The figures earlier tools gave per device; null without dispatches or time."""
    micro = (pl.col("end_ns") - pl.col("start_ns") < LAUNCH_SIZED_NS).mean()
    span = pl.col("end_ns").max() - pl.col("start_ns").min()
    rate = pl.when(span > 0).then(pl.len() / (span / 1e9))
    return (
        activities.filter(pl.col("activity_kind") == "dispatch")
        .group_by("device_id")
        .agg(
            micro_kernel_ratio=micro,
            dispatch_rate_per_s=rate,
            launch_tax_score=micro * rate / 1000,
            dispatches=pl.len().cast(pl.Int64),
        )
    )
