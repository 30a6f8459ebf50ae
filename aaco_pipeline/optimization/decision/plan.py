"""What is declared before anything is measured: threshold, error that may be made, and how much is measured at most."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How a candidate is judged; the same for every candidate of a run.

    `threshold` is the least gain that counts (0.02: two per cent). `alpha` is the probability, over the whole run, that
    a candidate whose gain is no more than that is accepted; each of the `candidates` that may be tried gets an equal
    part of it. `pairs` are timed in each layout. The search looks after each of `search_layouts` and stops as soon as
    it can, at level `search_alpha` over all looks: it only chooses what is worth a confirmation, which alone uses
    `alpha`. `most_layouts` bounds a confirmation. A baseline is compared with itself in `self_layouts`, and nothing is
    decided where the half-width of that interval is above `widest_self`.
    """

    threshold: float = 0.02
    alpha: float = 0.01
    candidates: int = 1
    pairs: int = 24
    search_layouts: tuple[int, ...] = (4, 6, 8, 12)
    search_alpha: float = 0.05
    most_layouts: int = 24
    self_layouts: int = 8
    widest_self: float = 0.05

    def __post_init__(self) -> None:
        if not (self.threshold >= 0 and 0 < self.alpha < 0.5 and 0 < self.search_alpha < 0.5 and self.widest_self > 0):
            raise ValueError("threshold is a gain of at least 0, alpha and search_alpha lie between 0 and 0.5")
        if self.candidates < 1 or self.pairs < 2:
            raise ValueError("at least one candidate and two pairs in a layout")
        looks = self.search_layouts
        if not looks or looks[0] < LEAST_LAYOUTS or list(looks) != sorted(set(looks)):
            raise ValueError(f"search_layouts grow, from {LEAST_LAYOUTS} on")
        if self.self_layouts < LEAST_LAYOUTS or self.most_layouts < self.least_layouts:
            raise ValueError(f"this alpha and number of candidates need at least {self.least_layouts} layouts")

    @property
    def candidate_alpha(self) -> float:
        """The part of `alpha` that one candidate's confirmation may spend (Bonferroni)."""
        return self.alpha / self.candidates

    @property
    def look_alpha(self) -> float:
        """The part of `search_alpha` of one look."""
        return self.search_alpha / len(self.search_layouts)

    @property
    def least_layouts(self) -> int:
        """The fewest layouts of a confirmation: below them the signs of all alike happen by chance more often."""
        return max(LEAST_LAYOUTS, math.ceil(-math.log2(self.candidate_alpha)))


#: A winner holds in at least so many random layouts.
LEAST_LAYOUTS = 4
