"""Find phases of a sequence of numbers in which one pattern repeats, with a few other numbers in between.

A pattern is found by an anchor: a number, or a short run of numbers, that occurs once per repetition. Anchors divide
the sequence into segments; neighbouring segments with the same pairs of neighbours are repetitions. Extra numbers cause
no misalignment, unlike a comparison of the sequence with itself at a fixed distance.
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

#: A pattern that occurs fewer times than this is not a repetition.
LEAST_REPETITIONS: Final = 3
#: A phase with fewer numbers is too short to distinguish repetition from chance.
LEAST_LENGTH: Final = 20
#: Neighbouring segments are alike if this fraction of their pairs match; one extra number in ten changes about as many.
_ALIKE: Final = 0.7
#: Segments and anchor distances within this fraction of the median have equal length.
_SAME_LENGTH: Final = 0.25
#: A phase with a smaller matching fraction is just many kernels that happen to recur.
_LEAST_FITTING: Final = 0.6
#: At least this fraction of longer runs must recur too: in a sequence of few distinct numbers, all pairs do.
_LONG: Final = 16
_LEAST_LONG: Final = 0.1
#: Neighbouring repetitions with less in common than the first fraction differ in size, provided that the median of all
#: neighbours reaches the second.
_OTHER_SIZES: Final = 0.5
_SAME_SIZES: Final = 0.8
#: Longer anchors are not tried if a phase of at least half the sequence matches to this fraction.
_EXPLAINED: Final = 0.9
#: Foreign numbers between repetitions end the phase if they exceed this many periods and this fraction.
_FOREIGN_PERIODS: Final = 10
_FOREIGN_SHARE: Final = 0.1
#: Anchors are single numbers, else runs of two, four or eight.
_LONGEST_ANCHOR: Final = 8
_ANCHORS_OF_A_LENGTH: Final = 4
_MOST_PHASES: Final = 4


@dataclass(frozen=True)
class Phase:
    """Part [first, last) of a sequence in which a pattern repeats.

    Attributes:
        bounds: The starts of its segments and the end of the last one; anything before and after them in the phase is
            part of a repetition.
        repeats: Per segment, true if it is a repetition rather than foreign.
        period: Median length of a repetition.
        fitting_share: Fraction of the phase's numbers that match the pattern.
    """

    first: int
    last: int
    bounds: Numbers
    repeats: npt.NDArray[np.bool_]
    period: int
    fitting_share: float

    @property
    def starts(self) -> Numbers:
        """Return the starts of the segments."""
        return self.bounds[:-1]

    @property
    def repetitions(self) -> int:
        """Number of occurrences; the partial ones at the beginning and the end together count as one."""
        around = int(self.bounds[0]) - self.first + self.last - int(self.bounds[-1])
        return int(self.repeats.sum()) + around // self.period

    @property
    def fitting(self) -> float:
        """Number of the phase's numbers that match the pattern."""
        return self.fitting_share * (self.last - self.first)

    def moved(self, by: int) -> "Phase":
        """Return the same phase for a sequence with this many numbers before it."""
        return replace(self, first=self.first + by, last=self.last + by, bounds=self.bounds + by)


def phases(sequence: Numbers, sizes: Numbers) -> list[Phase]:
    """Find the phases of `sequence` in which a pattern repeats, in order; at most four patterns, without overlap.

    Only the equality of numbers matters, not their values. Each phase has at least three repetitions and 20 numbers. If
    several patterns fit one phase, the one with the shortest description is chosen: the numbers of one repetition plus
    those that do not match. Nearly linear in the length of the sequence.

    Args:
        sequence: A number for each position, equal for equal work.
        sizes: Sizes of the work at each position, negative if unknown. They may drift: a new phase begins only if most
            of a pattern's sizes change at once and are constant before and after, as in the change from prefill to
            decoding.
    """
    found: list[Phase] = []
    remaining = [(0, len(sequence))]
    while remaining and len(found) < _MOST_PHASES:
        remaining.sort(key=lambda part: part[0] - part[1])
        first, last = remaining.pop(0)
        phase = _strongest(sequence[first:last])
        if phase is not None:
            phase = phase.moved(first)
            found.append(phase)
            remaining += [(first, phase.first), (phase.last, last)]
    divided = [part for phase in found for part in _divided(phase, sequence, sizes)]
    return sorted(divided, key=lambda phase: phase.first)


def from_repetition(phase: Phase, first: int, last: int) -> Phase | None:
    """Return the phase from its segment `first` up to `last`; None if too little remains.

    The remainder before the first segment and after the last one is kept on sides without a cut.
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
    """For each of `count` segments, the fraction of pairs in common with the previous one; 0 for the first.

    `pairs` and `segments` give the pair at each position and its segment. The fraction is relative to both segments
    together; a repeated pair counts as often as both have it (Dice's coefficient of multisets).
    """
    # One sort of one number per position: there are millions of them.
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
    """A number for each pair of neighbours, equal for equal pairs; the last position has no successor."""
    return _joined(sequence, 1)


def _joined(codes: Numbers, distance: int) -> Numbers:
    """A dense number for each pair of a code and the code `distance` positions later."""
    following = np.full(len(codes), -1, np.int64)
    following[: len(codes) - distance] = codes[distance:]
    return _dense(codes * (int(codes.max(initial=0)) + 2) + following + 1)


def _in_order_of_first(values: Numbers) -> Numbers:
    """Dense numbers in order of first occurrence, so that the result does not depend on the values."""
    _, places, which = np.unique(values, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(places))[which]


def _dense(values: Numbers) -> Numbers:
    return np.unique(values, return_inverse=True)[1]


def _strongest(sequence: Numbers) -> Phase | None:
    """Return the pattern that describes most of the sequence with the fewest numbers."""
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
    """Split the phase where the sizes of the work change from one repetition on."""
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
    # A single odd repetition is not a phase and does not split one.
    return whole if len(whole) == len(parts) else [phase]


def _in_order(runs: Numbers, phase: Phase) -> bool:
    """Return whether neighbouring repetitions share long runs; equal numbers in random order have few in common."""
    lengths = np.diff(phase.bounds)
    segments = np.repeat(np.arange(len(lengths)), lengths)
    shares = alike(runs[phase.bounds[0] : phase.bounds[-1]], segments, len(lengths))
    return float(np.mean(shares[1:])) >= _LEAST_LONG


def _anchors(runs: Numbers) -> Iterator[Numbers]:
    """Positions of the runs that recur most regularly, for some of their distances."""
    order = np.argsort(runs, kind="stable")
    code = runs[order]
    same = code[1:] == code[:-1]
    distance = pl.DataFrame({"code": code[1:][same], "distance": np.diff(order)[same]})
    middle = distance.group_by("code").agg(pl.len(), middle=pl.col("distance").median())
    regular = (pl.col("distance") - pl.col("middle")).abs() <= _SAME_LENGTH * pl.col("middle")
    # The same criterion as for patterns: the numbers covered, minus one repetition.
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
    """Return the longest phase of repeating segments between anchors, including foreign ones in between."""
    lengths = np.diff(anchors)
    segments = np.repeat(np.arange(len(lengths)), lengths)
    shares = alike(pairs[anchors[0] : anchors[-1]], segments, len(lengths))
    run = np.cumsum(shares < _ALIKE) - 1
    size = np.bincount(run)
    numbers = np.bincount(run, lengths)
    # Two complete segments: the parts before the first anchor and after the last one may form a third.
    many = size >= LEAST_REPETITIONS - 1
    if not many.any():
        return None
    typical = numbers[many] / size[many]
    longest = typical[np.argmax(numbers[many])]
    same = many & (np.abs(numbers / size - longest) <= _SAME_LENGTH * longest)
    kept = np.flatnonzero(same[run])
    # Short foreign segments between repetitions are part of the phase; long ones end it.
    before = anchors[kept[1:]] - anchors[kept[:-1] + 1]
    limit = max(_FOREIGN_PERIODS * longest, _FOREIGN_SHARE * float(lengths[kept].sum()))
    part = np.append(0, np.cumsum(before > limit))
    own = kept[part == np.argmax(np.bincount(part, lengths[kept]))]
    return _phase(codes, anchors[own[0] : own[-1] + 2], own - own[0], shares[own[0] : own[-1] + 1])


def _phase(codes: Numbers, starts: Numbers, repeating: Numbers, shares: Shares) -> Phase | None:
    """Return the phase from the first to the last of `starts`, extended as far as the pattern continues."""
    lengths = np.diff(starts)
    repeats = np.zeros(len(lengths), np.bool_)
    repeats[repeating] = True
    period = int(np.median(lengths[repeats]))
    first, last = int(starts[0]), int(starts[-1])
    after = _agreeing(codes[last:], codes[last - int(lengths[-1]) : last])
    before = _agreeing(codes[:first][::-1], codes[first : first + int(lengths[0])][::-1])
    # The first segment of a run resembles the next one, whose fraction is relative to it.
    run_starts = repeats & (shares < _ALIKE)
    following = np.append(shares[1:], 0)
    fitting = float((lengths * np.where(run_starts, following, shares))[repeats].sum()) + after + before
    first, last = first - before, last + after
    phase = Phase(first, last, starts, repeats, period, fitting / (last - first))
    return phase if _is_long(phase) else None


def _agreeing(some: Numbers, others: Numbers) -> int:
    """Return the length of the common prefix."""
    length = min(len(some), len(others))
    differs = np.flatnonzero(some[:length] != others[:length])
    return int(differs[0]) if len(differs) else length
