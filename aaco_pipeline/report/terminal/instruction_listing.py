"""A kernel's instructions with what each cost, for a terminal and as a fragment of a page: the hottest region first.

A region is a stretch of the program that ends with a branch, a barrier or the end of the program. Within a shown region
the instructions are in program order; stretches in which next to nothing was lost are folded, as are all other regions.
Why wavefronts stalled is `att_stalls`; here it is only put above the instructions.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final, TextIO

import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.report.words.units import counted, printable, share, shortened

if TYPE_CHECKING:
    from rich.console import Console

#: Instructions with less than this part of the kernel's stalls, and whose neighbours have less too, are folded.
_COLD_RATIO: Final = 0.002
_SHORTEST_FOLD: Final = 3
_BAR_CHARACTERS: Final = 12
_BAR_PIXELS: Final = 80
_WIDTH_OF_A_FILE: Final = 160
_MISSING: Final = "–"
_KEYS: Final = ("kernel_id", "dispatch_id")
_ENDS: Final = ("branch", "barrier")
_NUMBERS: Final = ("line", "hits", "stalled", "waited for", "samples")
_LEGEND: Final = (
    "Stalled: cycles in which wavefronts could not issue the instruction (upper bar). Waited for: cycles that other "
    "instructions, the waits, stalled until this one was done (lower bar); they are in the waits’ own stalls, too."
)
Row = Mapping[str, Any]


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
    unit: str
    lost: int
    most: int
    sourced: bool
    reasons: tuple[tuple[str, int, float | None], ...]
    regions: tuple[Region, ...]
    rest: Fold | None


def listings(
    instructions: pl.DataFrame, stalls: pl.DataFrame, kernels: pl.DataFrame, *, regions: int = 3
) -> list[Listing]:
    """A listing for each kernel and dispatch in `att_instructions`, traced ones first, and of those what lost most.

    `instructions` is `att_instructions`, `stalls` `att_stalls`, `kernels` has kernel_id and name. At most `regions`
    regions of each are shown, and none in which nothing was lost.
    """
    names = dict(kernels.select("kernel_id", "name").iter_rows())
    found = []
    ordered = instructions.sort("code_object_id", "address", "line", nulls_last=True, maintain_order=True)
    apart = [*_KEYS, pl.col("stall_cycles").is_not_null().alias("traced")]
    for (kernel_id, dispatch_id, traced), own in ordered.group_by(apart, maintain_order=True):
        unit, amount = ("cycles", "stall_cycles") if traced else ("samples", "samples")
        reasons = stalls.filter(
            pl.col("kernel_id").eq_missing(pl.lit(kernel_id))
            & pl.col("dispatch_id").eq_missing(pl.lit(dispatch_id))
            & pl.col(amount).is_not_null()
        ).sort(amount, "reason", descending=[True, False], maintain_order=True)
        found.append(
            _listing(
                [_line(row, amount) for row in own.iter_rows(named=True)],
                _split(own),
                regions,
                kernel=_clean(names.get(kernel_id)),
                dispatch_id=dispatch_id,
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
    """The same from rows of those tables, as a document holds them; rows may lack the session's id."""
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
    stretches = [lines[a:b] for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]
    hottest = sorted(stretches, key=lambda stretch: -sum(line.lost or 0 for line in stretch))
    told = [stretch for stretch in hottest[:shown] if any(line.lost for line in stretch)]
    rest = hottest[len(told) :]
    return Listing(
        lost=whole,
        most=most,
        sourced=any(line.source for line in lines),
        regions=tuple(_region(stretch, whole) for stretch in told),
        rest=_fold([line for stretch in rest for line in stretch], regions=len(rest)) if rest else None,
        **named,
    )


def _split(instructions: pl.DataFrame) -> list[int]:
    """The positions at which regions begin, for instructions in program order."""
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
    return None if text is None else printable(text)


def _region(lines: Sequence[Line], whole: int) -> Region:
    least = max(1, _COLD_RATIO * whole)
    warm = [max(line.lost or 0, line.charged or 0) >= least for line in lines]
    near = [any(warm[max(0, at - 1) : at + 2]) for at in range(len(lines))]
    lost = sum(line.lost or 0 for line in lines)
    return Region(lines[0], lines[-1], len(lines), lost, tuple(_folded(lines, near)))


def _folded(lines: Sequence[Line], shown: Sequence[bool]) -> Iterator[Line | Fold]:
    """The lines, runs of those that are not to be shown replaced by a fold where that saves something."""
    at = 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and shown[end] == shown[at]:
            end += 1
        if shown[at] or end - at < _SHORTEST_FOLD:
            yield from lines[at:end]
        else:
            yield _fold(lines[at:end])
        at = end


def _fold(lines: Sequence[Line], *, regions: int = 0) -> Fold:
    lost, charged = sum(line.lost or 0 for line in lines), sum(line.charged or 0 for line in lines)
    return Fold(len(lines), lost, charged, regions)


# ---- in words --------------------------------------------------------------------------------------------------------


def _heading(listing: Listing) -> str:
    kernel = shortened(listing.kernel) if listing.kernel else "Code that was matched to no kernel"
    return kernel if listing.dispatch_id is None else f"{kernel}, dispatch {listing.dispatch_id}"


def _summary(listing: Listing) -> str:
    if listing.unit == "samples":
        stalled = sum(amount for _, amount, _ in listing.reasons)
        told = f", {stalled:,} of them of a stalled wavefront with a reason" if stalled else ""
        return f"{listing.lost:,} program-counter samples{told}; they count moments, not cycles"
    return f"{listing.lost:,} stalled cycles of the traced wavefronts; nothing is scaled up to the whole grid"


def _region_heading(region: Region, listing: Listing) -> str:
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


def _fold_text(fold: Fold, listing: Listing) -> str:
    told = f"{counted(fold.instructions, 'instruction')}, {fold.lost:,} {_lost(listing)}"
    if fold.charged:
        told += f", {fold.charged:,} cycles waited for"
    return f"{counted(fold.regions, 'further region')} folded: {told}" if fold.regions else f"… {told}"


def _columns(listing: Listing) -> tuple[str, ...]:
    """What the columns are called; the one without a name holds the bar."""
    amounts = ("samples", "") if listing.unit == "samples" else ("hits", "stalled", "", "waited for")
    return ("line", *amounts, "class", "instruction", *(("source",) if listing.sourced else ()))


def _cells(line: Line, listing: Listing, bar: str) -> list[str]:
    """What stands in the columns for one instruction."""
    number = _MISSING if line.number is None else str(line.number)
    counts = [] if listing.unit == "samples" else [_count(line.hits)]
    charged = [] if listing.unit == "samples" else [_count(line.charged)]
    # The file and its line, without the folders.
    source = [_MISSING if line.source is None else line.source.rsplit("/", 1)[-1]] if listing.sourced else []
    end = [line.instruction_class, line.instruction, *source]
    return [number, *counts, _count(line.lost), bar, *charged, *end]


def _count(amount: int | None) -> str:
    return _MISSING if amount is None else f"{amount:,}"


# ---- terminal --------------------------------------------------------------------------------------------------------


def print_listing(listing: Listing, stream: TextIO | None = None) -> None:
    """Print one listing, on standard output unless told otherwise."""
    from rich.console import Console
    from rich.markup import escape as unmarked

    out = stream or sys.stdout
    screen = Console(file=out, highlight=False, width=None if out.isatty() else _WIDTH_OF_A_FILE)
    screen.print(unmarked(_heading(listing)), style="bold")
    screen.print(_summary(listing), style="bold green")
    for reason, amount, ratio in listing.reasons:
        screen.print(f"{amount:>14,}  {share(ratio) or _MISSING:>7}  {unmarked(reason)}")
    for region in listing.regions:
        screen.print()
        screen.print(unmarked(_region_heading(region, listing)), style="bold")
        _print_rows(screen, region, listing)
    if listing.rest is not None:
        screen.print(_fold_text(listing.rest, listing), style="dim")


def _print_rows(screen: "Console", region: Region, listing: Listing) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    columns = _columns(listing)
    for name in columns:
        numeric = name in _NUMBERS
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name != "instruction", overflow="fold")
    for row in region.rows:
        if isinstance(row, Fold):
            told = Text(_fold_text(row, listing), "dim")
            table.add_row(*(told if name == "instruction" else "" for name in columns))
        else:
            bar = "█" * round(_BAR_CHARACTERS * (row.lost or 0) / listing.most) if listing.most else ""
            table.add_row(*map(Text, _cells(row, listing, bar)))
    screen.print(table)


# ---- page ------------------------------------------------------------------------------------------------------------


def listing_html(listing: Listing) -> str:
    """The listing as a fragment for the report's page, whose style it uses; text of the capture is escaped.

    The hottest region is open; others are closed. No script and no style of its own, so that the page's policy holds.
    """
    reasons = "".join(
        f'<tr><td>{escape(reason)}</td><td class="number">{amount:,}</td>'
        f'<td class="number">{share(ratio) or _MISSING}</td></tr>'
        for reason, amount, ratio in listing.reasons
    )
    head = _head("Reason", f"*Stalled {listing.unit}", "*Share")
    return (
        f"<h3>{escape(_heading(listing))}</h3><p>{escape(_summary(listing))}.</p>"
        + (f'<div class="scroll"><table>{head}<tbody>{reasons}</tbody></table></div>' if reasons else "")
        + (f'<p class="hint">{_LEGEND}</p>' if listing.regions and listing.unit == "cycles" else "")
        + "".join(_region_html(region, listing, first=at == 0) for at, region in enumerate(listing.regions))
        + (f'<p class="none">{escape(_fold_text(listing.rest, listing))}.</p>' if listing.rest is not None else "")
    )


def _head(*names: str) -> str:
    """The head of a table; names that begin with an asterisk are of numbers."""
    cells = (f'<th class="number">{name[1:]}</th>' if name.startswith("*") else f"<th>{name}</th>" for name in names)
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def _region_html(region: Region, listing: Listing, *, first: bool) -> str:
    columns = _columns(listing)
    head = _head(*(f"*{name.capitalize()}" if name in _NUMBERS else name.capitalize() for name in columns))
    body = "".join(
        f'<tr><td colspan="{len(columns)}" class="none">{escape(_fold_text(row, listing))}</td></tr>'
        if isinstance(row, Fold)
        else _row_html(row, columns, listing)
        for row in region.rows
    )
    return (
        f"<details{' open' if first else ''}><summary>{escape(_region_heading(region, listing))}</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Instructions, scrolls sideways">'
        f"<table>{head}<tbody>{body}</tbody></table></div></details>"
    )


def _row_html(line: Line, columns: Sequence[str], listing: Listing) -> str:
    found = []
    for name, text in zip(columns, _cells(line, listing, ""), strict=True):
        cell = escape(text)
        if name == "":
            cell = _bars(line, listing)
        elif name == "instruction":
            cell = f"<code>{cell}</code>"
        kind = ' class="number"' if name in _NUMBERS else ""
        title = f' title="{escape(line.source)}"' if name == "source" and line.source else ""
        found.append(f"<td{kind}{title}>{cell}</td>")
    return f"<tr>{''.join(found)}</tr>"


def _bars(line: Line, listing: Listing) -> str:
    """What was lost at the instruction, and under it, thinner, what others lost waiting for it."""
    if not listing.most:
        return ""
    lost, charged = (_BAR_PIXELS * (amount or 0) / listing.most for amount in (line.lost, line.charged))
    return (
        f'<svg width="{_BAR_PIXELS}" height="14" aria-hidden="true">'
        f'<rect y="1" width="{lost:.1f}" height="8" fill="var(--accent)"/>'
        f'<rect y="10" width="{charged:.1f}" height="3" fill="var(--second)"/></svg>'
    )
