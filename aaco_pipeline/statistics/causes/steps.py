"""Which stretches of a session are its steps, and times measured along them alone."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

Ns = npt.NDArray[np.int64]

#: What an account is of where nothing says what one step is.
WHOLE: Final = "the whole recording"
#: With fewer others nothing tells what a usual step is.
_LEAST_OTHER_STEPS: Final = 2
_TEXT: Final = pl.String


class Axis:
    """The steps laid end to end: an instant becomes the length of all steps before it, exactly."""

    def __init__(self, starts: Ns, ends: Ns) -> None:
        self._starts, self._ends = starts, ends
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
        self.length = int(self._before[-1])

    def of(self, instants: pl.Series) -> pl.Series:
        """Instants (int64 ns) on the axis of steps; what lies outside them collapses onto their borders."""
        at = instants.to_numpy()
        step = np.searchsorted(self._starts, at, side="right") - 1
        known = np.clip(step, 0, None)
        within = np.clip(at - self._starts[known], 0, (self._ends - self._starts)[known])
        return pl.Series(np.where(step < 0, 0, self._before[known] + within), dtype=pl.Int64)

    def step_of(self, instants: pl.Series) -> pl.Series:
        """The number of the last step that began by then; of instants before the first one, -1."""
        return pl.Series(np.searchsorted(self._starts, instants.to_numpy(), side="right") - 1, dtype=pl.Int64)

    def holds(self, instants: pl.Series) -> pl.Series:
        """Whether each instant lies in a step: activities of no length count there, too."""
        at = instants.to_numpy()
        step = np.searchsorted(self._starts, at, side="right") - 1
        return pl.Series((step >= 0) & (at < self._ends[np.clip(step, 0, None)]), dtype=pl.Boolean)


def measured_steps(tables: Mapping[str, pl.DataFrame], activities: pl.DataFrame) -> tuple[int, str, Ns, Ns] | str:
    """How many steps, what they are, and their starts and ends in order, which do not overlap; or why there are none.

    The measured iterations of the pass `trace`, less what the device did in them before its steady part, and without a
    first one that holds the recorder's own beginning; without iterations the steady part itself, divided by its
    repetitions; without these the whole recording as one step.
    """
    steady = tables["session_parts"].filter(pl.col("part").cast(_TEXT) == "steady")
    pieces = steady.select("device_id", "start_ns", "end_ns", "repetitions").sort("start_ns")
    traced = tables["iterations"].filter(
        (pl.col("pass").cast(_TEXT) == "trace") & (pl.col("phase").cast(_TEXT) == "measure")
    )
    timed = traced.drop_nulls(["start_ns", "end_ns"]).filter(pl.col("end_ns") > pl.col("start_ns")).sort("start_ns")
    if timed.height:
        starts, ends = timed.get_column("start_ns").to_numpy(), timed.get_column("end_ns").to_numpy()
        if bool((starts[1:] < ends[:-1]).any()):
            return "the measured iterations overlap one another, so that time cannot be shared out among them"
        if pieces.height:
            starts = _after_set_up(starts, int(pieces.get_column("start_ns").to_numpy().min()), activities)
        kept = ends > starts
        if not kept.any():
            return "no measured iteration lies in the steady part"
        kept[np.argmax(kept)] &= not _begins_recorder(starts[kept], activities)
        return int(kept.sum()), "measured iterations", starts[kept], ends[kept]
    known = pieces.drop_nulls("repetitions")
    if known.is_empty():
        whole = activities.select(pl.col("start_ns").min(), pl.col("end_ns").max())
        return 1, WHOLE, whole.get_column("start_ns").to_numpy(), whole.get_column("end_ns").to_numpy()
    known = known.filter(pl.col("device_id") == known.item(0, "device_id"))
    bounds = known.get_column("start_ns").to_numpy(), known.get_column("end_ns").to_numpy()
    return int(known.item(0, "repetitions")), "repetitions of the steady part", *bounds


def _after_set_up(starts: Ns, steady_ns: int, activities: pl.DataFrame) -> Ns:
    """The steps' starts without the device's set-up, which is no step's.

    A step in which the device had done nothing by then is whole: the way to its first kernel is a part of it.
    """
    began = activities.get_column("start_ns").to_numpy()
    early = np.sort(began[began < steady_ns])
    worked = np.searchsorted(early, starts) < len(early)
    return np.where(worked, np.maximum(starts, steady_ns), starts)


def _begins_recorder(starts: Ns, activities: pl.DataFrame) -> bool:
    """Whether the first step holds the recorder's own beginning.

    Its way to the first kernel is then more than twice as long as that of any other step, of which there are two or
    more.
    """
    if len(starts) <= _LEAST_OTHER_STEPS:
        return False
    ran = activities.sort("start_ns")
    began, reached = ran.get_column("start_ns").to_numpy(), ran.get_column("end_ns").cum_max().to_numpy()
    at = np.searchsorted(began, starts)
    idle = (at == 0) | (reached[np.clip(at - 1, 0, None)] <= starts)
    to_first = np.where(at < len(began), began[np.clip(at, None, len(began) - 1)] - starts, np.iinfo(np.int64).max // 2)
    # Where the device is still at work on the step before, nothing tells how long the way is.
    others = to_first[1:][idle[1:]]
    return bool(idle[0] and len(others) >= _LEAST_OTHER_STEPS and to_first[0] > 2 * others.max())
