"""What a measurement of one layout gives: pairs of durations, from one fresh pair of processes."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Durations = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Durations of `count` pairs in one layout, in the order measured, int64 ns above zero.

    `candidate_first` says in which pairs the candidate ran before the baseline. The first call of each process is not
    among the pairs: it is in `*_first_call_ns`; `*_load_ns` is what loading took. Null where it was not measured.
    """

    baseline_ns: Durations
    candidate_ns: Durations
    candidate_first: NDArray[np.bool_]
    baseline_first_call_ns: int | None = None
    candidate_first_call_ns: int | None = None
    baseline_load_ns: int | None = None
    candidate_load_ns: int | None = None

    def __post_init__(self) -> None:
        shapes = {self.baseline_ns.shape, self.candidate_ns.shape, self.candidate_first.shape}
        if len(shapes) != 1 or self.baseline_ns.ndim != 1 or self.baseline_ns.size < 2:
            raise ValueError("a layout has at least two pairs, and three vectors of one length")
        if self.baseline_ns.min() <= 0 or self.candidate_ns.min() <= 0:
            raise ValueError("a duration is above zero")


class PairSource(Protocol):
    """Who measures. Baseline and candidate are built in the layout of `layout_seed` and run in two fresh processes.

    Calls are interleaved, in random order within each pair, with new content each call. A source that compares a
    baseline with itself builds its second arm in another layout that it derives from the seed: so its spread shows what
    a change of layout alone does to this kernel.
    """

    def pairs(self, layout_seed: int, count: int) -> Pairs: ...
