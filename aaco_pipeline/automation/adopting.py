"""The job `adopt_sessions`: its op logs in Dagster what the lake holds of the sessions and campaigns that it is given.

What Dagster lacks is found in `aaco_pipeline.automation.adoption`; the sensor `lake_sessions` requests the runs.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from aaco_pipeline.assets.stage import Session, Stage, kind_of, stages
from aaco_pipeline.automation import campaigns, optimization
from aaco_pipeline.automation.adoption import JOB, Lack, complete, lacks, shown_searches
from aaco_pipeline.automation.partitions import add_campaigns, add_partition
from aaco_pipeline.automation.resources import Lake
from aaco_pipeline.automation.runs import SESSIONS_TAG
from aaco_pipeline.automation.stage_events import (
    DATA_VERSION_TAG,
    amounts,
    data_version,
    expected_errors,
    log_result,
    materialization,
    newest_materializations,
)
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.checks import CheckResult, checked
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.resources.host.process_identity import process_tags

#: By kind of session the command that makes one; `aaco run` makes the others.
_COMMANDS = {"ingested": "aaco ingest", "program": "aaco record"}


class Adoption(dg.Config):
    """Ids to adopt; events that Dagster has already are skipped."""

    sessions: list[str] = Field([], description="Sessions of the lake.")
    campaigns: list[str] = Field([], description="Campaigns of the lake.")
    searches: list[str] = Field([], description="Searches for a faster kernel or configuration.")


@dg.op(
    description="Log partitions, materializations and check results of what the lake holds and Dagster does not show.",
    out=dg.Out(dg.Nothing),
)
def adopt(context: dg.OpExecutionContext, config: Adoption, lake: Lake) -> None:
    named = ",".join([*config.sessions, *config.campaigns])  # while one of them is there, the run's events are
    context.instance.add_run_tags(context.run_id, {SESSIONS_TAG: named, **process_tags()})
    opened = lake.open()
    with expected_errors():
        held = {*opened.sessions()}
        _adopt_sessions(context, opened, [one for one in config.sessions if one in held])
        held = {*opened.campaigns()}
        _adopt_campaigns(context, opened, [one for one in config.campaigns if one in held])
        _adopt_searches(context, opened, [one for one in config.searches if one in held])


@dg.job(
    name=JOB,
    description="Show what the command, another host or an earlier home has made; nothing is measured or computed.",
    executor_def=dg.in_process_executor,
)
def adopt_sessions() -> None:
    adopt()


def _adopt_sessions(context: dg.OpExecutionContext, lake: TraceLake, sessions: list[str]) -> None:
    """Log the materializations session by session; then, by then known by number, the results of their checks."""
    add_partition(context.instance, *sessions)
    found: list[tuple[str, Stage, CheckResult]] = []
    owed: dict[str, set[str]] = {}
    lacking = lacks(context.instance, [lake.manifest(session) for session in sessions])
    for session, some in lacking.items():
        if lake.is_running(session):
            context.log.info(f"{session} is being worked on: it is adopted afterwards")
            continue
        manifest, opened = lake.manifest(session), Session(lake, session, Path())
        results = [(session, one, result) for one, lack in _of(some) for result in _results(context, opened, one, lack)]
        told = {"made by": _maker(lake, session)} if some else {}
        events = [
            materialization(opened, one, {**amounts(opened, one, manifest.of_stage(one.name)), **told})
            for one, lack in _of(some)
            if lack.killed is None
        ]
        if lake.manifest(session) != manifest:
            context.log.info(f"{session} was changed meanwhile: it is adopted afterwards")
            continue
        for event in events:
            context.log_event(event)
        found += results
        for lack in some:
            if lack.killed is not None:
                owed.setdefault(lack.killed, set()).add(session)
        context.log.info(f"{session}: {len(events)} stages, {len(results)} results of checks")
    for name, one in stages().items():
        of_stage = [(session, result) for session, each, result in found if each is one]
        newest = newest_materializations(context.instance, name, sorted({session for session, _ in of_stage}))
        for session, result in of_stage:
            log_result(context, one, session, result, newest.get(session))
    for killed, completed in owed.items():
        complete(context.instance, killed, completed)


def _of(lacking: list[Lack]) -> Iterator[tuple[Stage, Lack]]:
    return ((stages()[lack.asset], lack) for lack in lacking)


def _results(context: dg.OpExecutionContext, session: Session, one: Stage, lack: Lack) -> Iterator[CheckResult]:
    """Evaluate the checks that lack a result; of torn tables the contract tells first, and the others cannot."""
    try:
        for result in checked(session, one):
            if result.name in lack.checks:
                yield result
    except Exception as error:  # noqa: BLE001  (whatever a torn table makes of a promise)
        context.log.warning(in_a_line(f"{session.id}: checks of {one.name} cannot be evaluated: {error}"))


def _maker(lake: TraceLake, session: str) -> str:
    """Word which command made a session, on which host and when, as far as the lake states it."""
    stated = []
    with suppress(LakeError):  # of a torn table its contract tells
        stated = lake.read("sessions", session).select("campaign_id", "host", "started_at").rows()
    campaign, host, time = stated[0] if stated else (None, None, None)
    by = f"campaign {campaign}" if campaign else _COMMANDS.get(kind_of(lake, session), "aaco run")
    return in_a_line(f"{by}{f' on {host}' if host else ''}{f' at {time:%Y-%m-%d %H:%M:%S} UTC' if time else ''}")


def _adopt_campaigns(context: dg.OpExecutionContext, lake: TraceLake, names: list[str]) -> None:
    add_campaigns(context.instance, *names)
    for campaign, some in lacks(context.instance, [lake.manifest(name, "campaign") for name in names]).items():
        manifest = lake.manifest(campaign, "campaign")
        for lack in some:
            version = data_version(manifest.of_stage(campaigns.STAGE_OF_ASSET[lack.asset]))
            told: dict[str, Any] = {"made by": "aaco", **campaigns.TOLD[lack.asset](lake, campaign)}
            tags = {DATA_VERSION_TAG: version}
            context.log_event(dg.AssetMaterialization(lack.asset, metadata=told, partition=campaign, tags=tags))


def _adopt_searches(context: dg.OpExecutionContext, lake: TraceLake, names: list[str]) -> None:
    shown = shown_searches(context.instance) if names else set()
    for name in names:
        if name not in shown:
            told = {"made by": "aaco optimize", **optimization.told(lake, name)}
            context.log_event(dg.AssetMaterialization(optimization.optimization.key, metadata=told))
