"""The plans of a night: all of them written before its first session, and those that confirm what it found."""

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
from aaco_pipeline.pipeline.comparing.measuring import placebo_of
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject, new_plan, read_plan
from aaco_pipeline.pipeline.comparing.running import begin, roll_forward
from aaco_pipeline.pipeline.nightly.alerts import Confirmation, due_confirmations, missing_nights
from aaco_pipeline.pipeline.nightly.baselines import arm_of, current, keep
from aaco_pipeline.pipeline.nightly.benchmarks import Benchmark, Due, due
from aaco_pipeline.resources.measure.models import model_digest
from aaco_pipeline.resources.measure.runner import InferenceRunner

_WAIT_SECONDS: Final = 600.0


@dataclass
class Begun:
    """The plans that were written, and of what benchmark there is none, with why."""

    plans: list[Plan] = field(default_factory=list)
    refused: dict[str, AacoError] = field(default_factory=dict)


def campaigns_of_nights(lake: TraceLake) -> pl.DataFrame:
    """campaign_id, workload, backend, night, confirms, planned_at and is_judged of all campaigns of nights."""
    rows = lake.read("campaigns").filter(pl.col("night").is_not_null())
    judged = [one.id for one in lake.manifests("campaign") if one.of_stage(JUDGED)]
    facts = rows.select("campaign_id", "workload", "backend", "night", "confirms", "planned_at")
    return facts.with_columns(is_judged=pl.col("campaign_id").is_in(judged))


def due_now(
    lake: TraceLake, benchmarks: Sequence[Benchmark], now: datetime, only: Collection[tuple[str, str]] | None = None
) -> Due:
    """What of the lake's nights is to be done at `now`; see `due`."""
    return due(benchmarks, campaigns_of_nights(lake), due_confirmations(lake, now), now, only)


def begin_due(
    lake: TraceLake,
    runner: InferenceRunner,
    benchmarks: Sequence[Benchmark],
    now: datetime,
    *,
    only: Collection[tuple[str, str]] | None = None,
) -> Begun:
    """Write the plans of what is due at `now` and not planned yet.

    Those of the night come first, then those that confirm. A benchmark that cannot be measured keeps no other from its
    night. Nights of the benchmarks that are over and said nothing alert. One process at a time plans.
    """
    begun = Begun()
    lock = lake.path / ".locks" / "nights.lock"
    with exclusive_lock(lock, timeout_seconds=_WAIT_SECONDS, purpose="planning nights"), ExitStack() as held:
        held.callback(lock.unlink, missing_ok=True)  # while it is held: whoever waits for it makes a new one
        # One that never had a night is new: it is told by why it is refused, if it is.
        known = set(campaigns_of_nights(lake).select("workload", "backend").iter_rows())
        missing_nights(lake, [one.key for one in benchmarks if one.key in known], now)
        roll_forward(lake, runner)  # a person may have acknowledged an alert since
        found = due_now(lake, benchmarks, now, only)
        for benchmark in found.begin:
            try:
                begun.plans.append(_plan(lake, runner, benchmark, found.night))
            except AacoError as error:
                begun.refused[benchmark.name] = error
        begun.plans.extend(_confirming(lake, one) for one in found.confirm)
        for plan in begun.plans:
            begin(lake, plan)
    return begun


def run_key(plan: Plan, attempt: int) -> str:
    """What Dagster knows a run of a campaign by, and never runs twice: night, benchmark, slot and attempt."""
    base = plan.arms["baseline"].request
    slot = "first slot" if plan.confirms is None else f"confirms {plan.confirms}"
    return f"{plan.night} {plan.workload}:{base.backend} {slot} attempt {attempt}"


# ---- inside ----------------------------------------------------------------------------------------------------------


def _plan(lake: TraceLake, runner: InferenceRunner, benchmark: Benchmark, night: date) -> Plan:
    """The first time slot of a benchmark: candidate, baseline and placebo. Without a baseline it is its own."""
    runner.check(benchmark.request)
    file = lake.path / keep(lake, benchmark.request, runner.folder)
    measured = benchmark.request.model_copy(update={"artefact": str(file)})
    candidate = Subject(measured, file, model_digest(file))
    baseline = _baseline(lake, benchmark) or candidate
    arms: dict[Arm, Subject] = {
        **{"candidate": candidate, "baseline": baseline},
        "placebo": placebo_of(lake, baseline),
    }
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
    """The same files once more, in another time slot."""
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
    """What the candidate is held against; None on the first nights of a benchmark with a rolling one."""
    row = current(lake, *benchmark.key, benchmark.baseline, _environment_here(lake, benchmark))
    if row is not None:
        return arm_of(lake, row)
    if benchmark.baseline == "pinned":
        raise UsageError(
            f"{benchmark.name} is held against a pinned baseline, and none is pinned; "
            f"`aaco baseline pin --model {benchmark.request.model} --backend {benchmark.backend}`, or make it rolling"
        )
    return None


def _environment_here(lake: TraceLake, benchmark: Benchmark) -> str | None:
    """The fingerprint of the benchmark's newest session of a night on this host; null without any."""
    nights = lake.read("campaigns").filter(
        pl.col("night").is_not_null()
        & (pl.col("workload") == benchmark.workload)
        & (pl.col("backend") == benchmark.backend)
    )
    for campaign in nights.sort("planned_at", descending=True).get_column("campaign_id"):
        members = lake.read("campaign_sessions", campaign).filter(
            (pl.col("arm") == "candidate") & (pl.col("state") == "finished")
        )
        known = lake.read("sessions", members.get_column("session_id").to_list())
        here = known.filter(pl.col("host") == platform.node()).get_column("fingerprint").drop_nulls()
        if here.len():
            return str(here[-1])
    return None
