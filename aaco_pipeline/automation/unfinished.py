"""Which half sessions a sensor asks Dagster to finish, and when: those that no living run is at work on.

What a session lacks says `aaco_pipeline.assets.stage`. Every attempt is a run of its own with a delay before it that
doubles; after the last one a person has to look.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import dagster as dg

from aaco_pipeline.assets.stage import standing, to_finish
from aaco_pipeline.automation.attempts import MOST_ATTEMPTS, PARTITION_TAG, attempts_at, delay_seconds
from aaco_pipeline.automation.dead_runs import living_runs
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.automation.stage_assets import JOB
from aaco_pipeline.lake.layout import MANIFESTS
from aaco_pipeline.lake.removals import ASKED, Account
from aaco_pipeline.lake.store import TraceLake

#: A session that something was written of so lately is at work somewhere, or about to be asked for.
STILL_SECONDS: Final = 60.0
#: So many sessions are finished at once; the others wait their turn.
MOST_AT_ONCE: Final = 4


@dataclass(frozen=True)
class Finish:
    """A session to finish: with which attempt, by which stages, under a run key that is never used twice."""

    session: str
    attempt: int
    stages: tuple[str, ...]
    run_key: str


@dataclass
class Asked:
    """What to ask for now, and in words why not for the others."""

    requests: list[Finish] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def begun(lake: TraceLake) -> list[str]:
    """Sessions that were asked for, captured or published, and do not state that they are whole; oldest first.

    What retention has begun to remove is none of them.
    """
    return sorted({*lake.unfinished(), *lake.requests()} - half_removed(lake))


def half_removed(lake: TraceLake) -> set[str]:
    """Sessions and campaigns whose removal was killed: after their manifest had gone, or if a person had named them."""
    manifests = lake.path / MANIFESTS
    pending = [one for one in Account(lake).pending() if one.kind in ("session", "campaign")]
    return {one.name for one in pending if one.rule == ASKED or not (manifests / f"{one.name}.json").exists()}


def busy_sessions(lake: TraceLake, instance: dg.DagsterInstance | None, sessions: Collection[str]) -> set[str]:
    """Those of `sessions` that somebody is at work on: a living run of this instance, or whoever holds their lock."""
    runs = living_runs(instance) if instance is not None else []
    return {session for session in sessions if lake.is_running(session)} | {
        run.tags[PARTITION_TAG] for run in runs if PARTITION_TAG in run.tags
    }


def due(lake: TraceLake, instance: dg.DagsterInstance, now: float) -> Asked:
    """The half sessions to finish at `now`, in seconds since 1970."""
    answer = Asked()
    known, half = set(instance.get_dynamic_partitions(PARTITIONS_NAME)), begun(lake)
    busy = busy_sessions(lake, instance, half)
    free = MOST_AT_ONCE - len(busy)
    for session in half:
        if session in busy or session not in known or _is_fresh(lake, session, now):
            continue
        if standing(lake, session).is_whole or not can_be_run(lake, session):
            continue
        tried = attempts_at(instance, JOB, session)
        wait = 0.0 if tried.ended is None else tried.ended + delay_seconds(tried.failed) - now
        if tried.failed >= MOST_ATTEMPTS:
            answer.notes.append(f"{session}: {tried.failed} attempts failed; `aaco show {session}` says why")
        elif tried.failed and 0 < wait <= delay_seconds(tried.failed):
            answer.notes.append(f"{session}: attempt {tried.failed + 1} of {MOST_ATTEMPTS} in {wait:.0f} s")
        elif len(answer.requests) >= free:
            answer.notes.append(f"{session} waits its turn")
        else:
            key = f"{session}-{tried.runs + 1}"
            answer.requests.append(Finish(session, tried.failed + 1, to_finish(lake, session), key))
    return answer


def can_be_run(lake: TraceLake, session: str) -> bool:
    """Whether there is anything to run a session's stages on: its capture, or a request to measure one."""
    return lake.raw(session).is_dir() or lake.request_path(session).is_file()


def _is_fresh(lake: TraceLake, session: str, now: float) -> bool:
    """Whether something was written of the session within the last minute, by this host's clock."""
    for path in (lake.manifest_path(session, "session"), lake.request_path(session), lake.raw(session)):
        try:
            if 0 <= now - path.stat().st_mtime < STILL_SECONDS:
                return True
        except FileNotFoundError:
            continue
    return False
