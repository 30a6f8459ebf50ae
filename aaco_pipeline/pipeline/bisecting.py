"""Find which of many builds introduced a change: create builds, measure them with the first, and record the search.

`aaco_pipeline.statistics.bisection` decides which build to measure next. Each step is a separate campaign: a few blocks
of one build and the first. A killed search resumes from the lake without measuring or building anything twice.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import ModelError, UnavailableError, UsageError
from aaco_pipeline.formats.onnx.weightless import external_files, graph_only
from aaco_pipeline.formats.parsing.redaction import safe_name
from aaco_pipeline.lake.artefacts import BUILDS, keep_artefact
from aaco_pipeline.lake.files import lake_errors, temporary_beside
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.campaigns import new_name, publish
from aaco_pipeline.pipeline.comparing.judging import sessions_of
from aaco_pipeline.pipeline.comparing.measuring import bury, finished_sessions, members
from aaco_pipeline.pipeline.comparing.plan import (
    DEFAULT_BLOCKS,
    DEFAULT_METRIC,
    TRACED_BLOCKS,
    History,
    Plan,
    Prediction,
    Subject,
    history_of,
    new_plan,
    read_plan,
    subject,
    write_plan,
)
from aaco_pipeline.pipeline.comparing.running import run
from aaco_pipeline.resources.measure.inference import check_request
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot
from aaco_pipeline.resources.toolchains.builds import OUTPUT, MakeError, checked_out, make, words_of
from aaco_pipeline.statistics.bisection import (
    Answer,
    Measure,
    blocks_predicted,
    build_effect,
    least_detectable_ratio,
    next_move,
)
from aaco_pipeline.statistics.verdicts.comparison import METRICS, why_left_out

STAGE: Final = "bisection"
_NS: Final = 1_000_000_000
Floats = npt.NDArray[np.float64]
State = Literal["planned", "made", "measured", "failed", "good", "bad", "skipped"]
#: Fields of a build and of an answer that are also column names.
_OF_A_BUILD: Final = ("label", "revision", "title", "state", "reason")
_OF_THE_ANSWER: Final = ("after", "until", "likeliest", "probability", "effect_ratio", "ci_low", "ci_high")
Log = Callable[[str], None]
_SHORT: Final = 10
#: Errors of a build that does not run; the build is not responsible for any other error.
_FAULTS_OF_A_BUILD: Final = (ModelError, UnavailableError)


@dataclass(frozen=True)
class Recipe:
    """Command that creates builds. `request` measures one; `{output}` is replaced by the created model or Python."""

    repository: Path
    command: str
    limit_seconds: float
    request: MeasurementRequest


@dataclass(frozen=True)
class Build:
    """One build. `subject` measures it, and is None until the build has been created."""

    label: str
    revision: str | None = None
    title: str | None = None
    subject: Subject | None = None
    state: State = "planned"
    reason: str | None = None


@dataclass(frozen=True)
class Step:
    """A number of blocks that measure one build together with the first."""

    build: int
    blocks: int
    campaign: str


@dataclass(frozen=True)
class Search:
    """Current state of a search. `pair` is the campaign that compares the two builds named in the answer."""

    name: str
    began_at: datetime
    workload: str
    backend: str
    builds: tuple[Build, ...]
    recipe: Recipe | None
    predicted_blocks: int | None
    prediction: Prediction
    steps: tuple[Step, ...] = ()
    answer: Answer | None = None
    pair: str | None = None

    @property
    def last(self) -> int:
        return len(self.builds) - 1

    def with_build(self, number: int, **changed: Any) -> "Search":
        builds = list(self.builds)
        builds[number] = replace(builds[number], **changed)
        return replace(self, builds=tuple(builds))


def write(lake: TraceLake, search: Search, log_ratios: Mapping[int, Floats]) -> None:
    """Publish a search with the log ratios of each build's blocks so far."""
    recipe, answer = search.recipe, search.answer
    question = {
        "began_at": search.began_at,
        "workload": search.workload,
        "backend": search.backend,
        "builds": len(search.builds),
        "repository": recipe and str(recipe.repository),
        "make_command": recipe and recipe.command,
        "make_limit_ns": recipe and round(recipe.limit_seconds * _NS),
        "specification": recipe and recipe.request.to_json(),
        "foretold_blocks": search.predicted_blocks,
        "foretold_ns": search.prediction.time_ns,
        "foretold_detectable_ratio": search.prediction.detectable_ratio,
        "answer": answer and answer.state,
        "pair_campaign": search.pair,
        **{name: getattr(answer, name, None) for name in _OF_THE_ANSWER},
    }
    builds = [_row(lake, number, build, log_ratios.get(number)) for number, build in enumerate(search.builds)]
    steps = [{"step": number, **vars(step)} for number, step in enumerate(search.steps)]
    tables = {"bisections": [question], "bisection_builds": builds, "bisection_steps": steps}
    publish(lake, search.name, STAGE, tables)


def read(lake: TraceLake, name: str) -> Search:
    """Read a search; UsageError if none has this id."""
    asked = lake.read("bisections", name)
    if asked.is_empty():
        raise UsageError(f'no search {name!r} in {lake.path}; `aaco sql "SELECT * FROM bisections"` lists them')
    row = asked.row(0, named=True)
    recipe = None
    if row["make_command"] is not None:
        request = MeasurementRequest.from_json(row["specification"], f"search {name}")
        recipe = Recipe(Path(row["repository"]), row["make_command"], row["make_limit_ns"] / _NS, request)
    return Search(
        name,
        row["began_at"],
        row["workload"],
        row["backend"],
        tuple(_build(lake, name, one) for one in lake.read("bisection_builds", name).iter_rows(named=True)),
        recipe,
        row["foretold_blocks"],
        Prediction(row["foretold_ns"], row["foretold_detectable_ratio"]),
        tuple(Step(*one) for one in lake.read("bisection_steps", name).select("build", "blocks", "campaign").rows()),
        None if row["answer"] is None else Answer(row["answer"], *(row[name] for name in _OF_THE_ANSWER)),
        row["pair_campaign"],
    )


def with_states(builds: Sequence[Build], answer: Answer) -> tuple[Build, ...]:
    """Set the builds' states from the answer."""
    return tuple(replace(build, state=_state(number, build, answer)) for number, build in enumerate(builds))


def _state(number: int, build: Build, answer: Answer) -> State:
    if build.state == "failed":
        return "failed"
    if number and build.state != "measured":
        return "skipped"
    if number <= answer.after or answer.state == "no change":
        return "good"
    return "bad" if number >= answer.until else "measured"


def _row(lake: TraceLake, number: int, build: Build, log_ratios: Floats | None) -> dict[str, Any]:
    subject = build.subject
    effect = None if log_ratios is None else build_effect(log_ratios)
    return {
        "build": number,
        **{name: getattr(build, name) for name in _OF_A_BUILD},
        "specification": subject and subject.request.to_json(),
        "artefact": subject and _within(lake, subject.artefact),
        "artefact_sha256": subject and subject.artefact_sha256,
        "blocks": 0 if log_ratios is None else len(log_ratios),
        **dict(zip(("effect_ratio", "ci_low", "ci_high"), effect or (None,) * 3, strict=True)),
    }


def _within(lake: TraceLake, file: Path) -> str:
    return str(file.relative_to(lake.path) if file.is_relative_to(lake.path) else file)


def _build(lake: TraceLake, name: str, row: Mapping[str, Any]) -> Build:
    subject = None
    if row["specification"] is not None:
        request = MeasurementRequest.from_json(row["specification"], f"search {name}, build {row['build']}")
        subject = Subject(request, lake.path / row["artefact"], row["artefact_sha256"])
    return Build(subject=subject, **{name: row[name] for name in _OF_A_BUILD})


def builds_there(specifications: Sequence[tuple[str, MeasurementRequest]], configs: Path) -> tuple[Build, ...]:
    """Create builds from labels and requests; AacoError if one cannot be compared with the first."""
    builds: list[Build] = []
    for label, request in specifications:
        check_request(request, configs)
        made = Build(label, subject=subject(request, configs), state="made")
        builds.append(made)
        require_same_work(builds[0], made)
    return tuple(builds)


def require_same_work(first: Build, other: Build) -> None:
    """Raise UsageError if a build has other inputs than the first, or if only one of them generates tokens."""
    assert first.subject is not None and other.subject is not None
    new_plan("bisect", {"baseline": first.subject, "candidate": other.subject})
    before, after = (_inputs(one.subject.artefact) for one in (first, other) if one.subject is not None)
    if None not in (before, after) and before != after:
        raise UsageError(
            f"{other.label}: takes {after}, and the first build {before}; builds must do the same work to be compared"
        )


def output_of(recipe: Recipe) -> str:
    """Return the name of the file to create: a model named after its repository, and thus its workload, or a Python."""
    if recipe.request.model == OUTPUT:
        return f"{safe_name(recipe.repository.resolve().name) or 'model'}.onnx"
    return "bin/python"


def made(lake: Path, search: str, number: int, build: Build, recipe: Recipe, *, configs: Path, log: Log) -> Subject:
    """Create a build from its revision, and return the arm that measures it.

    It is built in its own work tree while the measurement slot is held, because compiling would disturb a measurement.
    A model is stored with the lake's artefacts; an interpreter stays in place, because most cannot be moved. ModelError
    if the build fails, AacoError if it cannot be run.
    """
    assert build.revision is not None
    folder = lake / BUILDS
    with lake_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        work = temporary_beside(folder / "work")
        work.mkdir()
    is_model = recipe.request.model == OUTPUT
    place = work / "output" if is_model else folder / search / str(number)
    output = place / output_of(recipe)
    try:
        with lake_errors(place):
            shutil.rmtree(place, ignore_errors=True)  # left by a killed build
            output.parent.mkdir(parents=True)
        source, made_log = work / "source", work / "make.log"
        with measurement_slot(on_wait=log), checked_out(recipe.repository, build.revision, source):
            words, limit = words_of(recipe.command), recipe.limit_seconds
            make(words, build.revision, output, source, log=made_log, limit_seconds=limit)
        if is_model:
            output = lake / keep_artefact(lake, output, external_files(output))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    field = "model" if is_model else "interpreter"
    request = MeasurementRequest(**{**dict(recipe.request), field: str(output)})
    check_request(request, configs)
    return subject(request, configs)


def from_revision(name: str, title: str) -> Build:
    """Describe a build that has not been created yet."""
    return Build(name[:_SHORT], name, title)


def _inputs(model: Path) -> str | None:
    """Describe a model's inputs; None if the file cannot be read here, although the runtime may be able to."""
    from aaco_pipeline.formats import onnx as onnx_format

    try:
        inputs = onnx_format.read(graph_only(model), str(model)).inputs
    except ModelError:
        return None
    return ", ".join(sorted(f"{one.name} {one.dtype} {list(one.dims or ())}" for one in inputs)) or "no input"


def new_search(lake: TraceLake, builds: tuple[Build, ...], recipe: Recipe | None) -> tuple[Search, History]:
    """Plan a search with its estimate, without writing it; also return the history on which the estimate is based."""
    if len(builds) < 2:
        raise UsageError("there is nothing between one build and itself: give two or more")
    name, now = new_name("bisection")
    first = builds[0].subject
    request = recipe.request if recipe is not None else cast(Subject, first).request
    # The workload is named after the model file, whose name is known before it is created.
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
    configs: Path, lake: TraceLake, name: str, *, log: Log, shown: Callable[[], AbstractContextManager[object]]
) -> Search:
    """Run the remaining steps of a search and return it with its answer; only one process at a time runs it.

    `log` receives a line per step, and each campaign runs within `shown`. Raises the error of the first or the last
    build; if any other build fails, the answer becomes a wider range.
    """
    with lake.measuring(name):
        work = _Work(configs, lake, read(lake, name), log, shown)
        work.answer()
        work.tell_causes()
        return work.search


@dataclass
class _Work:
    """A search in progress; each step is written to the lake before the next one begins."""

    configs: Path
    lake: TraceLake
    search: Search
    log: Log
    shown: Callable[[], AbstractContextManager[object]]
    _known: dict[str, Floats] = field(default_factory=dict)

    def answer(self) -> None:
        """Measure until the statistics reach an answer."""
        self._finish_last_step()
        while self.search.answer is None:
            failed = {number for number, build in enumerate(self.search.builds) if build.state == "failed"}
            move = next_move(self.search.last, self._log_ratios(), failed)
            if isinstance(move, Answer):
                self._write(replace(self.search, answer=move, builds=with_states(self.search.builds, move)))
            elif self._is_made(0) and self._is_made(move.build):
                self._measure(move)

    def tell_causes(self) -> None:
        """Compare the two builds named in the answer in fresh and traced sessions."""
        answer = self.search.answer
        assert answer is not None
        if answer.state == "no change":
            return
        if self.search.pair is None or self.lake.read("campaigns", self.search.pair).is_empty():
            self.log(f"build {answer.until} against build {answer.after}: {DEFAULT_BLOCKS} blocks, then traces")
            plan = self._plan(answer.after, answer.until, DEFAULT_BLOCKS, TRACED_BLOCKS)
            self._write(replace(self.search, pair=plan.campaign))
            write_plan(self.lake, plan)
        if not self._is_judged(cast(str, self.search.pair)):
            self._run(cast(str, self.search.pair))

    def _measure(self, move: Measure) -> None:
        plan = self._plan(0, move.build, move.blocks, 0)
        step = Step(move.build, move.blocks, plan.campaign)
        self._write(replace(self.search, steps=(*self.search.steps, step)))
        write_plan(self.lake, plan)
        self._finish_last_step()

    def _finish_last_step(self) -> None:
        """Measure the remainder of the newest step; drop a step that was killed before its plan was written."""
        if not self.search.steps or self.search.answer is not None:
            return
        step = self.search.steps[-1]
        if self.lake.read("campaigns", step.campaign).is_empty():
            self._write(replace(self.search, steps=self.search.steps[:-1]))
        elif not self._is_judged(step.campaign) and self.search.builds[step.build].state != "failed":
            self.log(f"{self._called(step.build)}: {step.blocks} blocks beside the first")
            try:
                self._run(step.campaign)
            except _FAULTS_OF_A_BUILD as error:
                if self._failing_arm(step.campaign) != "candidate":
                    raise
                bury(self.lake, step.campaign)
                self._fail(step.build, error, "run")
                return
            self._write(self.search.with_build(step.build, state="measured"))
            self.log(f"{self._called(step.build)}: {self._effect(step.build)}")

    def _failing_arm(self, campaign: str) -> str | None:
        """Return the arm of the newest unfinished session."""
        begun = members(self.lake, campaign).filter(pl.col("state") == "begun")
        return cast(str, begun.item(-1, "arm")) if begun.height else None

    def _run(self, campaign: str) -> None:
        with self.shown():
            run(self.configs, self.lake, campaign, self.log)

    def _plan(self, baseline: int, candidate: int, blocks: int, traced_blocks: int) -> Plan:
        arms = {
            "baseline": cast(Subject, self.search.builds[baseline].subject),
            "candidate": cast(Subject, self.search.builds[candidate].subject),
        }
        return new_plan("bisect", arms, blocks=blocks, traced_blocks=traced_blocks)  # type: ignore[arg-type]

    def _is_made(self, number: int) -> bool:
        """Create a build if it is missing, and return whether it exists; record a failure."""
        build, recipe = self.search.builds[number], self.search.recipe
        if build.subject is not None:
            return True
        assert recipe is not None
        self.log(f"{self._called(number)}: making it")
        try:
            subject = made(self.lake.path, self.search.name, number, build, recipe, configs=self.configs, log=self.log)
            if number:
                require_same_work(self.search.builds[0], replace(build, subject=subject))
        except (*_FAULTS_OF_A_BUILD, UsageError) as error:
            self._fail(number, error, "made")
            return False
        self._write(self.search.with_build(number, subject=subject, state="made"))
        return True

    def _fail(self, number: int, error: Exception, done: str) -> None:
        """Record that a build failed; without the first and last builds there is no answer."""
        lines = error.lines if isinstance(error, MakeError) else []
        for line in lines:
            self.log(f"  {line}")
        told = f"could not be {done}: {error}" + (f" (“{lines[-1]}”)" if lines else "")
        place = {0: ", the first,", self.search.last: ", the last,"}.get(number)
        if place is not None:
            raise ModelError(
                f"{self._called(number)}{place} {told}; mend that and go on with `aaco bisect --resume "
                f"{self.search.name}`, or give another"
            ) from error
        self._write(self.search.with_build(number, state="failed", reason=told))
        self.log(f"{self._called(number)} {told}")

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

    def _log_ratios(self) -> dict[int, Floats]:
        """Return each block's log ratio to the first build, by build; NaN if either has no steady median."""
        found: dict[int, list[Floats]] = {}
        for step in self.search.steps:
            if self.search.builds[step.build].state == "failed" or not self._is_judged(step.campaign):
                continue
            if step.campaign not in self._known:
                self._known[step.campaign] = log_ratios(self.lake, read_plan(self.lake, step.campaign))
            found.setdefault(step.build, []).append(self._known[step.campaign])
        return {build: np.concatenate(ratios) for build, ratios in found.items()}

    def _is_judged(self, campaign: str) -> bool:
        return not self.lake.read("verdicts", campaign).is_empty()

    def _write(self, search: Search) -> None:
        self.search = search
        write(self.lake, search, self._log_ratios())


def log_ratios(lake: TraceLake, plan: Plan) -> Floats:
    """Return (blocks,) log ratios of the candidate's median to the baseline's, for a campaign's finished blocks.

    NaN if either session has no meaningful median.
    """
    rows = finished_sessions(lake, plan.campaign, "latency")
    column = METRICS[plan.metric]
    values = sessions_of(lake, plan, rows).with_columns(
        log=pl.when(why_left_out(plan.metric, column).is_null()).then(pl.col(column).log())
    )
    of_arms = {arm: pl.col("log").filter(pl.col("arm") == arm).first() for arm in ("baseline", "candidate")}
    blocks = values.group_by("block").agg(**of_arms).sort("block")
    return blocks.select(pl.col("candidate") - pl.col("baseline")).to_series().fill_null(float("nan")).to_numpy()
