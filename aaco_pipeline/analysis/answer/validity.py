"""Whether a recording carries an answer at all: decided before any share is looked at."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from aaco_pipeline.analysis.answer.terms import one_of
from aaco_pipeline.analysis.timeline.device_timeline import covered_by

INCOMPLETE: Final = "incomplete"
COLD_START: Final = "cold_start"
#: Work that repeats and is a smaller part of the device's work than this speaks for no recording.
_SPEAKS: Final = 0.25
#: A finding that says: in this stretch ran what was launched before the recording.
BEFORE_RECORDING: Final = "wait_for_unrecorded_work"


@dataclass(frozen=True)
class Invalid:
    """Why there is no answer, in a sentence without its full stop."""

    verdict: Literal["incomplete", "cold_start"]
    reason: str


def without_steady_part(parts: pl.DataFrame, activities: pl.DataFrame) -> Invalid | None:
    """The verdict on a device of which `parts` hold nothing steady that speaks for it; None where they do.

    What repeats speaks for the device when it holds a good part of its busy time; iterations that the program marked
    always do. `activities` (start_ns, end_ns) and `parts` are the device's.
    """
    steady = parts.filter(pl.col("part").cast(pl.String) == "steady")
    if steady.height:
        if one_of(str(steady.item(0, "reason"))) == "iteration":
            return None
        busy = covered_by(activities.get_column("start_ns").to_numpy(), activities.get_column("end_ns").to_numpy())
        held = int(busy.between(steady.get_column("start_ns").to_numpy(), steady.get_column("end_ns").to_numpy()).sum())
        bounds = activities.select(first=pl.col("start_ns").min(), last=pl.col("end_ns").max())
        first, last = (bounds.get_column(name).to_numpy() for name in ("first", "last"))
        whole = int(busy.between(first, last).sum())
        if held >= _SPEAKS * whole:
            return None
        part = f"{100 * held / whole:.0f} %" if held >= 0.01 * whole else f"{100 * held / whole:.1g} %"
        return Invalid(INCOMPLETE, f"what repeats ({steady.item(0, 'reason')}) is {part} of the device's work")
    told = parts.drop_nulls("lacking")
    if not told.height:
        return Invalid(INCOMPLETE, "no kernel or copy has times")
    lacking = COLD_START if (told.get_column("lacking") == COLD_START).any() else INCOMPLETE
    reason = told.filter(pl.col("lacking") == lacking).item(0, "reason")
    return Invalid(COLD_START if lacking == COLD_START else INCOMPLETE, str(reason))


def without_answer(
    shares: Mapping[str, int], gaps: pl.DataFrame, findings: pl.DataFrame, *, host_calls: bool
) -> Invalid | None:
    """The verdict on a window whose largest share is unknown because the recording lacks what would tell.

    It is `incomplete` where no host calls were recorded, or where a finding says that work may have run in most of
    that time without a record (`gaps.doubt`). A finding that voids the answer voids it here.
    """
    for finding in findings.iter_rows(named=True):
        if "bottlenecks.label" in finding["voids"]:
            return Invalid(INCOMPLETE, str(finding["evidence"]).rstrip("."))
    if not shares or max(shares, key=lambda name: shares[name]) != "unknown":
        return None
    window = sum(shares.values())
    told = f"{100 * shares['unknown'] / window:.0f} % of the time is idle, and nothing recorded says why"
    if not host_calls:
        return Invalid(INCOMPLETE, f"{told}, for no host calls were recorded")
    doubted = gaps.drop_nulls("doubt").select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0
    if doubted > shares["unknown"] / 2:
        return Invalid(INCOMPLETE, f"{told}, for most likely work ran in it that was not recorded")
    return None
