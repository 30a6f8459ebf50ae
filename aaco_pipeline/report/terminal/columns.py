"""How wide the columns of a table are on a screen, and which of them fit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

#: Words up to this length, such as an id of a session, are never broken.
LONGEST_WORD: Final = 50
#: A name is cut in the middle before a column is left out, but never below this.
SHORTEST_NAME: Final = 24
#: A column is left out before texts up to this length are wrapped.
_SHORT_TEXT: Final = 32
#: Where all else does not fit, names are cut to this length and words of sentences broken that are longer.
_SHORT_WORD: Final = 12
_BETWEEN_COLUMNS: Final = 3
_EDGES: Final = 2


@dataclass(eq=False)
class Column:
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
        return max(cells_of(self.heading), self._widest)

    @cached_property
    def _widest(self) -> int:
        return max(map(cells_of, self.texts), default=0)

    @cached_property
    def least(self) -> int:
        """The narrowest it may be: figures are never broken, texts and headings between words alone."""
        if self.is_name:
            return min(self.wanted, SHORTEST_NAME)
        if self.name.startswith("*"):
            return max(_longest_word(self.heading), self._widest)
        return min(LONGEST_WORD, max(map(cells_of, {*self.heading.split(), *" ".join(self.texts).split()}), default=0))

    @cached_property
    def comfortable(self) -> int:
        """The narrowest at which a short text is not wrapped."""
        return min(self.wanted, max(self.least, _SHORT_TEXT)) if self.is_text else self.least

    @property
    def is_text(self) -> bool:
        """Whether it holds neither names nor figures."""
        return not self.is_name and not self.name.startswith("*")

    @property
    def is_prose(self) -> bool:
        """Whether it holds sentences, whose words may be broken where nothing else helps."""
        return self.is_text and any(" " in text for text in self.texts)

    def cut(self, width: int) -> Iterable[str]:
        """Its texts; names no longer than `width`."""
        return (cut(text, width) for text in self.texts) if self.is_name else self.texts


def kept_columns(columns: Sequence[Column], room: int, spare: Sequence[str]) -> list[Column]:
    """The columns that fit, without as many of the spare ones as it takes; of those whichever then still fit."""

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
    """How wide each column is: what is left goes to those that lack least, so that long texts share what remains."""
    widths = [column.comfortable for column in columns]
    if table_width(widths) > room:
        widths = [column.least for column in columns]
    soft = [place for place, column in enumerate(columns) if column.is_name or column.is_prose]
    while table_width(widths) > room and soft and widths[widest := max(soft, key=widths.__getitem__)] > _SHORT_WORD:
        widths[widest] -= 1  # names and long words of sentences give way before any id or figure is broken
    left = max(0, room - table_width(widths))
    lacks = sorted(range(len(columns)), key=lambda place: columns[place].wanted - widths[place])
    for done, place in enumerate(lacks):
        more = min(columns[place].wanted - widths[place], left // (len(lacks) - done))
        widths[place], left = widths[place] + more, left - more
    return widths


def table_width(widths: Sequence[int]) -> int:
    """How wide a table of columns of these widths is."""
    return sum(widths) + _BETWEEN_COLUMNS * (len(widths) - 1) + _EDGES


def _longest_word(text: str) -> int:
    return max(map(cells_of, text.split()), default=0)


def cells_of(text: str) -> int:
    """How many places of a terminal the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """The text with its middle left out where it is too long: names often differ only at their end."""
    if cells_of(text) <= width:
        return text
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"
