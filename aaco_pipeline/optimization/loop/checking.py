"""Check a version's outputs for the search: on the target itself, and on an emulated AMD GPU.

`correctness` draws the calls and compares outputs. The emulator measures no time; if it cannot run a version, it
reports this without consequences.
"""

import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from aaco_pipeline.errors import AacoError, UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.checking import check
from aaco_pipeline.optimization.correctness.comparison import Comparison, outputs_of, same_bits
from aaco_pipeline.optimization.harness import Harness, Size
from aaco_pipeline.optimization.harness.validation import checked_call, with_block
from aaco_pipeline.optimization.loop.means import PLAIN, Builder, Checker, Record, Version
from aaco_pipeline.optimization.targets import (
    Block,
    Call,
    EmulatedWorker,
    EmulatingTarget,
    Execution,
    Launch,
    NotEmulated,
    Worker,
)


def launch_of(harness: Harness, size: Size, block: Block) -> Launch:
    """Ask the harness how it launches another workgroup. Refused (guard `inputs`) if it does not define this."""
    if harness.launch is None:
        raise Refused("inputs", "its harness has no launch(size, block), so the workgroup stays as it is")
    return harness.launch(size, block)


def relaunched(worker: Worker, harness: Harness, size: Size, block: Block | None) -> Worker:
    """Make a worker launch its calls of this size in workgroups of `block`; without one it is unchanged."""
    return worker if block is None else _Relaunched(worker, launch_of(harness, size, block))


@dataclass(frozen=True)
class _Relaunched:
    worker: Worker
    launch: Launch

    def run(self, call: Call) -> Execution:
        return self.worker.run(replace(call, launch=self.launch))


class HarnessChecker:
    """Checks a harness's sizes and distributions, listed and drawn, on the target that builds."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def check(
        self, builder: Builder, baseline: Version | None, version: Version, seed: int, *, is_deep: bool = False
    ) -> Record:
        """Run the harness's calls. Refused if the candidate is wrong; UsageError if baseline or harness is."""
        target, size = builder.target, self._harness.timed_size(builder.target.name)
        if version.block is not None:
            launch_of(self._harness, size, version.block)
        before, after = builder(baseline or version), builder(version)
        with target.start(before) as one, target.start(after) as other:
            is_exact = version.bit_exact and baseline is not None
            checked = check(
                self._harness,
                one,
                other,
                seed=seed,
                bit_exact=is_exact,
                timed_size=size,
                block=version.block,
                is_deep=is_deep,
            )
        return asdict(checked)


GUARD: Final = "emulated"
#: Included in every journal line with a verdict.
BARRIERS: Final = (
    "wavefronts ran one after another, in two orders: a missing barrier shows only where one of the two goes wrong"
)
_DISTRIBUTION: Final = "normal"


class EmulatedChecker:
    """Combine the checks of `checker` with an emulation of candidates about to be accepted, under `emulated`.

    `folder` receives the files compiled for it.
    """

    def __init__(self, checker: Checker, harness: Harness, target: EmulatingTarget, folder: Path) -> None:
        self._checker, self._harness, self._target, self._folder = checker, harness, target, folder

    def check(
        self, builder: Builder, baseline: Version | None, version: Version, seed: int, *, is_deep: bool = False
    ) -> Record:
        """Check as `checker` does and, if deep, by emulation; Refused (`emulated`) if only the emulation is wrong."""
        facts = self._checker.check(builder, baseline, version, seed, is_deep=is_deep)
        return {**facts, "emulated": self.verdict(baseline, version, seed)} if is_deep else facts

    def verdict(self, baseline: Version | None, version: Version, seed: int) -> Record:
        """Emulate a version at every size of the harness with the distribution `normal`, and judge its outputs.

        Without a baseline it is the baseline itself that is judged. `verdict` is `bit_exact` where every output has
        the baseline's bits, `within_bound` where all are as near to the reference as they must be, and null with
        `lacking` where nothing can be said. `instructions` are those that wavefronts executed, by class, over all calls
        in the order of their numbers. Refused (`emulated`) where it is wrong.
        """
        said: dict[str, Any] = {"executed_on": self._target.executed_on, "verdict": None, "lacking": None}
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            run = _Emulated(self._harness, self._target, Path(folder), np.random.default_rng(seed))
            try:
                with ExitStack() as stack:
                    verdict = run.compared(stack, baseline or version, version)
            except (NotEmulated, AacoError) as error:
                return {**said, "lacking": str(error)}
        instructions = dict(zip(("before", "after"), map(dict, run.counts), strict=True))
        counted = {"calls": run.calls, "elements": run.elements, "instructions": instructions, "barriers": BARRIERS}
        return {**said, "verdict": verdict, "unconfined": run.unconfined, **counted}


class _Emulated:
    """The calls of one verdict."""

    def __init__(self, harness: Harness, target: EmulatingTarget, folder: Path, rng: np.random.Generator) -> None:
        self._harness, self._target, self._folder, self._rng = harness, target, folder, rng
        self.counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.unconfined: list[str] = []
        self.calls = 0
        self.elements = 0

    def compared(self, stack: ExitStack, baseline: Version, version: Version) -> str:
        before = self._started(stack, baseline)
        after = before if version == baseline else self._started(stack, version, is_candidate=True)
        are_exact = [self._call(size, before, after, version.block) for size in self._harness.sizes]
        return "bit_exact" if all(are_exact) and before is not after else "within_bound"

    def _started(self, stack: ExitStack, version: Version, *, is_candidate: bool = False) -> EmulatedWorker:
        try:
            place = self._folder / ("after" if is_candidate else "before")
            built = self._target.build(version.source, version.kernel, version.parameters, PLAIN, place)
            worker = stack.enter_context(self._target.start(built))
        except Refused as refused:
            raise NotEmulated(f"it is not built for {self._target.executed_on}: {refused}") from refused
        self.unconfined = list(worker.unconfined)
        return worker

    def _call(self, size: Size, before: EmulatedWorker, after: EmulatedWorker, block: Block | None) -> bool:
        """Emulate one call of both; return whether their outputs have the same bits."""
        call = checked_call(self._harness, size, _DISTRIBUTION, self._rng)
        changed = call if block is None else with_block(self._harness, call, size, block)
        comparison, expected = Comparison(self._harness, size, _DISTRIBUTION, bit_exact=False), None
        try:
            expected = self._both_orders(before, call, 0)
            found = expected if before is after else self._both_orders(after, changed, 1)
            comparison.add(call, expected, found)
        except (UsageError, Refused) as refused:
            if isinstance(refused, UsageError) or expected is None or before is after:
                raise NotEmulated(f"the unchanged kernel is wrong when it is emulated: {refused}") from refused
            raise Refused(GUARD, f"on {self._target.executed_on}: {refused}") from refused
        self.calls += 1
        self.elements += sum(found.outputs[one.name].size for one in outputs_of(call))
        return all(same_bits(expected.outputs[one.name], found.outputs[one.name]) for one in outputs_of(call))

    def _both_orders(self, worker: EmulatedWorker, call: Call, which: int) -> Execution:
        forwards = worker.emulate(call, backwards=False)
        self.counts[which].update(worker.instructions)
        backwards = worker.emulate(call, backwards=True)
        for one in outputs_of(call) if self._harness.deterministic else ():
            if not same_bits(*(_written(one.name, run) for run in (forwards, backwards))):
                raise Refused("order", f"{one.name} depends on the order in which wavefronts run")
        return forwards


def _written(name: str, run: Execution) -> Any:
    """Return an output without the poison of unwritten elements, which differs between the orders."""
    values, poison = run.outputs[name], run.poison.get(name)
    if poison is None:
        return values
    kept = values.copy()
    kept[(kept.view(np.uint8).reshape(kept.size, -1) == np.frombuffer(poison, np.uint8)).all(axis=1)] = 0
    return kept
