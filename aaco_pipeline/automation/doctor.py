"""What is wrong between the lake, Dagster's instance and this host, and mending what can be mended.

Faults within the lake's files are found by `aaco_pipeline.lake.health`, dead runs by
`aaco_pipeline.automation.dead_runs`; here they are put together with what only shows when both sides are seen.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import dagster as dg

from aaco_pipeline.assets.stage import outdated, stages, standing
from aaco_pipeline.automation.attempts import PARTITION_TAG
from aaco_pipeline.automation.campaigns.unfinished import half_campaigns, over, unknown_campaigns
from aaco_pipeline.automation.dead_runs import await_names, find_dead_runs, living_runs, reap, unserved_runs
from aaco_pipeline.automation.known_sessions import make_known, once_of, unknown_sessions
from aaco_pipeline.automation.partitions import CAMPAIGN_PARTITIONS_NAME, PARTITIONS_NAME
from aaco_pipeline.automation.retention import clean_up
from aaco_pipeline.automation.sessions import add_partition, forget
from aaco_pipeline.automation.unfinished import begun, busy_sessions, can_be_run, half_removed
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import health
from aaco_pipeline.lake.removals import Account
from aaco_pipeline.lake.retention import Limits
from aaco_pipeline.lake.store import TraceLake


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `mend` puts it right and tells whether it did; None when a person has to.

    It raises AacoError where it says why it could not.
    """

    kind: str
    subject: str
    explanation: str
    mend: Callable[[], bool] | None = field(default=None, compare=False)


def examine(
    lake: TraceLake, instance: dg.DagsterInstance | None, finish: Callable[[str], object] | None = None
) -> list[Problem]:
    """Everything that is wrong. Without an instance (none was ever made), only the lake is looked at.

    `finish` makes a half session whole, raising AacoError when it cannot: what mends what is torn, too. Without it a
    person has to. With it, what runs and Dagster's daemon have to say of themselves is waited for, a minute at most.
    """
    found = list(_lake_ailments(lake, instance, finish))
    if instance is not None:
        if finish is not None:
            await_names(instance)
        found.extend(_dead_runs(instance))
        found.extend(_unserved_runs(instance, wait=finish is not None))
    try:
        found.extend(_half_removed(lake, instance))
        half = begun(lake)
        busy = busy_sessions(lake, instance, half)
        found.extend(_half_sessions(lake, instance, [session for session in half if session not in busy], finish))
        found.extend(_outdated_sessions(lake, instance, {*half, *busy}, finish))
        found.extend(_half_campaigns(lake, instance))
        found.extend(_campaigns_that_lost_sessions(lake))
        if instance is not None:
            found.extend(_disagreements(lake, instance, half, busy))
            found.extend(_campaigns_out_of_step(lake, instance))
    except LakeError as error:
        if all(one.kind not in health.OF_MANIFESTS for one in found):
            found.append(Problem("unreadable lake", str(lake.path), f"{error}; sessions were not compared"))
    return found


def _lake_ailments(
    lake: TraceLake, instance: dg.DagsterInstance | None, finish: Callable[[str], object] | None
) -> Iterator[Problem]:
    def mended(fault: health.Fault) -> bool:
        if not health.mend(lake, fault):
            return False
        return fault.session is None or finish is None or _finishing(lake, instance, fault.session, finish)()

    for fault in health.faults(lake):
        can_mend = fault.mendable and (fault.session is None or finish is not None)
        yield Problem(fault.kind, str(fault.path), fault.explanation, partial(mended, fault) if can_mend else None)


def _dead_runs(instance: dg.DagsterInstance) -> Iterator[Problem]:
    for dead in find_dead_runs(instance):

        def mend(run_id: str = dead.run_id) -> bool:
            reap(instance)  # all of them: whichever comes first, the others are well then, too
            return run_id not in {one.run_id for one in find_dead_runs(instance)}

        yield Problem("dead run", f"run {dead.run_id}", f"{dead.reason}; it may hold the measurement slot", mend)


def _unserved_runs(instance: dg.DagsterInstance, *, wait: bool) -> Iterator[Problem]:
    for run in unserved_runs(instance, wait=wait):

        def mend(run: dg.DagsterRun = run) -> bool:
            # Whatever it was to do is found half, or still in the inbox.
            instance.report_run_canceled(run, "Taken out of the queue: no daemon of Dagster serves it.")
            return True

        why = "it waits in a queue that no daemon of Dagster serves; `aaco ui` starts one"
        yield Problem("unserved run", f"run {run.run_id}", why, mend)


def _half_removed(lake: TraceLake, instance: dg.DagsterInstance | None) -> Iterator[Problem]:
    for session in sorted(half_removed(lake)):

        def remove(session: str = session) -> bool:
            clean_up(lake, instance, Limits(), datetime.now(UTC))  # without limits: only what was begun
            return session not in half_removed(lake)

        yield Problem("half removed", session, "its removal was broken off", remove)


def _half_sessions(
    lake: TraceLake,
    instance: dg.DagsterInstance | None,
    sessions: Sequence[str],
    finish: Callable[[str], object] | None,
) -> Iterator[Problem]:
    for session in sessions:
        progress = standing(lake, session)
        if progress.is_whole:
            continue  # one of before manifests stated their stages
        failed = "".join(f"; {state.stage} failed: {state.failure}" for state in progress.failed)
        if not can_be_run(lake, session):
            if lake.manifest(session).entries:
                why = f"{progress.count}{failed}; its capture is gone, so they cannot be computed: `aaco rm` removes it"
                yield Problem("half session", session, why)
            else:
                why = "it has neither a request nor a capture"
                mend = None if instance is None else _forgetting(lake, instance, session)
                yield Problem("session of nothing", session, why, mend)
            continue

        mend = None if finish is None else _finishing(lake, instance, session, finish)
        yield Problem("half session", session, f"{progress.count}{failed}", mend)


def _outdated_sessions(
    lake: TraceLake,
    instance: dg.DagsterInstance | None,
    others: Collection[str],
    finish: Callable[[str], object] | None,
) -> Iterator[Problem]:
    """Whole sessions of an earlier version, but for `others`: they can be read, and lack what stages now tell."""
    for manifest in lake.manifests("session"):
        session = manifest.id
        behind = () if session in others else outdated(lake, session, manifest)
        if not behind:
            continue
        published = {entry.table for entry in manifest.entries}
        lacking = sorted({name for one in behind for name in stages()[one].tables} - published)
        why = f"of an earlier version: {', '.join(behind)} did not publish {', '.join(lacking)} yet"
        if not can_be_run(lake, session):
            yield Problem("earlier version", session, f"{why}; its capture is gone, so that it stays as it is")
            continue
        mend = None if finish is None else _finishing(lake, instance, session, finish)
        yield Problem("earlier version", session, why, mend)


def _disagreements(
    lake: TraceLake, instance: dg.DagsterInstance, half: Sequence[str], busy: Collection[str]
) -> Iterator[Problem]:
    for session, shown in unknown_sessions(lake, instance, busy).items():
        if not lake.manifest(session).entries:
            continue  # finishing it makes it known

        def add(session: str = session, shown: frozenset[str] = shown) -> bool:
            make_known(lake, instance, session, shown)
            return True

        yield Problem("session without partition", session, "Dagster does not show a session of the lake", add)
    others = set(instance.get_dynamic_partitions(PARTITIONS_NAME)).difference(lake.sessions(), half, busy)
    for session in sorted(once_of(lake, instance, others)):
        why = "the lake holds nothing of it"
        yield Problem("partition without session", session, why, _forgetting(lake, instance, session))


def _half_campaigns(lake: TraceLake, instance: dg.DagsterInstance | None) -> Iterator[Problem]:
    """Campaigns without a verdict that nobody is at work on. To measure what is left is for a person to say.

    All of a night are planned before the first begins: while one is measured, the others are no problem.
    """
    living = set() if instance is None else {run.tags.get(PARTITION_TAG) for run in living_runs(instance)}
    half = half_campaigns(lake)
    busy = {one for one in half if one in living or lake.is_measuring(one)}
    plans = lake.read("campaigns")
    nights = dict(plans.select("campaign_id", "night").iter_rows())
    configures = set(plans.filter(kind="configure").get_column("campaign_id"))
    at_work = {nights[one] for one in busy} - {None}
    ended = over(lake, half, datetime.now(UTC).date())
    for campaign in half:
        why = f"it has a plan and no verdict; `aaco compare --resume {campaign}` goes on, `aaco rm` gives it up"
        if campaign in configures:
            why = f"the search that it is a step of ended without it; `aaco rm {campaign}` removes it"
        if campaign in ended:
            why = f"its night, {ended[campaign]}, is over, so nobody goes on with it; `aaco rm {campaign}` removes it"
        if campaign not in busy and nights.get(campaign) not in at_work:
            yield Problem("half campaign", campaign, why)


def _campaigns_that_lost_sessions(lake: TraceLake) -> Iterator[Problem]:
    known = {*lake.sessions(), *lake.captured()}
    finished = lake.read("campaign_sessions").filter(state="finished")
    for campaign, session in finished.select("campaign_id", "session_id").iter_rows():
        if session not in known:
            why = f"the lake holds nothing of its session {session}; `aaco rm {campaign}` removes the rest"
            yield Problem("torn campaign", campaign, why)


def _campaigns_out_of_step(lake: TraceLake, instance: dg.DagsterInstance) -> Iterator[Problem]:
    for campaign in unknown_campaigns(lake, instance):

        def add(campaign: str = campaign) -> bool:
            instance.add_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME, [campaign])
            return True

        yield Problem("campaign without partition", campaign, "Dagster does not show a campaign of the lake", add)
    gone = Account(lake).named("campaign").difference(lake.read("campaigns").get_column("campaign_id"))
    for campaign in sorted(gone.intersection(instance.get_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME))):

        def drop(campaign: str = campaign) -> bool:
            instance.delete_dynamic_partition(CAMPAIGN_PARTITIONS_NAME, campaign)
            return True

        yield Problem("partition without campaign", campaign, "the lake holds nothing of it", drop)


def _finishing(
    lake: TraceLake, instance: dg.DagsterInstance | None, session: str, finish: Callable[[str], object]
) -> Callable[[], bool]:
    def finished() -> bool:
        if instance is not None:
            add_partition(instance, session)
        finish(session)
        return bool(standing(lake, session).is_whole) and not outdated(lake, session)

    return finished


def _forgetting(lake: TraceLake, instance: dg.DagsterInstance, session: str) -> Callable[[], bool]:
    def forgotten() -> bool:
        forget(lake, instance, session)
        return True

    return forgotten
