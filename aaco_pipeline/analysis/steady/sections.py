"""Find sections of a device's work in which the same work recurs, from marked iterations or from repetition.

`parts` selects the section that represents the recording.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.steady.first_calls import time_of
from aaco_pipeline.analysis.steady.repetition import LEAST_LENGTH, LEAST_REPETITIONS, Phase, from_repetition, phases

MARKED: Final = "marked iterations"
KERNELS: Final = "repeating kernels"
#: A repetition is cold if first-call work takes at least this fraction of it.
COLD_SHARE: Final = 0.1
#: Minimum length, in periods and in ns, of idle time that interrupts and of a cold first repetition.
LONG_PERIODS: Final = 5
LEAST_INTERRUPTION_NS: Final = 100_000
#: If this fraction of launches is known, the sequence is the launch order, which is independent of streams.
_KNOWN_LAUNCHES: Final = 0.9
#: Minimum fraction of the work that repeats, over all patterns and in a single one; anything less may be repeated
#: layers within one pass. Recordings that start warm have no set-up to omit and need a higher fraction.
_LEAST_COVERED: Final = 0.5
_LEAST_COVERED_WARM: Final = 0.75
_LEAST_OF_ONE: Final = 0.25
#: Other work that lasts this many periods between two repetitions ends their series.
_FOREIGN_PERIODS: Final = 2
#: A few activities are a repetition if they repeat exactly this often, none longer than this many medians.
_FEW_REPETITIONS: Final = 5
_ALIKE_TIMES: Final = 1.5
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Section:
    """Repeated work of one device, from `start_ns` to `end_ns`.

    `period_activities` and `period_ns` are medians. `phases`: other sections with their own repetition, as start, end
    and description. `foreign`: intervals inside whose activities do not belong to the repetition.
    """

    start_ns: int
    end_ns: int
    period_activities: int
    period_ns: int
    repetitions: int
    found_by: str
    phases: tuple[tuple[int, int, str], ...] = ()
    foreign: tuple[tuple[int, int, str], ...] = ()


def marked(own: pl.DataFrame, iterations: pl.DataFrame, first: pl.DataFrame) -> Section | None:
    """Return the measured iterations of the trace, without leading ones full of first-call work; None without any.

    `own` are the activities of one device. An iteration contains the activities launched in it; earlier work with an
    unknown launch belongs to none.
    """
    traced = iterations.filter((pl.col("pass") == "trace") & (pl.col("phase") == "measure")).sort("iteration")
    placed = _in_iterations(own.filter(~_from_before()), traced)
    each = placed.group_by("iteration").agg(pl.len(), pl.col("start_ns").min(), pl.col("end_ns").max())
    each = each.sort("iteration")
    if each.is_empty():
        return None
    starts = each.get_column("start_ns").to_numpy()
    warm = _first_warm(first, starts, int(each.get_column("end_ns").to_numpy().max()))
    each = each[warm:]
    activities = int(each.get_column("len").sum())
    if each.is_empty() or (each.height < LEAST_REPETITIONS and activities < LEAST_LENGTH):
        return None
    starts, lengths = starts[warm:], each.get_column("len").to_numpy()
    end_ns = int(each.get_column("end_ns").to_numpy().max())
    return Section(
        int(starts.min()),
        end_ns,
        int(np.median(lengths)),
        int(np.median(np.diff(starts))) if each.height > 1 else end_ns - int(starts[0]),
        each.height,
        MARKED,
    )


def repeated(own: pl.DataFrame, first: pl.DataFrame, *, warm: bool) -> Section | None:
    """Find the longest warm section of `own`, one device's activities with `code`, in which kernels repeat, if any.

    `warm` is true if the host calls show no set-up, so that all of the work counts. Activities are taken in launch
    order if it is known, else by start. If nothing repeats among all of them, only those of the busiest stream are
    examined.
    """
    found = _repeated(_in_order(own), own, first, warm=warm)
    if found is None and own.get_column("stream_id").n_unique() > 1:
        streams = own.group_by("stream_id").agg(pl.len()).sort("len", "stream_id", descending=[True, False])
        busiest = pl.col("stream_id").eq_missing(streams.item(0, "stream_id"))
        found = _repeated(own.filter(busiest), own, first, warm=warm)
    return found


def few_alike(own: pl.DataFrame) -> Section | None:
    """Return all of a short recording that only repeats the same kernels, at least five times.

    Exact repetition is no coincidence, so it counts even in a short recording. All repetitions take about as long, so
    none of them is a first one.
    """
    ordered = _in_order(own)
    codes, starts, ends = (ordered.get_column(name).to_numpy() for name in ("code", "start_ns", "end_ns"))
    for period in range(1, len(codes) // _FEW_REPETITIONS + 1):
        exact = len(codes) % period == 0 and bool((codes[period:] == codes[:-period]).all())
        spent = (ends - starts).reshape(-1, period).sum(axis=1) if exact else np.zeros(0)
        if exact and own.get_column("kernel_id").null_count() == 0 and spent.max() <= _ALIKE_TIMES * np.median(spent):
            began = starts[::period]
            length, times = int(np.median(np.diff(began))), len(codes) // period
            return Section(int(starts.min()), int(ends.max()), period, length, times, KERNELS)
    return None


def _in_iterations(own: pl.DataFrame, traced: pl.DataFrame) -> pl.DataFrame:
    """Return the activities that belong to an iteration: dispatches by their table, copies by their call's time."""
    at = own.with_columns(at_ns=pl.coalesce("call_start_ns", "start_ns"))
    spans = traced.drop_nulls(["start_ns", "end_ns"]).select(since_ns="start_ns", until_ns="end_ns", within="iteration")
    copies = at.filter(pl.col("activity_kind") == "memory_copy").sort("at_ns")
    copies = copies.join_asof(spans.sort("since_ns"), left_on="at_ns", right_on="since_ns", strategy="backward")
    copies = copies.with_columns(iteration=pl.when(pl.col("at_ns") < pl.col("until_ns")).then("within"))
    both = pl.concat([at.filter(pl.col("activity_kind") == "dispatch"), copies.select(at.columns)])
    return both.join(traced.select("iteration"), on="iteration", how="semi")


def _from_before() -> pl.Expr:
    """Return whether an activity has no known launch and begins before its stream's first activity with one."""
    launched = pl.col("start_ns").filter(pl.col("call_id").is_not_null()).min().over("process_id", "stream_id")
    return (pl.col("call_id").is_null() & (pl.col("start_ns") < launched)).fill_null(False)


def _first_warm(first: pl.DataFrame, starts: Numbers, end_ns: int, longest_ns: float = np.inf) -> int:
    """Count the cold repetitions at the beginning: first-call work fills much of each, or they take longer."""
    lengths = np.append(starts[1:], end_ns) - starts
    warm = (time_of(first, starts, starts + lengths) < COLD_SHARE * lengths) & (lengths <= longest_ns)
    return int(np.argmax(warm)) if warm.any() else len(starts)


def _in_order(own: pl.DataFrame) -> pl.DataFrame:
    if own.get_column("call_id").null_count() > (1 - _KNOWN_LAUNCHES) * own.height:
        return own
    return own.sort(pl.coalesce("call_start_ns", "start_ns"), "start_ns", maintain_order=True)


def _repeated(ordered: pl.DataFrame, own: pl.DataFrame, first: pl.DataFrame, *, warm: bool) -> Section | None:
    columns = ("start_ns", "end_ns", "code", "size")
    starts, ends, codes, sizes = (ordered.get_column(name).to_numpy() for name in columns)
    copies_alone = own.get_column("kernel_id").null_count() == own.height
    found = [phase for phase in phases(codes, sizes) if copies_alone or _of_kernels(phase, codes)]
    spans = {phase.first: _span(phase.first, phase.last, starts, ends) for phase in found}
    if not found:
        return None
    # Anything before both the end of first-call work and the first repetition may be set-up.
    over = first.get_column("end_ns").to_numpy()
    set_up = (over[over <= starts.max()].max(initial=starts.min()), min(span[0] for span in spans.values()))
    since = starts.min() if warm else min(set_up) if len(first) else set_up[1]
    behind = int((own.get_column("start_ns").to_numpy() >= since).sum())
    lengths = [phase.last - phase.first for phase in found]
    least = _LEAST_COVERED_WARM if warm else _LEAST_COVERED
    if sum(lengths) < least * behind or max(lengths) < _LEAST_OF_ONE * behind:
        return None
    for phase in sorted(found, key=lambda one: spans[one.first][0] - spans[one.first][1]):
        own_warm = _warm(phase, first, starts, spans[phase.first][1])
        if own_warm is not None:
            others = tuple((*spans[one.first], _words(one)) for one in found if one is not phase)
            return _section(own_warm, starts, ends, others)
    return None


def _span(first: int, last: int, starts: Numbers, ends: Numbers) -> tuple[int, int]:
    return int(starts[first:last].min()), int(ends[first:last].max())


def _words(phase: Phase) -> str:
    return f"{phase.repetitions} repetitions of {phase.period} {'activity' if phase.period == 1 else 'activities'}"


def _of_kernels(phase: Phase, codes: Numbers) -> bool:
    """Return whether kernels repeat: on a device that runs kernels, copies alone are set-up or read-back."""
    return 2 * int((codes[phase.first : phase.last] >= 0).sum()) >= phase.repetitions


def _warm(phase: Phase, first: pl.DataFrame, starts: Numbers, end_ns: int) -> Phase | None:
    """Return the phase without the cold repetitions at its beginning; None if too little remains.

    Compilation and tuning make a first repetition many times as long, even if no host call shows them.
    """
    began = starts[phase.starts]
    longest = max(LONG_PERIODS * float(np.median(np.diff(began)[phase.repeats[:-1]])), LEAST_INTERRUPTION_NS)
    cold = _first_warm(first, began, end_ns, longest)
    if cold in (0, len(phase.starts)):
        return phase if cold == 0 else None
    return from_repetition(phase, cold, len(phase.starts))


def _section(phase: Phase, starts: Numbers, ends: Numbers, others: tuple[tuple[int, int, str], ...]) -> Section:
    began = starts[phase.starts]
    period = np.diff(began)[phase.repeats[:-1]]
    start_ns, end_ns = _span(phase.first, phase.last, starts, ends)
    return Section(
        start_ns,
        end_ns,
        phase.period,
        int(np.median(period)) if len(period) else (end_ns - start_ns) // phase.repetitions,
        phase.repetitions,
        KERNELS,
        others,
        tuple(_foreign(phase, starts)),
    )


def _foreign(phase: Phase, starts: Numbers) -> list[tuple[int, int, str]]:
    """Long runs of foreign segments, each from its first activity to the start of the next repetition."""
    change = np.flatnonzero(np.diff(phase.repeats.astype(np.int8)))
    opens = change[phase.repeats[change]] + 1
    closes = change[~phase.repeats[change]] + 1
    numbers = phase.starts[closes] - phase.starts[opens]
    long = numbers >= _FOREIGN_PERIODS * phase.period
    return [
        (int(starts[first]), int(starts[last]), f"{count} activities that are none of the repetition")
        for first, last, count in zip(phase.starts[opens[long]], phase.starts[closes[long]], numbers[long], strict=True)
    ]
