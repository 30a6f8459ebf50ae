"""How evidence becomes a decision on an attempt: one rule for the search and for a journal that is replayed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from aaco_pipeline.optimization.loop.means import Ruling

Word = Literal["accepted", "rejected", "undecided"]
#: What says nothing against a candidate: a noisy machine, time that was spent, a baseline that turns out to be wrong.
UNDECIDED_BY: Final = ("aa", "budget", "baseline")


@dataclass(frozen=True)
class Stop:
    """Where a candidate was stopped before anything was decided by its timing: the step, the guard and its reason."""

    step: str
    guard: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """What was decided on an attempt and why.

    Figures are those of the confirming processes, `measured_in` says so; of an attempt that never got there they are
    those of the search, which choosing the best of many makes too large. Null where nothing was timed. Of several
    changes as a whole they are measured in `whole`.
    """

    decision: Word
    guard: str
    reason: str
    measured_in: str | None = None
    speedup_ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None

    @property
    def words(self) -> str:
        """For proposers: `rejected (compile): …`."""
        return f"{self.decision} ({self.guard}): {self.reason}"


def decide(stop: Stop | None, rulings: Mapping[str, Ruling]) -> Decision:
    """The decision on an attempt: accepted only where nothing stopped it and the confirmation passed.

    `rulings` holds those of the steps `search` and `confirmation` that were made.
    """
    last = next((step for step in ("confirmation", "search") if step in rulings), None)
    figures = () if last is None else (last, *_figures(rulings[last]))
    if stop is not None:
        return Decision("undecided" if stop.guard in UNDECIDED_BY else "rejected", stop.guard, stop.reason, *figures)
    if last is None:
        raise ValueError("an attempt that nothing stopped was not timed")
    ruling = rulings[last]
    if ruling.passed and last == "confirmation" and "search" in rulings:
        return Decision("accepted", "confirmation", ruling.reason, *figures)
    if ruling.passed:
        raise ValueError("an attempt that was faster was not confirmed")
    # A gain that the first processes showed and the second did not is no gain, whatever the rule calls it.
    guard = ruling.guard or ("confirmation" if last == "confirmation" else "not_faster")
    return Decision("undecided" if guard in UNDECIDED_BY else "rejected", guard, ruling.reason, *figures)


def decide_whole(stop: Stop | None, ruling: Ruling | None) -> Decision:
    """The decision on several accepted changes timed as a whole: accepted only where their confirmation passed."""
    figures = () if ruling is None else ("whole", *_figures(ruling))
    if stop is None and ruling is None:
        raise ValueError("what nothing stopped was not timed")
    if ruling is not None and ruling.passed:
        return Decision("accepted", "confirmation", ruling.reason, *figures)
    said = stop if stop is not None else ruling
    assert said is not None
    guard = said.guard or "confirmation"
    return Decision("undecided" if guard in UNDECIDED_BY else "rejected", guard, said.reason, *figures)


def _figures(ruling: Ruling) -> tuple[float | None, float | None, float | None]:
    return ruling.speedup_ratio, ruling.ci_low, ruling.ci_high
