"""What is wrong between the lake, Dagster's instance and this host, and mending what can be mended.

Faults within the lake's files are found by `aaco_pipeline.lake.health`, dead runs by
`aaco_pipeline.automation.dead_runs`; here they are put together with what only shows when both sides are seen.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import dagster as dg

from aaco_pipeline.automation.dead_runs import find_dead_runs, reap
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.automation.sessions import add_partition, forget
from aaco_pipeline.errors import AacoError, LakeError
from aaco_pipeline.lake import health
from aaco_pipeline.lake.store import TraceLake


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `mend` puts it right and tells whether it did; None when a person has to."""

    kind: str
    subject: str
    explanation: str
    mend: Callable[[], bool] | None = field(default=None, compare=False)


def examine(
    lake: TraceLake, instance: dg.DagsterInstance | None, analyse: Callable[[str], None] | None = None
) -> list[Problem]:
    """Everything that is wrong. Without an instance (none was ever made), only the lake is looked at.

    `analyse` runs all stages of a session, raising AacoError when it cannot: what mends a capture that is complete and
    was never analysed, and what is torn. Without it a person has to.
    """
    found = list(_lake_ailments(lake, analyse))
    if instance is not None:
        found.extend(_dead_runs(instance))
        found.extend(_disagreements(lake, instance, analyse))
    return found


def _lake_ailments(lake: TraceLake, analyse: Callable[[str], None] | None) -> Iterator[Problem]:
    for fault in health.faults(lake):

        def mend(fault: health.Fault = fault) -> bool:
            return health.mend(lake, fault) and (fault.session is None or _analysed(fault.session, analyse))

        can_mend = fault.mendable and (fault.session is None or analyse is not None)
        yield Problem(fault.kind, str(fault.path), fault.explanation, mend if can_mend else None)


def _analysed(session: str, analyse: Callable[[str], None] | None) -> bool:
    """Run a session's stages, if that is possible; whether all have run."""
    if analyse is None:
        return False
    try:
        analyse(session)
    except AacoError:
        return False
    return True


def _dead_runs(instance: dg.DagsterInstance) -> Iterator[Problem]:
    for dead in find_dead_runs(instance):

        def mend(run_id: str = dead.run_id) -> bool:
            reap(instance)  # all of them: whichever comes first, the others are well then, too
            return run_id not in {one.run_id for one in find_dead_runs(instance)}

        yield Problem("dead run", f"run {dead.run_id}", f"{dead.reason}; it may hold the measurement slot", mend)


def _disagreements(
    lake: TraceLake, instance: dg.DagsterInstance, analyse: Callable[[str], None] | None
) -> Iterator[Problem]:
    try:
        published = set(lake.sessions())
    except LakeError as error:
        yield Problem("unreadable lake", str(lake.path), f"{error}; partitions were not compared")
        return
    requested = set(lake.requests())
    complete = set(lake.captured())
    partitions = set(instance.get_dynamic_partitions(PARTITIONS_NAME))
    dead = {one.run_id for one in find_dead_runs(instance)}
    busy = {
        run.tags.get("dagster/partition")
        for run in instance.get_runs(dg.RunsFilter(statuses=list(_UNFINISHED)))
        if run.run_id not in dead
    }
    for session in sorted(published - partitions):

        def add(session: str = session) -> bool:
            add_partition(instance, session)
            return True

        yield Problem("session without partition", session, "Dagster does not know a session of the lake", add)
    for session in sorted((partitions | requested | complete) - published - busy):
        if session in complete:
            yield _unanalysed(instance, session, analyse, is_known=session in partitions)
            continue

        def drop(session: str = session) -> bool:
            forget(lake, instance, session)
            return True

        why = "it was begun and never captured" if session in requested else "the lake holds nothing of it"
        yield Problem("partition without session", session, why, drop)


def _unanalysed(
    instance: dg.DagsterInstance, session: str, analyse: Callable[[str], None] | None, *, is_known: bool
) -> Problem:
    """A capture that is complete, whose run was killed before the first stage: a measurement is never thrown away."""

    def adopt() -> bool:
        if not is_known:
            add_partition(instance, session)
        return analyse is None or _analysed(session, analyse)

    why = "its capture is complete, not analysed"
    if not is_known:
        return Problem("capture without partition", session, why, adopt)
    told = f"{why}; materialize its stages in `aaco ui` (job observe)"
    return Problem("capture without tables", session, told, adopt if analyse is not None else None)


_UNFINISHED = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
