"""A campaign's scaling curve as a plot for the page; the curve in words is `aaco_pipeline.report.words.scaling`.

The points are rows of `scaling`; nothing is computed here but places on the paper.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

from aaco_pipeline.report.words.scaling import Row, sentences
from aaco_pipeline.report.words.units import number

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 16, 44
_TICKS: Final = 4


def scaling_plot(curve: Sequence[Row]) -> str:
    """The curve as SVG: throughput over batch size on a logarithmic axis, one line for each prompt length."""
    batches = sorted({row["batch_size"] for row in curve})
    highest: float = max(row["throughput_ci_high_per_s"] or row["throughput_per_s"] for row in curve)
    step = _round_step(highest / _TICKS)
    top = step * math.ceil(highest / step)
    span = math.log2(batches[-1] / batches[0]) or 1.0

    def x(batch: int) -> float:
        place = math.log2(batch / batches[0]) / span if len(batches) > 1 else 0.5
        return _LEFT + place * (_WIDTH - _LEFT - _RIGHT)

    def y(rate: float) -> float:
        return _HEIGHT - _BOTTOM - rate / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(sentences(curve))}">',
        *_axes(batches, step, top, x, y),
    ]
    for series, (prompt, rows) in enumerate(groupby(curve, key=lambda row: row["prompt_tokens"])):
        points = list(rows)
        kind = f"series-{series % 8}"
        line = " ".join(f"{x(row['batch_size']):.1f},{y(row['throughput_per_s']):.1f}" for row in points)
        parts.append(f'<polyline class="{kind}" points="{line}"/>')
        for row in points:
            at, high = x(row["batch_size"]), row["throughput_ci_high_per_s"]
            low = row["throughput_ci_low_per_s"]
            if low is not None and high is not None:
                parts.append(f'<path class="{kind}" d="M{at:.1f} {y(low):.1f}V{y(high):.1f}"/>')
            told = f"batch {row['batch_size']}: {number(row['throughput_per_s'])} {row['throughput_unit']}"
            radius = 6 if row["is_knee"] else 4
            parts.append(
                f'<circle class="{kind}" cx="{at:.1f}" cy="{y(row["throughput_per_s"]):.1f}" r="{radius}">'
                f"<title>{escape(told)}{', the knee' if row['is_knee'] else ''}</title></circle>"
            )
        if prompt is not None:
            end = points[-1]
            parts.append(
                f'<text class="end" x="{x(end["batch_size"]) - 6:.1f}" y="{y(end["throughput_per_s"]) - 10:.1f}">'
                f"prompt {prompt}</text>"
            )
    return "".join([*parts, "</svg>"])


def _axes(batches: Sequence[int], step: float, top: float, x: Any, y: Any) -> Iterator[str]:
    for tick in range(round(top / step) + 1):
        rate = tick * step
        yield f'<path class="grid" d="M{_LEFT} {y(rate):.1f}H{_WIDTH - _RIGHT}"/>'
        yield f'<text class="end" x="{_LEFT - 8}" y="{y(rate) + 4:.1f}">{number(rate) if rate else 0}</text>'
    for batch in batches:
        yield f'<text class="middle" x="{x(batch):.1f}" y="{_HEIGHT - _BOTTOM + 18}">{batch}</text>'
    yield f'<text class="middle" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}">batch size (logarithmic)</text>'


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5 x a power of ten that is not below `rough`."""
    power = math.pow(10, math.floor(math.log10(rough)))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough)
