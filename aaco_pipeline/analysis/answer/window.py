"""Select the window to analyse, and decide whether the recording supports an answer.

Validity is decided before any share is computed. `aaco_pipeline.analysis.steady` finds the steady section.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from aaco_pipeline.analysis.answer.terms import WHOLE, one_of
from aaco_pipeline.analysis.timeline.device_timeline import coverage

INCOMPLETE: Final = "incomplete"
COLD_START: Final = "cold_start"
#: Repeating work below this fraction of device work does not represent the recording.
_SPEAKS: Final = 0.25
#: Finding for an interval in which work ran that was launched before the recording.
BEFORE_RECORDING: Final = "wait_for_unrecorded_work"


@dataclass(frozen=True)
class Invalid:
    """Reason why there is no answer, as a sentence without its full stop."""

    verdict: Literal["incomplete", "cold_start"]
    reason: str


def without_steady_part(parts: pl.DataFrame, activities: pl.DataFrame) -> Invalid | None:
    """Reject a device whose `parts` contain no representative steady work; None if they do.

    Repeating work represents the device if it covers enough of its busy time; iterations marked by the program always
    do. `activities` (start_ns, end_ns) and `parts` belong to the device.
    """
    steady = parts.filter(pl.col("part").cast(pl.String) == "steady")
    if steady.height:
        if one_of(str(steady.item(0, "reason"))) == "iteration":
            return None
        busy = coverage(activities)
        held = busy.within(steady)
        whole = busy.within(activities.select(pl.col("start_ns").min(), pl.col("end_ns").max()))
        if held >= _SPEAKS * whole:
            return None
        part = f"{100 * held / whole:.0f} %" if held >= 0.01 * whole else f"{100 * held / whole:.1g} %"
        return Invalid(INCOMPLETE, f"what repeats ({steady.item(0, 'reason')}) is {part} of the device's work")
    lacking = parts.drop_nulls("lacking").sort(pl.col("lacking") != COLD_START, maintain_order=True)
    if not lacking.height:
        return Invalid(INCOMPLETE, "no kernel or copy has times")
    verdict, reason = lacking.select("lacking", "reason").row(0)
    return Invalid(COLD_START if verdict == COLD_START else INCOMPLETE, str(reason))


def without_answer(
    shares: Mapping[str, int], gaps: pl.DataFrame, findings: pl.DataFrame, *, host_calls: bool
) -> Invalid | None:
    """Reject a window whose largest share is unknown because the recording lacks evidence.

    It is `incomplete` if no host calls were recorded, or if unrecorded work may have run in most of that time according
    to a finding (`gaps.doubt`). A finding that voids the answer is applied here.
    """
    for finding in findings.iter_rows(named=True):
        if "bottlenecks.label" in finding["voids"]:
            return Invalid(INCOMPLETE, str(finding["evidence"]).rstrip("."))
    if not shares or max(shares, key=lambda name: shares[name]) != "unknown":
        return None
    window = sum(shares.values())
    idle = f"{100 * shares['unknown'] / window:.0f} % of the time is idle, and nothing recorded says why"
    if not host_calls:
        return Invalid(INCOMPLETE, f"{idle}, for no host calls were recorded")
    doubted = gaps.drop_nulls("doubt").select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0
    if doubted > shares["unknown"] / 2:
        return Invalid(INCOMPLETE, f"{idle}, for most likely work ran in it that was not recorded")
    return None


@dataclass(frozen=True)
class Window:
    """A device's steady pieces (start_ns, end_ns), the rule that found them, and the time outside them.

    `repetitions` and the time of one, `period_ns`, are None if nothing repeats.
    """

    device: int
    pieces: pl.DataFrame
    rule: str
    beside_ns: int
    repetitions: int | None
    period_ns: int | None = None


def busiest(activities: pl.DataFrame) -> int:
    """Return the device with the most kernel and copy time; ties go to the lowest number."""
    known = activities.select("device_id", "start_ns", "end_ns").drop_nulls("device_id")
    time = known.group_by("device_id").agg(time=(pl.col("end_ns") - pl.col("start_ns")).sum())
    return int(time.sort("time", "device_id", descending=[True, False]).item(0, "device_id"))


def of_device(rows: pl.DataFrame, device: int) -> pl.DataFrame:
    """Return the device's rows; if these are all rows, which is usual, the large table is not copied."""
    own = (rows.get_column("device_id") == device).fill_null(False)
    return rows if own.all() else rows.filter(own)


def whole_recording(own: pl.DataFrame, device: int) -> Window:
    pieces = own.select(pl.col("start_ns").min(), pl.col("end_ns").max())
    return Window(device, pieces, WHOLE, 0, None)


def steady_window(parts: pl.DataFrame, own: pl.DataFrame, device: int, tables: Mapping[str, pl.DataFrame]) -> Window:
    """Return the steady pieces without an initial wait for work that ran before the recording."""
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
    # The parts cover the recording; the activities may be limited to the marked iterations.
    pieces = pieces.with_columns(
        pl.max_horizontal("start_ns", pl.lit(first, pl.Int64)), pl.min_horizontal("end_ns", pl.lit(last, pl.Int64))
    ).filter(pl.col("start_ns") < pl.col("end_ns"))
    times, period = steady.row(0, named=True)["repetitions"], steady.row(0, named=True)["period_ns"]
    judged = int(pieces.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item())
    # The window may have fewer marks than work; the repetitions found in it fill it.
    own_ns = period if one_of(rule) == "iteration" or not times else round(judged / times)
    return Window(device, pieces, rule, everything - judged, times, own_ns)


def inside(rows: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """Return the dispatches or copies that begin in a piece."""
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


#: Calls that allocate or free memory, except from a stream's own pool; freeing also waits for the device.
_ALLOCATES: Final = (
    r"^(?:hip|cuda)(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))"
    r"|^cuMem(?:Alloc|Free|Create|Release|Map|Unmap|Host|Address)|^hsa_amd_memory_pool_(?:allocate|free)"
)
_OF_A_POOL: Final = r"Async|FromPool"


def allocating(api_calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that allocate or free memory, in table order; few names, many calls."""
    names = api_calls.get_column("name").unique().cast(pl.String)
    named = names.filter(names.str.contains(_ALLOCATES) & ~names.str.contains(_OF_A_POOL))
    return api_calls.filter(pl.col("name").cast(pl.String).is_in(named.implode()))
