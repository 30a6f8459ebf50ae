"""A subject as data: its title, and sentences, lists and tables in reading order.

Each medium has one renderer: `terminal.print_view`, `markdown.render_view`, `html.page`. JSON is the document itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Columns = Mapping[str, Callable[[Any], str | None]]
Medium = Literal["terminal", "markdown"]
#: `good`, `bad` and `open` mark the answer itself, `strong` and `aside` more or less important text.
Tone = Literal["", "good", "bad", "open", "strong", "aside"]


@dataclass(frozen=True)
class Sentence:
    """A paragraph with commands in backticks. An empty one is a blank line on a terminal."""

    text: str
    tone: Tone = ""
    only: Medium | None = None


@dataclass(frozen=True)
class Lines:
    """A list of sentences under a heading, which a terminal prints only if `headed`; left out if empty."""

    heading: str
    lines: Sequence[str]
    headed: bool = True
    only: Medium | None = None


@dataclass(frozen=True)
class Table:
    """A table, nothing without rows. `columns` says how a row is shown in each; `*` marks figures.

    Args:
        title: Heading above the table.
        names: Columns that a narrow terminal cuts in the middle.
        spare: Columns that a narrow terminal leaves out, the first one first.
        whole: The option that prints all columns.
        heading: Heading in Markdown, if another than `title`.
        most: Rows that Markdown shows.
        strong: Text that makes its row stand out on a page.
        folded: What a page shows until a click opens the table.
    """

    columns: Columns
    rows: Sequence[Any]
    title: str | None = None
    names: Sequence[str] = ("kernel", "operator")
    spare: Sequence[str] = ()
    whole: str = "--json"
    heading: str | None = None
    most: int = 20
    strong: str | None = None
    folded: str | None = None
    only: Medium | None = None


@dataclass(frozen=True)
class Code:
    """Code under a heading, shown unchanged; not on a terminal."""

    heading: str
    text: str
    language: str
    only: Medium | None = "markdown"


@dataclass(frozen=True)
class View:
    """A title, with the subject's id if a terminal prints one before it, and the parts in reading order."""

    title: str
    parts: Sequence["Part"]
    identifier: str | None = None
    only: Medium | None = None


Part: TypeAlias = Sentence | Lines | Table | Code | View


def sentences(texts: Iterable[str | None], tone: Tone = "", only: Medium | None = None) -> list[Part]:
    """Return one `Sentence` for each non-empty text."""
    return [Sentence(text, tone, only) for text in texts if text is not None]
