"""Running a session's stages in this process, one after another on one opened capture.

Each stage is published and checked before the next one begins. `finish_session` makes whole what a killed or failed
run left half; stages of many sessions after a change of code are run again by `reanalysis`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

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
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.checks import checked, require_kept
from aaco_pipeline.resources.host.memory import give_back_memory
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.progress import report_progress

Published = Callable[[Stage, Outcome, tuple[Entry, ...]], None]


def run_session(lake: TraceLake, session: str, configs: Path, only: Sequence[str] | None = None) -> None:
    """Run the stages that a session is to have, or those in `only`, in order; raise what a stage failed with.

    A stage that fails ends the run: those before it stay published, those after it keep what they had. One process at
    a time runs stages of a session; another waits.
    """
    with lake.attended(session), lake.running(session):
        state_expected(lake, session, only or ())
        expected = lake.progress(session).expected if only is None else only
        _run_all(lake, session, configs, [name for name in stages() if name in expected])


def finish_session(lake: TraceLake, session: str, configs: Path) -> bool:
    """Run the stages that a session still lacks, and those that depend on them; return whether there were any.

    Those are stages that never ran, that failed, or whose tables were withdrawn. A session that was asked for and is
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
    """Tell whether the stage asks for what is computed once for several stages of a run."""
    return Session.derive.__name__ in one.function.__code__.co_names
