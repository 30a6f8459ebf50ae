"""Lay out the page of a search for a faster kernel or configuration: its sections, and the positions of its layouts.

`html.view_page` renders the page.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from markupsafe import escape

from aaco_pipeline.report.comparing.verdict import Row
from aaco_pipeline.report.formatting import counted, long_duration, number
from aaco_pipeline.report.html.sections import shell_command
from aaco_pipeline.report.html.view_page import Block, Page, Scale, Section, render_page
from aaco_pipeline.report.optimization import evidence, search
from aaco_pipeline.report.session.view import ENVIRONMENT
from aaco_pipeline.report.view import Table

#: Candidate ratios for axis labels, most informative first.
_TICKS: Final = (
    *(1, 10, 0.1, 100, 2, 0.5, 5, 0.2, 1.5, 3, 20, 50, 1.2, 0.8, 1.1, 0.9),
    *(1.05, 0.95, 1.02, 0.98, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998),
)
#: Minimum distance between labels, in percent.
_APART: Final = 11


def placed_layouts(timings: Sequence[Row], threshold_ratio: float) -> dict[str, Any] | None:
    """Position every timed step's layouts and interval on one axis; None if nothing was timed.

    `threshold_ratio` is the smallest relevant gain, as a difference from 1.
    """
    if not timings:
        return None
    known = [1.0, 1 + threshold_ratio]
    known += [ratio for row in timings for ratio in (*row["layouts"], row["ci_low"], row["ci_high"]) if ratio]
    low, high = math.log(min(known)), math.log(max(known))
    room = max(0.04 * (high - low), 1e-3)
    scale = Scale(low - room, high + room)

    def at(ratio: float) -> float:
        return scale.at(math.log(ratio))

    return {
        "rows": [
            {
                **row,
                "dots": [(at(ratio), ratio) for ratio in row["layouts"] if ratio is not None],
                "point": None if row["speedup_ratio"] is None else at(row["speedup_ratio"]),
                "span": None if None in (row["ci_low"], row["ci_high"]) else (at(row["ci_low"]), at(row["ci_high"])),
            }
            for row in timings
        ],
        "one": at(1.0),
        "threshold": at(1 + threshold_ratio),
        "ticks": [(at(tick), tick) for tick in _ticks(scale)],
    }


def _ticks(scale: Scale) -> list[float]:
    kept: list[float] = []
    for tick in _TICKS:
        place = math.log(tick)
        if scale.low <= place <= scale.high and all(
            abs(scale.at(place) - scale.at(math.log(other))) >= _APART for other in kept
        ):
            kept.append(tick)
    return sorted(kept)


def render_search(document: Row) -> str:
    """Render the page of a search, from `optimization_report`. Equal documents give equal pages."""
    found, name = document["evidence"], document["optimization_id"]
    heading, layouts_intro = evidence.layouts_intro(document)
    layouts = placed_layouts(evidence.timed(document), document["threshold_ratio"])
    patch = [] if found["patch_text"] is None else evidence.patch_lines(found["patch_text"])
    facts = found["environment"] or ()
    lacking = [] if found["lacking"] is None else [f"{found['lacking']}: what it was decided from is not shown."]
    sections = [
        Section(
            *("attempts", "Attempts", "Attempts"),
            [
                Table(search.ATTEMPTS, document["attempts"], strong="accepted"),
                Table(evidence.NOT_APPLICABLE, found["not_applicable"], folded="Who had nothing to propose, and why"),
            ],
            evidence.attempts_intro(document),
            (
                "optimization_attempts",
                shell_command(f"SELECT * FROM optimization_attempts WHERE campaign_id = '{name}'"),
            ),
        ),
        Section(
            *("change", "Change", "What was changed"),
            [Block("diff", [(kind, escape(line)) for kind, line in patch], told="Unified diff of the source")],
        ),
        Section(
            *("layouts", "Blocks" if document["kernel"] is None else "Layouts", heading),
            [Block("layouts", layouts, axis="times as fast")],
            layouts_intro,
        ),
        Section(
            *("circumstances", "Measured on", "Measured on"),
            [
                Block("known", evidence.circumstances(document)),
                Table(ENVIRONMENT, facts, folded=f"All {counted(len(facts), 'fact')} of the host"),
            ],
        ),
        Section("next", "Next", "What to do now", [Block("todo", evidence.next_steps(document))]),
    ]
    if found["lacking"] is None and document["kernel"] is not None:
        figures = Table(evidence.static_columns(document), evidence.static_rows(document))
        intro = Block("intro", evidence.static_intro(document))
        sections.insert(3, Section("static", "Static figures", "Static figures", [intro, figures]))
    page = Page(
        title=evidence.title(document),
        beneath=evidence.asked(document),
        identifier=name,
        answer=search.sentence(document),
        tone=search.tone(document),
        opening=[*search.remarks(document), *lacking, *(f"{note}." for note in found["notes"])],
        tiles=_tiles(document),
        sections=sections,
        command=f"aaco report {name}",
    )
    return render_page(page)


# ---- inside ----------------------------------------------------------------------------------------------------------


def _tiles(document: Row) -> list[tuple[str, str, str | None]]:
    """Return label, figure and caption of each known fact."""
    attempts = document["attempts"]
    accepted = sum(row["decision"] == "accepted" for row in attempts)
    itself = evidence.itself(document)
    gain = search.gain_alone(document)
    tiles = [
        ("Times as fast", *(gain or (None, None))),
        ("Counts from", f"{number(1 + document['threshold_ratio'])}", None),
        ("Tried", str(len(attempts)), f"{accepted} accepted"),
        *([] if itself is None else [itself]),
        ("Took", long_duration(document["spent_ns"]), f"of {long_duration(document['budget_ns'])}"),
    ]
    return [(label, text, aside) for label, text, aside in tiles if text is not None]
