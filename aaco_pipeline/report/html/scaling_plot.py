"""Where everything of a campaign's scaling curve lies on the paper; `templates/scaling_plot.svg.jinja` draws it.

The points are rows of `scaling`. The curve in words is `aaco_pipeline.report.words.scaling`.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from aaco_pipeline.report.words.scaling import Row

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 16, 44
_TICKS: Final = 4


def placed_curve(curve: Sequence[Row]) -> dict[str, Any]:
    """Throughput over batch size on a logarithmic axis: ticks with their places, and a series per prompt length."""
    batches = sorted({row["batch_size"] for row in curve})
    highest: float = max(row["throughput_ci_high_per_s"] or row["throughput_per_s"] for row in curve)
    step = _round_step(highest / _TICKS)
    count = math.ceil(highest / step)
    span = math.log2(batches[-1] / batches[0])

    def x(batch: int) -> float:
        return LEFT + (math.log2(batch / batches[0]) / span if span else 0.5) * (WIDTH - LEFT - RIGHT)

    def y(rate: float | None) -> float | None:
        return None if rate is None else HEIGHT - BOTTOM - rate / (step * count) * (HEIGHT - TOP - BOTTOM)

    def placed(row: Row) -> Row:
        ends = {end: y(row[f"throughput_ci_{end}_per_s"]) for end in ("low", "high")}
        return {**row, "x": x(row["batch_size"]), "y": y(row["throughput_per_s"]), **ends}

    return {
        "rates": [(tick * step, y(tick * step)) for tick in range(count + 1)],
        "batches": [(batch, x(batch)) for batch in batches],
        "series": [[placed(row) for row in rows] for _, rows in groupby(curve, key=lambda row: row["prompt_tokens"])],
        "frame": {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "bottom": HEIGHT - BOTTOM},
    }


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5 x a power of ten that is not below `rough`."""
    power = math.pow(10, math.floor(math.log10(rough)))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough)
