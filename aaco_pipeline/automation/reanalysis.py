"""Running stages of many sessions again after their code has changed: one run of Dagster for each thousand sessions.

What is done is what the lake states: a session whose stage was published by the present version of its code is left
alone, so that the same call goes on after a kill. What Dagster itself starts (a backfill in the interface, the sensor
`stale_stages`) runs the same stages as assets, in `stage_batches`.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg

from aaco_pipeline.assets.stage import Session, failure_recorded, publish, stages
from aaco_pipeline.automation.own_run import OwnRun
from aaco_pipeline.automation.sessions import add_partition
from aaco_pipeline.automation.stage_batches import MOST_SESSIONS_A_RUN
from aaco_pipeline.automation.stale import is_stale
from aaco_pipeline.errors import AacoError, PassingLakeError, UsageError
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.report.words.units import counted
from aaco_pipeline.resources.progress import report_progress


@dataclass(frozen=True)
class Plan:
    """What there is to do: `due` are the stages to run by session, in the order they run.

    `current` sessions have all chosen stages by the present code; those in `without_capture` have one to run that looks
    into the capture, which is gone. `behind` are the stages that read from the chosen ones and are not among them.
    """

    stages: tuple[str, ...]
    due: Mapping[str, tuple[str, ...]]
    current: tuple[str, ...]
    without_capture: tuple[str, ...]
    behind: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """A session of which a stage failed, in one line why, and the exit code of its error."""

    session: str
    stage: str
    reason: str
    exit_code: int


@dataclass
class Done:
    """What came of a plan. `skipped` are sessions that somebody else is at work on, with who it is."""

    runs: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


class ReanalysisError(AacoError):
    """Stages of some sessions failed; the others are done."""


def chosen_stages(names: Sequence[str], *, downstream: bool) -> tuple[str, ...]:
    """Those stages, with `downstream` all that read from them, in the order they run. UsageError for a wrong one."""
    for name in names:
        if name not in stages():
            raise UsageError(f"no stage {name!r}; there are {', '.join(stages())}")
        if stages()[name].pool is not None:
            raise UsageError(f"stage {name} measures: it is not run again, a new measurement is a new session")
    wanted = {*names, *(readers_of(names) if downstream else ())}
    return tuple(name for name in stages() if name in wanted)


def readers_of(names: Collection[str]) -> tuple[str, ...]:
    """The stages that read from one of those, directly or not, in the order they run; none of those themselves."""
    found: list[str] = []
    for name, one in stages().items():
        if name not in names and set(one.dependencies) & {*names, *found}:
            found.append(name)
    return tuple(found)


def plan(lake: TraceLake, chosen: Sequence[str], where: str | None = None) -> Plan:
    """What is to be done of `chosen` in the sessions for which the SQL condition holds over the view `sessions`.

    UsageError for a condition that is none.
    """
    wanted = None if where is None else _sessions_where(lake, where)
    due: dict[str, tuple[str, ...]] = {}
    current, without_capture = [], []
    for manifest in lake.manifests("session"):
        known = {state.stage for state in manifest.stages} & set(chosen)
        if not known or (wanted is not None and manifest.id not in wanted):
            continue
        names = _due(manifest, chosen)
        can = tuple(name for name in names if not stages()[name].needs_capture or lake.raw(manifest.id).is_dir())
        if can != names:
            without_capture.append(manifest.id)
        elif names:
            due[manifest.id] = names
        else:
            current.append(manifest.id)
    return Plan(tuple(chosen), due, tuple(current), tuple(without_capture), readers_of(chosen))


def reanalyse(lake: TraceLake, instance: dg.DagsterInstance, planned: Plan, configs: Path) -> Done:
    """Carry out a plan; what fails in one session is told of and does not keep the others from being done."""
    done = Done()
    add_partition(instance, *planned.due)
    batch, sessions = _Batch(lake, instance, planned, configs, done), tuple(planned.due)
    for first in range(0, len(sessions), MOST_SESSIONS_A_RUN):
        batch.run(sessions[first : first + MOST_SESSIONS_A_RUN], first)
    return done


class _Batch:
    """One run of Dagster of some stages of up to a thousand sessions."""

    def __init__(self, lake: TraceLake, instance: dg.DagsterInstance, planned: Plan, configs: Path, done: Done) -> None:
        self._lake = lake
        self._instance = instance
        self._plan = planned
        self._configs = configs
        self._done = done

    def run(self, sessions: Sequence[str], before: int) -> None:
        """Run what is due of the sessions, one session after another; `before` sessions were in earlier batches."""
        names = {name for session in sessions for name in self._plan.due[session]}
        steps = [stages()[name] for name in self._plan.stages if name in names]
        failed: dict[str, list[Failure]] = {one.name: [] for one in steps}
        run = OwnRun(self._instance, sessions, steps)
        self._done.runs.append(run.id)
        try:
            with run:
                for one in steps:
                    run.begin(one)
                for number, session in enumerate(sessions):
                    report_progress("sessions", before + number, len(self._plan.due))
                    failure = self._session(run, session)
                    if failure is not None:
                        failed[failure.stage].append(failure)
                for one in steps:
                    run.finish(one, _told(failed[one.name], len(sessions)))
                error = _told([each for some in failed.values() for each in some], len(sessions))
                if error is not None:
                    raise error
        except ReanalysisError:
            self._done.failed += [each for some in failed.values() for each in some]

    def _session(self, run: OwnRun, session: str) -> Failure | None:
        """Run what is due of one session, unless somebody else is at work on it; after a failure the rest waits."""
        with ExitStack() as held:
            try:
                held.enter_context(self._lake.running(session, wait_seconds=0.0))
            except PassingLakeError as error:
                self._done.skipped[session] = str(error)
                return None
            due = _due(self._lake.manifest(session), self._plan.stages)  # now that nobody else changes it
            if len(due) > 1:  # killed before the last of them, it is not taken for done
                self._lake.record_due(session, due[1:], f"{due[0]} has been run again since")
            opened = Session(self._lake, session, self._configs, None, run.log)
            for one in (stages()[name] for name in due):
                try:
                    with failure_recorded(opened, one):
                        outcome = one(opened)
                        run.tell(opened, one, outcome, publish(opened, one, outcome))
                except Exception as error:  # noqa: BLE001  (told of at the end, when every other session is done)
                    run.missed(session, one)
                    run.log(f"{one.name} of {session} failed: {error}")
                    code = error.exit_code if isinstance(error, AacoError) else AacoError.exit_code
                    return Failure(session, one.name, in_a_line(str(error) or type(error).__name__), code)
        self._done.sessions.append(session)
        return None


def _due(manifest: Manifest, chosen: Sequence[str]) -> tuple[str, ...]:
    """The chosen stages that a session has and that are to run again: stale, failed, or after one of the others."""
    failed = {state.stage for state in manifest.stages if state.failure is not None}
    published = {state.stage for state in manifest.stages}
    due: list[str] = []
    for name in chosen:
        follows = name in published and bool(set(stages()[name].dependencies) & set(due))
        if follows or name in failed or is_stale(manifest, name):
            due.append(name)
    return tuple(due)


def _sessions_where(lake: TraceLake, condition: str) -> set[str]:
    from aaco_pipeline.lake.sql import select_rows

    found = select_rows(lake, f"SELECT session_id FROM sessions WHERE (\n{condition}\n)")
    return {str(session) for (session,) in found.rows}


def _told(failed: Sequence[Failure], of: int) -> ReanalysisError | None:
    """The failures as one error, none without any."""
    if not failed:
        return None
    named = "; ".join(f"{one.session} ({one.stage}: {one.reason})" for one in failed[:20])
    more = f" and {len(failed) - 20} more" if len(failed) > 20 else ""
    return ReanalysisError(f"{len(failed)} of {counted(of, 'session')} failed: {named}{more}")
