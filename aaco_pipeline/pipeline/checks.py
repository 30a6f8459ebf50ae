"""The checks of a stage over what it published: its contract first, then the promises that the stage states."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.analysis.sessions.invariants import Finding
from aaco_pipeline.assets.stage import Session, Stage
from aaco_pipeline.errors import AacoError, LakeError

#: The check that every stage has.
CONTRACT: Final = "contract"


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
