"""Stages as one step of a Dagster run: of one session, or of all sessions of a backfill's batch, one after another.

Each session is published and told of by itself, the moment it is done. A stage that fails takes neither other sessions
nor the stages that do not read from it with it: the lake states the failure, and the step fails at its end.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import dagster as dg

from aaco_pipeline.assets.stage import Outcome, Session, Stage, stages, state_expected, views
from aaco_pipeline.automation.runs import SESSIONS_TAG
from aaco_pipeline.automation.stage_events import EXIT_CODE_KEY, amounts, expected_errors, tell
from aaco_pipeline.errors import AacoError, PassingLakeError
from aaco_pipeline.lake.layout import RUN_TIMEOUT_SECONDS
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.checks import CheckError
from aaco_pipeline.pipeline.session_stages import run_stages
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.report.words.units import counted
from aaco_pipeline.resources.host.process_identity import process_tags
from aaco_pipeline.resources.measure.runner import InferenceRunner

#: A thousand sessions are one run; of ten thousand no run's page, database or second try is of more than a thousand.
MOST_SESSIONS_A_RUN: Final = 1000
#: How often a session is tried again after an error of the lake that may pass, and the wait before the first time in
#: seconds; each further one is twice as long.
MOST_RETRIES: Final = 3
FIRST_WAIT_SECONDS: Final = 5.0
_NAMED: Final = 20
Publication = Callable[[Session, Stage, Outcome, Sequence[Entry]], None]


class Batch:
    """Some stages of every session of a step; `publication` is called with each that was published."""

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        lake: TraceLake,
        runner: InferenceRunner,
        publication: Publication,
    ) -> None:
        self._context = context
        self._lake = lake
        self._runner = runner
        self._publication = publication
        every = {**stages(), **views()}
        chosen = [one for name, one in every.items() if dg.AssetKey(name) in context.selected_asset_keys]
        #: By session the stages that are still to run.
        self._left: dict[str, list[Stage]] = {session: list(chosen) for session in context.partition_keys}
        self._failed: dict[str, Exception] = {}

    def run(self) -> None:
        """Run the stages of all sessions, and raise Failure when one of them failed."""
        tags = {SESSIONS_TAG: ",".join(self._left), **process_tags()}
        self._context.instance.add_run_tags(self._context.run.run_id, tags)
        self._run_all(list(self._left))
        for retry in range(MOST_RETRIES):
            passing = [session for session, error in self._failed.items() if isinstance(error, PassingLakeError)]
            if not passing:
                break
            time.sleep(FIRST_WAIT_SECONDS * 2.0**retry)
            for session in passing:
                del self._failed[session]
            self._run_all(passing)
        self._raise()

    def _run_all(self, sessions: Sequence[str]) -> None:
        for session in sessions:
            try:
                self._run_one(session)
            except Exception as error:  # noqa: BLE001  (the step raises it at its end)
                self._fail(session, error)

    def _run_one(self, session: str) -> None:
        """Run what is left of one session, when nobody else runs stages of it; PassingLakeError ends it for now."""
        opened = Session(self._lake, session, self._runner.folder, self._runner.measure, self._log)
        left = self._left[session]

        def published(one: Stage, outcome: Outcome, entries: Sequence[Entry]) -> None:
            self._publication(opened, one, outcome, entries)
            left.remove(one)

        wait_seconds = RUN_TIMEOUT_SECONDS if len(self._left) == 1 else 0.0
        with self._lake.running(session, wait_seconds=wait_seconds):
            state_expected(self._lake, session, [one.name for one in left])
            while left:
                try:
                    run_stages(opened, tuple(left), published)
                except PassingLakeError:
                    raise
                except Exception as error:  # noqa: BLE001  (likewise)
                    failed = left.pop(0)
                    self._fail(session, error)
                    if isinstance(error, CheckError):  # its tables are published, and show what is wrong with them
                        entries = self._lake.manifest(session).of_stage(failed.name)
                        tell(self._context, opened, failed, amounts(opened, failed, entries))
                    left[:] = _not_reading(left, failed)

    def _fail(self, session: str, error: Exception) -> None:
        self._context.log.error(in_a_line(f"{session}: {error}"), exc_info=not isinstance(error, AacoError))
        self._failed.setdefault(session, error)

    def _log(self, line: str) -> None:
        self._context.log.info(in_a_line(line))

    def _raise(self) -> None:
        if not self._failed:
            return
        errors = list(self._failed.values())
        if len(self._left) == 1:
            with expected_errors():
                raise errors[0]
        told = [f"{session} ({error or type(error).__name__})" for session, error in self._failed.items()]
        more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
        of = counted(len(self._left), "session")
        codes = [error.exit_code for error in errors if isinstance(error, AacoError)]
        raise dg.Failure(
            in_a_line(f"{len(told)} of {of} are not done: {'; '.join(told[:_NAMED])}{more}"),
            {EXIT_CODE_KEY: codes[0] if codes else AacoError.exit_code},
            allow_retries=False,
        )


def _not_reading(left: Sequence[Stage], failed: Stage) -> list[Stage]:
    """Leave out the stages that read, directly or not, from the one that failed."""
    without, kept = {failed.name}, list[Stage]()
    for one in left:
        if without.isdisjoint(one.dependencies):
            kept.append(one)
        else:
            without.add(one.name)
    return kept
