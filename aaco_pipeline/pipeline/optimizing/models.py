"""Make a model faster by changing how the runtime runs it: requests, measurements and results.

`aaco_pipeline.optimization.loop.configurations` decides what to try, in which order, and the outcome. Each look is a
separate campaign, planned before its first session; its sessions are in the lake like all others. Models never change.
"""

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import polars as pl

from aaco_pipeline import __version__
from aaco_pipeline.capture.request import Arm, MeasurementRequest, as_options
from aaco_pipeline.errors import ModelError, UnavailableError, UsageError
from aaco_pipeline.formats import native
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.candidates import NotApplicable, Refused
from aaco_pipeline.optimization.correctness.comparison import Outputs, compare_outputs, depend_on_inputs, joined
from aaco_pipeline.optimization.loop.configurations import (
    Configuration,
    ModelMeans,
    ModelQuestion,
    search_configurations,
)
from aaco_pipeline.optimization.loop.means import Limits, Record, TimingStep
from aaco_pipeline.optimization.loop.timing import MOST_CONFIGURATIONS
from aaco_pipeline.optimization.proposers.onnx import LARGEST_BATCH_FACTOR, Measured, OnnxCandidate, onnx_candidates
from aaco_pipeline.pipeline.comparing.campaigns import new_name
from aaco_pipeline.pipeline.comparing.judging import timed_sessions
from aaco_pipeline.pipeline.comparing.measuring import bury, members, placebo_of
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject, new_plan, subject, write_plan
from aaco_pipeline.pipeline.comparing.running import run
from aaco_pipeline.pipeline.optimizing.record import Recorder, open_journal
from aaco_pipeline.pipeline.optimizing.search import SCRATCH, Log, telling
from aaco_pipeline.pipeline.scratch import scratch
from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.resources.calibrate.kernels import cores_of
from aaco_pipeline.resources.host.facts import host_facts
from aaco_pipeline.resources.measure.inference import answer_inference, check_request
from aaco_pipeline.resources.measure.inference import plan as resolved
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot
from aaco_pipeline.statistics.verdicts.comparison import METRICS, why_left_out

#: Number of model runs whose outputs are compared; the largest batch combines all of them.
_RUNS: Final = LARGEST_BATCH_FACTOR
#: Errors of a configuration that cannot be run.
_FAULTS: Final = (ModelError, UnavailableError, UsageError)
#: Session settings that do not affect how a model runs, or that would add another measurement.
_NOT_KEPT: Final = (
    *("campaign_id", "arm", "block", "untraced", "kernel_plane", "profile", "counters", "thread_trace"),
    "scheduler",  # a separate setting in earlier sessions
)
_METRIC: Final = "latency_p50"
_SHARED: Final = ("host", "device", "fingerprint", "cache_state")


@dataclass(frozen=True)
class ModelOrder:
    """The request to make faster, and the session from which it was taken, if any."""

    request: MeasurementRequest
    session: str | None
    budget_ns: int
    threshold_ratio: float


def request_of_session(lake: TraceLake, named: str, configs: Path) -> tuple[MeasurementRequest, str]:
    """Return a session's request and id; UsageError if it has no model or the model has changed."""
    session = lake.find_session(named)
    raw = lake.raw(session)
    if native.probe(raw) is None:
        raise UsageError(
            f"session {session} was not measured by `aaco run`: give a model, or the SOURCE of a kernel with it"
        )
    capture = native.read(raw).capture
    known = {name: value for name, value in capture["launch"].items() if name not in _NOT_KEPT}
    request = MeasurementRequest.from_json(json.dumps(known), f"session {session}")
    digest = capture["model"].get("artefact_sha256")
    if digest is not None and subject(request, configs).artefact_sha256 != digest:
        raise UsageError(f"{request.model} has changed since session {session}; give the model to take it as it is now")
    return request, session


def optimize_model(
    configs: Path, lake: TraceLake, order: ModelOrder, *, log: Log, shown: Callable[[], AbstractContextManager[object]]
) -> str:
    """Search, publish after every attempt, and return the search's name. Each campaign runs within `shown`.

    AacoError if something requested is missing or invalid, before the lake is written.
    """
    request = order.request
    if request.output_tokens is not None:
        raise UsageError("a model that generates tokens cannot be optimized yet: leave --tokens and --prompt out")
    if not 0 < order.threshold_ratio < 1:
        raise UsageError("for a model, the least gain that counts is more than 0 and less than 100%")
    shapes = check_request(request, configs)
    own = subject(request, configs)
    name, began_at = new_name("optimize")
    with lake.measuring(name), scratch(SCRATCH) as folder, open_journal(lake, name) as journal:
        recorder = Recorder(lake, name, began_at, journal)
        with measurement_slot(on_wait=log):
            pass  # waiting for other processes does not count as search time
        facts = host_facts()["facts"]
        work = _Work(configs, lake, order, own, folder, log, shown, batch=_batch_of(shapes), facts=facts)
        log(f"{name}: {work.workload} with {shlex.join(work.options({})) or 'the options that it has by default'}")
        question = ModelQuestion(
            order.threshold_ratio, Limits(order.budget_ns, MOST_CONFIGURATIONS), work.batch or request.batch_size or 1
        )
        means = ModelMeans(
            propose=work.propose,
            check=work.check,
            measure=work.measure,
            called=lambda changes: shlex.join(as_options(changes)),
            command=lambda held: shlex.join(["--model", request.model, *work.options(held)]),
            now_ns=time.monotonic_ns,
            record=telling(recorder, log),
            tell=log,
        )
        search_configurations(question, means, {**work.begin(), "campaign": name})
        recorder.is_applied = False
        recorder.publish()
    return name


def _batch_of(shapes: Mapping[str, Sequence[int]]) -> int | None:
    """Return the first dimension if it is the same for all inputs; otherwise None."""
    first = {shape[0] if len(shape) else None for shape in shapes.values()}
    return first.pop() if len(first) == 1 else None


@dataclass
class _Work:
    """A search in progress: configurations as requests, with the outputs and times of each."""

    configs: Path
    lake: TraceLake
    order: ModelOrder
    own: Subject
    folder: Path
    log: Log
    shown: Callable[[], AbstractContextManager[object]]
    batch: int | None
    facts: Sequence[Mapping[str, Any]]
    seed: int = field(default_factory=lambda: SystemRandom().getrandbits(62))
    _began_ns: int = field(default_factory=time.monotonic_ns)
    _session_ns: int = 0
    _answers: list[Outputs] = field(default_factory=list)

    @property
    def workload(self) -> str:
        return Path(self.order.request.model).stem

    def begin(self) -> dict[str, Any]:
        """Return the journal's first line, without the fields that the search itself adds."""
        provider = self._provider()
        where = self._fact("cpu", "model") if provider == CPU_PROVIDER else None
        return {
            "writer": f"aaco_pipeline {__version__}",
            "source_name": self.workload,
            "session": self.order.session,
            "target": self.order.request.backend,
            "executed_on": where or provider,
            "speedup_applies_to": where or provider,
            "seed": self.seed,
            "source_sha256": self.own.artefact_sha256,
            "harness_sha256": None,
            "specification": json.loads(self.order.request.to_json()),
            "environment": list(self.facts),
        }

    def options(self, configuration: Configuration) -> list[str]:
        """Return a configuration's `aaco run` options, without the model and defaults."""
        request = self._request(configuration)
        given = request.model_dump(exclude={*_NOT_KEPT, "model", "artefact"}, exclude_defaults=True)
        return as_options(given)

    def propose(self, configuration: Configuration) -> list[OnnxCandidate | NotApplicable]:
        request = self._request(configuration)
        _, backend = resolved(request, self.configs)
        one = 1 if backend.provider == CPU_PROVIDER else None
        return onnx_candidates(
            Measured(
                provider=backend.provider,
                optimization=request.optimization,
                threads=request.threads or backend.intra_op_threads or one,
                cores=self._cores(),
                batch_size=self.batch,
                batch_is_free=self._batch_is_free(),
                provider_options=request.provider_options,
            )
        )

    def check(self, configuration: Configuration) -> Record:
        """Compare outputs with those of the original request on the same inputs, whose own repeatability is checked,
        too.
        """
        factor = int(configuration.get("batch_size", self.batch or 1)) // (self.batch or 1)
        if not self._answers:
            self._answers = self._answered("first", {}, None)
        runs = joined(self._answers, factor)
        try:
            again = self._answered("again", configuration, self.folder / "first", factor)
        except _FAULTS as error:
            if not configuration:
                raise
            raise Refused("run", str(error)) from error
        try:
            facts = compare_outputs(runs, again)
        except Refused as refused:
            if configuration:
                raise
            reason = f"the model's outputs differ from run to run: {refused.reason}"
            raise Refused("baseline", reason) from refused
        return {**facts, "depend_on_inputs": depend_on_inputs(self._answers)}

    def measure(self, step: TimingStep, held: Configuration, candidate: Configuration, blocks: int) -> Record:
        """Measure one campaign; in a confirmation each block also runs the baseline from a copy."""
        baseline = self._subject(held)
        arms: dict[Arm, Subject] = {"baseline": baseline, "candidate": self._subject(candidate)}
        if step == "confirmation":
            arms["placebo"] = placebo_of(self.lake, baseline)
        sessions = blocks * len(arms)
        self._require_time(sessions)
        plan = new_plan("configure", arms, blocks=blocks, traced_blocks=0, threshold_ratio=self.order.threshold_ratio)
        began_ns = time.monotonic_ns()
        self._run(plan)
        self._session_ns = max(self._session_ns, (time.monotonic_ns() - began_ns) // sessions)
        medians = self._medians(plan)
        pairs = {
            arm: [{"baseline_ns": [row["baseline"]], "candidate_ns": [row[arm]]} for row in medians] for arm in arms
        }
        itself = pairs["candidate"] if step == "aa" else pairs.get("placebo", [])
        return {
            "campaign": plan.campaign,
            "pairs": {"candidate": [] if step == "aa" else pairs["candidate"], "itself": itself},
        }

    def _request(self, configuration: Configuration) -> MeasurementRequest:
        return MeasurementRequest(**{**dict(self.order.request), **configuration})

    def _subject(self, configuration: Configuration) -> Subject:
        return Subject(self._request(configuration), self.own.artefact, self.own.artefact_sha256)

    def _provider(self) -> str:
        return resolved(self.order.request, self.configs)[1].provider

    def _fact(self, category: str, key: str) -> str | None:
        found = (one["value"] for one in self.facts if (one["category"], one["key"]) == (category, key))
        return next(found, None)

    def _cores(self) -> int:
        """Count the cores that this process may use: cores of its CPUs, limited by its control group's quota."""
        cores = cores_of(os.sched_getaffinity(0))
        quota, _, period = (self._fact("container", "cgroup_cpu_max") or "").partition(" ")
        return max(1, min(cores, int(quota) // int(period))) if quota.isdigit() and period.isdigit() else cores

    def _batch_is_free(self) -> bool:
        """Return whether doubling the batch doubles the first dimension of every input."""
        if self.batch is None:
            return False
        try:
            shapes = check_request(self._request({"batch_size": 2 * self.batch}), self.configs)
        except UsageError:
            return False
        return _batch_of(shapes) == 2 * self.batch

    def _answered(
        self, name: str, configuration: Configuration, inputs_of: Path | None, factor: int = 1
    ) -> list[Outputs]:
        place = self.folder / name
        place.mkdir(exist_ok=True)
        request = self._request(configuration).model_copy(update={"seed": self.seed})
        with measurement_slot(on_wait=self.log) as slot:
            return list(
                answer_inference(request, place, self.configs, slot, runs=_RUNS, inputs_of=inputs_of, joined=factor)
            )

    def _require_time(self, sessions: int) -> None:
        """Raise Refused if this many sessions, each as long as the longest so far, would exceed the budget."""
        left = self.order.budget_ns - (time.monotonic_ns() - self._began_ns)
        if sessions * self._session_ns > left or left <= 0:
            raise Refused("budget", f"{sessions} sessions would take more time than is left: give a larger --budget")

    def _run(self, plan: Plan) -> None:
        write_plan(self.lake, plan)
        try:
            with self.shown():
                run(self.configs, self.lake, plan.campaign, self.log)
        except _FAULTS as error:
            begun = members(self.lake, plan.campaign).filter(pl.col("state") == "begun")
            is_candidate = begun.height and begun.item(-1, "arm") == "candidate"
            bury(self.lake, plan.campaign)
            if not is_candidate:
                raise
            raise Refused("run", str(error)) from error

    def _medians(self, plan: Plan) -> list[dict[str, Any]]:
        """Return a row per block with each arm's session median, None if it has no meaningful one."""
        sessions = timed_sessions(self.lake, plan.campaign)
        for shared in _SHARED:
            if (found := sessions.get_column(shared).n_unique()) > 1:
                raise Refused("aa", f"the sessions ran with {found} values of {shared}, which says nothing of a change")
        column = METRICS[_METRIC]
        counts = pl.when(why_left_out(_METRIC, column).is_null()).then(pl.col(column))
        of_arms = {arm: pl.col("value").filter(pl.col("arm") == arm).first() for arm in plan.arms}
        rows = sessions.with_columns(value=counts).group_by("block").agg(**of_arms).sort("block")
        return rows.drop("block").to_dicts()
