"""Which half sessions a sensor asks Dagster to finish, and when: those that no living run is at work on.

What a session lacks says `aaco_pipeline.assets.stage`. Of a killed one every attempt is a run of its own with a delay
before it that doubles; after the last one a person has to look. A stage that failed is run once by Dagster, which then
shows the failure with its error.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import dagster as dg

from aaco_pipeline.assets.stage import standing, to_finish
from aaco_pipeline.automation.resources import PARTITIONS_NAME
from aaco_pipeline.automation.runs import MOST_ATTEMPTS, PARTITION_TAG, attempts_at, delay_seconds, living_runs
from aaco_pipeline.automation.stage_assets import JOB
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.sessions import begun, can_be_run, running_sessions

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


def busy_sessions(lake: TraceLake, instance: dg.DagsterInstance, sessions: Collection[str]) -> set[str]:
    """Find those of `sessions` that a process or a living run of this instance is at work on."""
    of_runs = {run.tags[PARTITION_TAG] for run in living_runs(instance) if PARTITION_TAG in run.tags}
    return running_sessions(lake, sessions) | of_runs


def due(lake: TraceLake, instance: dg.DagsterInstance, now: float) -> Asked:
    """The half sessions to finish at `now`, in seconds since 1970."""
    answer = Asked()
    known, half = set(instance.get_dynamic_partitions(PARTITIONS_NAME)), begun(lake)
    busy = busy_sessions(lake, instance, half)
    free = MOST_AT_ONCE - len(busy)
    for session in half:
        if session in busy or session not in known or _is_fresh(lake, session, now):
            continue
        progress = standing(lake, session)
        if progress.is_whole or not can_be_run(lake, session):
            continue
        tried = attempts_at(instance, JOB, session)
        wait = 0.0 if tried.ended is None else tried.ended + delay_seconds(tried.failed) - now
        if progress.failed and tried.failed:
            answer.notes.append(f"{session}: {progress.failed[0].stage} failed; `aaco show {session}` says why")
        elif tried.failed >= MOST_ATTEMPTS:
            answer.notes.append(f"{session}: {tried.failed} attempts failed; `aaco show {session}` says why")
        elif tried.failed and 0 < wait <= delay_seconds(tried.failed):
            answer.notes.append(f"{session}: attempt {tried.failed + 1} of {MOST_ATTEMPTS} in {wait:.0f} s")
        elif len(answer.requests) >= free:
            answer.notes.append(f"{session} waits its turn")
        else:
            key = f"{session}-{tried.runs + 1}"
            answer.requests.append(Finish(session, tried.failed + 1, to_finish(lake, session), key))
    return answer


def _is_fresh(lake: TraceLake, session: str, now: float) -> bool:
    """Whether something was written of the session within the last minute, by this host's clock."""
    for path in (lake.manifest_path(session, "session"), lake.request_path(session), lake.raw(session)):
        try:
            if 0 <= now - path.stat().st_mtime < STILL_SECONDS:
                return True
        except FileNotFoundError:
            continue
    return False
