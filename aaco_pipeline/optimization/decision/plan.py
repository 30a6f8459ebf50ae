"""What is declared before anything is measured: threshold, error that may be made, and how much is measured at most."""

from dataclasses import dataclass

from aaco_pipeline.optimization.decision.bounds import NONE, misses_allowed

#: A winner holds in at least so many random layouts.
LEAST_LAYOUTS = 4


@dataclass(frozen=True)
class Plan:
    """How a candidate is judged; the same for every candidate of a run.

    `threshold` is the least gain that counts (0.02: two per cent). `alpha` is the probability, over the whole run, that
    a candidate whose gain is no more than that is accepted; each of the `candidates` that may be tried gets an equal
    part of it, and each look of its confirmation an equal part of that. `pairs` are timed in each layout.

    The search looks after each of `search_layouts` and stops as soon as it can; it only chooses what is worth a
    confirmation, and lets at most `search_alpha` of what gains nothing through. The confirmation looks after each of
    `confirming_layouts`. A baseline is compared with itself in `self_layouts`, and nothing is decided where identical
    code differs by more than `widest_self` in half of them.
    """

    threshold: float = 0.02
    alpha: float = 0.01
    candidates: int = 1
    pairs: int = 16
    search_layouts: tuple[int, ...] = (6, 8, 12, 16, 24)
    search_alpha: float = 0.3
    confirming_layouts: tuple[int, ...] = (12, 16, 24, 32, 48, 64)
    self_layouts: int = 8
    widest_self: float = 0.25

    def __post_init__(self) -> None:
        if not (self.threshold >= 0 and 0 < self.alpha < 0.5 and 0 < self.search_alpha < 0.5 and self.widest_self > 0):
            raise ValueError("threshold is a gain of at least 0, alpha and search_alpha lie between 0 and 0.5")
        if self.candidates < 1 or self.pairs < 2 or self.self_layouts < LEAST_LAYOUTS:
            raise ValueError(f"at least one candidate, two pairs in a layout, {LEAST_LAYOUTS} layouts")
        for looks in (self.search_layouts, self.confirming_layouts):
            if not looks or looks[0] < LEAST_LAYOUTS or list(looks) != sorted(set(looks)):
                raise ValueError(f"layouts at the looks grow, from {LEAST_LAYOUTS} on")
        if self.search_misses[-1] == NONE or self.confirming_misses[-1] == NONE or self.self_misses == NONE:
            raise ValueError("so few layouts cannot decide at this alpha, with this number of candidates")

    @property
    def candidate_alpha(self) -> float:
        """The part of `alpha` that one candidate's confirmation may spend (Bonferroni)."""
        return self.alpha / self.candidates

    @property
    def search_misses(self) -> tuple[int, ...]:
        return misses_allowed(self.search_layouts, self.search_alpha)

    @property
    def confirming_misses(self) -> tuple[int, ...]:
        return misses_allowed(self.confirming_layouts, self.candidate_alpha)

    @property
    def self_misses(self) -> int:
        return misses_allowed((self.self_layouts,), self.alpha)[0]
