"""Show a kernel's instructions with their stalls.

`aaco_pipeline.analysis.instructions` attributes the stalls.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.report.formatting import counted, grouped, in_a_line, share, shortened
from aaco_pipeline.report.view import Columns, Part, Sentence, Table

LEGEND: Final = (
    "Stalled: cycles in which wavefronts could not issue the instruction (upper bar). Waited for: cycles that other "
    "instructions, the waits, stalled until this one was done (lower bar); the waits’ own stalls include them."
)
NUMBERS: Final = ("line", "hits", "stalled", "waited for", "samples")
_MISSING: Final = "–"


@dataclass(frozen=True)
class Line:
    """One instruction. `lost` and `charged` are in the listing's unit; None if nothing was recorded."""

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
    """Hidden instructions: their number, and the totals lost at them and charged to them."""

    instructions: int
    lost: int
    charged: int = 0
    regions: int = 0


@dataclass(frozen=True)
class Region:
    """A section of the program, in program order, with the total lost in it."""

    first: Line
    last: Line
    instructions: int
    lost: int
    rows: tuple[Line | Fold, ...]


@dataclass(frozen=True)
class Listing:
    """A kernel's instructions: the regions with the largest losses first; all others are folded.

    `unit` is `cycles` of a thread trace or `samples`; `lost` is the total over all instructions, `most` the maximum
    lost at or charged to one. `reasons` are stall reasons with amount and ratio, largest first. `sourced` is true if
    any instruction has a source line.
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
    """Return the heading: the kernel, the dispatch if only one was traced, and the thread trace."""
    kernel = shortened(listing.kernel) if listing.kernel else "Code not matched to any kernel"
    dispatch = None if listing.dispatch_id is None else f"dispatch {listing.dispatch_id}"
    return ", ".join(part for part in (kernel, dispatch, listing.capture) if part is not None)


def summary(listing: Listing) -> str:
    """Summarize the total losses."""
    if listing.unit == "samples":
        stalled = sum(amount for _, amount, _ in listing.reasons)
        told = f", {stalled:,} of them stalled with a known reason" if stalled else ""
        return f"{listing.lost:,} program-counter samples{told}; they count moments, not cycles"
    return f"{listing.lost:,} stalled cycles of the traced wavefronts; nothing is scaled up to the whole grid"


def region_heading(region: Region, listing: Listing) -> str:
    """Return a region's heading: its first and last instruction, and its loss."""
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
    """Return the text that replaces hidden instructions."""
    told = f"{counted(fold.instructions, 'instruction')}, {fold.lost:,} {_lost(listing)}"
    if fold.charged:
        told += f", {fold.charged:,} cycles waited for"
    return f"{counted(fold.regions, 'further region')} folded: {told}" if fold.regions else f"… {told}"


def cells(line: Line, listing: Listing) -> Mapping[str, str]:
    """Return an instruction's cells by column; the column without a name is for a bar."""
    amounts = {"hits": line.hits, "stalled": line.lost, "": None, "waited for": line.charged}
    if listing.unit == "samples":
        amounts = {"samples": line.lost, "": None}
    # Only the file name and line, without folders.
    source = {"source": _MISSING if line.source is None else line.source.rsplit("/", 1)[-1]} if listing.sourced else {}
    return {
        "line": _MISSING if line.number is None else str(line.number),
        **{name: (grouped(amount) or _MISSING) if name else "" for name, amount in amounts.items()},
        "class": line.instruction_class,
        "instruction": line.instruction,
        **source,
    }


#: Instructions below this fraction of the kernel's stalls are folded if their neighbours are, too.
_COLD_RATIO: Final = 0.002
_SHORTEST_FOLD: Final = 3
_KEYS: Final = ("kernel_id", "dispatch_id", "capture")
_ENDS: Final = ("branch", "barrier")
Row = Mapping[str, Any]


def listings(
    instructions: pl.DataFrame, stalls: pl.DataFrame, kernels: pl.DataFrame, *, regions: int = 3
) -> list[Listing]:
    """Build a listing for each kernel, dispatch and thread trace in `att_instructions`: traced ones first, then by
    loss.

    `instructions` is `att_instructions`, `stalls` `att_stalls`, `kernels` has kernel_id and name. At most `regions`
    regions of each are shown, and none without losses.
    """
    names = dict(kernels.select("kernel_id", "name").iter_rows())
    found = []
    ordered = instructions.sort("code_object_id", "address", "line", nulls_last=True, maintain_order=True)
    apart = [*_KEYS, pl.col("stall_cycles").is_not_null().alias("traced")]
    for (kernel_id, dispatch_id, capture, traced), own in ordered.group_by(apart, maintain_order=True):
        unit, amount = ("cycles", "stall_cycles") if traced else ("samples", "samples")
        reasons = stalls.filter(
            pl.col("kernel_id").eq_missing(pl.lit(kernel_id))
            & pl.col("dispatch_id").eq_missing(pl.lit(dispatch_id))
            & pl.col("capture").eq_missing(pl.lit(capture))
            & pl.col(amount).is_not_null()
        ).sort(amount, "reason", descending=[True, False], maintain_order=True)
        found.append(
            _listing(
                [_line(row, amount) for row in own.iter_rows(named=True)],
                _split(own),
                regions,
                kernel=_clean(names.get(kernel_id)),
                dispatch_id=dispatch_id,
                capture=_clean(capture),
                unit=unit,
                reasons=tuple(
                    (_clean(reason) or _MISSING, lost, ratio)
                    for reason, lost, ratio in reasons.select("reason", amount, "share_ratio").iter_rows()
                ),
            )
        )
    return sorted(found, key=lambda one: (one.unit != "cycles", -one.lost))


def listings_of_rows(
    instructions: Sequence[Row], stalls: Sequence[Row], kernels: Sequence[Row], *, regions: int = 3
) -> list[Listing]:
    """Build the listings from rows of those tables, as in a document; rows may lack the session's id."""
    names = {row["kernel_id"]: row["name"] for row in kernels}
    return listings(
        pl.DataFrame(instructions, schema=polars_types("att_instructions")),
        pl.DataFrame(stalls, schema=polars_types("att_stalls")),
        pl.DataFrame([*names.items()], schema=polars_types("kernels", "kernel_id", "name"), orient="row"),
        regions=regions,
    )


def _listing(lines: Sequence[Line], starts: Sequence[int], shown: int, **named: Any) -> Listing:
    whole = sum(line.lost or 0 for line in lines)
    most = max((max(line.lost or 0, line.charged or 0) for line in lines), default=0)
    sections = [lines[a:b] for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]
    hottest = sorted(sections, key=lambda section: -sum(line.lost or 0 for line in section))
    kept = [section for section in hottest[:shown] if any(line.lost for line in section)]
    rest = hottest[len(kept) :]
    return Listing(
        lost=whole,
        most=most,
        sourced=any(line.source for line in lines),
        regions=tuple(_region(section, whole) for section in kept),
        rest=_fold([line for section in rest for line in section], regions=len(rest)) if rest else None,
        **named,
    )


def _split(instructions: pl.DataFrame) -> list[int]:
    """Return the positions at which regions begin, for instructions in program order."""
    ends = pl.col("instruction_class").is_in(_ENDS) | pl.col("instruction").str.starts_with("s_endpgm")
    begins = ends.shift(1).fill_null(False) | (pl.col("code_object_id").ne_missing(pl.col("code_object_id").shift(1)))
    found = instructions.select(begins.fill_null(False)).to_series().arg_true().to_list()
    return found if found and found[0] == 0 else [0, *found]


def _line(row: Row, amount: str) -> Line:
    return Line(
        row["line"],
        row["address"],
        _clean(row["instruction"]) or "(not decoded)",
        _clean(row["instruction_class"]) or _MISSING,
        row["hits"],
        row[amount],
        row["charged_stall_cycles"],
        _clean(row["source"]),
    )


def _clean(text: str | None) -> str | None:
    return None if text is None else in_a_line(text)


def _region(lines: Sequence[Line], whole: int) -> Region:
    least = max(1, _COLD_RATIO * whole)
    warm = [max(line.lost or 0, line.charged or 0) >= least for line in lines]
    near = [any(warm[max(0, at - 1) : at + 2]) for at in range(len(lines))]
    lost = sum(line.lost or 0 for line in lines)
    return Region(lines[0], lines[-1], len(lines), lost, tuple(_folded(lines, near)))


def _folded(lines: Sequence[Line], shown: Sequence[bool]) -> Iterator[Line | Fold]:
    """Replace runs of lines that are not shown by a fold, if that makes the listing shorter."""
    for is_shown, pairs in groupby(zip(lines, shown, strict=True), key=itemgetter(1)):
        run = [line for line, _ in pairs]
        if is_shown or len(run) < _SHORTEST_FOLD:
            yield from run
        else:
            yield _fold(run)


def _fold(lines: Sequence[Line], *, regions: int = 0) -> Fold:
    lost, charged = sum(line.lost or 0 for line in lines), sum(line.charged or 0 for line in lines)
    return Fold(len(lines), lost, charged, regions)


_BAR_CHARACTERS: Final = 12
_SPARE: Final = ("source", "class", "*hits", "*waited for")


def listing_parts(listing: Listing) -> list[Part]:
    """Lay out one listing: losses and their reasons, then the regions."""
    reasons: Columns = {
        f"*stalled {listing.unit}": lambda row: grouped(row[1]),
        "*share": lambda row: share(row[2]),
        "reason": lambda row: row[0],
    }
    return [
        Sentence(""),
        Sentence(heading(listing), "strong"),
        Sentence(summary(listing), "good"),
        Table(reasons, listing.reasons),
        *(_region_table(region, listing) for region in listing.regions),
        *([] if listing.rest is None else [Sentence(fold_text(listing.rest, listing), "aside")]),
    ]


def _region_table(region: Region, listing: Listing) -> Table:
    columns = list(cells(region.first, listing))
    rows = []
    for row in region.rows:
        if isinstance(row, Fold):
            rows.append([fold_text(row, listing) if name == "instruction" else "" for name in columns])
        else:
            bar = "█" * round(_BAR_CHARACTERS * (row.lost or 0) / listing.most) if listing.most else ""
            rows.append(list({**cells(row, listing), "": bar}.values()))
    headings = [f"*{name}" if name in NUMBERS else name for name in columns]
    shown = {name: itemgetter(place) for place, name in enumerate(headings)}
    return Table(shown, rows, title=region_heading(region, listing), spare=_SPARE)
