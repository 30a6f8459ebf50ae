"""The page's sections about limits: what the bottleneck is, the roofline with its kernels, and where wavefronts waited.

What is said comes from `limits`, the plot from `roofline_plot`, the instructions from `instruction_listing`.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from aaco_pipeline.report.document.session import Document, Row
from aaco_pipeline.report.html.cells import (
    DASH,
    Cell,
    bar_cell,
    exact,
    folds,
    name_cell,
    number_cell,
    plain_cell,
    table,
    text_cell,
)
from aaco_pipeline.report.html.roofline_plot import DRAWN_KERNELS, NARROW, WIDE, placed_kernels, roofline_plot
from aaco_pipeline.report.html.sections import empty, section
from aaco_pipeline.report.words import bottleneck_text as limits
from aaco_pipeline.report.words.units import counted, number, share

_INTRO: Final = (
    "Rules judge measured signals; the score says how far they support the label, and is no probability. A label is "
    "only given where the signals it needs were measured."
)


def limits_section(document: Document) -> str:
    """What limits the session, with the evidence; the roofline; and what limits each of the longest kernels."""
    judged, kernels = document["bottleneck"], document["limits"]
    known = judged or any(row["bound"] or row["theoretical_ratio"] or row["achieved_ratio"] for row in kernels)
    return section(
        document,
        "limits",
        "What is the bottleneck",
        _INTRO,
        (_verdict(judged[0]) if judged else empty(document, "classification"))
        + (_roofline(document) + _kernels(kernels) if known and kernels else ""),
        statements=("bottleneck", *(("limits",) if known else ()), *(("ceilings",) if document["ceilings"] else ())),
    )


def _verdict(row: Row) -> str:
    body = f'<p class="verdict">{escape(limits.verdict(row, "session"))}.</p>'
    evidence = limits.strongest(row["evidence"])
    if evidence:
        body += table(("Signal", "*Value", "*Held against", "*Weight", "From"), [_evidence(one) for one in evidence])
    missing = limits.unmeasured(row["missing_signals"])
    if missing:
        told = counted(len(missing), "signal")
        body += f"<details><summary>{told} not measured</summary><p>{escape(', '.join(missing))}</p></details>"
    return body


def _evidence(row: limits.Row) -> Sequence[Cell]:
    value, threshold = row["value"], row["threshold"]
    return (
        plain_cell(limits.signal(row["signal"]), None, row["signal"]),
        plain_cell(limits.amount(row), value, exact(value, row["unit"])),
        plain_cell(
            None if threshold is None else limits.measure(threshold, row["unit"]),
            threshold,
            exact(threshold, row["unit"]),
        ),
        number_cell(number(row["weight"]), row["weight"]),
        text_cell(row["source"]),
    )


# ---- roofline --------------------------------------------------------------------------------------------------------


def _roofline(document: Document) -> str:
    kernels, ceilings = document["limits"], document["ceilings"]
    plots = {name: roofline_plot(kernels, ceilings, width=width) for name, width in (("wide", WIDE), ("slim", NARROW))}
    if plots["wide"] is None:
        return f'<h3>Roofline</h3><p class="empty">No roofline to draw: {_why_no_plot(document)}.</p>'
    placed = placed_kernels(kernels)
    drawn = min(placed, DRAWN_KERNELS)
    rest = f"{counted(len(kernels) - drawn, 'listed kernel')} without counted floating-point work or without bytes "
    left_out = f" {rest}{'is' if len(kernels) - drawn == 1 else 'are'} not in it." if len(kernels) > drawn else ""
    return (
        '<h3>Roofline</h3><figure class="rooflines"><figcaption>Each dot is a kernel at the rate it reached, as large '
        "as its share of the kernel time; the longest stand once for every level of memory, the others at the "
        "outermost one. A slope is what a level can deliver, a flat line what the units can compute."
        f"{left_out}</figcaption>"
        + "".join(f'<div class="{name}">{plot}</div>' for name, plot in plots.items())
        + "</figure>"
    )


def _why_no_plot(document: Document) -> str:
    if not document["ceilings"]:
        return "no ceiling of the device is known that a kernel’s work could be held against"
    return "no kernel has both counted floating-point operations and the bytes they needed"


# ---- kernels ---------------------------------------------------------------------------------------------------------


def _kernels(kernels: Sequence[Row]) -> str:
    longest = max((row["share_ratio"] or 0 for row in kernels), default=0)
    rows = [_kernel(row, longest) for row in kernels]
    columns = ("Kernel", "*Share", "Limited by", "*Of its roof", "Bound", "Nearest lower bounds", "Occupancy")
    return (
        "<h3>Kernels and what limits them</h3>"
        + table(columns, rows, folds=folds(kernels), name="limits")
        + '<p class="hint">A lower bound is the shortest time that one resource would have needed for the kernel’s '
        "work, here as a part of the time it took; above 100 % a ceiling or a counter is wrong. "
        f"At most the {limits.LISTED_KERNELS} longest kernels are listed.</p>"
    )


def _kernel(row: Row, longest: float) -> list[Cell]:
    efficiency = row["efficiency_ratio"]
    return [
        name_cell(row["name"]),
        bar_cell(row["share_ratio"], longest, share(row["share_ratio"]), exact(row["share_ratio"], None)),
        _label(row),
        plain_cell(share(efficiency), efficiency, exact(efficiency, None)),
        _with_aside(limits.resource(row["bound"]), limits.flags(row["quality_flags"])),
        _lines(limits.nearest(row)),
        text_cell(limits.occupied(row)),
    ]


def _label(row: Row) -> Cell:
    if row["label"] is None:
        missing = limits.unmeasured(row["missing_signals"] or [])
        brief = f"no label: {counted(len(missing), 'signal')} not measured" if missing else limits.of_kernel(row)
        return Cell(f'<span class="none">{escape(brief)}</span>', None, limits.of_kernel(row))
    runner_up = f", runner-up: {limits.briefly(row['runner_up'])}" if row["runner_up"] else ""
    score = "" if row["score"] is None else f"score {row['score']:.2f}"
    return _with_aside(limits.of_kernel(row), score + runner_up)


def _with_aside(text: str | None, aside: str) -> Cell:
    """A text with a smaller one beneath; the aside alone where there is no text."""
    shown = DASH if text is None else escape(text)
    return Cell(f'{shown}<span class="aside">{escape(aside)}</span>' if aside else shown)


def _lines(parts: Sequence[str]) -> Cell:
    """Each part on a line of its own, which does not break."""
    return Cell("".join(f'<span class="line">{escape(part)}</span>' for part in parts) or DASH)


# ---- instructions ----------------------------------------------------------------------------------------------------


def instructions_section(document: Document) -> str:
    """Where the wavefronts of the kernels that stalled most waited; nothing for a session without such a listing."""
    if not document["instructions"]:
        return ""
    return section(
        document,
        "instructions",
        "Where wavefronts waited",
        f"The instructions of at most {limits.LISTED_INSTRUCTIONS} traced or sampled kernels, the one that stalled "
        "most first; in each, the region that lost most is open.",
        "".join(_listings(document)),
        statements=("instructions", "stall_reasons"),
    )


def _listings(document: Document) -> Iterable[str]:
    # Polars and the listing are only needed by a session that has one.
    from aaco_pipeline.report.terminal.instruction_listing import listing_html, listings_of_rows

    kernels = (*document["limits"], *document["kernels"])
    for listing in listings_of_rows(document["instructions"], document["stall_reasons"], kernels):
        yield listing_html(listing)
