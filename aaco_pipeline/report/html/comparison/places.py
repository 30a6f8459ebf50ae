"""Where verdicts, blocks and causes lie on the paper; the templates in `templates/comparison` draw them.

Across, places are per cents of the width, so that a plot is as wide as the screen without its text growing or
shrinking; down, they are pixels.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from aaco_pipeline.report.words.verdicts import Row

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
