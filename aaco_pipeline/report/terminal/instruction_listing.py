"""A listing of instructions for a terminal.

What it lists is `document.instructions`, its words are `words.instruction_text`.
"""

from typing import TYPE_CHECKING, Final, TextIO

from aaco_pipeline.report.terminal.screen import MISSING, open_screen, print_cells, print_prose
from aaco_pipeline.report.words.instruction_text import (
    NUMBERS,
    Fold,
    Listing,
    Region,
    cells,
    fold_text,
    heading,
    region_heading,
    summary,
)
from aaco_pipeline.report.words.units import share

if TYPE_CHECKING:
    from rich.console import Console

_BAR_CHARACTERS: Final = 12
_SPARE: Final = ("source", "class", "*hits", "*waited for")


def print_listing(listing: Listing, stream: TextIO | None = None) -> None:
    """Print one listing, on standard output unless told otherwise."""
    screen = open_screen(stream)
    screen.print()
    print_prose(screen, heading(listing), "bold")
    print_prose(screen, summary(listing), "bold green")
    for reason, amount, ratio in listing.reasons:
        screen.print(f"{amount:>14,}  {share(ratio) or MISSING:>7}  {reason}", markup=False)
    for region in listing.regions:
        _print_region(screen, region, listing)
    if listing.rest is not None:
        print_prose(screen, fold_text(listing.rest, listing), "dim")


def _print_region(screen: "Console", region: Region, listing: Listing) -> None:
    columns = list(cells(region.first, listing))
    rows = []
    for row in region.rows:
        if isinstance(row, Fold):
            rows.append([fold_text(row, listing) if name == "instruction" else "" for name in columns])
        else:
            bar = "█" * round(_BAR_CHARACTERS * (row.lost or 0) / listing.most) if listing.most else ""
            rows.append(list({**cells(row, listing), "": bar}.values()))
    headings = [f"*{name}" if name in NUMBERS else name for name in columns]
    print_cells(screen, headings, rows, title=region_heading(region, listing), spare=_SPARE)
