"""Find sections of a device's work in which the same work recurs, from marked iterations or from repetition.

Which section represents the recording is chosen in `parts`.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.steady.first_calls import time_of
from aaco_pipeline.analysis.steady.repetition import (
    LEAST_LENGTH,
    LEAST_REPETITIONS,
    Phase,
    alike,
    from_repetition,
    neighbours,
    phases,
)

MARKED: Final = "marked iterations"
KERNELS: Final = "repeating kernels"
#: A repetition at the beginning of which first-call work takes this share is not warm.
COLD_SHARE: Final = 0.1
#: Idle time is an interruption, and a repetition at the beginning cold, from so many periods on, and this long.
LONG_PERIODS: Final = 5
LEAST_INTERRUPTION_NS: Final = 100_000
#: From this share of launches that are known on, the sequence is the order of launches, which streams do not disturb.
_KNOWN_LAUNCHES: Final = 0.9
#: How much of the work repeats at least, and in one pattern: less is blocks of layers in a single pass. A
#: recording that is warm from the start has no set-up to leave out, and more of it has to.
_LEAST_COVERED: Final = 0.5
_LEAST_COVERED_WARM: Final = 0.75
_LEAST_OF_ONE: Final = 0.25
#: Work between repetitions that is none of them interrupts them from so many periods on.
_FOREIGN_PERIODS: Final = 2
#: So few activities are a repetition when they are one exactly, so often, and no time is longer than so many medians.
_FEW_REPETITIONS: Final = 5
_ALIKE_TIMES: Final = 1.5
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stretch:
    """Repeated work of one device, from `start_ns` to `end_ns`.

    `period_activities` and `period_ns` are medians; `repetitions` counts; `fitting_share` is the part of the activities
    that are as the repetition has them, None for a single one. `phases`: other stretches with a repetition of their
    own, as start, end and what repeats. `foreign`: stretches inside of activities that are none of the repetition.
    """

    start_ns: int
    end_ns: int
    period_activities: int
    period_ns: int
    repetitions: int
    fitting_share: float | None
    found_by: str
    phases: tuple[tuple[int, int, str], ...] = ()
    foreign: tuple[tuple[int, int, str], ...] = ()


def marked(own: pl.DataFrame, iterations: pl.DataFrame, first: pl.DataFrame) -> Stretch | None:
    """The measured iterations of the trace, without leading ones that first-call work fills; None without any.

    `own` are the activities of one device with `code`, equal for equal work. An iteration has what was launched in it;
    work from before the recording, of which no launch is known, has none.
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
    placed = placed.join(each.select("iteration"), on="iteration", how="semi").sort("iteration", "at_ns", "start_ns")
    segments = np.repeat(np.arange(each.height), lengths)
    codes = placed.get_column("code").to_numpy()
    # What follows the last iteration is taken to be another one.
    pairs = neighbours(np.append(codes, codes[-int(lengths[-1])]))[:-1]
    shares = alike(pairs, segments, each.height)
    end_ns = int(each.get_column("end_ns").to_numpy().max())
    several = each.height > 1
    return Stretch(
        int(starts.min()),
        end_ns,
        int(np.median(lengths)),
        int(np.median(np.diff(starts))) if several else end_ns - int(starts[0]),
        each.height,
        float(np.average(np.append(shares[1:2], shares[1:]), weights=lengths)) if several else None,
        MARKED,
    )


def repeated(own: pl.DataFrame, first: pl.DataFrame, *, warm: bool) -> Stretch | None:
    """The longest warm stretch of `own`, activities of one device with `code`, in which kernels repeat; None if none.

    `warm` says that the host calls show no set-up, so that all of the work counts.
    They are taken in the order of their launches where these are known, else of their starts. Where nothing repeats
    among all of them, those of the busiest stream are looked at alone.
    """
    found = _repeated(_in_order(own), own, first, warm=warm)
    if found is None and own.get_column("stream_id").n_unique() > 1:
        streams = own.group_by("stream_id").agg(pl.len()).sort("len", "stream_id", descending=[True, False])
        busiest = pl.col("stream_id").eq_missing(streams.item(0, "stream_id"))
        found = _repeated(own.filter(busiest), own, first, warm=warm)
    return found


def few_alike(own: pl.DataFrame) -> Stretch | None:
    """The whole of a recording of few activities that is the same kernels, at least five times and nothing else.

    Chance does not repeat exactly: what is too short to look for a repetition in is none where it is one. Each takes
    about as long as the others, so that none is a first.
    """
    ordered = _in_order(own)
    codes, starts, ends = (ordered.get_column(name).to_numpy() for name in ("code", "start_ns", "end_ns"))
    for period in range(1, len(codes) // _FEW_REPETITIONS + 1):
        exact = len(codes) % period == 0 and bool((codes[period:] == codes[:-period]).all())
        spent = (ends - starts).reshape(-1, period).sum(axis=1) if exact else np.zeros(0)
        if exact and own.get_column("kernel_id").null_count() == 0 and spent.max() <= _ALIKE_TIMES * np.median(spent):
            began = starts[::period]
            length, times = int(np.median(np.diff(began))), len(codes) // period
            return Stretch(int(starts.min()), int(ends.max()), period, length, times, 1.0, KERNELS)
    return None


def _in_iterations(own: pl.DataFrame, traced: pl.DataFrame) -> pl.DataFrame:
    """The activities that belong to an iteration: dispatches by their table, copies by when they were asked for."""
    at = own.with_columns(at_ns=pl.coalesce("call_start_ns", "start_ns"))
    spans = traced.drop_nulls(["start_ns", "end_ns"]).select(since_ns="start_ns", until_ns="end_ns", within="iteration")
    copies = at.filter(pl.col("activity_kind") == "memory_copy").sort("at_ns")
    copies = copies.join_asof(spans.sort("since_ns"), left_on="at_ns", right_on="since_ns", strategy="backward")
    copies = copies.with_columns(iteration=pl.when(pl.col("at_ns") < pl.col("until_ns")).then("within"))
    both = pl.concat([at.filter(pl.col("activity_kind") == "dispatch"), copies.select(at.columns)])
    return both.join(traced.select("iteration"), on="iteration", how="semi")


def _from_before() -> pl.Expr:
    """Whether an activity has no known launch, and begins before the first one of its stream that has."""
    launched = pl.col("start_ns").filter(pl.col("call_id").is_not_null()).min().over("process_id", "stream_id")
    return (pl.col("call_id").is_null() & (pl.col("start_ns") < launched)).fill_null(False)


def _first_warm(first: pl.DataFrame, starts: Numbers, end_ns: int, longest_ns: float = np.inf) -> int:
    """How many repetitions at the beginning are cold: first-call work takes a good part of each, or they are longer."""
    lengths = np.append(starts[1:], end_ns) - starts
    warm = (time_of(first, starts, starts + lengths) < COLD_SHARE * lengths) & (lengths <= longest_ns)
    return int(np.argmax(warm)) if warm.any() else len(starts)


def _in_order(own: pl.DataFrame) -> pl.DataFrame:
    if own.get_column("call_id").null_count() > (1 - _KNOWN_LAUNCHES) * own.height:
        return own
    return own.sort(pl.coalesce("call_start_ns", "start_ns"), "start_ns", maintain_order=True)


def _repeated(ordered: pl.DataFrame, own: pl.DataFrame, first: pl.DataFrame, *, warm: bool) -> Stretch | None:
    columns = ("start_ns", "end_ns", "code", "size")
    starts, ends, codes, sizes = (ordered.get_column(name).to_numpy() for name in columns)
    copies_alone = own.get_column("kernel_id").null_count() == own.height
    found = [phase for phase in phases(codes, sizes) if copies_alone or _of_kernels(phase, codes)]
    spans = {phase.first: _span(phase.first, phase.last, starts, ends) for phase in found}
    if not found:
        return None
    # What comes before both the end of first-call work and the first repetition may be set-up.
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
            return _stretch(own_warm, starts, ends, others)
    return None


def _span(first: int, last: int, starts: Numbers, ends: Numbers) -> tuple[int, int]:
    return int(starts[first:last].min()), int(ends[first:last].max())


def _words(phase: Phase) -> str:
    return f"{phase.repetitions} repetitions of {phase.period} {'activity' if phase.period == 1 else 'activities'}"


def _of_kernels(phase: Phase, codes: Numbers) -> bool:
    """Whether kernels repeat: copies alone are set-up or read-back, where the device ran kernels at all."""
    return 2 * int((codes[phase.first : phase.last] >= 0).sum()) >= phase.repetitions


def _warm(phase: Phase, first: pl.DataFrame, starts: Numbers, end_ns: int) -> Phase | None:
    """The phase without the cold repetitions at its beginning; None when too little is left.

    Compilation and tuning of a first repetition make it many times as long, also where no host call shows them.
    """
    began = starts[phase.starts]
    longest = max(LONG_PERIODS * float(np.median(np.diff(began)[phase.repeats[:-1]])), LEAST_INTERRUPTION_NS)
    cold = _first_warm(first, began, end_ns, longest)
    if cold in (0, len(phase.starts)):
        return phase if cold == 0 else None
    return from_repetition(phase, cold, len(phase.starts))


def _stretch(phase: Phase, starts: Numbers, ends: Numbers, others: tuple[tuple[int, int, str], ...]) -> Stretch:
    began = starts[phase.starts]
    period = np.diff(began)[phase.repeats[:-1]]
    start_ns, end_ns = _span(phase.first, phase.last, starts, ends)
    return Stretch(
        start_ns,
        end_ns,
        phase.period,
        int(np.median(period)) if len(period) else (end_ns - start_ns) // phase.repetitions,
        phase.repetitions,
        phase.fitting_share,
        KERNELS,
        others,
        tuple(_foreign(phase, starts)),
    )


def _foreign(phase: Phase, starts: Numbers) -> list[tuple[int, int, str]]:
    """Long stretches of segments that are no repetition, each from its first activity to the next repetition's."""
    change = np.flatnonzero(np.diff(phase.repeats.astype(np.int8)))
    opens = change[phase.repeats[change]] + 1
    closes = change[~phase.repeats[change]] + 1
    numbers = phase.starts[closes] - phase.starts[opens]
    long = numbers >= _FOREIGN_PERIODS * phase.period
    return [
        (int(starts[first]), int(starts[last]), f"{count} activities that are none of the repetition")
        for first, last, count in zip(phase.starts[opens[long]], phase.starts[closes[long]], numbers[long], strict=True)
    ]
