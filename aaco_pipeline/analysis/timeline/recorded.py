"""What ran in the measured part of a session, put together once for the timeline and the critical path."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.kernels.statistics import measured_dispatches, timed
from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls
from aaco_pipeline.analysis.timeline.host_waits import Waits, waits

#: The tables that `recorded` is made from, and what is looked at of each: a launch may have many more columns.
RECORDED_FROM: Final[Mapping[str, tuple[str, ...]]] = {
    "dispatches": (
        *("dispatch_id", "process_id", "thread_id", "device_id", "queue_id", "stream_id", "kernel_id"),
        *("correlation_id", "start_ns", "end_ns", "iteration", "parent_dispatch_id", "self_ns"),
    ),
    "iterations": ("pass", "iteration", "phase"),
    "memory_copies": (
        *("copy_id", "process_id", "device_id", "queue_id", "stream_id", "correlation_id", "start_ns", "end_ns"),
    ),
    "kernels": ("kernel_id", "name", "family"),
    "api_calls": (*("call_id", "process_id", "thread_id", "domain", "name", "correlation_id", "start_ns", "end_ns"),),
    "synchronizations": (
        *("process_id", "device_id", "stream_id", "correlation_id", "waited_stream_id", "waited_correlation_id"),
    ),
}
#: What is kept of the dispatches beside the activities.
_KEPT: Final = ("kernel_id", "iteration", "self_ns")


@dataclass(frozen=True)
class Recorded:
    """What ran in the measured iterations of a session, or in all of it where none are known.

    `dispatches` (kernel_id, iteration, self_ns) are those with times, of which `left_out` had none; `activities`,
    `calls` and `waits` are what `activities` and `host_waits` make of them.
    """

    dispatches: pl.DataFrame
    left_out: int
    activities: pl.DataFrame
    calls: pl.DataFrame
    waits: Waits


def counted_dispatches(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The dispatches that every figure of the traced pass is over, and how many have no usable times."""
    usable = timed(dispatches)
    return measured_dispatches(usable, iterations), dispatches.height - usable.height


def everything(tables: Mapping[str, pl.DataFrame]) -> Recorded:
    """As `recorded`, warm-up and what lies outside every iteration included; without the table `iterations`."""
    return _run(tables, timed(tables["dispatches"]), 0)


def recorded(tables: Mapping[str, pl.DataFrame]) -> Recorded:
    """What the tables named in `RECORDED_FROM` say was recorded."""
    return _run(tables, *counted_dispatches(tables["dispatches"], tables["iterations"]))


def _run(tables: Mapping[str, pl.DataFrame], dispatches: pl.DataFrame, left_out: int) -> Recorded:
    calls = host_calls(tables["api_calls"])
    activities = device_activities(dispatches, tables["memory_copies"], tables["kernels"], calls)
    waited = waits(activities, calls, tables["synchronizations"])
    return Recorded(dispatches.select(_KEPT), left_out, activities, calls, waited)
