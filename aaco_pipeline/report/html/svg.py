"""Small plots for where a page's script does not run: metadata in Dagster, a note, an e-mail. SVG, without a library.

The report's own plots are drawn by its script; the scaling curve is `scaling`.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from aaco_pipeline.report.words.units import duration

_WIDTH: Final = 640
_HEIGHT: Final = 180
_LEFT: Final = 70
_MOST_POINTS: Final = 600
#: Readable on white and on Dagster's dark grey alike.
_INK: Final = "#8a94a3"
_POINT: Final = "#4477aa"
_MEDIAN: Final = "#ee6677"


def latency_plot(iterations: pl.DataFrame) -> str | None:
    """The measured iterations of the unprofiled pass (of the traced one, if there is no other) with their median, as
    SVG; None when there are none. Of a long run evenly spread iterations are drawn, the slowest always.
    """
    measured = iterations.filter((pl.col("phase") == "measure") & pl.col("latency_ns").is_not_null())
    for name in ("latency", "trace"):
        shown = measured.filter(pl.col("pass") == name).sort("iteration")
        if shown.height:
            return _plot(shown.get_column("latency_ns").to_list())
    return None


def latency_of_session(tables: Mapping[str, pl.DataFrame]) -> str | None:
    """The plot of a session's table `iterations`."""
    return latency_plot(tables["iterations"])


def as_markdown_image(svg: str, text: str) -> str:
    """The plot as an image within Markdown, without a file beside it."""
    return f"![{text}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _plot(latencies: Sequence[int]) -> str:
    count = len(latencies)
    step = -(-count // _MOST_POINTS)
    slowest = max(range(count), key=latencies.__getitem__)
    drawn = sorted({*range(0, count, step), slowest})
    low, high = min(latencies), max(latencies)
    span = (high - low) or 1
    median = sorted(latencies)[(count - 1) // 2]

    def x(index: int) -> float:
        return _LEFT + (index / max(count - 1, 1)) * (_WIDTH - _LEFT - 10)

    def y(latency: int) -> float:
        return _HEIGHT - 30 - (latency - low) / span * (_HEIGHT - 45)

    dots = "".join(f'<circle cx="{x(i):.1f}" cy="{y(latencies[i]):.1f}" r="1.8"/>' for i in drawn)
    ticks = "".join(
        f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{duration(value)}</text>'
        for value in dict.fromkeys((low, high))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' font-family="sans-serif" font-size="11"><g fill="{_INK}">{ticks}'
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">iteration 0</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 8}" text-anchor="end">{count - 1:,}</text></g>'
        f'<g fill="{_POINT}" fill-opacity="0.7">{dots}</g>'
        f'<path d="M{_LEFT} {y(median):.1f}H{_WIDTH - 10}" stroke="{_MEDIAN}"/>'
        f'<text x="{_WIDTH - 12}" y="{y(median) - 5:.1f}" text-anchor="end" fill="{_MEDIAN}">'
        f"median {duration(median)}</text></svg>"
    )
