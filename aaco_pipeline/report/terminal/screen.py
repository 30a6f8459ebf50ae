"""How text gets onto a terminal or into a pipe: its width, and tables that fit into it.

What is said is its caller's; text of a capture may stand in every cell and sentence, so what could move the cursor or
hide something is shown as an escape, here for all of the terminal.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TextIO

from aaco_pipeline.report.words.printable import in_a_line, in_lines
from aaco_pipeline.report.words.units import counted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

MISSING: Final = "–"
#: Where neither a terminal nor COLUMNS says how wide it is, as in a file.
_WIDTH_OF_A_FILE: Final = 160
#: Words up to this length, such as an id of a session, are never broken.
_LONGEST_WORD: Final = 50
#: A name is cut in the middle before a column is left out, but never below this.
_SHORTEST_NAME: Final = 24
#: A column is left out before texts up to this length are wrapped.
_SHORT_TEXT: Final = 32
#: Words; one with a command in backticks in it has the command's spaces, too.
_WORDS_OF_PROSE: Final = re.compile(r"(?:`[^`]*`|[^\s`]|`)+")
_BETWEEN_COLUMNS: Final = 3
_EDGES: Final = 2


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
        width = _cells(shown)
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
    spare: Sequence[str] | None = (),
    whole: str = "--json",
) -> None:
    """A table of texts; a column whose name begins with `*` is flush right, and a missing value is a dash.

    Where the screen is narrow, first the columns in `names` are cut in the middle and texts wrapped, then those in
    `spare` are left out one after the other, of None the last ones; `whole` is the option that shows them all.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    cells = [[MISSING if text is None else in_a_line(text) for text in row] for row in rows]
    headings = map(in_a_line, columns)
    shown = [_Column(name, [row[place] for row in cells], name in names) for place, name in enumerate(headings)]
    kept = _kept(shown, screen.width, spare)
    widths = _widths(kept, screen.width)
    if title is not None:
        screen.print(title, style="bold", markup=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, width in zip(kept, widths, strict=True):
        side = "right" if column.name.startswith("*") else "left"
        table.add_column(Text(column.heading), justify=side, overflow="fold", width=width)  # type: ignore[arg-type]
    for line in zip(*(column.cut(width) for column, width in zip(kept, widths, strict=True)), strict=True):
        table.add_row(*map(Text, line))
    screen.print(table)
    if len(kept) < len(shown):
        told = f"{counted(len(shown) - len(kept), 'column')} left out, as the screen is narrow; {whole} has all of them"
        screen.print(told, style="dim", markup=False)


@dataclass(eq=False)
class _Column:
    """A column as it would be shown on a screen without end."""

    name: str
    texts: Sequence[str]
    is_name: bool

    @property
    def heading(self) -> str:
        """Its name as it is shown."""
        return self.name.lstrip("*")

    @cached_property
    def wanted(self) -> int:
        """The width at which nothing is cut or wrapped."""
        return max(map(_cells, (self.heading, *self.texts)))

    @cached_property
    def least(self) -> int:
        """The narrowest it may be: figures are never broken, texts and headings between words alone."""
        if self.is_name:
            return min(self.wanted, _SHORTEST_NAME)
        if self.name.startswith("*"):
            return max(_longest_word(self.heading), *map(_cells, self.texts), 0)
        return min(_LONGEST_WORD, max(map(_longest_word, (self.heading, *self.texts))))

    @cached_property
    def comfortable(self) -> int:
        """The narrowest at which a short text is not wrapped."""
        return min(self.wanted, max(self.least, _SHORT_TEXT)) if self.is_text else self.least

    @property
    def is_text(self) -> bool:
        """Whether it holds neither names nor figures."""
        return not self.is_name and not self.name.startswith("*")

    def cut(self, width: int) -> Iterable[str]:
        """Its texts; names no longer than `width`."""
        return (_cut(text, width) for text in self.texts) if self.is_name else self.texts


def _kept(columns: Sequence[_Column], room: int, spare: Sequence[str] | None) -> list[_Column]:
    """The columns that fit, without as many of the spare ones as it takes; of those whichever then still fit."""

    def fit(chosen: Sequence[_Column]) -> bool:
        return _table_width([column.comfortable for column in chosen]) <= room

    kept, out = list(columns), list[_Column]()
    for least in [one for name in spare for one in columns if one.name == name] if spare is not None else kept[:0:-1]:
        if not fit(kept):
            kept.remove(least)
            out.append(least)
    for wanted in reversed(out):
        if fit(more := [column for column in columns if column in (*kept, wanted)]):
            kept = more
    return kept


def _widths(columns: Sequence[_Column], room: int) -> list[int]:
    """How wide each column is: what is left goes to those that lack least, so that long texts share what remains."""
    widths = [column.comfortable for column in columns]
    if _table_width(widths) > room:
        widths = [column.least for column in columns]
    left = max(0, room - _table_width(widths))
    lacks = sorted(range(len(columns)), key=lambda place: columns[place].wanted - widths[place])
    for done, place in enumerate(lacks):
        more = min(columns[place].wanted - widths[place], left // (len(lacks) - done))
        widths[place], left = widths[place] + more, left - more
    return widths


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN_COLUMNS * (len(widths) - 1) + _EDGES


def _longest_word(text: str) -> int:
    return max(map(_cells, text.split()), default=0)


def _cells(text: str) -> int:
    """How many places of a terminal the text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def _cut(text: str, width: int) -> str:
    """The text with its middle left out where it is too long: names often differ only at their end."""
    if _cells(text) <= width:
        return text
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"
