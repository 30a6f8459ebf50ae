"""Show a scaling sweep: its sentence, its table and its plot.

`aaco_pipeline.statistics` computes the fit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from aaco_pipeline.report.formatting import duration, grouped, number, share
from aaco_pipeline.report.view import Sentence, Table, View

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of the curve's table: how to format a point, and the column of `scaling` for sorting."""

    name: str
    order: str | None
    shown: Callable[[Row], str | None]
    numeric: bool = True


def _batch(row: Row) -> str:
    notes = [name for name, true in (("knee", row["is_knee"]), ("saturated", row["is_saturated"])) if true]
    return " ".join([f"{row['batch_size']:,}", *(f"({note})" for note in notes)])


def _interval(row: Row) -> str | None:
    low, high = number(row["throughput_ci_low_per_s"]), number(row["throughput_ci_high_per_s"])
    return f"{low or '–'} … {high or '–'}" if low or high else None


_COLUMNS: Final = (
    Column("prompt", "prompt_tokens", lambda row: grouped(row["prompt_tokens"]), numeric=False),
    Column("batch", "batch_size", _batch),
    Column("throughput", "throughput_per_s", lambda row: f"{number(row['throughput_per_s'])} {row['throughput_unit']}"),
    Column("95 % interval", None, _interval),
    Column("speed-up", "speedup_ratio", lambda row: f"× {row['speedup_ratio']:.3g}"),
    Column("efficiency", "efficiency_ratio", lambda row: share(row["efficiency_ratio"])),
    Column("time", "time_ns", lambda row: duration(row["time_ns"])),
    Column("first token", "time_to_first_token_ns", lambda row: duration(row["time_to_first_token_ns"])),
)


def filled(curve: Sequence[Row]) -> list[Column]:
    """Return the columns with a value for any point."""
    return [column for column in _COLUMNS if any(column.shown(row) is not None for row in curve)]


def sentences(curve: Sequence[Row]) -> str:
    """Summarize the curve in one or two sentences per prompt length."""
    return " ".join(_sentence(list(rows)) for _, rows in groupby(curve, key=lambda row: row["prompt_tokens"]))


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


def scaling_view(campaign: str, curve: Sequence[Row]) -> View:
    """Lay out the curve: the answer first, then the points."""
    columns = {("*" if column.numeric else "") + column.name: column.shown for column in filled(curve)}
    spare = ("*time", "*95 % interval", "*efficiency", "*first token")
    points = Table({**columns, "session": lambda row: row["session_id"]}, curve, spare=spare)
    return View(campaign, [Sentence(sentences(curve), "good"), points])


WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 16, 44
_TICKS: Final = 4


def placed_curve(curve: Sequence[Row]) -> dict[str, Any]:
    """Plot throughput over batch size on a logarithmic axis: ticks with positions, and one series per prompt length."""
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
    """Return the smallest of 1, 2, 2.5, 5 x a power of ten that is at least `rough`."""
    power = math.pow(10, math.floor(math.log10(rough)))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough)
