"""Checks of a version's outputs for the search: on the target itself, and on an emulated AMD GPU.

`correctness` draws the calls and compares outputs. The emulator measures no time; where it cannot run a version it
says so, and nothing follows.
"""

import tempfile
from collections.abc import Mapping
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
from aaco_pipeline.optimization.harness.validation import checked_call
from aaco_pipeline.optimization.harness.validation import relaunched as relaunched_validation
from aaco_pipeline.optimization.loop.means import PLAIN, Builder, Checker, Record, Version
from aaco_pipeline.optimization.targets import (
    Call,
    EmulatedWorker,
    EmulatingTarget,
    Execution,
    Launch,
    NotEmulated,
    Worker,
)


def launch_of(harness: Harness, size: Size, block: tuple[int, int, int]) -> Launch:
    """How the harness launches another workgroup. Refused (guard `inputs`) where it does not say."""
    if harness.launch is None:
        raise Refused("inputs", "its harness has no launch(size, block), so the workgroup stays as it is")
    return harness.launch(size, block)


def relaunched(worker: Worker, harness: Harness, size: Size, block: tuple[int, int, int] | None) -> Worker:
    """The worker, whose calls of this size are launched in workgroups of `block`; as it is where that is null."""
    return worker if block is None else _Relaunched(worker, launch_of(harness, size, block))


@dataclass(frozen=True)
class _Relaunched:
    worker: Worker
    launch: Launch

    def run(self, call: Call) -> Execution:
        return self.worker.run(replace(call, launch=self.launch))


class HarnessChecker:
    """Sizes and distributions of a harness, listed and drawn, on the target that builds."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def check(self, builder: Builder, baseline: Version | None, version: Version, seed: int) -> Record:
        """What the candidate passed. Refused when it is wrong; UsageError when the baseline or the harness is."""
        return self._checked(builder, baseline, version, seed, is_deep=False)

    def check_deeply(self, builder: Builder, baseline: Version | None, version: Version, seed: int) -> Record:
        """As `check`, at many drawn sizes and at large ones."""
        return self._checked(builder, baseline, version, seed, is_deep=True)

    def _checked(
        self, builder: Builder, baseline: Version | None, version: Version, seed: int, *, is_deep: bool
    ) -> Record:
        target, size = builder.target, self._harness.timed_size(builder.target.name)
        if version.block is not None:
            launch_of(self._harness, size, version.block)
        before, after = builder(baseline or version), builder(version)
        with target.start(before) as one, target.start(after) as other:
            checked = check(
                self._harness,
                one,
                other,
                seed=seed,
                bit_exact=version.bit_exact and baseline is not None,
                timed_size=size,
                block=version.block,
                is_deep=is_deep,
            )
        return asdict(checked)


GUARD: Final = "emulated"
#: Every line of a journal that has a verdict says what it is worth.
BARRIERS: Final = (
    "wavefronts ran one after another, in two orders: a missing barrier shows only where one of the two goes wrong"
)
_DISTRIBUTION: Final = "normal"


class EmulatedChecker:
    """The checks of `checker`; what is about to be accepted is then emulated, too: `emulated` among the facts.

    `folder` takes what is compiled for it.
    """

    def __init__(self, checker: Checker, harness: Harness, target: EmulatingTarget, folder: Path) -> None:
        self._checker, self._harness, self._target, self._folder = checker, harness, target, folder

    def check(self, builder: Builder, baseline: Version | None, version: Version, seed: int) -> Record:
        """As `checker` does."""
        return self._checker.check(builder, baseline, version, seed)

    def check_deeply(self, builder: Builder, baseline: Version | None, version: Version, seed: int) -> Record:
        """As `checker` does, then emulated; Refused (`emulated`) where only the emulated kernel is wrong."""
        facts = self._checker.check_deeply(builder, baseline, version, seed)
        return {**facts, "emulated": self.verdict(baseline, version, seed)}

    def verdict(self, baseline: Version | None, version: Version, seed: int) -> Record:
        """What a version computes when it is emulated, of every size of the harness with the distribution `normal`.

        Without a baseline it is the baseline itself that is looked at. `verdict` is `bit_exact` where every output has
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
        counted = {
            "unconfined": run.unconfined,
            "calls": run.calls,
            "elements": run.elements,
            "instructions": run.instructions(),
        }
        return {**said, "verdict": verdict, **counted, "barriers": BARRIERS}


class _Emulated:
    """The calls of one verdict."""

    def __init__(self, harness: Harness, target: EmulatingTarget, folder: Path, rng: np.random.Generator) -> None:
        self._harness, self._target, self._folder, self._rng = harness, target, folder, rng
        self._counts: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self.unconfined: list[str] = []
        self.calls = 0
        self.elements = 0

    def instructions(self) -> dict[str, dict[str, int]]:
        return {"before": self._counts[0], "after": self._counts[1]}

    def compared(self, stack: ExitStack, baseline: Version, version: Version) -> str:
        before = self._started(stack, baseline)
        after = before if version == baseline else self._started(stack, version, is_candidate=True)
        is_exact = True
        for size in self._harness.sizes:
            is_exact &= self._call(size, before, after, version.block)
        return "bit_exact" if is_exact and before is not after else "within_bound"

    def _started(self, stack: ExitStack, version: Version, *, is_candidate: bool = False) -> EmulatedWorker:
        try:
            place = self._folder / ("after" if is_candidate else "before")
            built = self._target.build(version.source, version.kernel, version.parameters, PLAIN, place)
            worker = stack.enter_context(self._target.start(built))
        except Refused as refused:
            raise NotEmulated(f"it is not built for {self._target.executed_on}: {refused}") from refused
        self.unconfined = list(worker.unconfined)
        return worker

    def _call(
        self, size: Size, before: EmulatedWorker, after: EmulatedWorker, block: tuple[int, int, int] | None
    ) -> bool:
        """Emulate one call of both; whether their outputs have the same bits."""
        call = checked_call(self._harness, size, _DISTRIBUTION, self._rng)
        changed = call if block is None else relaunched_validation(self._harness, call, size, block)
        comparison = Comparison(self._harness, size, _DISTRIBUTION, bit_exact=False)
        expected = self._of_the_baseline(before, call)
        try:
            found = expected if before is after else self._both_orders(after, changed, 1)
            comparison.add(call, expected, found)
        except UsageError as error:
            raise NotEmulated(f"the unchanged kernel is wrong when it is emulated: {error}") from error
        except Refused as refused:
            if before is after:
                raise NotEmulated(f"the unchanged kernel is wrong when it is emulated: {refused}") from refused
            raise Refused(GUARD, f"on {self._target.executed_on}: {refused}") from refused
        self.calls += 1
        self.elements += sum(found.outputs[one.name].size for one in outputs_of(call))
        return all(same_bits(expected.outputs[one.name], found.outputs[one.name]) for one in outputs_of(call))

    def _of_the_baseline(self, worker: EmulatedWorker, call: Call) -> Execution:
        try:
            return self._both_orders(worker, call, 0)
        except Refused as refused:
            raise NotEmulated(f"the unchanged kernel is wrong when it is emulated: {refused}") from refused

    def _both_orders(self, worker: EmulatedWorker, call: Call, which: int) -> Execution:
        forwards = worker.emulate(call, backwards=False)
        _add(self._counts[which], worker.instructions)
        backwards = worker.emulate(call, backwards=True)
        for one in outputs_of(call) if self._harness.deterministic else ():
            if not same_bits(*(_written(one.name, run) for run in (forwards, backwards))):
                raise Refused("order", f"{one.name} depends on the order in which wavefronts run")
        return forwards


def _written(name: str, run: Execution) -> Any:
    """An output with the poison of elements that were not written taken out, since each order has another one."""
    values, poison = run.outputs[name], run.poison.get(name)
    if poison is None:
        return values
    kept = values.copy()
    kept[(kept.view(np.uint8).reshape(kept.size, -1) == np.frombuffer(poison, np.uint8)).all(axis=1)] = 0
    return kept


def _add(total: dict[str, int], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        total[name] = total.get(name, 0) + count
