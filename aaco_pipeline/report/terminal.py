"""Print prose, tables and query results on a terminal or to a pipe, at the width of the screen.

The subjects' own modules provide the content; `aaco_pipeline.cli` writes CSV and JSON.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TextIO

from aaco_pipeline.report.formatting import counted, in_a_line, in_lines
from aaco_pipeline.report.view import Lines, Sentence, Table, Tone, View

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

#: Words up to this length, such as a session id, are never broken.
LONGEST_WORD: Final = 50
#: Minimum length to which a name is cut in the middle before a column is left out.
SHORTEST_NAME: Final = 24
#: A column is left out before texts up to this length are wrapped.
_SHORT_TEXT: Final = 32
#: Last resort: names are cut to this length, and longer words in sentences are broken.
_SHORT_WORD: Final = 12
_BETWEEN_COLUMNS: Final = 3
_EDGES: Final = 2


@dataclass(eq=False)
class Column:
    """A column as shown without any width limit."""

    name: str
    texts: Sequence[str]
    is_name: bool

    @property
    def heading(self) -> str:
        """The name as displayed."""
        return self.name.lstrip("*")

    @cached_property
    def wanted(self) -> int:
        """The width at which nothing is cut or wrapped."""
        return max(cells_of(self.heading), self._widest)

    @cached_property
    def _widest(self) -> int:
        return max(map(cells_of, self.texts), default=0)

    @cached_property
    def least(self) -> int:
        """The minimum width: figures are never broken, texts and headings only between words."""
        if self.is_name:
            return min(self.wanted, SHORTEST_NAME)
        if self.name.startswith("*"):
            return max(_longest_word(self.heading), self._widest)
        return min(LONGEST_WORD, max(map(cells_of, {*self.heading.split(), *" ".join(self.texts).split()}), default=0))

    @cached_property
    def comfortable(self) -> int:
        """The minimum width at which a short text is not wrapped."""
        return min(self.wanted, max(self.least, _SHORT_TEXT)) if self.is_text else self.least

    @property
    def is_text(self) -> bool:
        """True if it contains neither names nor figures."""
        return not self.is_name and not self.name.startswith("*")

    @property
    def is_prose(self) -> bool:
        """True if it contains sentences, whose words may be broken as a last resort."""
        return self.is_text and any(" " in text for text in self.texts)

    def cut(self, width: int) -> Iterable[str]:
        """Return the texts, with names cut to `width`."""
        return (cut(text, width) for text in self.texts) if self.is_name else self.texts


def kept_columns(columns: Sequence[Column], room: int, spare: Sequence[str]) -> list[Column]:
    """Return the columns that fit: spare columns are dropped as needed, and restored if they still fit."""

    def fit(chosen: Sequence[Column]) -> bool:
        return table_width([column.comfortable for column in chosen]) <= room

    kept, out = list(columns), list[Column]()
    for least in [one for name in spare for one in columns if one.name == name]:
        if not fit(kept):
            kept.remove(least)
            out.append(least)
    for wanted in reversed(out):
        if fit(more := [column for column in columns if column in (*kept, wanted)]):
            kept = more
    return kept


def column_widths(columns: Sequence[Column], room: int) -> list[int]:
    """Return each column's width: free space goes to the columns that lack least, and long texts share the rest."""
    widths = [column.comfortable for column in columns]
    if table_width(widths) > room:
        widths = [column.least for column in columns]
    soft = [place for place, column in enumerate(columns) if column.is_name or column.is_prose]
    while table_width(widths) > room and soft and widths[widest := max(soft, key=widths.__getitem__)] > _SHORT_WORD:
        widths[widest] -= 1  # names and long words of sentences shrink before any id or figure is broken
    left = max(0, room - table_width(widths))
    lacks = sorted(range(len(columns)), key=lambda place: columns[place].wanted - widths[place])
    for done, place in enumerate(lacks):
        more = min(columns[place].wanted - widths[place], left // (len(lacks) - done))
        widths[place], left = widths[place] + more, left - more
    return widths


def table_width(widths: Sequence[int]) -> int:
    """Return the width of a table with these column widths."""
    return sum(widths) + _BETWEEN_COLUMNS * (len(widths) - 1) + _EDGES


def _longest_word(text: str) -> int:
    return max(map(cells_of, text.split()), default=0)


def cells_of(text: str) -> int:
    """Return the number of terminal cells that the text occupies."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Cut a long text in the middle, because names often differ only at the end."""
    if cells_of(text) <= width:
        return text
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"


MISSING: Final = "–"
_STYLES: Final[Mapping[Tone, str]] = {
    **{"": "", "strong": "bold", "aside": "dim"},
    **{"good": "bold green", "bad": "bold red", "open": "bold yellow"},
}
#: Width if neither the terminal nor COLUMNS defines one, as for a file.
_WIDTH_OF_A_FILE: Final = 160
#: Words; a command in backticks is one word including its spaces, and a number stays with its unit.
_WORDS_OF_PROSE: Final = re.compile(r"(?:`[^`]*`|[^\s`]|`|(?<=[0-9]) (?=(?:[mµn]?s|%)(?![^\W_])))+")


def open_screen(stream: TextIO | None = None) -> "Console":
    """Open a console on `stream` (default: standard output) with the width of the terminal, COLUMNS, or 160."""
    from rich.console import Console
    from rich.segment import Segment

    class Piped(Console):
        def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
            for segment in super().render(renderable, options):
                # Control segments are rich's cursor movements for a progress bar.
                yield segment if segment.control else Segment(in_lines(segment.text), segment.style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, but a closed reader is not an error

    out = stream or sys.stdout
    known = out.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Piped(file=out, highlight=False, width=None if known else _WIDTH_OF_A_FILE)


def print_view(view: View, stream: TextIO | None = None) -> None:
    """Print a view, by default on standard output."""
    _print_parts(open_screen(stream), view)


def _print_parts(screen: "Console", view: View) -> None:
    from rich.text import Text

    if view.identifier is not None:
        print_trimmed(screen, Text.assemble((view.identifier, "bold"), "  ", in_a_line(view.title)))
    elif view.title:
        print_prose(screen, view.title.replace("`", ""), "bold")
    for part in view.parts:
        if part.only == "markdown":
            continue
        if isinstance(part, View):
            _print_parts(screen, part)
        elif isinstance(part, Sentence):
            print_prose(screen, part.text, _STYLES[part.tone])
        elif isinstance(part, Lines):
            if part.headed and part.lines:
                print_prose(screen, f"{part.heading}:", "bold")
            for line in part.lines:
                print_prose(screen, line)
        elif isinstance(part, Table):
            layout = {"title": part.title, "names": part.names, "spare": part.spare, "whole": part.whole}
            print_table(screen, part.columns, part.rows, **layout)


def print_prose(screen: "Console", text: str, style: str = "") -> None:
    """Print sentences wrapped between words; a command in backticks is one word, so that it can be copied from one
    line.

    With colour, commands have their own style and no backticks.
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
    """Print a table; nothing without rows. `columns` formats each row; `layout` is as for `print_cells`."""
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
    """Print a table of texts; columns whose name begins with `*` are right-aligned, and missing values are dashes.

    On a narrow screen, columns in `names` are cut in the middle and texts wrapped first; then columns in `spare` are
    left out one by one. `whole` is the option that shows all columns.
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
    """Draw a table of these columns, no wider than necessary or than the screen; lines have no trailing spaces."""
    widths = column_widths(columns, screen.width)
    print_trimmed(screen, _table(columns, widths, (), has_heading=True))
    rows = zip(*(column.cut(width) for column, width in zip(columns, widths, strict=True)), strict=True)
    # Fast path for many rows that need no wrapping. Names were already cut to fit.
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
    """Build rows with columns of these widths; longer texts are wrapped."""
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
    """Build rows whose texts all fit, aligned like their headings; no empty ones."""
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
    """Print without trailing spaces and empty lines."""
    from rich.segment import Segment
    from rich.text import Text

    for segments in Segment.split_lines(screen.render(renderable)):
        shown = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        shown.rstrip()
        if shown:
            screen.print(shown, no_wrap=True, overflow="ignore", crop=False)


_LEFT_OUT: Final = "…"
#: Maximum number of rows; of longer results the first and last halves are shown.
_SHOWN_ROWS: Final = 40
#: Maximum difference between the numbers of columns shown at each end.
_UNEVEN: Final = 2


def print_result(
    screen: "Console",
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    show: Callable[[object], str],
    *,
    numeric: Sequence[str],
    goes_on: bool,
) -> None:
    """Print a result table and how much of it is shown. If it `goes_on`, `rows` are only its first rows. `show` formats
    a value.

    Ids and figures are never broken. Texts that are longer, or have several words, are cut in the middle.
    """
    shown = _shown_rows(rows, show, goes_on=goes_on)
    every = [
        _column(f"*{name}" if name in numeric else name, [row[place] for row in shown])
        for place, name in enumerate(map(in_a_line, columns))
    ]
    kept = _kept(every, screen.width, len(shown))
    draw(screen, kept)
    said = [_counts("row", len(rows), min(len(rows), _SHOWN_ROWS), "more than " if goes_on else "")]
    if kept != every:
        said.append(_counts("column", len(every), len(kept) - 1))
    is_cut = any(one.wanted > width for one, width in zip(kept, column_widths(kept, screen.width), strict=True))
    is_whole = kept == every and len(rows) <= _SHOWN_ROWS and not is_cut
    print_prose(screen, ", ".join(said) + ("" if is_whole else "; --format csv or json has all of it"))


def _counts(noun: str, count: int, shown: int, more: str = "") -> str:
    """`11 columns (7 shown)`."""
    return f"{more}{counted(count, noun)}" + (f" ({shown:,} shown)" if shown < count else "")


def _shown_rows(rows: Sequence[Sequence[object]], show: Callable[[object], str], *, goes_on: bool) -> list[list[str]]:
    """Format the rows as texts; of many rows, the first and last with a separator row in between."""

    def texts(some: Sequence[Sequence[object]]) -> list[list[str]]:
        return [[MISSING if value is None else in_a_line(show(value)) for value in row] for row in some]

    if len(rows) <= _SHOWN_ROWS:
        return texts(rows)
    marks = [_LEFT_OUT] * len(rows[0])
    if goes_on:
        return [*texts(rows[:_SHOWN_ROWS]), marks]
    half = _SHOWN_ROWS // 2
    return [*texts(rows[:half]), marks, *texts(rows[-half:])]


def _column(name: str, texts: Sequence[str]) -> Column:
    is_id = all(len(text) <= LONGEST_WORD and " " not in text for text in texts)
    return Column(name, texts, is_name=not is_id and not name.startswith("*"))


def _kept(columns: Sequence[Column], room: int, rows: int) -> list[Column]:
    """Return all columns, or as many from both ends as fit with a separator column; the first is always included."""
    if table_width([column.least for column in columns]) <= room:
        return list(columns)
    mark = Column(_LEFT_OUT, [_LEFT_OUT] * rows, is_name=False)
    fitting = [(1, 0)]
    for left in range(1, len(columns)):
        for right in range(max(0, left - _UNEVEN), min(left + _UNEVEN, len(columns) - left - 1) + 1):
            least = [column.least for column in (*columns[:left], mark, *columns[len(columns) - right :])]
            if table_width(least) <= room:
                fitting.append((left, right))
    left, right = max(fitting, key=lambda ends: (sum(ends), -abs(ends[0] - ends[1]), ends))
    return [*columns[:left], *([mark] if left + right < len(columns) else []), *columns[len(columns) - right :]]
