"""What an SQL statement gave, for a terminal: where it is too wide or too long, its middle is left out and counted."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from aaco_pipeline.report.terminal.columns import LONGEST_WORD, Column, column_widths, table_width
from aaco_pipeline.report.terminal.screen import MISSING, draw, print_prose
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.report.words.units import counted

if TYPE_CHECKING:
    from rich.console import Console

_LEFT_OUT: Final = "…"
#: Of more rows the first and the last halves of as many are shown.
_SHOWN_ROWS: Final = 40
#: By so many columns one end may be shown more of than the other.
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
    """A table and what of it is shown; where it `goes_on`, `rows` are its first ones. `show` gives a value's text.

    Ids and figures are never broken. Texts that are longer, or of several words, are cut in the middle.
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
    """The rows as texts, of many the first and the last with a row of marks between."""

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
    """All columns, or as many from both ends as fit with one of marks between them; the first is always there."""
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
