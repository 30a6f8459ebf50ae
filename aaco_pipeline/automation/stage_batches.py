"""A stage as a step of a Dagster run: of one session, or of all sessions of a backfill's batch, one after another.

Each session is published and told of by itself, the moment it is done. One that fails does not take the others with it:
it is stated in the lake, and what follows leaves it out. A step's failure would stop what follows for every session, so
the last steps of the run fail in its place, at their end, and name the sessions.
"""

from collections.abc import Iterator
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION

from aaco_pipeline.assets.stage import Session, Stage, failure_recorded, publish, stages, state_expected, views
from aaco_pipeline.automation.stage_events import (
    EXIT_CODE_KEY,
    MOST_RETRIES,
    Teller,
    expected_errors,
    retry,
)
from aaco_pipeline.errors import AacoError, PassingLakeError
from aaco_pipeline.lake.layout import RUN_TIMEOUT_SECONDS
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.report.words.units import counted
from aaco_pipeline.resources.host.process_identity import process_tags
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.progress import report_progress

#: A thousand sessions are one run; of ten thousand no run's page, database or second try is of more than a thousand.
MOST_SESSIONS_A_RUN: Final = 1000
#: On a run of several sessions: of a stage those that it did not publish, separated by commas.
LEFT_OUT_TAG: Final = "aaco/left_out/"
_NAMED: Final = 20


def run_stage(context: dg.AssetExecutionContext, one: Stage, lake: TraceLake, runner: InferenceRunner) -> Iterator[Any]:
    """Run a stage of every session of the step, and give Dagster the step's outputs.

    Dagster would materialize all sessions of a step at its end with one data version and the checks of none of them;
    that is switched off, and they are told of one by one instead.
    """
    context.instance.add_run_tags(context.run.run_id, process_tags())
    _Step(context, one, lake, runner).run()
    yield dg.MaterializeResult(metadata={SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION: True})
    for spec in context.assets_def.check_specs:
        yield dg.Output(None, output_name=spec.get_python_identifier())


class _Step:
    """One stage in one run."""

    def __init__(self, context: dg.AssetExecutionContext, one: Stage, lake: TraceLake, runner: InferenceRunner) -> None:
        self._context = context
        self._one = one
        self._lake = lake
        self._runner = runner
        self._teller = Teller(context.instance, context.run.run_id, context.log_event)

    def run(self) -> None:
        sessions = self._context.partition_keys
        retries = self._context.retry_number
        if len(sessions) == 1:
            with expected_errors(retries):
                self._run_one(sessions[0], RUN_TIMEOUT_SECONDS)
            return
        left_out = self._left_out_by(*self._one.dependencies)
        done: set[str | None] = set()
        if retries:
            left_out |= self._left_out_by(self._one.name)
            done = self._done()
        failed: dict[str, Exception] = {}
        for number, session in enumerate(sessions):
            report_progress(self._one.name, number, len(sessions))
            if session not in left_out and session not in done:
                try:
                    self._run_one(session, 0.0)
                except Exception as error:
                    failed[session] = error
                    self._context.log.error(in_a_line(f"{session}: {error}"), exc_info=not isinstance(error, AacoError))
        passing = {session for session, error in failed.items() if isinstance(error, PassingLakeError)}
        again = bool(passing) and retries < MOST_RETRIES
        self._leave_out({*left_out, *failed} - (passing if again else set()))
        if again:
            raise retry(retries) from failed[min(passing)]
        if not self._goes_on():
            self._fail({**dict.fromkeys(sorted(left_out)), **failed}, len(sessions))

    def _run_one(self, session: str, wait_seconds: float) -> None:
        """Run, publish and tell of the stage for one session, when nobody else runs stages of it."""
        one, runner = self._one, self._runner
        opened = Session(self._lake, session, runner.folder, runner.measure, self._log)
        with self._lake.running(session, wait_seconds=wait_seconds):
            state_expected(self._lake, session, (one.name,))
            with failure_recorded(opened, one):
                outcome = one(opened)
                self._teller.tell(opened, one, outcome, publish(opened, one, outcome))

    def _log(self, line: str) -> None:
        self._context.log.info(in_a_line(line))

    def _done(self) -> set[str | None]:
        """The sessions that an earlier try of this step has published."""
        context = self._context
        made = context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
        told = (entry.asset_materialization for entry in made)
        return {each.partition for each in told if each is not None and each.asset_key == context.asset_key}

    def _left_out_by(self, *names: str) -> set[str]:
        """The sessions that those stages did not publish in this run."""
        run = self._context.instance.get_run_by_id(self._context.run.run_id)
        tags = {} if run is None else run.tags
        return {session for name in names for session in tags.get(LEFT_OUT_TAG + name, "").split(",") if session}

    def _leave_out(self, sessions: set[str]) -> None:
        if sessions or self._left_out_by(self._one.name):  # a run that is executed again begins with the tags of before
            tags = {LEFT_OUT_TAG + self._one.name: ",".join(sorted(sessions))}
            self._context.instance.add_run_tags(self._context.run.run_id, tags)

    def _goes_on(self) -> bool:
        """Whether the run has a stage that reads from this one."""
        chosen = {key.to_user_string() for key in self._context.job_def.asset_layer.selected_asset_keys}
        every = {**stages(), **views()}
        return any(self._one.name in every[name].dependencies for name in chosen & every.keys())

    def _fail(self, missed: dict[str, Exception | None], of: int) -> None:
        if not missed:
            return
        told = [f"{session} ({error or 'an earlier stage failed'})" for session, error in missed.items()]
        more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
        codes = [error.exit_code for error in missed.values() if isinstance(error, AacoError)]
        raise dg.Failure(
            in_a_line(f"{len(missed)} of {counted(of, 'session')} are not done: {'; '.join(told[:_NAMED])}{more}"),
            {EXIT_CODE_KEY: codes[0] if codes else 1},
            allow_retries=False,
        )
