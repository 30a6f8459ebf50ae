"""How text gets onto a terminal or into a pipe: its width, and tables that fit into it.

What is said is its caller's; text of a capture may stand in every cell and sentence, so what could move the cursor or
hide something is shown as an escape, here for all of the terminal.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TextIO

from aaco_pipeline.report.terminal.columns import Column, cells_of, column_widths, kept_columns, table_width
from aaco_pipeline.report.words.printable import in_a_line, in_lines
from aaco_pipeline.report.words.units import counted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

MISSING: Final = "–"
#: Where neither a terminal nor COLUMNS says how wide it is, as in a file.
_WIDTH_OF_A_FILE: Final = 160
#: Words; one with a command in backticks in it has the command's spaces, too, and a number stays with its unit.
_WORDS_OF_PROSE: Final = re.compile(r"(?:`[^`]*`|[^\s`]|`|(?<=[0-9]) (?=(?:[mµn]?s|%)(?![^\W_])))+")


def open_screen(stream: TextIO | None = None) -> "Console":
    """A console on `stream`, standard output by default: as wide as the terminal, else as COLUMNS says, else 160."""
    from rich.console import Console
    from rich.segment import Segment

    class Piped(Console):
        def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
            for segment in super().render(renderable, options):
                # Segments of control are rich's own, to move the cursor of a bar of progress.
                yield segment if segment.control else Segment(in_lines(segment.text), segment.style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1; that a reader has gone is no fault

    out = stream or sys.stdout
    known = out.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Piped(file=out, highlight=False, width=None if known else _WIDTH_OF_A_FILE)


def print_prose(screen: "Console", text: str, style: str = "") -> None:
    """Sentences, wrapped between words; a command in backticks is one word, so that it can be copied from one line.

    Where there is colour, it stands in a style of its own and without its backticks.
    """
    from rich.text import Text

    has_style = screen.color_system is not None
    lines, used = [Text()], 0
    for word in _WORDS_OF_PROSE.findall(in_a_line(text)):
        shown = word.replace("`", "") if has_style else word
        width = cells_of(shown)
        if used and used + 1 + width > screen.width:
            lines.append(Text())
            used = 0
        before = " " if used else ""
        for number, part in enumerate(word.split("`") if has_style else [shown]):
            lines[-1].append(f"{before}{part}", style="bold cyan" if number % 2 else style)
            before = ""
        used += len(" " if used else "") + width
    for line in lines:
        screen.print(line)


def print_table(
    screen: "Console", columns: Mapping[str, Callable[[Any], str | None]], rows: Sequence[Any], **layout: Any
) -> None:
    """A table, nothing without rows. `columns` says how a row is shown in each; `layout` is that of `print_cells`."""
    if rows:
        print_cells(screen, list(columns), [[show(row) for show in columns.values()] for row in rows], **layout)


def print_cells(
    screen: "Console",
    columns: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    *,
    title: str | None = None,
    names: Sequence[str] = ("kernel", "operator"),
    spare: Sequence[str] = (),
    whole: str = "--json",
) -> None:
    """A table of texts; a column whose name begins with `*` is flush right, and a missing value is a dash.

    Where the screen is narrow, first the columns in `names` are cut in the middle and texts wrapped, then those in
    `spare` are left out one after the other; `whole` is the option that shows them all.
    """
    cells = [[MISSING if text is None else in_a_line(text) for text in row] for row in rows]
    headings = map(in_a_line, columns)
    shown = [Column(name, [row[place] for row in cells], name in names) for place, name in enumerate(headings)]
    kept = kept_columns(shown, screen.width, spare)
    screen.print()
    if title is not None:
        print_prose(screen, title, "bold")
    draw(screen, kept)
    if len(kept) < len(shown):
        told = f"{counted(len(shown) - len(kept), 'column')} left out, as the screen is narrow; {whole} has all of them"
        screen.print(told, style="dim", markup=False)


def draw(screen: "Console", columns: Sequence[Column]) -> None:
    """A table of these columns, as wide as it needs to be and no wider than the screen; no line ends in spaces."""
    widths = column_widths(columns, screen.width)
    print_trimmed(screen, _table(columns, widths, (), has_heading=True))
    rows = zip(*(column.cut(width) for column, width in zip(columns, widths, strict=True)), strict=True)
    # What need not be wrapped is set here: many rows cost little. Names were cut to fit.
    wraps = [
        place
        for place, (column, width) in enumerate(zip(columns, widths, strict=True))
        if (column.wanted > width and not column.is_name) or any("\n" in text for text in column.texts)
    ]
    fits = table_width(widths) <= screen.width

    def is_set_here(row: Sequence[str]) -> bool:
        return fits and all(cells_of(row[place]) <= widths[place] and "\n" not in row[place] for place in wraps)

    for is_plain, some in groupby(rows, is_set_here):
        if not is_plain:
            print_trimmed(screen, _table(columns, widths, some, has_heading=False))
        elif lines := "\n".join(_lines(columns, widths, some)):
            screen.file.write(f"{in_lines(lines)}\n")


def _table(
    columns: Sequence[Column], widths: Sequence[int], rows: Iterable[Sequence[str]], *, has_heading: bool
) -> "RenderableType":
    """Rows in columns of these widths, in which texts that are longer are wrapped."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=has_heading)
    for column, width in zip(columns, widths, strict=True):
        side = "right" if column.name.startswith("*") else "left"
        table.add_column(Text(column.heading), justify=side, overflow="fold", width=width)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _lines(columns: Sequence[Column], widths: Sequence[int], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Rows in which every text fits its column, set as the headings above them are; no empty ones."""
    set_columns = [
        [f"{' ' * (width - cells_of(text))}{text}" for text in texts]
        if column.name.startswith("*")
        else [f"{text}{' ' * (width - cells_of(text))}" for text in texts]
        for column, width, texts in zip(columns, widths, zip(*rows, strict=True), strict=True)
    ]
    for row in zip(*set_columns, strict=True):
        if line := "   ".join(row).rstrip():
            yield f" {line}"


def print_trimmed(screen: "Console", renderable: "RenderableType") -> None:
    """Print it without spaces at the ends of its lines, and without its empty lines."""
    from rich.segment import Segment
    from rich.text import Text

    for segments in Segment.split_lines(screen.render(renderable)):
        shown = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        shown.rstrip()
        if shown:
            screen.print(shown, no_wrap=True, overflow="ignore", crop=False)
