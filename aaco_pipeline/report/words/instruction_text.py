"""A listing of instructions, and its words: headings, folds, and what stands in the columns of one instruction.

What is listed is chosen by `aaco_pipeline.report.document.instructions`; `terminal` and `html` show it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.report.words.units import counted, grouped, share, shortened

LEGEND: Final = (
    "Stalled: cycles in which wavefronts could not issue the instruction (upper bar). Waited for: cycles that other "
    "instructions, the waits, stalled until this one was done (lower bar); the waits’ own stalls include them."
)
NUMBERS: Final = ("line", "hits", "stalled", "waited for", "samples")
_MISSING: Final = "–"


@dataclass(frozen=True)
class Line:
    """One instruction. `lost` and `charged` are in the listing's unit; None where nothing was recorded."""

    number: int | None
    address: int | None
    instruction: str
    instruction_class: str
    hits: int | None
    lost: int | None
    charged: int | None
    source: str | None


@dataclass(frozen=True)
class Fold:
    """Instructions that are not shown: how many, and what was lost at them and charged to them together."""

    instructions: int
    lost: int
    charged: int = 0
    regions: int = 0


@dataclass(frozen=True)
class Region:
    """A stretch of the program in its order, with what was lost in it."""

    first: Line
    last: Line
    instructions: int
    lost: int
    rows: tuple[Line | Fold, ...]


@dataclass(frozen=True)
class Listing:
    """A kernel's instructions: the regions that lost most, the first most, and all others as one fold.

    `unit` is `cycles` of a thread trace or `samples`; `lost` the sum over all instructions, `most` the most that one
    of them lost or was charged. `reasons` are the reasons to stall with amount and ratio, the largest first. `sourced`
    says whether any instruction names its line of source.
    """

    kernel: str | None
    dispatch_id: int | None
    capture: str | None
    unit: str
    lost: int
    most: int
    sourced: bool
    reasons: tuple[tuple[str, int, float | None], ...]
    regions: tuple[Region, ...]
    rest: Fold | None


def heading(listing: Listing) -> str:
    """The kernel, the dispatch where only one was traced, and the thread trace that lists it."""
    kernel = shortened(listing.kernel) if listing.kernel else "Code not matched to any kernel"
    dispatch = None if listing.dispatch_id is None else f"dispatch {listing.dispatch_id}"
    return ", ".join(part for part in (kernel, dispatch, listing.capture) if part is not None)


def summary(listing: Listing) -> str:
    """What was lost in all."""
    if listing.unit == "samples":
        stalled = sum(amount for _, amount, _ in listing.reasons)
        told = f", {stalled:,} of them stalled with a known reason" if stalled else ""
        return f"{listing.lost:,} program-counter samples{told}; they count moments, not cycles"
    return f"{listing.lost:,} stalled cycles of the traced wavefronts; nothing is scaled up to the whole grid"


def region_heading(region: Region, listing: Listing) -> str:
    """From where to where a region goes, and what was lost in it."""
    part = f", {share(region.lost / listing.lost)}" if listing.lost else ""
    return (
        f"From {_place(region.first)} to {_place(region.last)}: {region.lost:,} {_lost(listing)}{part}, "
        f"{counted(region.instructions, 'instruction')}"
    )


def _place(line: Line) -> str:
    if line.number is not None:
        return f"line {line.number}"
    return "an unknown address" if line.address is None else f"address {line.address:#x}"


def _lost(listing: Listing) -> str:
    return "samples" if listing.unit == "samples" else "stalled cycles"


def fold_text(fold: Fold, listing: Listing) -> str:
    """What stands in place of instructions that are not shown."""
    told = f"{counted(fold.instructions, 'instruction')}, {fold.lost:,} {_lost(listing)}"
    if fold.charged:
        told += f", {fold.charged:,} cycles waited for"
    return f"{counted(fold.regions, 'further region')} folded: {told}" if fold.regions else f"… {told}"


def cells(line: Line, listing: Listing) -> Mapping[str, str]:
    """What stands in each column for one instruction; the column without a name has room for a bar."""
    amounts = {"hits": line.hits, "stalled": line.lost, "": None, "waited for": line.charged}
    if listing.unit == "samples":
        amounts = {"samples": line.lost, "": None}
    # The file and its line, without the folders.
    source = {"source": _MISSING if line.source is None else line.source.rsplit("/", 1)[-1]} if listing.sourced else {}
    return {
        "line": _MISSING if line.number is None else str(line.number),
        **{name: (grouped(amount) or _MISSING) if name else "" for name, amount in amounts.items()},
        "class": line.instruction_class,
        "instruction": line.instruction,
        **source,
    }
