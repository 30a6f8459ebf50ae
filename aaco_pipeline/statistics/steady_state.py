"""Whether the measured iterations of one process ran at one level, and since when.

Judging sets of sessions against each other is not here: this only says whether a session's own median means something.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.segmentation import segment_starts

#: Fewer iterations than this show no level.
LEAST_ITERATIONS: Final = 30
#: How far the level before may lie from the last one, as a difference from 1, and still be called the same.
LEVEL_TOLERANCE: Final = 0.05
#: A last level that holds for less than this part of the measured iterations is not named as the steady one.
LEAST_LAST_SHARE: Final = 1 / 3
_PENALTY: Final = 15.0
_FILTER_WIDTH: Final = 5
#: Series longer than this are reduced to medians of equal blocks first: no level is that short.
_MOST_POINTS: Final = 1_000
#: Standard deviation of normal values from the median absolute difference of neighbours: 1 / (0.6745 * sqrt(2)).
_DIFFERENCE_TO_DEVIATION: Final = 1.0483


def steady_state_metrics(units: pl.DataFrame) -> pl.DataFrame:
    """Rows of `session_metrics` about units of work in the order they ran: steady_state and steady_from.

    `units` has `iteration` (the first of the unit) and `time_ns`, measured ones of the unprofiled pass alone.
    steady_state is 1 when every level of them lies within 5 % of the last one, else 0; null with fewer than 30.
    steady_from is the first iteration since which that holds, null when it holds for less than the final third. No
    rows where nothing ran.
    """
    time = units.get_column("time_ns").to_numpy()
    since = _level_since(time) if len(time) >= LEAST_ITERATIONS else None
    lasting = since is not None and (len(time) - since) / len(time) >= LEAST_LAST_SHARE
    rows = [
        {"metric": "steady_state", "value": None if since is None else float(since == 0), "unit": "flag"},
        {
            "metric": "steady_from",
            "value": float(units.get_column("iteration")[since]) if since is not None and lasting else None,
            "unit": "iteration",
        },
    ]
    schema = polars_types("session_metrics")
    if not len(time):
        return pl.DataFrame(schema=schema)
    return pl.DataFrame([{"pass": "latency", "phase": "measure", "n": len(time), **row} for row in rows], schema=schema)


def level_starts(values: npt.NDArray[np.float64]) -> list[int]:
    """Where each level of the series begins, the first at 0: the mean shifts that reduce the squared error most.

    The exact search of `segmentation` on the median-filtered series with a penalty of 15 log n noise variances for
    each level; the noise is estimated from neighbouring differences, so a slow drift counts as levels. Source of the
    penalty: Traini et al., Towards effective assessment of steady state performance in Java software, 2023.
    """
    count = len(values)
    smooth = _median_filtered(values)
    difference = np.abs(np.diff(values))
    noise = float(np.median(difference)) * _DIFFERENCE_TO_DEVIATION
    if noise == 0:
        noise = float(np.mean(difference)) or 1.0
    return segment_starts(smooth / noise, penalty=_PENALTY * np.log(count))


def _level_since(time: npt.NDArray[np.int64]) -> int:
    """The index since which every level lies within the tolerance of the last one."""
    block = -(-len(time) // _MOST_POINTS)
    values = np.median(time[: len(time) // block * block].reshape(-1, block), axis=1)
    starts = level_starts(values)
    levels = [float(np.median(values[a:b])) for a, b in zip(starts, [*starts[1:], len(values)], strict=True)]
    since = len(starts) - 1
    while since > 0 and abs(levels[since - 1] / levels[-1] - 1) <= LEVEL_TOLERANCE:
        since -= 1
    return starts[since] * block


def _median_filtered(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Each value replaced by the median of its neighbourhood, so that single outliers are no levels."""
    half = _FILTER_WIDTH // 2
    padded = np.pad(values, half, mode="edge")
    filtered: npt.NDArray[np.float64] = np.median(
        np.lib.stride_tricks.sliding_window_view(padded, _FILTER_WIDTH), axis=1
    )
    return filtered
