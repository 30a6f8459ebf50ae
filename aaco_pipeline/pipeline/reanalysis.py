"""Recompute sessions: stages whose code has changed, or all stages, to verify that the published tables follow from
raw.

`session_stages` runs the stages of one session; `doctor` handles damage and incomplete sessions.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from aaco_pipeline.assets.stage import Session, publish, stages, standing
from aaco_pipeline.errors import AacoError, LakeError, PassingLakeError, UsageError
from aaco_pipeline.lake.layout import CALIBRATIONS
from aaco_pipeline.lake.manifest import VIEWS, Manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.session_stages import run_stages
from aaco_pipeline.report.formatting import in_a_line
from aaco_pipeline.resources.progress import report_progress


@dataclass(frozen=True)
class Plan:
    """Work to do: `due` lists the stages to run by session, in execution order.

    In `current` sessions all chosen stages ran with the present code; sessions in `without_capture` have a due stage
    that needs the removed capture. `behind` lists stages that depend on the chosen ones but were not chosen.
    """

    stages: tuple[str, ...]
    due: Mapping[str, tuple[str, ...]]
    current: tuple[str, ...]
    without_capture: tuple[str, ...]
    behind: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """A session with a failed stage, the reason, and the exit code of the error."""

    session: str
    stage: str
    reason: str
    exit_code: int


@dataclass
class Done:
    """Outcome of a plan. `skipped` names sessions held by another process, and that process."""

    sessions: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def chosen_stages(names: Sequence[str], *, downstream: bool) -> tuple[str, ...]:
    """Return those stages in execution order, with `downstream` also all that depend on them; UsageError for an unknown
    one.
    """
    for name in names:
        if name not in stages():
            raise UsageError(f"no stage {name!r}; there are {', '.join(stages())}")
        if stages()[name].pool is not None:
            raise UsageError(f"stage {name} measures: it is not run again, a new measurement is a new session")
    wanted = {*names, *(readers_of(names) if downstream else ())}
    return tuple(name for name in stages() if name in wanted)


def readers_of(names: Collection[str]) -> tuple[str, ...]:
    """Return the stages that depend, directly or indirectly, on any of those, in execution order, without those."""
    found: list[str] = []
    for name, one in stages().items():
        if name not in names and set(one.dependencies) & {*names, *found}:
            found.append(name)
    return tuple(found)


def plan(lake: TraceLake, chosen: Sequence[str], where: str | None = None) -> Plan:
    """Plan the runs of `chosen` in sessions that match the SQL condition on the view `sessions`.

    UsageError for an invalid condition.
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


def reanalyse(lake: TraceLake, planned: Plan, configs: Path) -> Done:
    """Carry out a plan; an error in one session is reported and does not stop the others."""
    done = Done()
    for number, session in enumerate(planned.due):
        report_progress("sessions", number, len(planned.due))
        try:
            with lake.running(session, wait_seconds=0.0):
                _run_again(lake, session, planned, configs)
        except PassingLakeError as error:
            done.skipped[session] = str(error)
        except _StageError as failed:
            done.failed.append(failed.failure)
        else:
            done.sessions.append(session)
    return done


class _StageError(Exception):
    """A stage of one session failed; only that session ends."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def _run_again(lake: TraceLake, session: str, planned: Plan, configs: Path) -> None:
    """Run the due stages of one session under its lock; _StageError for the first stage that fails."""
    due = _due(lake.manifest(session), planned.stages)
    if len(due) > 1:  # a kill before the last stage must not look complete
        lake.record_due(session, due[1:], f"{due[0]} has been run again since")
    done: list[str] = []
    try:
        steps = [stages()[name] for name in due]
        run_stages(Session(lake, session, configs), steps, lambda one, *_: done.append(one.name))
    except Exception as error:
        code = error.exit_code if isinstance(error, AacoError) else AacoError.exit_code
        reason = in_a_line(str(error) or type(error).__name__)
        raise _StageError(Failure(session, due[len(done)], reason, code)) from error


def is_stale(manifest: Manifest, stage: str) -> bool:
    """Return whether a stage was last run by another code version; a stage that never ran is missing, not stale."""
    state = next((state for state in manifest.stages if state.stage == stage), None)
    return state is not None and state.code_version != stages()[stage].code_version


def stale_sessions(lake: TraceLake) -> Mapping[str, Collection[str]]:
    """Find, per stage, the sessions of the lake in which it is stale."""
    manifests = [*lake.manifests("session")]
    return {name: frozenset(one.id for one in manifests if is_stale(one, name)) for name in stages()}


def _due(manifest: Manifest, chosen: Sequence[str]) -> tuple[str, ...]:
    """List the chosen stages of a session to run again: stale, failed, or dependent on one of these."""
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


@dataclass(frozen=True)
class Proof:
    """Result of recomputing a session: how much was compared, and how each differing table differs.

    `rewritten` tables have the same values, encoded by an earlier version of this package.
    """

    session: str
    stages: int
    tables: int
    rewritten: int
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        compared = f"{self.stages} stages, {self.tables} tables"
        if self.holds and self.rewritten:
            return f"{self.session}: {compared}, same values; {self.rewritten} are in an earlier version's bytes"
        if self.holds:
            return f"{self.session}: {compared}, reproduced bit for bit"
        return f"{self.session}: {compared}, {len(self.differences)} differ: {'; '.join(self.differences)}"


class _Again(TraceLake):
    """A separate lake that reads its captures from another lake."""

    def __init__(self, path: str, captured: TraceLake) -> None:
        super().__init__(path)
        self._captured = captured

    def raw(self, session: str) -> Path:
        return self._captured.raw(session)


def prove(lake: TraceLake, session: str, configs: Path, show: Callable[[str, int, int], None]) -> Proof:
    """Recompute a session's expected stages from its raw capture, and compare them with the published tables.

    LakeError if the session has no complete capture; CaptureError if the capture is damaged. `show` receives the
    progress.
    """
    if not lake.raw(session).is_dir():
        raise LakeError(f"session {session} has no raw capture in {lake.path}; there is nothing to compute it from")
    with TemporaryDirectory(prefix="aaco-proof-") as folder:
        again = _Again(folder, lake)
        measured = lake.path / CALIBRATIONS
        if measured.is_dir():
            (again.path / CALIBRATIONS).symlink_to(measured)
        again.state(session, dict(lake.manifest(session).stated))
        opened = Session(again, session, configs)
        wanted = {*standing(lake, session).expected, *(entry.stage for entry in lake.manifest(session).entries)}
        every = {name: one for name, one in stages().items() if name in wanted}
        for number, (name, one) in enumerate(every.items()):
            show(f"computing {name} of {session}", number, len(every))
            publish(opened, one, one(opened))
        # Earlier versions also published evidence for views.
        published, made = (
            [one for one in side.manifest(session).entries if one.stage not in VIEWS] for side in (lake, again)
        )
        before, after = ({(one.stage, one.table): one for one in side} for side in (published, made))
        rewritten, differences = 0, []
        for stage, table in sorted(before.keys() | after.keys()):
            old, new = before.get((stage, table)), after.get((stage, table))
            if old is None or new is None:
                differences.append(f"{table} of {stage} is {'not published' if old is None else 'no longer made'}")
            elif (old.rows, old.sha256) == (new.rows, new.sha256):
                continue
            elif lake.read_entry(old).equals(again.read_entry(new)):
                rewritten += 1
            else:
                differences.append(f"{table} of {stage}: {old.rows} rows published, {new.rows} computed")
    return Proof(session, len(every), len(made), rewritten, tuple(differences))
