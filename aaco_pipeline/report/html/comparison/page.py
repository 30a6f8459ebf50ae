"""A verdict, and a difference of two sessions, as one self-contained HTML page each.

What they say is `aaco_pipeline.report.words`, where everything lies `places` and `nights`, the frame around them
`framed`.
"""

from typing import Any, Final

from aaco_pipeline.report.html.comparison.framed import cells, framed_page
from aaco_pipeline.report.html.comparison.nights import placed_nights
from aaco_pipeline.report.html.comparison.places import placed_blocks, placed_intervals, placed_steps
from aaco_pipeline.report.html.sections import shell_command
from aaco_pipeline.report.words import difference, verdicts
from aaco_pipeline.report.words.causes import signed
from aaco_pipeline.report.words.units import capital, duration, share
from aaco_pipeline.report.words.verdicts import Row
from aaco_pipeline.report.words.waterfall import of_change

_BAD: Final = ("regressed", "regressed between nights")
_GOOD: Final = ("improved", "equivalent")
_TABLES: Final = {
    "intervals": "verdicts",
    "blocks": "campaign_sessions",
    "selections": "selections",
    "causes": "attributions",
    "history": "nights",
}


def render_verdict(document: Row) -> str:
    """The page of a campaign's verdict, from `verdict_document`. The same document gives the same page."""
    primary = document["verdicts"][0]
    placebo = verdicts.placebo(document)
    values = {
        "intervals": placed_intervals(document["verdicts"]),
        "blocks": placed_blocks(document["ratios"], primary),
        "selections": [row["in_words"] for row in document["selections"]],
        "causes": _steps(verdicts.waterfall(document), None),
        "environment": verdicts.environment(document),
        "history": placed_nights(document["history"]),
        "next": capital((verdicts.next_step(document) or "").removeprefix("Next: ")),
    }
    labels = {
        "intervals": "Interval",
        "blocks": "Blocks",
        "selections": "Selected",
        "causes": "Causes",
        "environment": "Environment",
        "history": "History",
        "next": "Next",
    }
    return framed_page(
        "verdict",
        document=document,
        primary=primary,
        decides=capital(verdicts.metric_in_words(primary["metric"])),
        shown=[(name, label) for name, label in labels.items() if values[name]],
        heading=verdicts.title(document),
        beneath=verdicts.asked(document),
        identifier=document["campaign_id"],
        answer=verdicts.sentence(document),
        tone="bad" if document["verdict"] in _BAD else "good" if document["verdict"] in _GOOD else "open",
        opening=[*([placebo] if placebo else []), *verdicts.reasons(document), *verdicts.kept(document)],
        tiles=_tiles(primary),
        certainty=verdicts.certainty(document),
        metrics=cells(verdicts.METRICS, document["verdicts"]),
        sessions=cells(verdicts.SESSIONS, document["sessions"]),
        changes=verdicts.changes(document),
        sources={
            name: (table, shell_command(f"SELECT * FROM {table} WHERE campaign_id = '{document['campaign_id']}'"))
            for name, table in _TABLES.items()
        },
        command=f"aaco report {document['campaign_id']}",
        **values,
    )


def render_difference(document: Row) -> str:
    """The page of two sessions beside each other, from `difference_document`."""
    pair = [document[side] for side in ("baseline", "candidate")]
    change = document["change"]
    opening = difference.opening(document)
    first = [line for line in opening if line.startswith(("Hardware differs", "The work differs"))]
    values = {
        "sides": cells(difference.SIDES, difference.sides(document)),
        "kinds": cells(difference.KINDS, document["kinds"]),
        "selections": [row["in_words"] for row in document["selections"]],
        "causes": _steps(difference.waterfall(document), change),
        "environment": [row["in_words"] for row in document["environment"]],
        "next": f"{capital(document['recommendation'])}.",
    }
    # On another device first of all what each did with its own.
    devices = {"kinds": "Kinds of work", "sides": "Both sessions"}
    labels = {
        **(devices if document["hardware_differs"] else {}),
        "selections": "Selected",
        "causes": "Causes",
        **devices,
        "environment": "Environment",
        "next": "Next",
    }
    answer, *rest = [*first, *difference.verdict(document)]
    return framed_page(
        "difference",
        document=document,
        shown=[(name, label) for name, label in labels.items() if values[name]],
        heading=difference.title(document),
        beneath="Candidate against baseline",
        identifier=" against ".join(one["session_id"] for one in reversed(pair)),
        answer=answer,
        tone="open",
        opening=[*rest, *(f"{line.rstrip(':.')}." for line in opening[len(first) : len(first) + 1])],
        tiles=[],
        command=f"aaco diff {pair[0]['session_id']} {pair[1]['session_id']} --format html",
        **values,
    )


# ---- inside ----------------------------------------------------------------------------------------------------------


def _tiles(row: Row) -> list[tuple[str, str, str | None]]:
    """Label, figure, and what stands beneath it, of what is known."""
    tiles = [
        ("Ratio", verdicts.METRICS["*ratio"](row), verdicts.METRICS["*interval"](row)),
        ("Matters from", verdicts.METRICS["*matters"](row), None),
        ("Detectable", verdicts.METRICS["*detectable"](row), "four times in five"),
        ("Blocks", verdicts.METRICS["*blocks"](row), f"{row['sessions_candidate']} and {row['sessions_baseline']}"),
        ("Confidence", share(row["confidence"]), row["confidence_source"]),
        ("Seen on", row["alert_grade"], None),
    ]
    return [(label, text, aside) for label, text, aside in tiles if text is not None]


def _steps(steps: list[dict[str, Any]], change: Row | None) -> list[dict[str, Any]]:
    """The causes with their figures, between where the change begins and ends; what it begins at is known of two
    sessions only.
    """
    if not steps:
        return []
    rows = [{**row, "is_total": False, "figure": signed(row["delta_ns"]), "aside": _aside(row)} for row in steps]
    if change is None:
        total: Row = {"in_words": "The change, recorded", "figure": signed(steps[-1]["then_ns"])}
        ends: list[Row | None] = [None, total]
    else:
        ends = [
            {"in_words": f"{side.capitalize()}, an iteration", "figure": duration(change[f"{side}_ns"])}
            for side in ("baseline", "candidate")
        ]
    places = steps[0]["from_ns"], steps[-1]["then_ns"]
    marks = [
        {**end, "is_total": True, "aside": None, "kind": None, "from_ns": place, "then_ns": place, "ci_low_ns": None}
        for end, place in zip(ends, places, strict=True)
        if end is not None
    ]
    return placed_steps([*marks[:-1], *rows, marks[-1]])


def _aside(row: Row) -> str:
    parts = [verdicts.CAUSES["*95 % interval"](row), of_change(row["share_ratio"])]
    return ", ".join(part for part in parts if part)
