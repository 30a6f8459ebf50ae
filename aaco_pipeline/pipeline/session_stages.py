"""Run the stages of a session in this process, and check what each of them published.

The stages are `aaco_pipeline.assets`. Dagster runs them through `aaco_pipeline.automation.stage_assets`, with the same
checks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.analysis.sessions.invariants import Finding
from aaco_pipeline.assets.stage import (
    Outcome,
    Session,
    Stage,
    failure_recorded,
    publish,
    stages,
    state_expected,
    to_finish,
)
from aaco_pipeline.errors import AacoError, LakeError
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.host.kernel_files import give_back_memory
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.progress import report_progress

#: The check that every stage has.
CONTRACT: Final = "contract"
Published = Callable[[Stage, Outcome, tuple[Entry, ...]], None]


class CheckError(AacoError):
    """A blocking check of a stage failed: what follows would be computed from wrong tables."""

    exit_code = 1


@dataclass(frozen=True)
class CheckResult:
    """One check of one stage of a session, and what it found."""

    name: str
    finding: Finding
    is_blocking: bool


def checked(session: Session, one: Stage, *, only_blocking: bool = False) -> Iterator[CheckResult]:
    """Evaluate the checks of a stage over the published tables of a session, its contract first; of a view none."""
    if not one.is_view:
        yield CheckResult(CONTRACT, contract_is_fulfilled(session, one), is_blocking=True)
    for check in one.checks:
        if check.blocking or not only_blocking:
            yield CheckResult(check.name, check.finding(session), check.blocking)


def require_kept(one: Stage, results: Iterable[CheckResult]) -> None:
    """Raise CheckError, naming each broken promise, when a blocking check of a published stage failed."""
    broken = [
        f"Check {result.name} of {one.name} failed: {result.finding.statement}"
        for result in results
        if result.is_blocking and not result.finding.holds
    ]
    if broken:
        raise CheckError("; ".join(broken))


def contract_is_fulfilled(session: Session, one: Stage) -> Finding:
    """Verify that every table of the stage is there, unchanged since it was published, and as its contract says."""
    entries = session.lake.manifest(session.id).of_stage(one.name)
    broken: list[str] = []
    for entry in entries:
        try:
            session.lake.verify_entry(entry)
        except LakeError as error:
            broken.append(str(error))
    holds = bool(entries) and not broken
    statement = "; ".join(broken) or (f"{len(entries)} tables as declared" if entries else "nothing is published")
    return Finding(holds, statement, {"tables": len(entries), "broken": len(broken)})


def run_session(lake: TraceLake, session: str, configs: Path) -> None:
    """Run the stages that a session is to have, in order; raise what a stage failed with.

    A stage that fails ends the run: those before it stay published, those after it keep what they had. One process at
    a time runs stages of a session; another waits.
    """
    with lake.attended(session), lake.running(session):
        state_expected(lake, session)
        expected = lake.progress(session).expected
        _run_all(lake, session, configs, [name for name in stages() if name in expected])


def finish_session(lake: TraceLake, session: str, configs: Path) -> bool:
    """Run the stages that a session still lacks, and those that depend on them; return whether there were any.

    Those are stages that never ran, that failed, or whose tables were withdrawn. A session that was requested and is
    not captured is measured. While another process runs its stages this one waits, and then does what is left.
    Raises what a stage failed with.
    """
    with lake.attended(session), lake.running(session):
        due = to_finish(lake, session)
        state_expected(lake, session, due)  # sessions of older lakes do not state all of their stages
        _run_all(lake, session, configs, due)
        return bool(due)


def run_stages(session: Session, chosen: Sequence[Stage], published: Published = lambda *_: None) -> None:
    """Run stages of a session in the order given, which the caller holds with `lake.running`.

    Each is published, its blocking checks are evaluated, and `published` is called; the first that fails is recorded in
    the lake and ends the run with its error.
    """
    for number, one in enumerate(chosen):
        report_progress("stages", number, len(chosen))
        with failure_recorded(session, one):
            outcome = one(session)
            entries = publish(session, one, outcome)
            require_kept(one, checked(session, one, only_blocking=True))
            published(one, outcome, entries)
        del outcome  # its tables may be large, and the next stage has its own
        if not any(_derives(later) for later in chosen[number + 1 :]):
            session.forget()
        give_back_memory()


def _run_all(lake: TraceLake, session: str, configs: Path, names: Sequence[str]) -> None:
    runner = InferenceRunner(str(configs))
    run_stages(Session(lake, session, configs, runner.measure), [stages()[name] for name in names])


def _derives(one: Stage) -> bool:
    """Return whether the stage asks for what is computed once for several stages of a run."""
    return Session.derive.__name__ in one.function.__code__.co_names
