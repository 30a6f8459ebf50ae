"""A search by `aaco optimize` as one self-contained HTML page: its answer, and everything it was decided from.

What it says is `aaco_pipeline.report.words.optimization` and `optimization_evidence`, where the layouts lie `layouts`.
"""

from typing import Any

from markupsafe import escape

from aaco_pipeline.report.html.comparison.framed import cells, framed_page
from aaco_pipeline.report.html.comparison.layouts import placed_layouts
from aaco_pipeline.report.html.sections import shell_command
from aaco_pipeline.report.words import optimization, optimization_evidence
from aaco_pipeline.report.words.units import long_duration, number
from aaco_pipeline.report.words.verdicts import Row


def render_search(document: Row) -> str:
    """The page of a search, from `optimization_report`. The same document gives the same page."""
    evidence, name = document["evidence"], document["optimization_id"]
    has_static = evidence["lacking"] is None and document["kernel"] is not None
    values: dict[str, Any] = {
        "attempts": cells(optimization.ATTEMPTS, document["attempts"]),
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
        answer=optimization.sentence(document),
        tone="good" if document["gain"] is not None else "open",
        opening=[*optimization.remarks(document), *lacking, *(f"{note}." for note in evidence["notes"])],
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
    gain = optimization.gain_alone(document)
    tiles = [
        ("Times as fast", *(gain or (None, None))),
        ("Counts from", f"{number(1 + document['threshold_ratio'])}", None),
        ("Tried", str(len(attempts)), f"{accepted} accepted"),
        *([] if itself is None else [itself]),
        ("Took", long_duration(document["spent_ns"]), f"of {long_duration(document['budget_ns'])}"),
    ]
    return [(label, text, aside) for label, text, aside in tiles if text is not None]
