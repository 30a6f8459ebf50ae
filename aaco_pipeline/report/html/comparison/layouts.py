"""Where the layouts of a search lie on the paper: the ratio of each, by the step that measured it.

Across it is the logarithm, in which half and double are equally far from 1; places are per cents of the width.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from aaco_pipeline.report.html.comparison.places import Scale
from aaco_pipeline.report.words.verdicts import Row

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
