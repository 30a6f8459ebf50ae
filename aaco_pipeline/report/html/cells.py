"""Tables of the report's page: cells with a figure, its exact value on hover and what the column sorts by.

What a table says is `html` and the other sections'; here it only gets its form. Everything that goes into a cell is
escaped here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from aaco_pipeline.report.document.session import Row
from aaco_pipeline.report.words.units import counted, duration, number, share, size

LISTED_ROWS: Final = 200
SHOWN_ROWS: Final = 12
DASH: Final = '<span class="none">–</span>'


@dataclass(frozen=True)
class Cell:
    """One cell: `html` is escaped already, `order` is what the column sorts by, `exact` is shown on hover."""

    html: str
    order: float | None = None
    exact: str | None = None


def plain_cell(text: str | None, order: float | None, exact: str | None) -> Cell:
    return Cell(DASH if text is None else escape(text), order, exact)


def text_cell(text: str | None) -> Cell:
    return plain_cell(text, None, None)


def name_cell(text: str) -> Cell:
    """A name that may be hundreds of characters long: the page cuts it, hovering shows it whole."""
    return Cell(f'<span class="name">{escape(text)}</span>', None, text)


def number_cell(text: str | None, order: float | None) -> Cell:
    return plain_cell(text, order, exact(order, None))


def time_cell(nanoseconds: int | None) -> Cell:
    return plain_cell(duration(nanoseconds), nanoseconds, exact(nanoseconds, "ns"))


def size_cell(bytes_: int | None) -> Cell:
    return plain_cell(size(bytes_), bytes_, exact(bytes_, "bytes"))


def count_cell(count: int | None) -> Cell:
    return plain_cell(None if count is None else f"{count:,}", count, None)


def share_cell(ratio: float | None) -> Cell:
    return plain_cell(share(ratio), ratio, exact(ratio, None))


def unit_cell(amount: float | None, unit: str | None) -> Cell:
    if unit == "ns":
        return plain_cell(duration(amount), amount, exact(amount, "ns"))
    shown = number(amount)
    return plain_cell(
        shown and (shown if unit in ("ratio", "count", None) else f"{shown} {unit}"), amount, exact(amount, unit)
    )


def status_cell(status: str) -> Cell:
    return Cell(f'<span class="status {escape(status)}">{escape(status)}</span>')


def bar_cell(amount: float | None, whole: float, text: str | None, exact: str | None) -> Cell:
    """A bar as long as `amount` is of `whole`, with the figure beside it."""
    if amount is None or text is None:
        return Cell(DASH)
    width = 100 * amount / whole if whole else 0
    bar = f'<svg class="bar" aria-hidden="true"><rect width="{width:.2f}%" height="100%" rx="2"/></svg>'
    return Cell(f'<span class="barred">{bar}<span>{escape(text)}</span></span>', amount, exact)


def exact(amount: float | None, unit: str | None) -> str | None:
    """The number as the table holds it."""
    if amount is None:
        return None
    digits = f"{int(amount):,}" if float(amount).is_integer() else repr(float(amount))
    return f"{digits} {unit}" if unit else digits


def hover(text: str | None, exact: str | None) -> str:
    if text is None:
        return DASH
    return f'<span title="{escape(exact)}">{escape(text)}</span>' if exact else escape(text)


def share_table(first: Sequence[str], rows: Sequence[Row], cells: Callable[[Row], list[Cell]], noun: str) -> str:
    """A table of shares of the kernel time: the largest rows, the others as one row, and the whole."""
    longest = max((row["share_ratio"] or 0 for row in rows), default=0)

    def figures(count: int | None, total: int | None, mean: int | None, ratio: float | None) -> list[Cell]:
        return [
            bar_cell(ratio, longest, share(ratio), exact(ratio, None)),
            time_cell(total),
            count_cell(count),
            time_cell(mean),
        ]

    body = [
        [*cells(row), *figures(row["dispatch_count"], row["total_ns"], row["mean_ns"], row["share_ratio"])]
        for row in rows[:LISTED_ROWS]
    ]

    def together(label: str, some: Sequence[Row]) -> list[Cell]:
        count, total = (sum(row[key] for row in some) for key in ("dispatch_count", "total_ns"))
        ratios = [row["share_ratio"] for row in some if row["share_ratio"] is not None]
        ratio = math.fsum(ratios) if ratios else None
        blank = [Cell("")] * (len(first) - 1)
        return [
            text_cell(label),
            *blank,
            Cell(escape(share(ratio) or "–"), ratio),
            time_cell(total),
            count_cell(count),
            Cell(""),
        ]

    foot = []
    if folds(rows):
        foot.append(together(f"other ({counted(len(rows) - SHOWN_ROWS, noun)})", rows[SHOWN_ROWS:]))
    if len(rows) > LISTED_ROWS:
        foot.append(together(f"not listed ({counted(len(rows) - LISTED_ROWS, noun)})", rows[LISTED_ROWS:]))
    foot.append(together(f"all ({counted(len(rows), noun)})", rows))
    columns = (*first, "*Share", "*Total", "*Dispatches", "*Mean")
    return table(columns, body, foot=foot, folds=folds(rows), name="shares")


def operators_together(label: str, rows: Sequence[Row]) -> list[Cell]:
    """A last row for several operators: their time, which adds up, and not their work, which is of one execution."""
    total = sum(row["total_ns"] or 0 for row in rows)
    ratio = math.fsum(row["share_ratio"] or 0 for row in rows)
    named = text_cell(f"{label} ({counted(len(rows), 'row')})")
    return [named, Cell(""), time_cell(total), share_cell(ratio), *[Cell("")] * 5]


def folds(rows: Sequence[Row]) -> bool:
    """Whether a table is so long that its tail is better folded; two or three rows more are not worth a click."""
    return len(rows) > SHOWN_ROWS + 3


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    foot: Sequence[Sequence[Cell]] = (),
    folds: bool = False,
    name: str = "",
) -> str:
    """A sortable table; a column whose name begins with `*` holds numbers. One that folds shows its tail on a click."""
    numeric = [column.startswith("*") for column in columns]
    heads = "".join(
        f'<th scope="col"{class_attribute(("number", is_number))}>'
        f'<button type="button">{escape(column.lstrip("*"))}</button></th>'
        for column, is_number in zip(columns, numeric, strict=True)
    )

    def line(cells: Sequence[Cell], classes: str = "") -> str:
        parts = []
        for cell, is_number in zip(cells, numeric, strict=True):
            order = "" if cell.order is None else f' data-order="{cell.order!r}"'
            hint = "" if cell.exact is None else f' title="{escape(cell.exact)}"'
            parts.append(f"<td{class_attribute(('number', is_number))}{order}{hint}>{cell.html}</td>")
        return f"<tr{classes}>{''.join(parts)}</tr>"

    body = "".join(
        line(cells, ' class="more"' if folds and index >= SHOWN_ROWS else "") for index, cells in enumerate(rows)
    )
    ends = "".join(
        line(cells, ' class="other"' if folds and cells[0].html.startswith("other") else "") for cells in foot
    )
    more = f'<button type="button" class="expand" aria-expanded="false">Show all {len(rows)}</button>' if folds else ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table, scrolls sideways">'
        f"<table{class_attribute((name, bool(name)))}>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
        + (f"<tfoot>{ends}</tfoot>" if ends else "")
        + f"</table></div>{more}"
    )


def class_attribute(*named: tuple[str, bool]) -> str:
    names = " ".join(name for name, wanted in named if wanted)
    return f' class="{names}"' if names else ""
