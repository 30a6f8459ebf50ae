"""Render a page of sections for verdicts, differences and searches, as one file with its style and script.

Each subject defines its sections; `templates/comparison` defines their appearance. The page loads nothing from
elsewhere, and without its script only the theme switch is missing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from markupsafe import Markup

from aaco_pipeline import __version__
from aaco_pipeline.report.formatting import printable
from aaco_pipeline.report.html.page import OF_THE_PAGE, UNIT, joined, templates
from aaco_pipeline.report.view import Lines, Sentence, Table, Tone

#: Height of a plot over blocks or nights, and its vertical margins.
HEIGHT: Final = 220
EDGE: Final = 14
_TICKS: Final = 4


class Scale:
    """Map values to percentages of the width, clamped to the edges."""

    def __init__(self, low: float, high: float) -> None:
        # A range within rounding errors is centred in the plot.
        size = max(abs(low), abs(high), 1e-9)
        room = 0.0 if high - low > 1e-9 * size else 0.01 * size
        self.low, self.high = low - room, high + room

    def at(self, value: float) -> float:
        """Return the position of a value, from 0 to 100."""
        return 100 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def down(self, value: float) -> float:
        """Return its vertical position on a plot of `HEIGHT`; larger values are higher."""
        return HEIGHT - EDGE - self.at(value) / 100 * (HEIGHT - 2 * EDGE)

    def span(self, low: float, high: float) -> dict[str, Any]:
        """Return both ends of an interval, and whether it extends beyond the edges."""
        return {"low": self.at(low), "high": self.at(high), "goes_on": (low < self.low, high > self.high)}

    def ticks(self) -> list[float]:
        """Return a few round values in the range."""
        step = _round_step((self.high - self.low) / _TICKS)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True)
class Block:
    """A plot, a diff or another block, identified by the name of its macro; left out without content.

    `told` is its text alternative, `axis` labels its axis.
    """

    kind: str
    content: Any
    told: str = ""
    axis: str | None = None
    heading: str | None = None


PagePart: TypeAlias = Sentence | Lines | Table | Block


@dataclass(frozen=True)
class Section:
    """A section with its link's label, and its SQL as table and command.

    It is left out if its first part is empty.
    """

    name: str
    label: str
    heading: str
    parts: Sequence[PagePart]
    intro: str | None = None
    source: tuple[str, str] | None = None


@dataclass(frozen=True)
class Page:
    """A page: the answer with the text above and below it, the sections, and the command that regenerates the page.

    `tiles` have a label, a figure and a caption.
    """

    title: str
    beneath: str
    identifier: str
    answer: str
    tone: Tone
    opening: Sequence[str]
    sections: Sequence[Section]
    command: str
    tiles: Sequence[tuple[str, str, str | None]] = ()


def render_page(page: Page) -> str:
    """Render the page as HTML; equal pages give equal text."""
    sections = [_filled(section) for section in page.sections]
    values = {**vars(page), "sections": [section for section in sections if section is not None]}
    style, script = joined("report.css", "comparison/comparison.css"), joined("comparison/comparison.js")
    same = {"style": style, "script": script, "height": HEIGHT, "written_by": f"aaco_pipeline {__version__}"}
    template = templates().get_template("comparison/page.html.jinja")
    return printable(template.render(**same, **_held(values)), keep=OF_THE_PAGE)


# ---- inside ----------------------------------------------------------------------------------------------------------


def _filled(section: Section) -> dict[str, Any] | None:
    first, *rest = [_shown(part) for part in section.parts] or [None]
    return None if first is None else {**vars(section), "parts": [first, *(part for part in rest if part is not None)]}


def _shown(part: PagePart) -> dict[str, Any] | None:
    if isinstance(part, Table):
        rows = [["–" if (text := show(row)) is None else text for show in part.columns.values()] for row in part.rows]
        return {**vars(part), "kind": "table", "columns": list(part.columns), "rows": rows} if rows else None
    if isinstance(part, Lines):
        return {"kind": "lines", "lines": part.lines} if part.lines else None
    if isinstance(part, Sentence):
        return {"kind": "sentence", "text": part.text, "is_hint": part.tone == "aside"} if part.text else None
    return vars(part) if part.content else None


def _round_step(rough: float) -> float:
    """Return the smallest of 1, 2, 5 x a power of ten that is at least `rough`."""
    power = math.pow(10, math.floor(math.log10(rough)))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * 0.999)


def _held(value: Any) -> Any:
    """Prevent line breaks between figures and units; markup and code are unchanged."""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else UNIT.sub("\N{NO-BREAK SPACE}", value)
    if isinstance(value, dict):
        return {key: _held(one) for key, one in value.items()}
    return type(value)(map(_held, value)) if isinstance(value, list | tuple) else value
