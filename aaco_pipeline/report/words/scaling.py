"""A campaign's scaling curve in words: its sentences, and the columns of its table.

The points are rows of `scaling`. The plot is `aaco_pipeline.report.html.scaling_plot`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from aaco_pipeline.report.words.units import duration, grouped, number, share

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of the curve's table: how a point is shown in it, and the column of `scaling` that it sorts by."""

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
    """The columns in which any point of the curve has something."""
    return [column for column in _COLUMNS if any(column.shown(row) is not None for row in curve)]


def sentences(curve: Sequence[Row]) -> str:
    """What the curve says, one sentence or two for each prompt length."""
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
