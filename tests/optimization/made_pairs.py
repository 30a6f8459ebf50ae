"""Sources of pairs with a known gain and noise, and workers with a known duration."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from aaco_pipeline.optimization.targets import Buffer, Call, Execution, Launch
from aaco_pipeline.optimization.timing_rule import Pairs


@dataclass
class MadePairs:
    """Pairs with lognormal noise, a drift that both arms share, and an effect of each layout.

    `gain` is the true ratio of a layout, by its number in the order asked for; `baseline_ns` the baseline's level.
    """

    rng: np.random.Generator
    gain: Callable[[int], float] = lambda number: 1.0
    baseline_ns: float = 1e6
    noise: float = 0.03
    of_layout: float = 0.005
    first_call_ns: tuple[int, int] | None = None
    asked: list[int] = field(default_factory=list)

    def pairs(self, layout_seed: int, count: int) -> Pairs:
        drift = np.exp(np.cumsum(self.rng.normal(0, 0.01, count)))
        baseline, candidate = (
            self.baseline_ns * drift * np.exp(self.rng.normal(0, self.noise, count)) for _ in range(2)
        )
        ratio = self.gain(len(self.asked)) * np.exp(self.rng.normal(0, self.of_layout))
        self.asked.append(layout_seed)
        first = self.first_call_ns or (None, None)
        return Pairs(
            baseline.astype(np.int64),
            (candidate / ratio).astype(np.int64),
            self.rng.random(count) < 0.5,
            baseline_first_call_ns=first[0],
            candidate_first_call_ns=first[1],
        )


@dataclass
class MadeWorker:
    """Takes `duration_ns` for each call, and writes down what it was given."""

    name: str
    duration_ns: int | None
    log: list[tuple[str, float]]
    load_ns: int = 7

    def run(self, call: Call) -> Execution:
        self.log.append((self.name, float(call.contents["x"][0])))
        return Execution({}, self.duration_ns)


@dataclass
class MadeStarts:
    """Starts workers of one arm, and writes down in which layouts."""

    name: str
    duration_ns: int | None
    log: list[tuple[str, float]] = field(default_factory=list)
    started: list[int] = field(default_factory=list)

    @contextmanager
    def __call__(self, layout_seed: int) -> Iterator[MadeWorker]:
        self.started.append(layout_seed)
        yield MadeWorker(self.name, self.duration_ns, self.log)


def made_call(rng: np.random.Generator) -> Call:
    return Call(Launch((1, 1, 1), (1, 1, 1)), (Buffer("x", "float64", 1, "in"),), {"x": rng.random(1)})
