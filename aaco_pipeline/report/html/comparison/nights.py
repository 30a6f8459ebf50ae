"""Where the nights of a series lie on the paper: the arm's own level, and what it is beside its blocks' baseline."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from aaco_pipeline.report.html.comparison.places import Scale
from aaco_pipeline.report.words.units import duration
from aaco_pipeline.report.words.verdicts import Row

_MOST_LABELS: Final = 6


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
    every = -(-len(nights) // _MOST_LABELS)
    return [(x(row["night"]), f"{row['started_at']:%d %b}") for row in nights[::every]]
