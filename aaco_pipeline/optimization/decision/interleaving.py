"""Pairs from workers: two fresh processes a layout, random order, new content each call, each result checked."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from aaco_pipeline.optimization.calls import Call, Execution
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.decision.pairs import Pairs
from aaco_pipeline.optimization.targets import Worker


@dataclass(frozen=True)
class InterleavedPairs:
    """A `PairSource` over workers.

    `start_baseline` and `start_candidate` start a fresh process with that arm's build in the layout of a seed.
    `call` makes a call with content of its own; both arms of a pair get the same one, which no earlier call had.
    `check` looks at each of the candidate's results, timed or not, and raises Refused where it is wrong.
    """

    start_baseline: Callable[[int], AbstractContextManager[Worker]]
    start_candidate: Callable[[int], AbstractContextManager[Worker]]
    call: Callable[[np.random.Generator], Call]
    check: Callable[[Call, Execution], None]
    seed: int

    def pairs(self, layout_seed: int, count: int) -> Pairs:
        rng = np.random.default_rng([self.seed, layout_seed])
        durations = np.zeros((count + 1, 2), dtype=np.int64)
        candidate_first = rng.random(count + 1) < 0.5
        with self.start_baseline(layout_seed) as baseline, self.start_candidate(layout_seed) as candidate:
            for number, swapped in enumerate(candidate_first.tolist()):
                call = self.call(rng)
                for arm in (1, 0) if swapped else (0, 1):
                    execution = (baseline, candidate)[arm].run(call)
                    if execution.duration_ns is None:
                        raise Refused("time", "this target measures no time, so nothing is decided by it")
                    durations[number, arm] = execution.duration_ns
                    if arm:
                        self.check(call, execution)
            loads = _load_ns(baseline), _load_ns(candidate)
        return Pairs(
            baseline_ns=durations[1:, 0],
            candidate_ns=durations[1:, 1],
            candidate_first=candidate_first[1:],
            baseline_first_call_ns=int(durations[0, 0]),
            candidate_first_call_ns=int(durations[0, 1]),
            baseline_load_ns=loads[0],
            candidate_load_ns=loads[1],
        )


def _load_ns(worker: Worker) -> int | None:
    """What loading took, where this kind of worker says so."""
    load_ns = getattr(worker, "load_ns", None)
    return load_ns if isinstance(load_ns, int) else None
