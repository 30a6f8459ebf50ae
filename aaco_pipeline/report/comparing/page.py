"""Lay out the page of a verdict or a difference.

Text and tables come from templates; only the positions in the plots are computed here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from markupsafe import Markup

from aaco_pipeline import __version__
from aaco_pipeline.report.comparing import difference, verdict
from aaco_pipeline.report.comparing.causes import of_change, signed
from aaco_pipeline.report.comparing.verdict import Row
from aaco_pipeline.report.formatting import capital, duration, printable, share
from aaco_pipeline.report.html.page import OF_THE_PAGE, UNIT, templates
from aaco_pipeline.report.html.sections import shell_command

#: Height of a plot over blocks or nights, and of what is kept free above and below.
HEIGHT: Final = 220
EDGE: Final = 14
_TICKS: Final = 4
_MOST_LABELS: Final = 12


class Scale:
    """From values to per cents of the width; what lies beyond is put on the edge."""

    def __init__(self, low: float, high: float) -> None:
        # What differs by no more than rounding has the middle of the paper.
        size = max(abs(low), abs(high), 1e-9)
        room = 0.0 if high - low > 1e-9 * size else 0.01 * size
        self.low, self.high = low - room, high + room

    def at(self, value: float) -> float:
        """The place of a value, from 0 to 100."""
        return 100 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def down(self, value: float) -> float:
        """Its place on a plot of `HEIGHT`, the higher the smaller."""
        return HEIGHT - EDGE - self.at(value) / 100 * (HEIGHT - 2 * EDGE)

    def span(self, low: float, high: float) -> dict[str, Any]:
        """Both ends of an interval, and whether it goes on beyond the edges."""
        return {
            "low": self.at(low),
            "high": self.at(high),
            "goes_on": (low < self.low, high > self.high),
        }

    def ticks(self) -> list[float]:
        """A few round values within."""
        step = _round_step((self.high - self.low) / _TICKS)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]


def placed_intervals(verdicts: Sequence[Row]) -> dict[str, Any] | None:
    """The interval of every metric beside what matters, the primary first; None where no metric has an effect.

    The axis is that of the primary: wider intervals of others go on beyond its edges, and are said so.
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
            "band": _band(scale, row["threshold_ratio"]),
        }
        for row in known
    ]
    return {"rows": rows, "one": scale.at(1.0), "ticks": [(scale.at(tick), tick) for tick in scale.ticks()]}


def placed_blocks(ratios: Sequence[Row], verdict: Row) -> dict[str, Any] | None:
    """Candidate over baseline block by block, with the verdict's interval; None where no block has both arms."""
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
    """The causes of a change as bars that begin where the one before ended; intervals are cut at the edges."""
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


# ---- inside ----------------------------------------------------------------------------------------------------------


def _interval(row: Row) -> list[float]:
    return [] if row["ci_low"] is None else [row["ci_low"], row["ci_high"]]


def _band(scale: Scale, matters: float | None) -> tuple[float, float] | None:
    return None if matters is None else (scale.at(1 - matters), scale.at(1 + matters))


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 5 x a power of ten that is not below `rough`."""
    power = math.pow(10, math.floor(math.log10(rough)))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * 0.999)


def framed_page(template: str, **values: Any) -> str:
    """A page of `templates/comparison` with its style and script; the same values give the same page."""
    folder = files("aaco_pipeline.report.html").joinpath("templates")
    style, script = (
        Markup("".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names))
        for names in (("report.css", "comparison/comparison.css"), ("comparison/comparison.js",))
    )
    page = (
        templates()
        .get_template(f"comparison/{template}.html.jinja")
        .render(style=style, script=script, height=HEIGHT, written_by=f"aaco_pipeline {__version__}", **_held(values))
    )
    return printable(page, keep=OF_THE_PAGE)


def cells(columns: Mapping[str, Callable[[Row], str | None]], rows: Iterable[Row]) -> dict[str, Any]:
    """A table as texts; empty, and so not shown, without rows."""
    told = [["–" if (text := show(row)) is None else text for show in columns.values()] for row in rows]
    return {"columns": list(columns), "rows": told} if told else {}


# ---- inside ----------------------------------------------------------------------------------------------------------


def _held(value: Any) -> Any:
    """The same with every figure held to its unit, so that no line ends between them; markup, as code is, stays."""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else UNIT.sub("\N{NO-BREAK SPACE}", value)
    if isinstance(value, dict):
        return {key: _held(one) for key, one in value.items()}
    return type(value)(map(_held, value)) if isinstance(value, list | tuple) else value


_MOST_LABELS_NIGHTS: Final = 6


def placed_nights(history: Row | None) -> list[dict[str, Any]]:
    """A plot of the raw series and, where anything is paired, one of the ratio; nothing without nights that count."""
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

    across = Scale(nights[0]["night"] - 0.5, nights[-1]["night"] + 0.5)
    x = across.at

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
        "labels": _labels(nights, x),
    }


def _labels(nights: Sequence[Row], x: Callable[[float], float]) -> list[tuple[float, str]]:
    every = -(-len(nights) // _MOST_LABELS_NIGHTS)
    return [(x(row["night"]), f"{row['started_at']:%d %b}") for row in nights[::every]]


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
    placebo = verdict.placebo(document)
    values = {
        "intervals": placed_intervals(document["verdicts"]),
        "blocks": placed_blocks(document["ratios"], primary),
        "selections": [row["in_words"] for row in document["selections"]],
        "causes": _steps(verdict.waterfall(document), None),
        "environment": verdict.environment(document),
        "history": placed_nights(document["history"]),
        "next": capital((verdict.next_step(document) or "").removeprefix("Next: ")),
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
        decides=capital(verdict.metric_in_words(primary["metric"])),
        shown=[(name, label) for name, label in labels.items() if values[name]],
        heading=verdict.title(document),
        beneath=verdict.asked(document),
        identifier=document["campaign_id"],
        answer=verdict.sentence(document),
        tone="bad" if document["verdict"] in _BAD else "good" if document["verdict"] in _GOOD else "open",
        opening=[*([placebo] if placebo else []), *verdict.reasons(document), *verdict.kept(document)],
        tiles=_tiles(primary),
        certainty=verdict.certainty(document),
        metrics=cells(verdict.METRICS, document["verdicts"]),
        sessions=cells(verdict.SESSIONS, document["sessions"]),
        changes=verdict.changes(document),
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
        ("Ratio", verdict.METRICS["*ratio"](row), verdict.METRICS["*interval"](row)),
        ("Matters from", verdict.METRICS["*matters"](row), None),
        ("Detectable", verdict.METRICS["*detectable"](row), "four times in five"),
        ("Blocks", verdict.METRICS["*blocks"](row), f"{row['sessions_candidate']} and {row['sessions_baseline']}"),
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
    parts = [verdict.CAUSES["*95 % interval"](row), of_change(row["share_ratio"])]
    return ", ".join(part for part in parts if part)
