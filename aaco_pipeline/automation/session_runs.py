"""Running a session's stages in this process, as one real run of the job `observe` (`own_run`).

The stages are called one after another on one opened capture. What Dagster itself starts (`aaco ui`, sensors,
backfills) runs the same stages as assets, in `stage_assets`. `finish_session` makes whole what a killed or failed run
left half; stages of many sessions after a change of code are run again by `reanalysis`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from aaco_pipeline.assets.stage import (
    Session,
    Stage,
    failure_recorded,
    publish,
    stages,
    state_expected,
    to_finish,
)
from aaco_pipeline.automation.attempts import attempts_at
from aaco_pipeline.automation.dead_runs import reap
from aaco_pipeline.automation.own_run import OwnRun
from aaco_pipeline.automation.pool_slot import pool_slot
from aaco_pipeline.automation.stage_assets import JOB
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import InferenceRunner
from aaco_pipeline.resources.host.memory import give_back_memory
from aaco_pipeline.resources.progress import report_progress


def run_session(
    lake: TraceLake,
    instance: dg.DagsterInstance,
    session: str,
    configs: Path,
    only: Sequence[str] | None = None,
) -> None:
    """Run the stages of a session (default: all), each after those it reads from; raises what a stage failed with.

    A stage that fails ends the run: those before it stay published, those after it keep what they had. One process at
    a time runs stages of a session; another waits.
    """
    chosen = tuple(name for name in stages() if only is None or name in only)
    with lake.attended(session):
        _run_stages(lake, instance, session, configs, chosen, due=lambda: chosen)


def finish_session(lake: TraceLake, instance: dg.DagsterInstance, session: str, configs: Path) -> bool:
    """Run the stages that a session still lacks, and those that depend on them; whether there were any.

    Those are stages that never ran, that failed, or whose tables were withdrawn. A session that was asked for and is
    not captured is measured. While another process runs its stages this one waits, and then does what is left.
    Raises what a stage failed with.
    """
    with lake.attended(session):  # whoever is at work ends first: most often there is nothing left to do
        with lake.running(session):
            due = to_finish(lake, session)
        if due:
            reap(instance)  # what left it half is told as failed before it is tried again
            attempt = attempts_at(instance, JOB, session).failed + 1
            _run_stages(lake, instance, session, configs, due, due=lambda: to_finish(lake, session), attempt=attempt)
        else:
            state_expected(lake, session)  # one of before manifests said so
    return bool(due)


def _run_stages(
    lake: TraceLake,
    instance: dg.DagsterInstance,
    session: str,
    configs: Path,
    chosen: Sequence[str],
    *,
    due: Callable[[], Sequence[str]],
    attempt: int = 1,
) -> None:
    """Run those of the chosen stages that are still due once nobody else runs stages of the session."""
    runner = InferenceRunner(configs=str(configs))
    steps = [stages()[name] for name in chosen]
    with OwnRun(instance, [session], steps, attempt) as run:
        opened = Session(lake, session, configs, runner.measure, run.log)
        # The pool's slot before the session, in the order in which Dagster's own executor takes the two.
        with _slot(run, instance, steps, opened) as free_slot, lake.running(session):
            state_expected(lake, session, chosen)
            still = set(due())
            for number, one in enumerate(steps):
                report_progress("stages", number, len(steps))
                if one.name not in still:
                    continue
                with run.step(one), failure_recorded(opened, one):
                    outcome = one(opened)
                    free_slot()  # only the first step may have measured
                    run.tell(opened, one, outcome, publish(opened, one, outcome))
                    del outcome  # its tables may be large, and the next stage has its own
                    if not any(_derives(later) for later in steps[number + 1 :] if later.name in still):
                        opened.forget()
                    give_back_memory()


def _derives(one: Stage) -> bool:
    """Whether the stage asks for what is computed once for several stages of a run."""
    return Session.derive.__name__ in one.function.__code__.co_names


@contextmanager
def _slot(
    run: OwnRun, instance: dg.DagsterInstance, chosen: Sequence[Stage], session: Session
) -> Iterator[Callable[[], None]]:
    """The slot of the pool of the stage that has still to measure; the function given frees it early.

    Stages that only read need none.
    """
    measuring = next((one for one in chosen if one.pool is not None), None)
    if measuring is None or measuring.pool is None or session.lake.raw(session.id).is_dir():
        yield lambda: None
        return
    with pool_slot(instance, run.id, measuring.pool, measuring.name, run.log) as held:
        yield held.close
