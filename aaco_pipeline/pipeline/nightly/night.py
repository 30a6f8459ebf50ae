"""Plan a night: all plans are written before its first session; confirmations of its findings follow."""

import platform
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Final

import polars as pl

from aaco_pipeline.capture.request import Arm
from aaco_pipeline.errors import AacoError, UsageError
from aaco_pipeline.lake.files import exclusive_lock
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import STAGE as JUDGED
from aaco_pipeline.pipeline.comparing.measuring import finished_sessions, placebo_of
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject, new_plan, read_plan, write_plan
from aaco_pipeline.pipeline.comparing.running import roll_forward
from aaco_pipeline.pipeline.nightly.alerts import Confirmation, due_confirmations, missing_nights
from aaco_pipeline.pipeline.nightly.baselines import arm_of, current, keep
from aaco_pipeline.pipeline.nightly.benchmarks import Benchmark, Due, due
from aaco_pipeline.resources.measure.models import model_digest
from aaco_pipeline.resources.measure.runner import InferenceRunner

_WAIT_SECONDS: Final = 600.0


@dataclass
class Begun:
    """The plans that were written, and errors by benchmark."""

    plans: list[Plan] = field(default_factory=list)
    refused: dict[str, AacoError] = field(default_factory=dict)


def campaigns_of_nights(lake: TraceLake) -> pl.DataFrame:
    """Read campaign_id, workload, backend, night, confirms, planned_at and is_judged of all nightly campaigns."""
    rows = lake.read("campaigns").filter(pl.col("night").is_not_null())
    judged = [one.id for one in lake.manifests("campaign") if one.of_stage(JUDGED)]
    facts = rows.select("campaign_id", "workload", "backend", "night", "confirms", "planned_at")
    return facts.with_columns(is_judged=pl.col("campaign_id").is_in(judged))


def due_now(
    lake: TraceLake, benchmarks: Sequence[Benchmark], now: datetime, only: Collection[tuple[str, str]] | None = None
) -> Due:
    """Decide which work in the lake is due at `now`; see `due`."""
    return due(benchmarks, campaigns_of_nights(lake), due_confirmations(lake), now, only)


def begin_due(
    lake: TraceLake,
    runner: InferenceRunner,
    benchmarks: Sequence[Benchmark],
    now: datetime,
    *,
    only: Collection[tuple[str, str]] | None = None,
) -> Begun:
    """Write the plans due at `now`: tonight's first, then confirmations.

    A benchmark that cannot be measured does not stop the others. Missing verdicts of past nights raise an alert. Only
    one process plans at a time.
    """
    begun = Begun()
    lock = lake.path / ".locks" / "nights.lock"
    with exclusive_lock(lock, timeout_seconds=_WAIT_SECONDS, purpose="planning nights"), ExitStack() as held:
        held.callback(lock.unlink, missing_ok=True)  # unlink while locked: waiting processes create a new file
        # A benchmark without any night is new: if it fails, its error explains why.
        known = set(campaigns_of_nights(lake).select("workload", "backend").iter_rows())
        missing_nights(lake, [one.key for one in benchmarks if one.key in known], now)
        roll_forward(lake, runner)  # an alert may have been acknowledged in the meantime
        found = due_now(lake, benchmarks, now, only)
        for benchmark in found.begin:
            try:
                begun.plans.append(_plan(lake, runner, benchmark, found.night))
            except AacoError as error:
                begun.refused[benchmark.name] = error
        begun.plans.extend(_confirming(lake, one) for one in found.confirm)
        for plan in begun.plans:
            write_plan(lake, plan)
    return begun


def run_key(plan: Plan, attempt: int) -> str:
    """Return the run key with which Dagster runs a campaign once: night, benchmark, slot and attempt."""
    base = plan.arms["baseline"].request
    slot = "first slot" if plan.confirms is None else f"confirms {plan.confirms}"
    return f"{plan.night} {plan.workload}:{base.backend} {slot} attempt {attempt}"


def _plan(lake: TraceLake, runner: InferenceRunner, benchmark: Benchmark, night: date) -> Plan:
    """Plan a benchmark's first time slot: candidate, baseline and placebo. The default baseline is the candidate."""
    runner.check(benchmark.request)
    file = lake.path / keep(lake, benchmark.request, runner.folder)
    measured = benchmark.request.model_copy(update={"artefact": str(file)})
    candidate = Subject(measured, file, model_digest(file))
    baseline = _baseline(lake, benchmark) or candidate
    arms: dict[Arm, Subject] = {"candidate": candidate, "baseline": baseline, "placebo": placebo_of(lake, baseline)}
    return new_plan(
        "nightly",
        arms,
        blocks=benchmark.blocks,
        traced_blocks=benchmark.traced_blocks,
        threshold_ratio=benchmark.threshold_ratio,
        limits=benchmark.limits,
        night=night,
    )


def _confirming(lake: TraceLake, finding: Confirmation) -> Plan:
    """Plan the same files again, for another time slot."""
    first = read_plan(lake, finding.campaign)
    return new_plan(
        "nightly",
        {**first.arms, "placebo": placebo_of(lake, first.arms["baseline"])},
        blocks=finding.blocks,
        traced_blocks=0,
        metric=first.metric,
        threshold_ratio=first.threshold_ratio,
        limits=first.limits,
        night=finding.night,
        confirms=finding.campaign,
    )


def _baseline(lake: TraceLake, benchmark: Benchmark) -> Subject | None:
    """Return the baseline arm; None on the first nights of a benchmark with a rolling baseline."""
    row = current(lake, *benchmark.key, benchmark.baseline, _environment_here(lake, benchmark))
    if row is not None:
        return arm_of(lake, row)
    if benchmark.baseline == "pinned":
        raise UsageError(
            f"{benchmark.name} is compared with a pinned baseline, and none is pinned; "
            f"`aaco baseline pin --model {benchmark.request.model} --backend {benchmark.backend}`, or make it rolling"
        )
    return None


def _environment_here(lake: TraceLake, benchmark: Benchmark) -> str | None:
    """Return the fingerprint of the benchmark's newest nightly session on this host; None if there is none."""
    nights = lake.read("campaigns").filter(
        pl.col("night").is_not_null()
        & (pl.col("workload") == benchmark.workload)
        & (pl.col("backend") == benchmark.backend)
    )
    for campaign in nights.sort("planned_at", descending=True).get_column("campaign_id"):
        members = finished_sessions(lake, campaign).filter(pl.col("arm") == "candidate")
        known = lake.read("sessions", members.get_column("session_id").to_list())
        here = known.filter(pl.col("host") == platform.node()).get_column("fingerprint").drop_nulls()
        if here.len():
            return str(here[-1])
    return None
