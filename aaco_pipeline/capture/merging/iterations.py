"""Find a run's iterations from the ranges that its processes set around them, and assign dispatches to them."""

import re
from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.on_disk import GrowingTable, pieces
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Common names of ranges around one iteration, with the program's number.
_ITERATION: Final = re.compile(r"^(ProfilerStep|step|iteration|iter)[\s#_:]*\d+$", re.IGNORECASE)
#: Tracers write decimal microseconds: rounding may make two adjacent ranges overlap.
_ROUNDING_NS: Final = 100
_THREAD: Final = ("process_id", "thread_id")
_RANGE: Final = pl.Schema(
    {"process_id": pl.Int32(), "number": pl.Int32(), "start_ns": pl.Int64(), "until_ns": pl.Int64()}
)


def from_markers(
    tables: Mapping[str, pl.DataFrame], clock_of: Mapping[int, tuple[str, ...]]
) -> tuple[pl.DataFrame, pl.DataFrame, list[Evidence]]:
    """Build the table `iterations`, and add to `dispatches` the iteration in which each was launched.

    Iterations are the ranges on one thread of one process: the lowest rank, or else the first to begin one. For a
    process with its own ranges, dispatches belong to the iterations of the same name. For any other process, dispatches
    belong to the iterations around them if `clock_of` gives both processes the same clock, and to none otherwise.
    """
    dispatches = tables["dispatches"]
    ranges = _sequences(tables["markers"], tables["processes"])
    if not ranges.height:
        return empty_table("iterations"), dispatches, []
    leading = int(ranges.item(0, "process_id"))
    named = _touching(ranges.filter(pl.col("process_id") == leading))
    if not named.height or _overlap(named):
        return empty_table("iterations"), dispatches, []  # overlapping ranges are not a sequence of iterations
    iterations = as_iterations(named)
    numbered = named.select("name", "start_ns", number=pl.int_range(pl.len(), dtype=pl.Int32), until_ns="end_ns")
    processes = dispatches.get_column("process_id").unique().sort().to_list()
    own = [_own(ranges, numbered, process, leading, clock_of) for process in processes]
    placed = placed_in(dispatches, tables["api_calls"], pl.concat([_RANGE.to_frame(), *own]))
    return iterations, placed, _without(placed, leading, clock_of)


def as_iterations(ranges: pl.DataFrame) -> pl.DataFrame:
    """Build rows of the table `iterations` from ranges with start_ns and end_ns, numbered in order."""
    ordered = ranges.sort("start_ns", maintain_order=True)
    return to_contract(
        "iterations",
        ordered.select(
            "start_ns",
            "end_ns",
            pl.lit("trace").alias("pass"),
            iteration=pl.int_range(pl.len()),
            phase=pl.lit("measure"),
            latency_ns=pl.col("end_ns") - pl.col("start_ns"),
        ),
    )


def _sequences(markers: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """Return iteration ranges per process, from the thread that started first; leading process first."""
    found = markers.filter(
        pl.col("thread_id").is_not_null()
        & pl.col("name").str.contains(_ITERATION.pattern.replace("^", "(?i)^", 1))
        & (pl.col("end_ns") > pl.col("start_ns"))
    ).sort("start_ns", maintain_order=True)
    first = found.select("process_id", "thread_id", first_ns="start_ns").unique("process_id", keep="first")
    ranked = first.join(processes.select("process_id", "rank"), on="process_id", how="left")
    order = ["rank", "first_ns", "process_id"]
    chosen = ranked.sort(order, nulls_last=True).with_columns(place=pl.int_range(pl.len()))
    placed = found.join(chosen.select(*_THREAD, "place"), on=_THREAD, maintain_order="left")
    placed = placed.sort("place", "start_ns", maintain_order=True)
    return placed.select("process_id", "name", "start_ns", "end_ns")


def _touching(ranges: pl.DataFrame) -> pl.DataFrame:
    """Trim ends that exceed the next start by no more than a rounding error."""
    following = pl.col("start_ns").shift(-1)
    rounded = (pl.col("end_ns") - following).is_between(1, _ROUNDING_NS)
    return ranges.with_columns(end_ns=pl.when(rounded).then(following).otherwise("end_ns"))


def _overlap(ranges: pl.DataFrame) -> bool:
    return bool((ranges.get_column("start_ns").shift(-1) < ranges.get_column("end_ns")).any())


def _own(
    ranges: pl.DataFrame, numbered: pl.DataFrame, process: int, leading: int, clock_of: Mapping[int, tuple[str, ...]]
) -> pl.DataFrame:
    """Return the ranges in which a process launches an iteration's work, with the iteration's number."""
    own = ranges.filter(pl.col("process_id") == process)
    one_clock = process in clock_of and clock_of[process] == clock_of.get(leading)
    unique = not (own.get_column("name").is_duplicated().any() or numbered.get_column("name").is_duplicated().any())
    if process == leading or (not own.height and one_clock):
        found = numbered
    elif own.height and unique and not _overlap(own):
        found = own.join(numbered.select("name", "number"), on="name").rename({"end_ns": "until_ns"})
    else:
        return _RANGE.to_frame()
    return found.with_columns(pl.lit(process, pl.Int32).alias("process_id")).select(_RANGE.names())


def placed_in(dispatches: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Add to each dispatch the iteration in which it was launched (or began, if its launch is unknown).

    `ranges` has process_id, number, start_ns and until_ns.
    """
    ordered = ranges.sort("start_ns")
    numbers = GrowingTable()
    for piece in pieces(dispatches.select("process_id", "correlation_id", "start_ns")):
        numbers.add(_numbers(piece, calls, ordered))
    return dispatches.with_columns(numbers.table().get_columns())


def _numbers(dispatches: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the iteration of each dispatch, in order."""
    first, last = dispatches.select(a=pl.col("correlation_id").min(), b=pl.col("correlation_id").max()).row(0)
    of_these = pl.col("correlation_id").is_between(first, last)
    launches = [piece.select("process_id", "correlation_id", "start_ns").filter(of_these) for piece in pieces(calls)]
    launched = pl.concat(launches).group_by("process_id", "correlation_id").agg(launched_ns=pl.col("start_ns").min())
    placed = (
        dispatches.join(launched, on=["process_id", "correlation_id"], how="left", maintain_order="left")
        .with_columns(at_ns=pl.coalesce("launched_ns", "start_ns"))
        .with_row_index("row")
        .sort("at_ns")
        .join_asof(ranges, left_on="at_ns", right_on="start_ns", by="process_id", check_sortedness=False)
        .sort("row")
    )
    inside = pl.when(pl.col("at_ns") < pl.col("until_ns")).then(pl.col("number"))
    return placed.select(iteration=inside.cast(pl.Int32))


def _without(dispatches: pl.DataFrame, leading: int, clock_of: Mapping[int, tuple[str, ...]]) -> list[Evidence]:
    """Report processes whose clock differs from the iterations', so that their dispatches belong to none."""
    counted = dispatches.group_by("process_id").agg(pl.len(), none=pl.col("iteration").is_null().all())
    items = []
    for process, count, none in counted.sort("process_id").iter_rows():
        if none and clock_of.get(process) != clock_of.get(leading):
            reason = "it marks no iteration that the first rank marks, too, and its clock is another: none is concluded"
            items.append(Evidence(f"iterations of process {process}", "absent", reason, None, count))
    return items
