"""A listing of instructions for a terminal.

What it lists is `document.instructions`, its words are `words.instruction_text`.
"""

from typing import TYPE_CHECKING, Final, TextIO

from aaco_pipeline.report.terminal.screen import MISSING, open_screen
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


def print_listing(listing: Listing, stream: TextIO | None = None) -> None:
    """Print one listing, on standard output unless told otherwise."""
    screen = open_screen(stream)
    screen.print(heading(listing), style="bold", markup=False)
    screen.print(summary(listing), style="bold green")
    for reason, amount, ratio in listing.reasons:
        screen.print(f"{amount:>14,}  {share(ratio) or MISSING:>7}  {reason}", markup=False)
    for region in listing.regions:
        screen.print()
        screen.print(region_heading(region, listing), style="bold", markup=False)
        _print_region(screen, region, listing)
    if listing.rest is not None:
        screen.print(fold_text(listing.rest, listing), style="dim")


def _print_region(screen: "Console", region: Region, listing: Listing) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    columns = list(cells(region.first, listing))
    for name in columns:
        side = "right" if name in NUMBERS else "left"
        table.add_column(name, justify=side, no_wrap=name != "instruction", overflow="fold")  # type: ignore[arg-type]
    for row in region.rows:
        if isinstance(row, Fold):
            folded = Text(fold_text(row, listing), "dim")
            table.add_row(*(folded if name == "instruction" else "" for name in columns))
        else:
            bar = "█" * round(_BAR_CHARACTERS * (row.lost or 0) / listing.most) if listing.most else ""
            table.add_row(*(Text(text) for text in {**cells(row, listing), "": bar}.values()))
    screen.print(table)
