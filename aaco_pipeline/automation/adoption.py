"""Show sessions, campaigns and searches in Dagster that were created outside it; uses one sensor and one job.

The difference is computed by pure functions; events for a published stage are built in `stage_events`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import dagster as dg
import polars as pl
from pydantic import Field

from aaco_pipeline.assets.stage import Session, Stage, kind_of, stages
from aaco_pipeline.automation import campaigns, optimization
from aaco_pipeline.automation.campaigns import STAGE_OF_ASSET
from aaco_pipeline.automation.optimization import JOB as SEARCH_JOB
from aaco_pipeline.automation.optimization import SEARCH_KEY
from aaco_pipeline.automation.optimization import optimization as search_asset
from aaco_pipeline.automation.resources import (
    CAMPAIGN_PARTITIONS_NAME,
    PARTITIONS_NAME,
    Lake,
    add_campaigns,
    add_partition,
)
from aaco_pipeline.automation.runs import SESSIONS_TAG, living_runs, sessions_of
from aaco_pipeline.automation.stage_events import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    LAKE_KEY,
    amounts,
    code_version,
    data_version,
    expected_errors,
    log_result,
    materialization,
    newest_materializations,
)
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.catalogue import Catalogue
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.layout import scope_of
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.retention import Account
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.session_stages import CONTRACT, CheckResult, checked
from aaco_pipeline.report.formatting import in_a_line
from aaco_pipeline.resources.host.kernel_files import process_tags

JOB: Final = "adopt_sessions"
#: Maximum number of sessions, and of campaigns, that one run adopts.
MOST_ADOPTED: Final = 50
#: Maximum number of each kind that is compared with Dagster per tick.
MOST_LOOKED_UP: Final = 200
#: Interval after which everything is compared again, to find events that were wiped in Dagster.
EVERYTHING_SECONDS: Final = 6 * 3600.0
#: Key in the catalogue for manifests that Dagster shows completely.
_ADOPTED: Final = "adopted"
_CAPTURE: Final = "capture"
_SEARCHES_AT_ONCE: Final = 1000
#: Tag on a killed run: sessions whose missing events a later run has logged. Hidden in the interface.
_COMPLETED_TAG: Final = ".dagster/aaco/completed"
_PARTITIONS: Final[Mapping[Scope, str]] = {"session": PARTITIONS_NAME, "campaign": CAMPAIGN_PARTITIONS_NAME}
#: Command that creates each kind of session; any other kind comes from `aaco run`.
_COMMANDS = {"ingested": "aaco ingest", "program": "aaco record"}


@dataclass(frozen=True)
class Published:
    """Stage of a session, or asset of a campaign, as published in the lake; `checks` are the names of its checks."""

    asset: str
    data_version: str
    code_version: str = ""
    checks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Lack:
    """Events missing in Dagster for one partition of an asset: the materialization, or only some check results."""

    asset: str
    checks: frozenset[str]
    #: The run that was killed after it logged the materialization; None if the materialization is missing.
    killed: str | None = None


@dataclass(frozen=True)
class Due:
    """Ids for one adoption run: sessions and campaigns, newest first, and searches, oldest first."""

    sessions: tuple[str, ...]
    campaigns: tuple[str, ...]
    searches: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.sessions or self.campaigns or self.searches)


def look_of(cursor: str | None, now: float) -> str:
    """Return the name of the current full comparison, which begins with its start time in s since 1970; a new one if
    due.

    A deleted Dagster home has no cursor, so earlier adoptions in it no longer count.
    """
    began = (cursor or "").partition(" ")[0]
    is_recent = began.isdecimal() and 0 <= now - int(began) < EVERYTHING_SECONDS
    return cursor if cursor is not None and is_recent else f"{int(now)} {uuid4().hex}"


def due(lake: TraceLake, instance: dg.DagsterInstance, look: str) -> Due:
    """Find what is published in the lake and missing in Dagster, at most `MOST_ADOPTED` of each kind.

    Anything adopted since `look` began is skipped until its manifest changes. Sessions and campaigns that a process or
    a live run is working on are left for later.
    """
    living = living_runs(instance)
    busy = {name for run in living for name in sessions_of(run)}
    is_searching = any(run.job_name == SEARCH_JOB for run in living)  # a running search reports itself when it ends
    with lake.catalogue() as known:
        known.require_readable("session")
        known.require_readable("campaign")
        asking = _Asking(lake, instance, known, look)
        found = {scope: asking.partitions(scope, busy) for scope in _PARTITIONS}
        return Due(found["session"], found["campaign"], () if is_searching else asking.searches())


def published(manifest: Manifest) -> list[Published]:
    """List what Dagster should show for a session or campaign, in creation order; failed stages are left out."""
    if manifest.scope == "campaign":
        entries = {asset: manifest.of_stage(stage) for asset, stage in STAGE_OF_ASSET.items()}
        return [Published(asset, data_version(some)) for asset, some in entries.items() if some]
    done = {state.stage for state in manifest.stages if state.failure is None}
    return [
        Published(
            name,
            data_version(manifest.of_stage(name)),
            code_version(manifest, name),
            frozenset({CONTRACT, *(check.name for check in one.checks)}),
        )
        for name, one in stages().items()
        if name in done
    ]


def lacks(instance: dg.DagsterInstance, manifests: Sequence[Manifest]) -> dict[str, list[Lack]]:
    """Find events missing in Dagster for sessions or campaigns, by id and in creation order."""
    wanted = {manifest.id: published(manifest) for manifest in manifests}
    newest: dict[str, dict[str, dg.EventLogRecord]] = {}
    for asset in {one.asset for some in wanted.values() for one in some}:
        asked = [identifier for identifier, some in wanted.items() if any(one.asset == asset for one in some)]
        newest[asset] = newest_materializations(instance, asset, asked)
    told_by = _killed_runs(instance, {record.run_id for some in newest.values() for record in some.values()})
    found: dict[str, list[Lack]] = {identifier: [] for identifier in wanted}
    for identifier, some in wanted.items():
        for one in some:
            record = newest[one.asset].get(identifier)
            if record is None or not _is_of(record, one):
                found[identifier].append(Lack(one.asset, one.checks))
            elif record.run_id in told_by and identifier not in told_by[record.run_id].completed:
                missing = one.checks - told_by[record.run_id].checks.get((one.asset, identifier), set())
                if missing:
                    found[identifier].append(Lack(one.asset, missing, record.run_id))
    return found


def gone(lake: TraceLake, instance: dg.DagsterInstance) -> dict[Scope, set[str]]:
    """Find partitions of sessions and campaigns that were removed from this lake.

    Several lakes can share one Dagster home. The capture's materialization names the lake if there is one; otherwise
    this lake's log of removals decides.
    """
    with lake.catalogue() as known:
        present = {
            *known.contents("session"),
            *known.contents("campaign"),
            *known.errors,
            *lake.captured(),
            *lake.requests(),
        }
    found: dict[Scope, set[str]] = {}
    for scope, name in _PARTITIONS.items():
        absent = set(instance.get_dynamic_partitions(name)) - present
        found[scope] = absent & once_of(lake, instance, absent)
    return found


def once_of(lake: TraceLake, instance: dg.DagsterInstance, names: Iterable[str]) -> set[str]:
    """Return the subset of `names` that are known former sessions or campaigns of this lake."""
    asked, account = set(names), Account(lake)
    if not asked:
        return set()
    shown = newest_materializations(instance, _CAPTURE, sorted(asked))
    places = {one: record.asset_materialization for one, record in shown.items()}
    told = {one: made.metadata.get(LAKE_KEY) for one, made in places.items() if made is not None}
    own = {one for one, place in told.items() if place is not None and place.value == str(lake.path)}
    return own | (asked - shown.keys()) & (account.named("session") | account.named("campaign"))


def forget(instance: dg.DagsterInstance, partitions: Mapping[Scope, Iterable[str]]) -> None:
    """Delete partitions; the runs that belonged to them stay in Dagster's history."""
    for scope, names in partitions.items():
        for name in names:
            instance.delete_dynamic_partition(_PARTITIONS[scope], name)


def shown_searches(instance: dg.DagsterInstance) -> set[str]:
    """Find the searches that Dagster already shows."""
    shown, cursor, has_more = set[str](), None, True
    while has_more:
        answer = instance.fetch_materializations(search_asset.key, limit=_SEARCHES_AT_ONCE, cursor=cursor)
        made = [record.asset_materialization for record in answer.records if record.asset_materialization is not None]
        shown |= {str(one.metadata[SEARCH_KEY].value) for one in made if SEARCH_KEY in one.metadata}
        cursor, has_more = answer.cursor, answer.has_more
    return shown


@dataclass(frozen=True)
class _Asking:
    """One sensor tick; the catalogue records which manifests are shown completely."""

    lake: TraceLake
    instance: dg.DagsterInstance
    known: Catalogue
    look: str

    def partitions(self, scope: Scope, busy: Collection[str]) -> tuple[str, ...]:
        """Find sessions or campaigns that are missing in Dagster, newest first; busy ones are skipped."""
        contents = self.known.contents(scope)
        if scope == "campaign":  # baselines and searches have no partition
            planned = {identifier for identifier, entry in self.known.entries("campaigns", scope) if entry.rows}
            contents = {one: content for one, content in contents.items() if one in planned}
        there = set(self.instance.get_dynamic_partitions(_PARTITIONS[scope]))
        sure = self._adopted(contents) & there
        unsure = sorted(contents.keys() - sure - set(busy), key=_age, reverse=True)
        found: list[str] = []
        for first in range(0, min(len(unsure), MOST_LOOKED_UP), MOST_ADOPTED):
            some = [one for one in unsure[first : first + MOST_ADOPTED] if not self._is_at_work(scope, one)]
            lacking = lacks(self.instance, [self.lake.manifest(one, scope) for one in some])
            adopted = [one for one in some if one in there and not lacking[one]]
            self._remember(contents, adopted)
            found += [one for one in some if one not in adopted]
            if len(found) >= MOST_ADOPTED:
                break
        return tuple(found[:MOST_ADOPTED])

    def searches(self) -> tuple[str, ...]:
        """Find finished searches without a materialization, oldest first."""
        contents = self.known.contents("campaign")
        searches = {one for one, entry in self.known.entries("optimizations", "campaign") if entry.rows}
        unsure = sorted(searches - self._adopted(contents), key=_age)
        if not unsure:
            return ()
        ended = self.lake.read("optimizations", unsure).filter(pl.col("ended_by").is_not_null())
        names = set(ended.get_column("campaign_id").cast(pl.String))
        shown = shown_searches(self.instance)
        self._remember(contents, sorted(names & shown))
        return tuple(sorted(names - shown, key=_age)[:MOST_ADOPTED])

    def _adopted(self, contents: Mapping[str, str]) -> set[str]:
        """Find entries recorded as adopted whose manifest has not changed since."""
        remembered = self.known.remembered(_ADOPTED)
        return {one for one, content in contents.items() if remembered.get(one, ("",))[0] == f"{self.look} {content}"}

    def _remember(self, contents: Mapping[str, str], adopted: Iterable[str]) -> None:
        self.known.remember(_ADOPTED, {one: (f"{self.look} {contents[one]}", "") for one in adopted})

    def _is_at_work(self, scope: Scope, identifier: str) -> bool:
        return self.lake.is_running(identifier) if scope == "session" else self.lake.is_measuring(identifier)


def _is_of(record: dg.EventLogRecord, one: Published) -> bool:
    """Return whether a materialization matches the published state; campaigns have no code version."""
    made = record.asset_materialization
    tags = (made.tags or {}) if made is not None else {}
    is_by = not one.code_version or tags.get(CODE_VERSION_TAG) == one.code_version
    return is_by and tags.get(DATA_VERSION_TAG) == one.data_version


def complete(instance: dg.DagsterInstance, killed: str, sessions: Iterable[str]) -> None:
    """Tag a killed run: Dagster now has all its missing events for these sessions."""
    run = instance.get_run_by_id(killed)
    before = run.tags.get(_COMPLETED_TAG, "").split(",") if run is not None else []
    instance.add_run_tags(killed, {_COMPLETED_TAG: ",".join(sorted({*filter(None, before), *sessions}))})


@dataclass(frozen=True)
class _Killed:
    """A killed run's logged checks by asset and partition, and the sessions completed since."""

    completed: frozenset[str]
    checks: dict[tuple[str, str | None], set[str]]


def _killed_runs(instance: dg.DagsterInstance, runs: set[str]) -> dict[str, _Killed]:
    """Read the logs of the adoption runs among `runs` that did not finish."""
    of_job = instance.get_runs(dg.RunsFilter(run_ids=list(runs), job_name=JOB)) if runs else []
    found: dict[str, _Killed] = {}
    for run in of_job:
        if run.status == dg.DagsterRunStatus.SUCCESS:
            continue
        told: dict[tuple[str, str | None], set[str]] = {}
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
            event = entry.dagster_event
            if event is not None:
                check = event.asset_check_evaluation_data
                told.setdefault((check.asset_key.to_user_string(), check.partition), set()).add(check.check_name)
        found[run.run_id] = _Killed(frozenset(run.tags.get(_COMPLETED_TAG, "").split(",")), told)
    return found


def _age(identifier: str) -> str:
    """Return a sort key by time: session ids start with the time, campaign ids have it after the kind."""
    return identifier if scope_of(identifier) == "session" else identifier.partition("-")[2]


class Adoption(dg.Config):
    """Ids to adopt; events that are already in Dagster are skipped."""

    sessions: list[str] = Field([], description="Sessions of the lake.")
    campaigns: list[str] = Field([], description="Campaigns of the lake.")
    searches: list[str] = Field([], description="Searches for a faster kernel or configuration.")


@dg.op(
    description="Log partitions, materializations and check results of what the lake holds and Dagster does not show.",
    out=dg.Out(dg.Nothing),
)
def adopt(context: dg.OpExecutionContext, config: Adoption, lake: Lake) -> None:
    named = ",".join([*config.sessions, *config.campaigns])  # the run's events are kept while any of these exists
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
    """Log materializations session by session, then the check results, once the materializations have record ids."""
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
    """Evaluate checks without a result; if tables are torn, only the contract check runs."""
    try:
        for result in checked(session, one):
            if result.name in lack.checks:
                yield result
    except Exception as error:  # noqa: BLE001  (a check can fail in any way on a torn table)
        context.log.warning(in_a_line(f"{session.id}: checks of {one.name} cannot be evaluated: {error}"))


def _maker(lake: TraceLake, session: str) -> str:
    """Describe which command created a session, on which host and when, as far as the lake states it."""
    stated = []
    with suppress(LakeError):  # for a torn table, the contract check reports the error
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
