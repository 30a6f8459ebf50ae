"""Goes from build to build as the statistics ask, and from the answer to its causes; killed anywhere, it goes on.

Each step is a campaign of its own: some blocks of one build beside the first, planned before its first session. What
was measured is never measured again, and a build is made once.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import numpy as np
import polars as pl

from aaco_pipeline.errors import ModelError, UnavailableError, UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.bisecting.builds import Log, made, output_of, require_same_work
from aaco_pipeline.pipeline.bisecting.record import (
    Build,
    Floats,
    Recipe,
    Search,
    Step,
    new_name,
    read,
    told_apart,
    write,
)
from aaco_pipeline.pipeline.comparing.judging import sessions_of
from aaco_pipeline.pipeline.comparing.measuring import bury, members
from aaco_pipeline.pipeline.comparing.plan import (
    DEFAULT_BLOCKS,
    DEFAULT_METRIC,
    TRACED_BLOCKS,
    Plan,
    Prediction,
    Subject,
    new_plan,
    read_plan,
)
from aaco_pipeline.pipeline.comparing.prediction import History, history_of
from aaco_pipeline.pipeline.comparing.running import begin, run
from aaco_pipeline.resources.toolchains.making import OUTPUT, MakeError
from aaco_pipeline.statistics.bisection import (
    Answer,
    Measure,
    blocks_predicted,
    build_effect,
    least_detectable_ratio,
    next_move,
)
from aaco_pipeline.statistics.verdicts.comparison import METRICS, why_left_out

#: What a build that does not run fails with; anything else is no fault of the build.
_FAULTS_OF_A_BUILD: Final = (ModelError, UnavailableError)


def new_search(lake: TraceLake, builds: tuple[Build, ...], recipe: Recipe | None) -> tuple[Search, History]:
    """Make a search that is yet to be written, with its prediction, and the history that this rests on."""
    if len(builds) < 2:
        raise UsageError("there is nothing between one build and itself: give two or more")
    name, now = new_name()
    first = builds[0].subject
    request = recipe.request if recipe is not None else cast(Subject, first).request
    # What is measured is called after its file, which for one that is yet to be made is known by now.
    file = output_of(recipe) if recipe is not None and request.model == OUTPUT else request.model
    workload = file.rpartition("/")[2].removesuffix(".onnx")
    history = history_of(lake, workload, request, DEFAULT_METRIC)
    blocks, prediction = None, Prediction(None, None)
    if history.deviation:
        ratio = least_detectable_ratio(history.deviation)
        blocks = blocks_predicted(len(builds) - 1, history.deviation, ratio)
        time = history.time_ns(2 * (blocks + DEFAULT_BLOCKS), 2 * TRACED_BLOCKS)
        prediction = Prediction(time, ratio)
    return Search(name, now, workload, request.backend, builds, recipe, blocks, prediction), history


def go_on(
    configs: Path,
    lake: TraceLake,
    name: str,
    *,
    log: Log,
    shown: Callable[[], AbstractContextManager[object]],
) -> Search:
    """Do what is left of a search; the search with its answer. One process at a time, another waits.

    `log` is told what is done, and each campaign runs within `shown`. Raises what the first or the last build failed
    with; any other that fails widens the answer.
    """
    with lake.measuring(name):
        work = _Work(configs, lake, read(lake, name), log=log, shown=shown)
        work.answer()
        work.tell_causes()
        return work.search


class _Work:
    """A search under way: what is known stands in the lake before the next thing is begun."""

    def __init__(
        self,
        configs: Path,
        lake: TraceLake,
        search: Search,
        *,
        log: Log,
        shown: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._configs, self._lake = configs, lake
        self._log, self._shown = log, shown
        self.search = search
        self._known: dict[str, Floats] = {}

    def answer(self) -> None:
        """Measure until the statistics have their answer."""
        self._finish_last_step()
        while self.search.answer is None:
            failed = {number for number, build in enumerate(self.search.builds) if build.state == "failed"}
            move = next_move(self.search.last, self._log_ratios(), failed)
            if isinstance(move, Answer):
                self._write(replace(self.search, answer=move, builds=told_apart(self.search.builds, move)))
            elif self._is_made(0) and self._is_made(move.build):
                self._measure(move)

    def tell_causes(self) -> None:
        """Hold the two builds that the answer names against each other, fresh and traced."""
        answer = self.search.answer
        assert answer is not None
        if answer.state == "no change":
            return
        if self.search.pair is None or self._lake.read("campaigns", self.search.pair).is_empty():
            self._log(f"build {answer.until} against build {answer.after}: {DEFAULT_BLOCKS} blocks, then traces")
            plan = self._plan(answer.after, answer.until, DEFAULT_BLOCKS, TRACED_BLOCKS)
            self._write(replace(self.search, pair=plan.campaign))
            begin(self._lake, plan)
        if not self._is_judged(cast(str, self.search.pair)):
            self._run(cast(str, self.search.pair))

    # ---- one step ----------------------------------------------------------------------------------------------------

    def _measure(self, move: Measure) -> None:
        plan = self._plan(0, move.build, move.blocks, 0)
        step = Step(move.build, move.blocks, plan.campaign)
        self._write(replace(self.search, steps=(*self.search.steps, step)))
        begin(self._lake, plan)
        self._finish_last_step()

    def _finish_last_step(self) -> None:
        """Measure what is left of the newest step; one that was killed before it had a plan never was."""
        if not self.search.steps or self.search.answer is not None:
            return
        step = self.search.steps[-1]
        if self._lake.read("campaigns", step.campaign).is_empty():
            self._write(replace(self.search, steps=self.search.steps[:-1]))
        elif not self._is_judged(step.campaign) and self.search.builds[step.build].state != "failed":
            self._log(f"{self._called(step.build)}: {step.blocks} blocks beside the first")
            try:
                self._run(step.campaign)
            except _FAULTS_OF_A_BUILD as error:
                if self._failing_arm(step.campaign) != "candidate":
                    raise
                bury(self._lake, step.campaign)
                self._fail(step.build, error, "run")
                return
            self._write(self.search.with_build(step.build, state="measured"))
            self._log(f"{self._called(step.build)}: {self._effect(step.build)}")

    def _failing_arm(self, campaign: str) -> str | None:
        """The arm whose session was begun last and did not come to its end."""
        begun = members(self._lake, campaign).filter(pl.col("state") == "begun")
        return cast(str, begun.item(-1, "arm")) if begun.height else None

    def _run(self, campaign: str) -> None:
        with self._shown():
            run(self._configs, self._lake, campaign, self._log)

    def _plan(self, baseline: int, candidate: int, blocks: int, traced_blocks: int) -> Plan:
        arms = {
            "baseline": cast(Subject, self.search.builds[baseline].subject),
            "candidate": cast(Subject, self.search.builds[candidate].subject),
        }
        return new_plan("bisect", arms, blocks=blocks, traced_blocks=traced_blocks)  # type: ignore[arg-type]

    # ---- one build ---------------------------------------------------------------------------------------------------

    def _is_made(self, number: int) -> bool:
        """Whether a build is there; make it if it is not. One that cannot be made is written down as failed."""
        build, recipe = self.search.builds[number], self.search.recipe
        if build.subject is not None:
            return True
        assert recipe is not None
        self._log(f"{self._called(number)}: making it")
        try:
            subject = made(
                self._lake.path, self.search.name, number, build, recipe, configs=self._configs, log=self._log
            )
            if number:
                require_same_work(self.search.builds[0], replace(build, subject=subject))
        except (*_FAULTS_OF_A_BUILD, UsageError) as error:
            self._fail(number, error, "made")
            return False
        self._write(self.search.with_build(number, subject=subject, state="made"))
        return True

    def _fail(self, number: int, error: Exception, done: str) -> None:
        """Write down that a build failed; of the first and the last nothing can be said without them."""
        lines = error.lines if isinstance(error, MakeError) else []
        for line in lines:
            self._log(f"  {line}")
        told = f"could not be {done}: {error}" + (f" (“{lines[-1]}”)" if lines else "")
        place = {0: ", the first,", self.search.last: ", the last,"}.get(number)
        if place is not None:
            raise ModelError(
                f"{self._called(number)}{place} {told}; mend that and go on with `aaco bisect --resume "
                f"{self.search.name}`, or give another"
            ) from error
        self._write(self.search.with_build(number, state="failed", reason=told))
        self._log(f"{self._called(number)} {told}")

    def _called(self, number: int) -> str:
        build = self.search.builds[number]
        title = f" “{build.title}”" if build.title else ""
        return f"build {number} ({build.label}{title})"

    def _effect(self, number: int) -> str:
        effect = build_effect(self._log_ratios()[number])
        if effect is None:
            return "no two pairs of steady sessions"
        ratio, low, high = (100 * (each - 1) for each in effect)
        return f"{ratio:+.1f} % [{low:.1f}, {high:.1f}]"

    # ---- what is known -----------------------------------------------------------------------------------------------

    def _log_ratios(self) -> dict[int, Floats]:
        """By build, of each block its log ratio to the first; NaN where one of the two has no steady median."""
        found: dict[int, list[Floats]] = {}
        for step in self.search.steps:
            if self.search.builds[step.build].state == "failed" or not self._is_judged(step.campaign):
                continue
            if step.campaign not in self._known:
                self._known[step.campaign] = log_ratios(self._lake, read_plan(self._lake, step.campaign))
            found.setdefault(step.build, []).append(self._known[step.campaign])
        return {build: np.concatenate(ratios) for build, ratios in found.items()}

    def _is_judged(self, campaign: str) -> bool:
        return not self._lake.read("verdicts", campaign).is_empty()

    def _write(self, search: Search) -> None:
        self.search = search
        write(self._lake, search, self._log_ratios())


def log_ratios(lake: TraceLake, plan: Plan) -> Floats:
    """(blocks,) of a campaign's finished blocks the log of the candidate's median over the baseline's.

    NaN where one of the two sessions has no median that means something.
    """
    rows = members(lake, plan.campaign).filter(pl.col("state") == "finished", pl.col("purpose") == "latency")
    column = METRICS[plan.metric]
    values = sessions_of(lake, plan, rows).with_columns(
        log=pl.when(why_left_out(plan.metric, column).is_null()).then(pl.col(column).log())
    )
    of_arms = {arm: pl.col("log").filter(pl.col("arm") == arm).first() for arm in ("baseline", "candidate")}
    blocks = values.group_by("block").agg(**of_arms).sort("block")
    return blocks.select(pl.col("candidate") - pl.col("baseline")).to_series().fill_null(float("nan")).to_numpy()
