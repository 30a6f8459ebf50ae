"""Listed and drawn sizes, in an order that nobody knows before: the calls that a candidate has to pass.

The baseline is called as in use, the candidate under drawn circumstances (`circumstances`): its answers are compared
with the baseline's, and with one another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.calls import Call, Content, Execution
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.circumstances import draw_pair, told
from aaco_pipeline.optimization.correctness.comparison import Comparison, differs, left_as_it_was, outputs_of
from aaco_pipeline.optimization.correctness.sizes import (
    Trial,
    at_a_drawn_size,
    draw_deeply,
    draw_sizes,
    every_distribution,
)
from aaco_pipeline.optimization.harness.contents import Distribution
from aaco_pipeline.optimization.harness.declaration import Harness, Size
from aaco_pipeline.optimization.harness.validation import checked_call, relaunched
from aaco_pipeline.optimization.targets import Worker

#: Of one size and distribution, while the errors of too few elements look worse than the baseline's.
_MOST_DRAWS = 64


@dataclass(frozen=True)
class Checked:
    """What a candidate passed: calls and compared elements, and the largest errors in shares of their bounds.

    Of the candidate's errors only what exceeds `comparison.FLOOR_ULPS` counts, of the baseline's all. `drawn` are the
    sizes that the harness does not list; `note` says where there were too few of them.
    """

    seed: int
    calls: int
    elements: int
    largest_error: float
    baseline_largest_error: float
    drawn: tuple[Size, ...]
    note: str | None


def check(
    harness: Harness,
    baseline: Worker,
    candidate: Worker,
    *,
    seed: int,
    bit_exact: bool,
    timed_size: Size,
    block: tuple[int, int, int] | None = None,
    is_deep: bool = False,
) -> Checked:
    """Every size of the harness and `timed_size` with every distribution, drawn sizes with some; each call made twice,
    in other circumstances.

    A deep check is of drawn sizes alone, three times as many, and of large ones (`sizes.draw_deeply`).
    `seed` comes from `random.SystemRandom` after the candidate was built, and is recorded: it fixes sizes, contents and
    order.
    `block` is the candidate's own workgroup, where it has one. Refused (`outputs`, `determinism`, `result`, or what the
    worker says) when the candidate is wrong; UsageError when the unchanged kernel or the harness is.
    """
    rng = np.random.default_rng(seed)
    drawn = (draw_deeply if is_deep else draw_sizes)(harness, timed_size, rng)
    listed = () if is_deep else dict.fromkeys((*harness.sizes, timed_size))
    trials = [*(Trial(size, every_distribution(harness)) for size in listed), *drawn.trials]
    run = _Rounds(harness, baseline, candidate, rng, bit_exact=bit_exact, block=block)
    # All of one size together: a target has other buffers for another size, often in another process.
    for position in rng.permutation(len(trials)):
        trial = trials[position]
        try:
            for place in rng.permutation(len(trial.distributions)):
                run.round(trial.size, trial.distributions[place])
        except UsageError as error:
            raise at_a_drawn_size(error) if trial in drawn.trials else error from error
        run.the_first_again()
    sizes = tuple(trial.size for trial in drawn.trials)
    return Checked(seed, run.calls, run.elements, run.largest[1], run.largest[0], sizes, drawn.note)


class _Rounds:
    def __init__(
        self,
        harness: Harness,
        baseline: Worker,
        candidate: Worker,
        rng: np.random.Generator,
        *,
        bit_exact: bool,
        block: tuple[int, int, int] | None,
    ) -> None:
        self._harness, self._baseline, self._candidate, self._rng = harness, baseline, candidate, rng
        self._bit_exact, self._block = bit_exact, block
        self._first: tuple[Call, Execution, str] | None = None
        self._earlier: Mapping[str, Content] | None = None
        self.calls = 0
        self.elements = 0
        self.largest = [0.0, 0.0]

    def round(self, size: Size, distribution: Distribution) -> None:
        comparison = Comparison(self._harness, size, distribution, bit_exact=self._bit_exact)
        for _ in range(_MOST_DRAWS):
            self._draw(size, distribution, comparison)
            if not comparison.undecided():
                break
        comparison.conclude()
        for level in comparison.levels.values():
            self.elements += level.elements
            self.largest = [max(pair) for pair in zip(self.largest, level.largest, strict=True)]

    def _draw(self, size: Size, distribution: Distribution, comparison: Comparison) -> None:
        call = checked_call(self._harness, size, distribution, self._rng)
        first, second = draw_pair(call, self._earlier, self._rng)
        changed = call if self._block is None else relaunched(self._harness, call, size, self._block)
        changed = replace(changed, circumstances=first)
        where = f"size {size}, {distribution}"
        try:
            before = self._baseline.run(call)
        except Refused as refused:
            raise UsageError(
                f"{self._harness.path or 'harness'}: the unchanged kernel fails ({where}): {refused}"
            ) from refused
        try:
            after = self._candidate.run(changed)
            comparison.add(call, before, after)
        except Refused as refused:
            raise _under(refused, changed) from refused
        self.calls += 1
        self._again(replace(changed, circumstances=second), after, where)
        if self._first is None:
            self._first = changed, after, where
        self._earlier = after.outputs

    def the_first_again(self) -> None:
        """What a size's first call answered, it answers after all others: an answer does not depend on their number."""
        if self._first is not None:
            call, answered, where = self._first
            _, other = draw_pair(call, None, self._rng)
            self._again(replace(call, circumstances=other), answered, where)
        self._first = self._earlier = None

    def _again(self, call: Call, answered: Execution, where: str) -> None:
        if not self._harness.deterministic:
            return
        self.calls += 1
        try:
            again = self._candidate.run(call)
        except Refused as refused:
            raise _under(refused, call) from refused
        for one in outputs_of(call):
            values = answered.outputs[one.name], again.outputs[one.name]
            different = differs(*values) & ~(left_as_it_was(answered, one) & left_as_it_was(again, one))
            if different.any():
                at = int(np.argmax(different))
                raise Refused(
                    "determinism",
                    f"{one.name}[{at}] is {values[0][at]!r} in one call and {values[1][at]!r} in another with the same "
                    f"inputs ({where}; {told(call.circumstances) or 'as in use'} there)",
                )


def _under(refused: Refused, call: Call) -> Refused:
    """The refusal with the circumstances of the call, where they were other than in use."""
    words = told(call.circumstances)
    return Refused(refused.guard, f"{refused.reason}; called with {words}") if words else refused
