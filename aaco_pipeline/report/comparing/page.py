"""Lay out the page of a verdict or a difference: its sections, and positions in their plots.

`html.view_page` renders the page.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from markupsafe import Markup

from aaco_pipeline.report.comparing import difference, verdict
from aaco_pipeline.report.comparing.causes import of_change, signed
from aaco_pipeline.report.comparing.verdict import Row
from aaco_pipeline.report.formatting import capital, duration, share
from aaco_pipeline.report.html.sections import shell_command
from aaco_pipeline.report.html.view_page import Block, Page, PagePart, Scale, Section, render_page
from aaco_pipeline.report.view import Lines, Sentence, Table

_MOST_LABELS: Final = 12
_GRADES: Final = Markup(
    "No cause by itself: <em>observed</em> differs, <em>correlated</em> also splits one arm into slow and fast "
    "sessions, <em>isolated</em> is the only thing that differs between arms that alternated."
)


def placed_intervals(verdicts: Sequence[Row]) -> dict[str, Any] | None:
    """Position each metric's interval relative to the threshold, primary metric first; None if no metric has an effect.

    The axis fits the primary metric: wider intervals of other metrics are cut at its edges and marked.
    """
    known = [row for row in verdicts if row["effect_ratio"] is not None]
    if not known:
        return None
    first = known[0]
    matters = first["threshold_ratio"] or 0.0
    ends = [1 - matters, 1 + matters, first["effect_ratio"], *_interval(first)]
    room = max(0.15 * (max(ends) - min(ends)), 0.005)
    scale = Scale(min(ends) - room, max(ends) + room)
    rows = [
        {
            **row,
            "point": scale.at(row["effect_ratio"]),
            "beyond": not scale.low <= row["effect_ratio"] <= scale.high,
            "span": scale.span(*_interval(row)) if _interval(row) else None,
            "band": None if (most := row["threshold_ratio"]) is None else (scale.at(1 - most), scale.at(1 + most)),
        }
        for row in known
    ]
    return {"rows": rows, "one": scale.at(1.0), "ticks": [(scale.at(tick), tick) for tick in scale.ticks()]}


def placed_blocks(ratios: Sequence[Row], verdict: Row) -> dict[str, Any] | None:
    """Position each block's ratio with the verdict's interval; None if no block has both arms."""
    known = [row["ratio"] for row in ratios if row["ratio"] is not None]
    if not known:
        return None
    matters = verdict["threshold_ratio"] or 0.0
    ends = [1 - matters, 1 + matters, *known, *_interval(verdict)]
    room = max(0.06 * (max(ends) - min(ends)), 0.002)
    scale = Scale(min(ends) - room, max(ends) + room)
    dots = [
        {**row, "x": 100 * (place + 0.5) / len(ratios), "y": None if row["ratio"] is None else scale.down(row["ratio"])}
        for place, row in enumerate(ratios)
    ]
    every = -(-len(ratios) // _MOST_LABELS)
    return {
        "dots": dots,
        "labels": [(dot["x"], dot["block"]) for dot in dots[::every]],
        "ticks": [(scale.down(tick), tick) for tick in scale.ticks()],
        "one": scale.down(1.0),
        "band": [scale.down(1 + matters), scale.down(1 - matters)],
        "interval": [scale.down(end) for end in reversed(_interval(verdict))],
        "effect": None if verdict["effect_ratio"] is None else scale.down(verdict["effect_ratio"]),
    }


def placed_steps(steps: Sequence[Row]) -> list[dict[str, Any]]:
    """Position the causes of a change as consecutive bars; intervals are cut at the edges."""
    ends = [row[name] for row in steps for name in ("from_ns", "then_ns")]
    if not ends:
        return []
    room = 0.08 * (max(ends) - min(ends))
    scale = Scale(min(ends) - room, max(ends) + room)
    return [
        {
            **row,
            "begin": scale.at(row["from_ns"]),
            "end": scale.at(row["then_ns"]),
            "span": None
            if row["ci_low_ns"] is None
            else scale.span(row["from_ns"] + row["ci_low_ns"], row["from_ns"] + row["ci_high_ns"]),
        }
        for row in steps
    ]


def _interval(row: Row) -> list[float]:
    return [] if row["ci_low"] is None else [row["ci_low"], row["ci_high"]]


_MOST_NIGHTS: Final = 6


def placed_nights(history: Row | None) -> list[dict[str, Any]]:
    """Plot the raw series and, if there are paired values, the ratios; empty without valid nights."""
    if history is None:
        return []
    raw = _series(history, "level_ns", "is_outlier", "raw", duration)
    paired = _series(history, "paired_ratio", "paired_is_outlier", "paired", lambda ratio: f"{ratio:.4g}")
    return [plot for plot in (raw, paired) if plot is not None]


def _series(
    history: Row, name: str, outlier: str, of: str, shown: Callable[[float], str | None]
) -> dict[str, Any] | None:
    nights = history["nights"]
    known = [row[name] for row in nights if row[name] is not None]
    if not known:
        return None
    room = max(0.1 * (max(known) - min(known)), 0.005 * max(known))
    scale = Scale(min(known) - room, max(known) + room)

    x = Scale(nights[0]["night"] - 0.5, nights[-1]["night"] + 0.5).at
    every = -(-len(nights) // _MOST_NIGHTS)
    return {
        "of": of,
        "dots": [
            {"x": x(row["night"]), "y": scale.down(row[name]), "is_outlier": bool(row[outlier])}
            | {"told": f"{row['started_at']:%Y-%m-%d}: {shown(row[name])}"}
            for row in nights
            if row[name] is not None
        ],
        "levels": [
            {"from": x(one["first"] - 0.5), "to": x(one["last"] + 0.5), "y": scale.down(one["value"])}
            for one in history["levels"]
            if one["of"] == of
        ],
        "changes": [
            {"x": x(row["night"] - 0.5), "told": f"{row['kind']}: × {row['effect_ratio']:.3f}"}
            for row in history["changes"]
            if row["of"] == of and row["effect_ratio"] is not None
        ],
        "marks": [x(row["night"] - 0.5) for row in nights if row["is_new_fingerprint"]],
        "ticks": [(scale.down(tick), shown(tick)) for tick in scale.ticks()],
        "labels": [(x(row["night"]), f"{row['started_at']:%d %b}") for row in nights[::every]],
    }


def render_verdict(document: Row) -> str:
    """Render the page of a campaign's verdict, from `verdict_document`. Equal documents give equal pages."""
    primary, campaign = document["verdicts"][0], document["campaign_id"]
    decides = capital(verdict.metric_in_words(primary["metric"]))
    sentence, blocks = verdict.sentence(document), placed_blocks(document["ratios"], primary)
    band = " (blue band)" if blocks and blocks["interval"] else ""
    doubt = verdict.certainty(document)

    def source(table: str) -> tuple[str, str]:
        return table, shell_command(f"SELECT * FROM {table} WHERE campaign_id = '{campaign}'")

    sections = [
        Section(
            *("intervals", "Interval", "The interval against what matters"),
            [
                Block("intervals", placed_intervals(document["verdicts"])),
                Table(verdict.METRICS, document["verdicts"], folded="All figures"),
            ],
            "Candidate divided by baseline: right of 1 is slower. In the shaded band a difference does not matter to "
            f"whoever asked. {decides} decides, the others support it.",
            source("verdicts"),
        ),
        Section(
            *("blocks", "Blocks", "Block by block"),
            [
                Block("blocks", blocks, told=sentence, axis="block"),
                Table(verdict.SESSIONS, document["sessions"], folded="Every session"),
            ],
            "Each dot is one block: a fresh process of both arms within the same minutes. How far they scatter is the "
            f"noise that the interval{band} has to hold. A ring is a block with a session that ran slow throughout, a "
            "cross one whose session was left out.",
            source("campaign_sessions"),
        ),
        Section(
            *("selections", "Selected", "Selected differently"),
            [Lines("", [row["in_words"] for row in document["selections"]])],
            "Something else at the same place of the model: the commonest cause of a change, so look here first.",
            source("selections"),
        ),
        Section(
            *("causes", "Causes", "Breakdown of the change"),
            [Block("steps", _steps(verdict.waterfall(document), None))],
            "Each bar begins where the one above ended, so that they add up to the change of a recorded iteration. "
            "Hollow bars are uncertain: their interval holds zero, or they are several causes together. Recording "
            "costs time of its own, so this change need not be that of the verdict." + (f" {doubt}" if doubt else ""),
            source("attributions"),
        ),
        Section(
            *("environment", "Environment", "Environment that differs"),
            [Lines("", verdict.environment(document))],
            _GRADES,
        ),
        Section("history", "History", "History", _history(document), source=source("nights")),
        _next(capital((verdict.next_step(document) or "").removeprefix("Next: "))),
    ]
    page = Page(
        title=verdict.title(document),
        beneath=verdict.asked(document),
        identifier=campaign,
        answer=sentence,
        tone=verdict.tone(document),
        opening=[
            line for line in (verdict.placebo(document), *verdict.reasons(document), *verdict.kept(document)) if line
        ],
        tiles=_tiles(primary),
        sections=sections,
        command=f"aaco report {campaign}",
    )
    return render_page(page)


def render_difference(document: Row) -> str:
    """Render the page of two sessions, from `difference_document`."""
    pair = [document[side]["session_id"] for side in ("baseline", "candidate")]
    opening = difference.opening(document)
    first = [line for line in opening if line.startswith(("Hardware differs", "The work differs"))]
    answer, *rest = [*first, *difference.verdict(document)]
    devices = [
        Section(
            *("kinds", "Kinds of work", "By kind of work, on its own device"),
            [Table(difference.KINDS, document["kinds"])],
            "Time in an iteration, and what part of its own device's roof the heaviest of it reached: a share says "
            "more than a time where the hardware differs.",
        ),
        Section("sides", "Both sessions", "Both sessions", [Table(difference.SIDES, difference.sides(document))]),
    ]
    changes = [
        Section(
            *("selections", "Selected", "Selected differently"),
            [Lines("", [row["in_words"] for row in document["selections"]])],
        ),
        Section(
            *("causes", "Causes", "From one iteration to the other"),
            [Block("steps", _steps(difference.waterfall(document), document["change"]))],
            "Each bar begins where the one above ended: they add up from the baseline's recorded iteration to the "
            "candidate's. The axis does not begin at zero; a hollow bar is several causes together.",
        ),
    ]
    environment = Section(
        *("environment", "Environment", "Environment that differs"),
        [Lines("", [row["in_words"] for row in document["environment"]])],
        "No cause by itself: that takes an A/B of one factor alone.",
    )
    # On different devices, first show the results for each device.
    sections = [*devices, *changes] if document["hardware_differs"] else [*changes, *devices]
    page = Page(
        title=difference.title(document),
        beneath="Candidate against baseline",
        identifier=" against ".join(reversed(pair)),
        answer=answer,
        tone="open",
        opening=[*rest, *(f"{line.rstrip(':.')}." for line in opening[len(first) : len(first) + 1])],
        sections=[*sections, environment, _next(f"{capital(document['recommendation'])}.")],
        command=f"aaco diff {pair[0]} {pair[1]} --format html",
    )
    return render_page(page)


# ---- inside ----------------------------------------------------------------------------------------------------------


def _next(text: str) -> Section:
    return Section("next", "Next", "What to run next", [Sentence(text)])


def _history(document: Row) -> list[PagePart]:
    headings = {
        "raw": "The arm's own level, night by night",
        "paired": "Beside the baseline of the same blocks: what the host did cancels",
    }
    plots = [Block("nights", plot, heading=headings[plot["of"]]) for plot in placed_nights(document["history"])]
    hint = (
        "Dots are nights, rings outliers that enter no level; bars are levels. Orange lines are changes, dotted lines "
    )
    hint += "nights on which the environment was new."
    return [*map(Sentence, verdict.changes(document)), *plots, Sentence(hint, "aside")] if plots else []


def _tiles(row: Row) -> list[tuple[str, str, str | None]]:
    """Return label, figure and caption for each known fact."""
    tiles = [
        ("Ratio", verdict.METRICS["*ratio"](row), verdict.METRICS["*interval"](row)),
        ("Matters from", verdict.METRICS["*matters"](row), None),
        ("Detectable", verdict.METRICS["*detectable"](row), "four times in five"),
        ("Blocks", verdict.METRICS["*blocks"](row), f"{row['sessions_candidate']} and {row['sessions_baseline']}"),
        ("Confidence", share(row["confidence"]), row["confidence_source"]),
        ("Seen on", row["alert_grade"], None),
    ]
    return [(label, text, aside) for label, text, aside in tiles if text is not None]


def _steps(steps: list[dict[str, Any]], change: Row | None) -> list[dict[str, Any]]:
    """Lay out the causes with their figures, between the start and end of the change; the start is only known for two
    sessions.
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
    parts = [verdict.CAUSES["*95 % interval"](row), of_change(row["share_ratio"])]
    return ", ".join(part for part in parts if part)
