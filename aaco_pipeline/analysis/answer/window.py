"""What of a recording is judged: the busiest device's steady pieces, and what ran in them."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from aaco_pipeline.analysis.answer.terms import WHOLE, one_of
from aaco_pipeline.analysis.answer.validity import BEFORE_RECORDING


@dataclass(frozen=True)
class Window:
    """What is judged: a device's steady pieces (start_ns, end_ns), how they were found, what lies beside them.

    `repetitions` and the time of one, `period_ns`, are None where nothing repeats.
    """

    device: int
    pieces: pl.DataFrame
    rule: str
    beside_ns: int
    repetitions: int | None
    period_ns: int | None = None


def busiest(activities: pl.DataFrame) -> int:
    """The device whose kernels and copies took most time; of equals the lowest number."""
    known = activities.select("device_id", "start_ns", "end_ns").drop_nulls("device_id")
    time = known.group_by("device_id").agg(time=(pl.col("end_ns") - pl.col("start_ns")).sum())
    return int(time.sort("time", "device_id", descending=[True, False]).item(0, "device_id"))


def of_device(rows: pl.DataFrame, device: int) -> pl.DataFrame:
    """The rows of the device: most often all of them, and a copy of a large table is much memory."""
    own = (rows.get_column("device_id") == device).fill_null(False)
    return rows if own.all() else rows.filter(own)


def whole_recording(own: pl.DataFrame, device: int) -> Window:
    pieces = own.select(pl.col("start_ns").min(), pl.col("end_ns").max())
    return Window(device, pieces, WHOLE, 0, None)


def steady_window(parts: pl.DataFrame, own: pl.DataFrame, device: int, tables: Mapping[str, pl.DataFrame]) -> Window:
    """The steady pieces, less a wait at their beginning for work that ran before the recording."""
    steady = parts.filter(pl.col("part") == "steady").sort("start_ns")
    waited = tables["completeness_findings"].filter(
        (pl.col("finding") == BEFORE_RECORDING) & pl.col("end_ns").is_not_null()
    )
    rule = str(steady.item(0, "reason"))
    everything = int(parts.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item())
    pieces = steady.select("start_ns", "end_ns")
    if waited.height:
        until = own.filter(pl.col("start_ns") >= waited.get_column("end_ns").max()).get_column("start_ns").min()
        if until is not None:
            pieces = pieces.with_columns(pl.max_horizontal("start_ns", pl.lit(until, pl.Int64))).filter(
                pl.col("start_ns") < pl.col("end_ns")
            )
            rule += "; what waits for work of before the recording is left out"
    first, last = int(own.get_column("start_ns").to_numpy().min()), int(own.get_column("end_ns").to_numpy().max())
    # The parts are of all that was recorded; the activities judged may be those of marked iterations alone.
    pieces = pieces.with_columns(
        pl.max_horizontal("start_ns", pl.lit(first, pl.Int64)), pl.min_horizontal("end_ns", pl.lit(last, pl.Int64))
    ).filter(pl.col("start_ns") < pl.col("end_ns"))
    times, period = steady.row(0, named=True)["repetitions"], steady.row(0, named=True)["period_ns"]
    judged = int(pieces.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item())
    # Marks may be fewer than the work in the window; repetitions that were found in it fill it.
    own_ns = period if one_of(rule) == "iteration" or not times else round(judged / times)
    return Window(device, pieces, rule, everything - judged, times, own_ns)


def inside(rows: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """The dispatches or copies that begin in a piece."""
    if rows.is_empty():
        return rows
    bounds = pieces.rename({"start_ns": "piece_start_ns", "end_ns": "piece_end_ns"})
    return (
        rows.drop_nulls(["start_ns", "end_ns"])
        .filter(pl.col("end_ns") >= pl.col("start_ns"))
        .sort("start_ns")
        .join_asof(bounds.sort("piece_start_ns"), left_on="start_ns", right_on="piece_start_ns")
        .filter(pl.col("start_ns") < pl.col("piece_end_ns"))
        .drop("piece_start_ns", "piece_end_ns")
    )
