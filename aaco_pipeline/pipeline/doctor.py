"""Find problems in a lake, and repair those that can be repaired.

`aaco_pipeline.lake.health` finds damaged files; this module adds incomplete sessions and campaigns. Dagster's own
sensors correct what it displays.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from aaco_pipeline.assets.stage import outdated, stages, standing
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import health
from aaco_pipeline.lake.retention import Limits
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import half_campaigns, over
from aaco_pipeline.pipeline.retention import clean_up
from aaco_pipeline.pipeline.sessions import begun, can_be_run, half_removed, running_sessions

Finish = Callable[[str], object]


@dataclass(frozen=True)
class Problem:
    """A problem. `mend` repairs it and returns whether it succeeded; None if the user has to act.

    `mend` may raise AacoError with the reason for a failure.
    """

    kind: str
    subject: str
    explanation: str
    mend: Callable[[], bool] | None = field(default=None, compare=False)


def examine(lake: TraceLake, finish: Finish) -> list[Problem]:
    """List all problems.

    `finish` completes an incomplete or torn session, and raises AacoError if it cannot.
    """
    found = list(_lake_ailments(lake, finish))
    try:
        found.extend(_half_removed(lake))
        half = begun(lake)
        busy = running_sessions(lake, half)
        found.extend(_half_sessions(lake, [session for session in half if session not in busy], finish))
        found.extend(_outdated_sessions(lake, {*half, *busy}, finish))
        found.extend(_half_campaigns(lake))
        found.extend(_campaigns_that_lost_sessions(lake))
    except LakeError as error:
        if all(one.kind not in health.OF_MANIFESTS for one in found):
            found.append(Problem("unreadable lake", str(lake.path), f"{error}; sessions were not compared"))
    return found


def _lake_ailments(lake: TraceLake, finish: Finish) -> Iterator[Problem]:
    def mended(fault: health.Fault) -> bool:
        if not health.mend(lake, fault):
            return False
        return fault.session is None or _finishing(lake, fault.session, finish)()

    for fault in health.faults(lake):
        mend = partial(mended, fault) if fault.mendable else None
        yield Problem(fault.kind, str(fault.path), fault.explanation, mend)


def _half_removed(lake: TraceLake) -> Iterator[Problem]:
    for session in sorted(half_removed(lake)):

        def remove(session: str = session) -> bool:
            clean_up(lake, Limits(), datetime.now(UTC))  # no limits: only finish removals already begun
            return session not in half_removed(lake)

        yield Problem("half removed", session, "its removal was broken off", remove)


def _half_sessions(lake: TraceLake, sessions: Sequence[str], finish: Finish) -> Iterator[Problem]:
    for session in sessions:
        progress = standing(lake, session)
        if progress.is_whole:
            continue  # written before manifests listed their stages
        failed = "".join(f"; {state.stage} failed: {state.failure}" for state in progress.failed)
        if can_be_run(lake, session):
            yield Problem("half session", session, f"{progress.count}{failed}", _finishing(lake, session, finish))
        elif lake.manifest(session).entries:
            why = f"{progress.count}{failed}; its capture is gone, so they cannot be computed: `aaco rm` removes it"
            yield Problem("half session", session, why)
        else:
            why = "it has neither a request nor a capture"
            yield Problem("session of nothing", session, why, partial(_forgotten, lake, session))


def _outdated_sessions(lake: TraceLake, others: Collection[str], finish: Finish) -> Iterator[Problem]:
    """Find complete sessions of an earlier version, except `others`: readable, but without newer tables."""
    for manifest in lake.manifests("session"):
        session = manifest.id
        behind = () if session in others else outdated(lake, session, manifest)
        if not behind:
            continue
        published = {entry.table for entry in manifest.entries}
        lacking = sorted({name for one in behind for name in stages()[one].tables} - published)
        why = f"of an earlier version: {', '.join(behind)} did not publish {', '.join(lacking)} yet"
        if can_be_run(lake, session):
            yield Problem("earlier version", session, why, _finishing(lake, session, finish))
        else:
            yield Problem("earlier version", session, f"{why}; its capture is gone, so that it stays as it is")


def _half_campaigns(lake: TraceLake) -> Iterator[Problem]:
    """Find campaigns without a verdict that no process works on; the user decides whether to continue them.

    All campaigns of a night are planned before the first one starts: while one is measured, the others are not
    reported.
    """
    half = half_campaigns(lake)
    busy = {one for one in half if lake.is_measuring(one)}
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


def _finishing(lake: TraceLake, session: str, finish: Finish) -> Callable[[], bool]:
    def finished() -> bool:
        finish(session)
        return bool(standing(lake, session).is_whole) and not outdated(lake, session)

    return finished


def _forgotten(lake: TraceLake, session: str) -> bool:
    lake.remove(session)
    return True
