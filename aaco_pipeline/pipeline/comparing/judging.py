"""Judge a campaign: verdicts from latencies, causes from traced sessions, the A/A ledger from identical arms.

The statistics are in `aaco_pipeline.statistics`. This module also finds campaigns without a verdict.
"""

import hashlib
import json
from collections.abc import Sequence
from datetime import date
from typing import Final

import polars as pl

from aaco_pipeline.analysis.thresholds import MOST_DISTURBED
from aaco_pipeline.capture.request import Arm
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline.comparing.campaigns import Tables, publish
from aaco_pipeline.pipeline.comparing.measuring import finished_sessions
from aaco_pipeline.pipeline.comparing.plan import STAGE as PLAN
from aaco_pipeline.pipeline.comparing.plan import Plan, is_between_nights, read_plan
from aaco_pipeline.pipeline.sessions import half_removed
from aaco_pipeline.report.comparing.campaign import iterations_of
from aaco_pipeline.report.comparing.causes import cause_in_words, selection_in_words
from aaco_pipeline.report.formatting import counted
from aaco_pipeline.statistics.causes.accounts import ACCOUNTED_FROM
from aaco_pipeline.statistics.causes.arms import FACTS, arm, environment_differences
from aaco_pipeline.statistics.causes.decomposition import attribution_rows, decompose, selection_rows
from aaco_pipeline.statistics.causes.matching import replaced_kernels
from aaco_pipeline.statistics.causes.selection import selections
from aaco_pipeline.statistics.verdicts import comparison
from aaco_pipeline.statistics.verdicts.comparison import compare
from aaco_pipeline.statistics.verdicts.decision import ledger_rows, withheld
from aaco_pipeline.statistics.verdicts.service_level import service_levels
from aaco_pipeline.statistics.verdicts.session_quantiles import (
    disturbed_ratios,
    leave_out_disturbed,
    session_quantiles,
)

#: Stage that publishes the judgement, which completes a campaign.
STAGE: Final = "judging"
_BASELINE: Final = "baseline"
#: Environment facts that may differ between arms on purpose: the software that runs the model.
_OF_THE_SOFTWARE: Final = ("python", "package", "environment_variable", "cache")
#: Maximum number of sessions or environment facts named in a remark.
_MOST_NAMED: Final = 3
#: Keys of a cache that do not describe its state, and the provider that has no cache.
_OF_A_CACHE: Final = r"_(?:files|digest)$"
_KEEPS_NO_CACHE: Final = "CPUExecutionProvider"
#: Category of `environment` that identifies the machine and GPUs of a session.
_IDENTITY: Final = "identity"
_FACTS: Final = ("session_id", "fingerprint", "device", "boot_id")


def judge_campaign(lake: TraceLake, campaign: str) -> Tables:
    """Judge a campaign from its finished blocks; publish the resulting tables and return them.

    The tables are `verdicts`, `attributions` and `selections` for every arm and the baseline, `aa_ledger` if two arms
    are the same request of the same file, and `service_levels` if limits were set. UsageError if no block is finished.
    """
    if is_between_nights(lake, campaign):
        raise UsageError(f"campaign {campaign} compares nights of other campaigns; the next night judges it")
    plan, rows = read_plan(lake, campaign), finished_sessions(lake, campaign)
    timed = rows.filter(pl.col("purpose") == "latency")
    if timed.is_empty():
        raise UsageError(f"campaign {campaign} has no finished block; `aaco compare --resume {campaign}` goes on")
    iterations = iterations_of(lake, timed)
    summed_up = _sessions(lake, plan, iterations)
    ledger = lake.read("aa_ledger").filter(pl.col("campaign_id") != campaign)
    remarks = pl.lit(_remarks(lake, summed_up), pl.List(pl.String))
    verdicts, causes, chosen, known = [], [], [], []
    for candidate in (name for name in plan.arms if name != _BASELINE):
        design = comparison.Plan(_BASELINE, candidate, (plan.blocks,), plan.threshold_ratio, plan.metric)
        judged = compare(summed_up, design, ledger)
        if (other := _other_work(plan, candidate)) is not None:
            judged = withheld(judged, other)
        if is_identical(plan, candidate):
            designs = summed_up.select("campaign_id", "workload", "host").unique("campaign_id")
            run = pl.lit(timed.get_column("block").n_unique()).alias("blocks")
            known.append(ledger_rows(judged, designs.with_columns(run, sessions_per_block=pl.lit(1))))
        causes_of, selected, first = _causes(lake, rows.filter(pl.col("purpose") == "trace"), candidate)
        changed = pl.col("verdict").is_in(["regressed", "improved"])
        cause = pl.when(changed).then(pl.lit(first, pl.String))
        verdicts.append(judged.with_columns(suspected_cause=cause, reasons=pl.concat_list("reasons", remarks)))
        causes.append(causes_of)
        chosen.append(selected)
    tables = {
        "verdicts": pl.concat(verdicts).drop("campaign_id"),
        "attributions": pl.concat(causes),
        "selections": pl.concat(chosen),
        "aa_ledger": pl.concat([one.drop("campaign_id") for one in known]) if known else empty_table("aa_ledger"),
        "service_levels": service_levels(summed_up, iterations, plan.limits),
    }
    return publish(lake, campaign, STAGE, tables)


def timed_sessions(lake: TraceLake, campaign: str) -> pl.DataFrame:
    """Summarize a campaign's finished sessions without a trace; see `sessions_of`."""
    return sessions_of(lake, read_plan(lake, campaign), finished_sessions(lake, campaign, "latency"))


def sessions_of(lake: TraceLake, plan: Plan, timed: pl.DataFrame) -> pl.DataFrame:
    """Summarize sessions without a trace in the form that `comparison.compare` takes; `timed` has session_id, arm,
    block.
    """
    return _sessions(lake, plan, iterations_of(lake, timed))


def shared_facts(lake: TraceLake, sessions: Sequence[str]) -> pl.DataFrame:
    """Read the facts on which compared sessions must agree: session_id, fingerprint, device, boot_id, cache_state."""
    facts = [_facts(session, lake.read("environment", session)) for session in sessions]
    known = pl.DataFrame(facts, schema=dict.fromkeys(_FACTS, pl.String))
    ran = lake.read("sessions", sessions).select("session_id", pl.col("provider").cast(pl.String))
    states = cache_states(lake.read("environment", sessions).join(ran, on="session_id"))
    return known.join(states, on="session_id", how="left", maintain_order="left")


def cache_states(environment: pl.DataFrame) -> pl.DataFrame:
    """Determine which sessions lacked compiled and tuned kernels that other sessions of their provider found cached.

    Args:
        environment: Columns session_id, provider, category, key and value.

    Returns:
        session_id and cache_state: `cold` if a cache was empty or absent that was filled for another session of the
        provider, and `warm` for all other sessions in that case; null if no session is cold. ONNX Runtime's CPU
        provider has no cache.
    """
    caches = environment.filter(
        (pl.col("category") == "cache")
        & ~pl.col("key").str.contains(_OF_A_CACHE)
        & pl.col("provider").ne_missing(_KEEPS_NO_CACHE)
    )
    lacks = pl.col("value").is_in(["empty", "absent"])
    filled = (pl.col("value") == "present").any().over("provider", "key")
    cold = caches.with_columns(is_cold=lacks & filled).group_by("session_id").agg(pl.col("is_cold").any())
    sessions = environment.select("session_id").unique(maintain_order=True)
    states = sessions.join(cold, on="session_id", how="left").with_columns(pl.col("is_cold").fill_null(False))
    state = pl.when(pl.col("is_cold")).then(pl.lit("cold")).otherwise(pl.lit("warm"))
    return states.select("session_id", cache_state=pl.when(pl.col("is_cold").any()).then(state))


def _sessions(lake: TraceLake, plan: Plan, measured: pl.DataFrame) -> pl.DataFrame:
    """Compute rows of `session_quantiles` with the facts on which compared sessions must agree."""
    named = measured.get_column("session_id").unique(maintain_order=True).to_list()
    what = lake.read("sessions", named).select("session_id", "host")
    disturbed = disturbed_ratios(lake.read("session_metrics", named))
    return (
        leave_out_disturbed(session_quantiles(measured), disturbed, MOST_DISTURBED)
        .join(what, on="session_id")
        .join(shared_facts(lake, named), on="session_id")
        .with_columns(campaign_id=pl.lit(plan.campaign), workload=pl.lit(plan.workload))
    )


def _facts(session: str, environment: pl.DataFrame) -> dict[str, str | None]:
    """Collect facts that must be equal for all arms: the system below the model's software, the device, the boot."""
    values = {(category, key): value for category, key, value in environment.select("category", "key", "value").rows()}
    system = environment.filter(pl.col("in_fingerprint") & ~pl.col("category").is_in(_OF_THE_SOFTWARE))
    rows = system.select("category", "key", "value").sort("category", "key").rows()
    devices = sorted(f"{key} {value}" for (category, key), value in values.items() if category == _IDENTITY and value)
    return {
        "session_id": session,
        "fingerprint": hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16],
        "device": ", ".join(devices) or None,
        "boot_id": values.get(("boot", "id")),
    }


def _remarks(lake: TraceLake, sessions: pl.DataFrame) -> list[str]:
    """List points for the user to check: unusable sessions with the reason, and differences between environments."""
    unusable = sessions.filter(pl.col("state") == "unusable").select("session_id", "reasons")
    told = [f"{session} tells nothing: {reasons[0]}" for session, reasons in unusable.head(_MOST_NAMED).iter_rows()]
    if unusable.height > _MOST_NAMED:
        verb = "tells" if unusable.height == _MOST_NAMED + 1 else "tell"
        told.append(f"{counted(unusable.height - _MOST_NAMED, 'further session')} {verb} nothing either")
    if sessions.get_column("fingerprint").n_unique() > 1:
        facts = lake.read("environment", sessions.get_column("session_id").to_list())
        system = facts.filter(pl.col("in_fingerprint") & ~pl.col("category").is_in(_OF_THE_SOFTWARE))
        values = system.group_by("category", "key").agg(
            pl.col("value").drop_nulls().unique().sort(), sessions=pl.col("session_id").n_unique()
        )
        differs = (pl.col("value").list.len() > 1) | (pl.col("sessions") < sessions.height)
        for category, key, found, _ in values.filter(differs).sort("category", "key").head(_MOST_NAMED).iter_rows():
            told.append(f"the environments differ in {category} {key}: {', '.join(found) or 'recorded or not'}")
    return told


def is_identical(plan: Plan, candidate: Arm) -> bool:
    """Return whether an arm is identical to the baseline: same file content, measured in the same way."""
    compared = plan.arms["baseline"], plan.arms[candidate]
    asked = [{**dict(one.request), "model": one.artefact_sha256, "artefact": None} for one in compared]
    return asked[0] == asked[1]


def _other_work(plan: Plan, candidate: Arm) -> str | None:
    """Explain why an arm's times cannot be compared with the baseline's (a different batch size); None if they can."""
    batches = [plan.arms[arm].request.batch_size for arm in (_BASELINE, candidate)]
    if batches[0] == batches[1]:
        return None
    told = " and ".join("the model's own" if batch is None else str(batch) for batch in batches)
    return f"the arms do not do the same work: their batches are {told}"


def _causes(lake: TraceLake, traced: pl.DataFrame, candidate: str) -> tuple[pl.DataFrame, pl.DataFrame, str | None]:
    """Derive `attributions` and `selections` from the traced sessions of both arms, and describe the main cause.

    Different selections come first. Empty if an arm has no traced session, or none whose steps can be separated.
    """
    nothing = empty_table("attributions"), empty_table("selections"), None
    sides = []
    for name in (_BASELINE, candidate):
        sessions = traced.filter(pl.col("arm") == name).get_column("session_id")
        if sessions.is_empty():
            return nothing
        read = dict.fromkeys((*ACCOUNTED_FROM, *FACTS))
        sides.append(arm({session: {name: lake.read(name, session) for name in read} for session in sessions}))
    if not all(side.accounts for side in sides):
        return nothing
    replaced = replaced_kernels(sides[0].accounts, sides[1].accounts)
    split = decompose(sides[0], sides[1], replaced)
    differing = environment_differences(sides[0], sides[1], interleaved=True)
    chosen = selections(sides[0], sides[1], replaced)
    parts = split.causes.filter(pl.col("in_sum") & (pl.col("kind") != "unexplained"))
    first = None
    if chosen.height:
        first = selection_in_words(chosen.row(0, named=True))
    elif parts.height:
        first = cause_in_words(parts.row(0, named=True))
    attributions = attribution_rows(_BASELINE, candidate, split, differing)
    return attributions, selection_rows(_BASELINE, candidate, chosen), first


def half_campaigns(lake: TraceLake) -> list[str]:
    """List planned campaigns without a verdict, oldest plan first; campaigns being removed are left out."""
    going = half_removed(lake)
    planned = [one for one in lake.manifests("campaign") if one.of_stage(PLAN) and one.id not in going]
    half = [one.id for one in planned if not one.of_stage(STAGE)]
    return sorted(half, key=lambda campaign: campaign.split("-", 1)[-1])


def over(lake: TraceLake, half: Sequence[str], today: date) -> dict[str, date]:
    """Return the campaigns in `half` whose night is over, with the night; old and new blocks must not be mixed.

    A campaign that confirms a night's finding can continue at any time.
    """
    first = pl.col("confirms").is_null() & (pl.col("night") < today)
    return dict(lake.read("campaigns", half).filter(first).select("campaign_id", "night").iter_rows())
