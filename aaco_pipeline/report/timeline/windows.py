"""Which stretches of a recording are drawn activity by activity, so that a page stays small whatever was recorded."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

Times = npt.NDArray[np.int64]
#: Kernels and copies that are drawn one by one, and host calls, at most. Idle stretches lie between the former.
DRAWN_ACTIVITIES: Final = 4500
DRAWN_CALLS: Final = 4000
#: Of these a single iteration that is worth looking at may take so many.
_OF_AN_ITERATION: Final = 800


def drawn_windows(
    rows: pl.DataFrame, span: tuple[int, int], steady: int, iterations: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Disjoint stretches [start, end) in order: all of the recording (`span`) where that is little enough.

    Otherwise the `iterations` that stand out, and the recording from `steady` on, each as far as its activities may
    reach. `rows` are those of `lanes.activities`.
    """
    running = rows.filter(pl.col("kind").is_in(["kernel", "copy"])).get_column("start_ns").to_numpy()
    calls = top_calls(rows).get_column("start_ns").to_numpy()
    if len(running) <= DRAWN_ACTIVITIES and len(calls) <= DRAWN_CALLS:
        return [span]
    wanted = [_as_far(running, calls, one, _OF_AN_ITERATION) for one in iterations]
    left = DRAWN_ACTIVITIES - sum(_begun(running, one) for one in wanted)
    wanted.append(_as_far(running, calls, (steady, span[1]), left))
    return _joined(wanted)


def top_calls(rows: pl.DataFrame) -> pl.DataFrame:
    """The calls that no earlier one of their thread contains: together they cover what all of the thread's calls do."""
    calls = rows.filter(pl.col("kind") == "call")
    before = pl.col("end_ns").cum_max().shift(1).over("lane")
    return calls.filter((pl.col("end_ns") > before).fill_null(True))


def inside_windows(rows: pl.DataFrame, windows: Sequence[tuple[int, int]]) -> pl.DataFrame:
    """The rows that lie in a window with any part of them, or without duration begin in one; in their order."""
    start, end = pl.col("start_ns"), pl.col("end_ns")
    touches = [(start < last) & ((end > first) | (start >= first)) for first, last in windows]
    return rows.filter(pl.any_horizontal(touches))


# ---- inside ----------------------------------------------------------------------------------------------------------


def _as_far(running: Times, calls: Times, wanted: tuple[int, int], limit: int) -> tuple[int, int]:
    """The stretch, cut where more than `limit` activities or as large a part of the calls would begin in it."""
    start, end = wanted
    for starts, most in ((running, limit), (calls, limit * DRAWN_CALLS // DRAWN_ACTIVITIES)):
        beyond = int(np.searchsorted(starts, start)) + most
        if beyond < len(starts):
            end = min(end, int(starts[beyond]))
    return start, max(end, start)


def _begun(starts: Times, window: tuple[int, int]) -> int:
    return int(np.diff(np.searchsorted(starts, window))[0])


def _joined(windows: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(one for one in windows if one[1] > one[0]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined
