"""A campaign's scaling curve in words, as a table for a terminal, and as a plot for the page.

The points are rows of `scaling`; nothing is computed here but places on the paper.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

from aaco_pipeline.report.words.units import duration, number, share

Row = dict[str, Any]

COLUMNS: Final = (
    "prompt",
    "*batch",
    "*throughput",
    "*95 % interval",
    "*speed-up",
    "*efficiency",
    "*time",
    "*first token",
)
_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 16, 44
_TICKS: Final = 4


def sentences(curve: Sequence[Row]) -> str:
    """What the curve says, one sentence or two for each prompt length."""
    return " ".join(_sentence(list(rows)) for _, rows in groupby(curve, key=lambda row: row["prompt_tokens"]))


def cells(row: Row) -> list[str | None]:
    """One point's row of the table, in the order of `COLUMNS`."""
    low, high = number(row["throughput_ci_low_per_s"]), number(row["throughput_ci_high_per_s"])
    notes = [name for name, told in (("knee", row["is_knee"]), ("enough", row["is_saturated"])) if told]
    return [
        None if row["prompt_tokens"] is None else f"{row['prompt_tokens']:,}",
        " ".join([f"{row['batch_size']:,}", *(f"({note})" for note in notes)]),
        f"{number(row['throughput_per_s'])} {row['throughput_unit']}",
        f"{low or '–'} … {high or '–'}" if low or high else None,
        f"× {row['speedup_ratio']:.3g}",
        share(row["efficiency_ratio"]),
        duration(row["time_ns"]),
        duration(row["time_to_first_token_ns"]),
    ]


def print_scaling(campaign: str, curve: Sequence[Row]) -> None:
    """Print the curve on standard output: the answer first, then the points."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape as plain
    from rich.table import Table

    screen = Console(highlight=False)
    screen = screen if screen.is_terminal else Console(highlight=False, width=160)
    screen.print(f"[bold]{plain(campaign)}[/bold]")
    screen.print(plain(sentences(curve)), style="bold green")
    rows = [cells(row) for row in curve]
    filled = [place for place in range(len(COLUMNS)) if any(row[place] is not None for row in rows)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place in filled:
        numeric = COLUMNS[place].startswith("*")
        table.add_column(COLUMNS[place].lstrip("*"), justify="right" if numeric else "left")
    table.add_column("session")
    for row, point in zip(rows, curve, strict=True):
        table.add_row(*(row[place] or "–" for place in filled), point["session_id"])
    screen.print(table)


def plot(curve: Sequence[Row]) -> str:
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


def _sentence(rows: list[Row]) -> str:
    first, last = rows[0], rows[-1]
    best = max(rows, key=lambda row: row["throughput_per_s"])
    prompt = f"With prompts of {first['prompt_tokens']:,} tokens, " if first["prompt_tokens"] is not None else ""
    rate = f"{number(best['throughput_per_s'])} {best['throughput_unit']}"
    if len(rows) == 1:
        return f"{prompt or 'There is one point: '}batch {first['batch_size']} gives {rate}."
    gained = f"× {best['speedup_ratio']:.3g} of batch {first['batch_size']}"
    text = (
        f"{prompt}{'throughput' if prompt else 'Throughput'} is best at batch {best['batch_size']}: {rate}, {gained}."
    )
    knee = next((row["batch_size"] for row in rows if row["is_knee"]), None)
    enough = next((row["batch_size"] for row in rows if row["is_saturated"]), None)
    text += f" The knee is at batch {knee}." if knee is not None else " The curve has no clear knee."
    if enough is not None:
        return f"{text} It is saturated from batch {enough} on, which gives 95 % of the best or more."
    return f"{text} It was not saturated at batch {last['batch_size']}, the largest measured."


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
