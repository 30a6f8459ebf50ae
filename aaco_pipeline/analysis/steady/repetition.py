"""Stretches of a sequence of numbers in which one pattern repeats, with a few others in between.

A pattern is found by an anchor: a number, or a short run of numbers, that comes once in each repetition. Anchors divide
the sequence into segments, and neighbouring segments that hold the same pairs of neighbours are repetitions. Extra
numbers shift nothing, as they would if the sequence were compared with itself at a fixed distance.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

Numbers = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]

#: A pattern that comes less often is no repetition.
LEAST_REPETITIONS: Final = 3
#: A stretch of fewer numbers is too short to tell a repetition from chance.
LEAST_LENGTH: Final = 20
#: Neighbouring segments are alike from this share of common pairs on: one extra in ten breaks and adds about so many.
_ALIKE: Final = 0.7
#: Segments and distances of anchors within this part of the median are of one length.
_SAME_LENGTH: Final = 0.25
#: A stretch of which less fits is many kernels that happen to come again.
_LEAST_FITTING: Final = 0.6
#: Of longer runs of numbers at least this share must come again, too: in a sequence of few different ones all pairs do.
_LONG: Final = 16
_LEAST_LONG: Final = 0.1
#: Neighbouring repetitions with less in common are of other sizes, where from this share on most are of the same.
_OTHER_SIZES: Final = 0.5
_SAME_SIZES: Final = 0.8
#: A stretch of half the sequence or more of which this share fits makes longer anchors needless.
_EXPLAINED: Final = 0.9
#: Foreign numbers between repetitions end the stretch when they are more than so many periods, and than this share.
_FOREIGN_PERIODS: Final = 10
_FOREIGN_SHARE: Final = 0.1
#: Anchors are single numbers, else runs of two, four or eight.
_LONGEST_ANCHOR: Final = 8
_ANCHORS_OF_A_LENGTH: Final = 4
_MOST_PHASES: Final = 4


@dataclass(frozen=True)
class Phase:
    """One stretch [first, last) of a sequence in which a pattern repeats.

    `bounds`: where its segments begin, and where the last of them ends; what the stretch has before and behind them are
    parts of a repetition. `repeats`: per segment whether it is a repetition, or foreign. `period`: median length of a
    repetition. `fitting_share`: the part of the stretch's numbers that are as the pattern has them.
    """

    first: int
    last: int
    bounds: Numbers
    repeats: npt.NDArray[np.bool_]
    period: int
    fitting_share: float

    @property
    def starts(self) -> Numbers:
        """Where the segments begin."""
        return self.bounds[:-1]

    @property
    def repetitions(self) -> int:
        """How often the pattern comes; parts at the beginning and the end count together."""
        around = int(self.bounds[0]) - self.first + self.last - int(self.bounds[-1])
        return int(self.repeats.sum()) + around // self.period

    @property
    def fitting(self) -> float:
        """How many numbers of the stretch are as the pattern has them."""
        return self.fitting_share * (self.last - self.first)

    def moved(self, by: int) -> "Phase":
        """The same in a sequence that has so many numbers before it."""
        return replace(self, first=self.first + by, last=self.last + by, bounds=self.bounds + by)


def phases(sequence: Numbers, sizes: Numbers) -> list[Phase]:
    """The stretches of `sequence` in which a pattern repeats, in order; at most four patterns, none overlapping.

    `sizes` are those of the work at each place, negative where unknown. They may drift: only where most of a pattern's
    sizes change at once, and stay as they are before and after, does another stretch begin, as where prefill turns to
    decoding.

    Which numbers stand for what does not matter, only which are equal. Each stretch has at least three repetitions and
    20 numbers. Of several patterns for one stretch it is the one that describes the sequence in the fewest numbers:
    those of one repetition, and those that do not fit. Near-linear in the length of the sequence.
    """
    found: list[Phase] = []
    open_stretches = [(0, len(sequence))]
    while open_stretches and len(found) < _MOST_PHASES:
        open_stretches.sort(key=lambda stretch: stretch[0] - stretch[1])
        first, last = open_stretches.pop(0)
        phase = _strongest(sequence[first:last])
        if phase is not None:
            phase = phase.moved(first)
            found.append(phase)
            open_stretches += [(first, phase.first), (phase.last, last)]
    divided = [part for phase in found for part in _divided(phase, sequence, sizes)]
    return sorted(divided, key=lambda phase: phase.first)


def from_repetition(phase: Phase, first: int, last: int) -> Phase | None:
    """The phase from its segment `first` up to `last`; None when that is too little for one.

    What lies before the first segment and behind the last one stays where the phase is not cut.
    """
    part = replace(
        phase,
        first=int(phase.bounds[first]) if first else phase.first,
        last=int(phase.bounds[last]) if last < len(phase.repeats) else phase.last,
        bounds=phase.bounds[first : last + 1],
        repeats=phase.repeats[first:last],
    )
    return part if _is_long(part) else None


def _is_long(phase: Phase) -> bool:
    return phase.repetitions >= LEAST_REPETITIONS and phase.last - phase.first >= LEAST_LENGTH


def alike(pairs: Numbers, segments: Numbers, count: int) -> Shares:
    """For each of `count` segments the share of pairs that it has in common with the one before; 0 for the first.

    `pairs` and `segments` give the pair at each place and the segment it lies in. The share is of both segments
    together, pairs that come several times counted as often as both have them (Dice's coefficient of multisets).
    """
    # One sort of one number per place: there are millions of these.
    placed = np.sort(pairs * count + segments)
    opens = np.flatnonzero(np.diff(placed, prepend=-1))
    n = np.diff(opens, append=len(placed))
    pair, segment = np.divmod(placed[opens], max(count, 1))
    follows = (pair[1:] == pair[:-1]) & (segment[1:] == segment[:-1] + 1)
    common = np.bincount(segment[1:][follows], np.minimum(n[1:], n[:-1])[follows], minlength=count)
    length = np.bincount(segments, minlength=count).astype(np.float64)
    both = length + np.append(0, length[:-1])
    shares: Shares = np.divide(2 * common, both, out=np.zeros(count), where=both > 0)
    shares[:1] = 0
    return shares


def neighbours(sequence: Numbers) -> Numbers:
    """A number for each pair of neighbours, equal where the pairs are; the last one is followed by nothing."""
    return _joined(sequence, 1)


def _joined(codes: Numbers, distance: int) -> Numbers:
    """A dense number for each pair of a code and the one `distance` after it."""
    following = np.full(len(codes), -1, np.int64)
    following[: len(codes) - distance] = codes[distance:]
    return _dense(codes * (int(codes.max(initial=0)) + 2) + following + 1)


def _in_order_of_first(values: Numbers) -> Numbers:
    """Dense numbers by where a value comes first, so that what the values are decides nothing."""
    _, places, which = np.unique(values, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(places))[which]


def _dense(values: Numbers) -> Numbers:
    return np.unique(values, return_inverse=True)[1]


def _strongest(sequence: Numbers) -> Phase | None:
    """The pattern that describes the most of the sequence in the fewest numbers."""
    if len(sequence) < LEAST_LENGTH:
        return None
    codes = _in_order_of_first(sequence)
    pairs = neighbours(codes)
    found: list[Phase] = []
    runs, length = codes, 1
    while length <= _LONGEST_ANCHOR and not any(_explains(phase, len(codes)) for phase in found):
        tried = (_repetitions(codes, pairs, anchors) for anchors in _anchors(runs))
        found += [phase for phase in tried if phase is not None and phase.fitting_share >= _LEAST_FITTING]
        runs, length = _joined(runs, length), 2 * length
    if not found:
        return None
    while length < _LONG:
        runs, length = _joined(runs, length), 2 * length
    found.sort(key=lambda phase: phase.period - phase.fitting)
    return next((phase for phase in found if _in_order(runs, phase)), None)


def _explains(phase: Phase, length: int) -> bool:
    return phase.fitting_share > _EXPLAINED and 2 * phase.fitting > length


def _divided(phase: Phase, sequence: Numbers, sizes: Numbers) -> list[Phase]:
    """The phase, or its parts where the sizes of the work are others from a repetition on."""
    first, last = int(phase.bounds[0]), int(phase.bounds[-1])
    if (sizes[first:last] < 0).any():
        return [phase]
    sized = _dense(_dense(sizes[first:last]) * len(sequence) + _dense(sequence[first:last]))
    lengths = np.diff(phase.bounds)
    shares = alike(sized, np.repeat(np.arange(len(lengths)), lengths), len(lengths))[1:]
    changes = np.flatnonzero(shares < _OTHER_SIZES) + 1
    if not 0 < len(changes) < _MOST_PHASES or np.median(shares) < _SAME_SIZES:
        return [phase]
    bounds = [0, *changes.tolist(), len(lengths)]
    parts = [from_repetition(phase, start, end) for start, end in pairwise(bounds)]
    whole = [part for part in parts if part is not None]
    # One odd repetition is no phase, and does not divide one.
    return whole if len(whole) == len(parts) else [phase]


def _in_order(runs: Numbers, phase: Phase) -> bool:
    """Whether neighbouring repetitions hold the same long runs; equal numbers in any order have few in common."""
    lengths = np.diff(phase.bounds)
    segments = np.repeat(np.arange(len(lengths)), lengths)
    shares = alike(runs[phase.bounds[0] : phase.bounds[-1]], segments, len(lengths))
    return float(np.mean(shares[1:])) >= _LEAST_LONG


def _anchors(runs: Numbers) -> Iterator[Numbers]:
    """Places of the runs that come most regularly, for some of the distances at which they do."""
    order = np.argsort(runs, kind="stable")
    code = runs[order]
    same = code[1:] == code[:-1]
    distance = pl.DataFrame({"code": code[1:][same], "distance": np.diff(order)[same]})
    middle = distance.group_by("code").agg(pl.len(), middle=pl.col("distance").median())
    regular = (pl.col("distance") - pl.col("middle")).abs() <= _SAME_LENGTH * pl.col("middle")
    # As the pattern is chosen: what it covers, less what one repetition takes to tell.
    worth = (pl.col("covered") - (LEAST_REPETITIONS - 1) * pl.col("middle")).alias("worth")
    chosen = (
        distance.join(middle.filter(pl.col("len") >= LEAST_REPETITIONS - 1), on="code")
        .filter(regular)
        .group_by("code", "middle")
        .agg(covered=pl.col("distance").sum())
        .sort(worth, "middle", "code", descending=[True, False, False])
        .unique("middle", keep="first", maintain_order=True)
    )
    for chosen_code in chosen.head(_ANCHORS_OF_A_LENGTH).get_column("code"):
        first, last = np.searchsorted(code, chosen_code), np.searchsorted(code, chosen_code, "right")
        yield order[first:last]


def _repetitions(codes: Numbers, pairs: Numbers, anchors: Numbers) -> Phase | None:
    """The longest stretch of segments between anchors that repeat, foreign ones in between included."""
    lengths = np.diff(anchors)
    segments = np.repeat(np.arange(len(lengths)), lengths)
    shares = alike(pairs[anchors[0] : anchors[-1]], segments, len(lengths))
    run = np.cumsum(shares < _ALIKE) - 1
    size = np.bincount(run)
    numbers = np.bincount(run, lengths)
    # Two whole segments: what lies before the first anchor and behind the last one may make up a third.
    many = size >= LEAST_REPETITIONS - 1
    if not many.any():
        return None
    typical = numbers[many] / size[many]
    longest = typical[np.argmax(numbers[many])]
    same = many & (np.abs(numbers / size - longest) <= _SAME_LENGTH * longest)
    kept = np.flatnonzero(same[run])
    # Foreign segments between repetitions: short ones are part of the stretch, long ones end it.
    before = anchors[kept[1:]] - anchors[kept[:-1] + 1]
    limit = max(_FOREIGN_PERIODS * longest, _FOREIGN_SHARE * float(lengths[kept].sum()))
    stretch = np.append(0, np.cumsum(before > limit))
    own = kept[stretch == np.argmax(np.bincount(stretch, lengths[kept]))]
    return _phase(codes, anchors[own[0] : own[-1] + 2], own - own[0], shares[own[0] : own[-1] + 1])


def _phase(codes: Numbers, starts: Numbers, repeating: Numbers, shares: Shares) -> Phase | None:
    """The stretch from the first to the last of `starts`, and as far beyond them as the pattern goes on."""
    lengths = np.diff(starts)
    repeats = np.zeros(len(lengths), np.bool_)
    repeats[repeating] = True
    period = int(np.median(lengths[repeats]))
    first, last = int(starts[0]), int(starts[-1])
    after = _agreeing(codes[last:], codes[last - int(lengths[-1]) : last])
    before = _agreeing(codes[:first][::-1], codes[first : first + int(lengths[0])][::-1])
    # The first segment of a run is like the one after it, to which the share of the next one is.
    run_starts = repeats & (shares < _ALIKE)
    following = np.append(shares[1:], 0)
    fitting = float((lengths * np.where(run_starts, following, shares))[repeats].sum()) + after + before
    first, last = first - before, last + after
    phase = Phase(first, last, starts, repeats, period, fitting / (last - first))
    return phase if _is_long(phase) else None


def _agreeing(some: Numbers, others: Numbers) -> int:
    """How many numbers from the start on are equal."""
    length = min(len(some), len(others))
    differs = np.flatnonzero(some[:length] != others[:length])
    return int(differs[0]) if len(differs) else length
