"""Run a session's stages in this process, and check the published tables of each.

The stages are in `aaco_pipeline.assets`. Dagster runs them through `aaco_pipeline.automation.stage_assets`, with the
same checks.
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

#: Name of the check that every stage has.
CONTRACT: Final = "contract"
Published = Callable[[Stage, Outcome, tuple[Entry, ...]], None]


class CheckError(AacoError):
    """A blocking check of a stage failed: later stages would use wrong tables."""

    exit_code = 1


@dataclass(frozen=True)
class CheckResult:
    """Result of one check of one stage of a session."""

    name: str
    finding: Finding
    is_blocking: bool


def checked(session: Session, one: Stage, *, only_blocking: bool = False) -> Iterator[CheckResult]:
    """Evaluate the checks of a stage over a session's published tables, contract first; none for a view."""
    if not one.is_view:
        yield CheckResult(CONTRACT, contract_is_fulfilled(session, one), is_blocking=True)
    for check in one.checks:
        if check.blocking or not only_blocking:
            yield CheckResult(check.name, check.finding(session), check.blocking)


def require_kept(one: Stage, results: Iterable[CheckResult]) -> None:
    """Raise CheckError, naming each broken promise, if a blocking check of a published stage failed."""
    broken = [
        f"Check {result.name} of {one.name} failed: {result.finding.statement}"
        for result in results
        if result.is_blocking and not result.finding.holds
    ]
    if broken:
        raise CheckError("; ".join(broken))


def contract_is_fulfilled(session: Session, one: Stage) -> Finding:
    """Verify that every table of the stage exists, is unchanged since publication, and fulfils its contract."""
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
    """Run the expected stages of a session in order; raise the error of a failed stage.

    A failed stage ends the run: earlier stages stay published, later ones keep their previous tables. Only one process
    at a time runs stages of a session; others wait.
    """
    with lake.attended(session), lake.running(session):
        state_expected(lake, session)
        expected = lake.progress(session).expected
        _run_all(lake, session, configs, [name for name in stages() if name in expected])


def finish_session(lake: TraceLake, session: str, configs: Path) -> bool:
    """Run the missing stages of a session and those that depend on them; return whether there were any.

    Missing stages never ran, failed, or had their tables withdrawn. A requested session without a capture is measured.
    If another process is running its stages, this call waits and then runs the rest. Raises the error of a failed
    stage.
    """
    with lake.attended(session), lake.running(session):
        due = to_finish(lake, session)
        state_expected(lake, session, due)  # sessions of older lakes do not list all of their stages
        _run_all(lake, session, configs, due)
        return bool(due)


def run_stages(session: Session, chosen: Sequence[Stage], published: Published = lambda *_: None) -> None:
    """Run stages of a session in the given order; the caller holds `lake.running`.

    After each stage is published, its blocking checks are evaluated and `published` is called. The first failure is
    recorded in the lake and raised.
    """
    for number, one in enumerate(chosen):
        report_progress("stages", number, len(chosen))
        with failure_recorded(session, one):
            outcome = one(session)
            entries = publish(session, one, outcome)
            require_kept(one, checked(session, one, only_blocking=True))
            published(one, outcome, entries)
        del outcome  # free large tables before the next stage creates its own
        if not any(_derives(later) for later in chosen[number + 1 :]):
            session.forget()
        give_back_memory()


def _run_all(lake: TraceLake, session: str, configs: Path, names: Sequence[str]) -> None:
    runner = InferenceRunner(str(configs))
    run_stages(Session(lake, session, configs, runner.measure), [stages()[name] for name in names])


def _derives(one: Stage) -> bool:
    """Return whether the stage uses values that are computed once for several stages of a run."""
    return Session.derive.__name__ in one.function.__code__.co_names
