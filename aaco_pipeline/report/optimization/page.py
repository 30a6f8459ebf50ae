"""Lay out the page of a search for a faster kernel or configuration.

Text and tables come from templates; only the positions in the plots are computed here.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from markupsafe import escape

from aaco_pipeline.report.comparing.page import Scale, cells, framed_page
from aaco_pipeline.report.comparing.verdict import Row
from aaco_pipeline.report.formatting import long_duration, number
from aaco_pipeline.report.html.sections import shell_command
from aaco_pipeline.report.optimization import evidence as optimization_evidence
from aaco_pipeline.report.optimization import search

#: Ratios that may be written at the axis, those that say most first.
_TICKS: Final = (
    *(1, 10, 0.1, 100, 2, 0.5, 5, 0.2, 1.5, 3, 20, 50, 1.2, 0.8, 1.1, 0.9),
    *(1.05, 0.95, 1.02, 0.98, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998),
)
#: Two of them are as far apart as this, in per cents.
_APART: Final = 11


def placed_layouts(timings: Sequence[Row], threshold_ratio: float) -> dict[str, Any] | None:
    """Every timed step with its layouts as dots and its interval, on one axis; None where nothing was timed.

    `threshold_ratio` is the least gain that counts, as a difference from 1.
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


# ---- inside ----------------------------------------------------------------------------------------------------------


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
    """The page of a search, from `optimization_report`. The same document gives the same page."""
    evidence, name = document["evidence"], document["optimization_id"]
    has_static = evidence["lacking"] is None and document["kernel"] is not None
    values: dict[str, Any] = {
        "attempts": cells(search.ATTEMPTS, document["attempts"]),
        "layouts": placed_layouts(optimization_evidence.timed(document), document["threshold_ratio"]),
        "change": [(kind, escape(line)) for kind, line in _change(document)],
        "static": optimization_evidence.static_intro(document) if has_static else None,
        "circumstances": optimization_evidence.circumstances(document),
        "next": optimization_evidence.next_steps(document),
    }
    labels = {
        "attempts": "Attempts",
        "change": "Change",
        "layouts": "Blocks" if document["kernel"] is None else "Layouts",
        "static": "Static figures",
        "circumstances": "Measured on",
        "next": "Next",
    }
    lacking = [] if evidence["lacking"] is None else [f"{evidence['lacking']}: what it was decided from is not shown."]
    return framed_page(
        "search",
        shown=[(part, label) for part, label in labels.items() if values[part]],
        heading=optimization_evidence.title(document),
        beneath=optimization_evidence.asked(document),
        identifier=name,
        answer=search.sentence_optimization(document),
        tone="good" if document["gain"] is not None else "open",
        opening=[*search.remarks_optimization(document), *lacking, *(f"{note}." for note in evidence["notes"])],
        tiles=_tiles(document),
        silent=cells(optimization_evidence.NOT_APPLICABLE, evidence["not_applicable"]),
        figures=cells(optimization_evidence.static_columns(document), optimization_evidence.static_rows(document)),
        facts=cells(optimization_evidence.HOST_FACTS, evidence["environment"] or ()),
        attempts_intro=optimization_evidence.attempts_intro(document),
        layouts_intro=optimization_evidence.layouts_intro(document),
        sources={
            "attempts": (
                "optimization_attempts",
                shell_command(f"SELECT * FROM optimization_attempts WHERE campaign_id = '{name}'"),
            )
        },
        command=f"aaco report {name}",
        **values,
    )


# ---- inside ----------------------------------------------------------------------------------------------------------


def _change(document: Row) -> list[tuple[str, str]]:
    text = document["evidence"]["patch_text"]
    return [] if text is None else optimization_evidence.patch_lines(text)


def _tiles(document: Row) -> list[tuple[str, str, str | None]]:
    """Label, figure, and what stands beneath it, of what is known."""
    attempts = document["attempts"]
    accepted = sum(row["decision"] == "accepted" for row in attempts)
    itself = optimization_evidence.itself(document)
    gain = search.gain_alone(document)
    tiles = [
        ("Times as fast", *(gain or (None, None))),
        ("Counts from", f"{number(1 + document['threshold_ratio'])}", None),
        ("Tried", str(len(attempts)), f"{accepted} accepted"),
        *([] if itself is None else [itself]),
        ("Took", long_duration(document["spent_ns"]), f"of {long_duration(document['budget_ns'])}"),
    ]
    return [(label, text, aside) for label, text, aside in tiles if text is not None]
