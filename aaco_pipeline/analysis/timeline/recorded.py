"""What ran in the measured part of a session, put together once for the timeline and the critical path."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.kernels.statistics import measured_dispatches, timed
from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls
from aaco_pipeline.analysis.timeline.host_waits import Waits, waits

#: The tables that `recorded` is made from.
RECORDED_FROM: Final = ("dispatches", "iterations", "memory_copies", "kernels", "api_calls", "synchronizations")


@dataclass(frozen=True)
class Recorded:
    """What ran in the measured iterations of a session, or in all of it where none are known.

    `dispatches` are those with times, of which `left_out` had none; `activities`, `calls` and `waits` are what
    `activities` and `host_waits` make of them.
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
    return Recorded(dispatches, left_out, activities, calls, waits(activities, calls, tables["synchronizations"]))
