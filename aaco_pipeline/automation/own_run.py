"""A run of the job `observe` in Dagster's storage that this process writes event by event, without Dagster's steps.

Dagster's own executor spends most of a short session's time on steps: for each it starts, resolves inputs and writes
half a dozen events. A run written here has what people look at: its page, tags and partition, every stage's
materialization with its metadata and versions, every check's result, and the failure where there was one. Which stages
of which sessions it is of is decided in `session_runs` and `reanalysis`.
"""

import logging
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import dagster as dg
from dagster._core.events import (
    AssetMaterializationPlannedData,
    DagsterEvent,
    DagsterEventType,
    StepMaterializationData,
)
from dagster._core.execution.api import create_execution_plan
from dagster._core.execution.plan.objects import ErrorSource, StepFailureData, StepSuccessData, UserFailureData
from dagster._core.snap import snapshot_from_execution_plan
from dagster_shared.error import SerializableErrorInfo

from aaco_pipeline.assets.stage import Outcome, Session, Stage, stages
from aaco_pipeline.automation.attempts import ATTEMPT_TAG, PARTITION_TAG, SESSION_TAG
from aaco_pipeline.automation.event_storage import connections_kept
from aaco_pipeline.automation.stage_assets import JOB, observe_job
from aaco_pipeline.automation.stage_events import EXIT_CODE_KEY, Teller
from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.report.words.printable import in_a_line, in_lines
from aaco_pipeline.report.words.units import counted
from aaco_pipeline.resources.host.process_identity import process_tags

#: Which version of all stages together a run was of.
_CODE_TAG: Final = ".dagster/aaco/code"


class OwnRun:
    """One run of some stages of one or several sessions; it ends as its block does."""

    def __init__(
        self, instance: dg.DagsterInstance, sessions: Sequence[str], chosen: Sequence[Stage], attempt: int = 1
    ) -> None:
        self.id: Final = str(uuid4())
        self._instance = instance
        self._chosen = chosen
        self._sessions = sessions
        self._attempt = attempt
        self._of = f"session {sessions[0]}" if len(sessions) == 1 else counted(len(sessions), "session")
        self._teller: Final = Teller(instance, self.id, self._emit)
        self._open = ExitStack()
        self._began: dict[str, float] = {}

    def __enter__(self) -> "OwnRun":
        version = sha256("".join(one.code_version for one in stages().values()).encode()).hexdigest()[:16]
        tags = {
            **({PARTITION_TAG: self._sessions[0]} if len(self._sessions) == 1 else {}),
            SESSION_TAG: ",".join(self._sessions),
            ATTEMPT_TAG: str(self._attempt),
            _CODE_TAG: version,
            **process_tags(),
        }
        job, plan = self._snapshots(version)
        run = dg.DagsterRun(
            job_name=JOB,
            run_id=self.id,
            status=dg.DagsterRunStatus.NOT_STARTED,
            tags=tags,
            asset_selection=frozenset(dg.AssetKey(one.name) for one in self._chosen),
            job_snapshot_id=job,
            execution_plan_snapshot_id=plan,
        )
        self._instance.run_storage.add_run(run)
        self._kept = self._open.enter_context(connections_kept(self._instance, self.id))
        if len(self._sessions) > 1:
            self._teller.look_up({needed for one in self._chosen for needed in one.dependencies}, self._sessions)
        self._event(DagsterEventType.RUN_START, f"Started the stages of {self._of}.")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with self._open:
            if error is None:
                said = f"{counted(len(self._chosen), 'stage')} of {self._of} ran."
                self._event(DagsterEventType.RUN_SUCCESS, said)
            elif isinstance(error, Exception):
                self._event(DagsterEventType.RUN_FAILURE, f"Not done of {self._of}: {error}")
            else:
                self._event(DagsterEventType.RUN_CANCELED, "Interrupted by the person who started it.")

    def _snapshots(self, version: str) -> tuple[str | None, str | None]:
        """The numbers of the job's form and plan, from which the run's page is drawn.

        Making them takes as long as a short session: only for the first run of a version of the code.
        """
        asked = dg.RunsFilter(job_name=JOB, tags={_CODE_TAG: version})
        for record in self._instance.get_run_records(asked, limit=1):
            return record.dagster_run.job_snapshot_id, record.dagster_run.execution_plan_snapshot_id
        job, storage = observe_job(), self._instance.run_storage
        plan = snapshot_from_execution_plan(create_execution_plan(job), job.get_job_snapshot_id())
        return storage.add_job_snapshot(job.get_job_snapshot()), storage.add_execution_plan_snapshot(plan)

    def log(self, line: str) -> None:
        """A line of a stage that takes long, in the run's log."""
        self._instance.report_engine_event(in_a_line(line), run_id=self.id, job_name=JOB)

    @contextmanager
    def step(self, one: Stage) -> Iterator[None]:
        """The stage as a step of the run; an error is recorded as its failure before it goes on."""
        self.begin(one)
        try:
            yield
        except BaseException as error:
            self.finish(one, error)
            raise
        self.finish(one)

    def begin(self, one: Stage) -> None:
        """The stage's step begins."""
        self._began[one.name] = time.monotonic()
        self._event(DagsterEventType.STEP_START, f"Started {one.name}.", step=one.name)

    def finish(self, one: Stage, error: BaseException | None = None) -> None:
        """The stage's step ends, with an error as failed."""
        if error is not None:
            self._failed(one, error)
            return
        took = StepSuccessData(1000 * (time.monotonic() - self._began[one.name]))  # type: ignore[no-untyped-call]
        self._event(DagsterEventType.STEP_SUCCESS, f"Finished {one.name}.", took, one.name)

    def tell(self, session: Session, one: Stage, outcome: Outcome, entries: Sequence[Entry]) -> None:
        """The materialization of a stage and the results of its checks; CheckError when a blocking one failed."""
        with self._kept.at_once():
            self._teller.tell(session, one, outcome, entries)

    def missed(self, session: str, one: Stage) -> None:
        """Show the session's partition of the stage as failed, unless the run has published it."""
        if (one.name, session) not in self._teller.told:
            # What was planned and not materialized by a run that failed is what Dagster shows as a failed partition.
            planned = AssetMaterializationPlannedData(dg.AssetKey(one.name), session)
            said = f"{one.name} of {session} is missing."
            self._event(DagsterEventType.ASSET_MATERIALIZATION_PLANNED, said, planned, one.name)

    def _emit(self, told: dg.AssetMaterialization | dg.AssetCheckEvaluation) -> None:
        name = told.asset_key.to_user_string()
        if isinstance(told, dg.AssetMaterialization):
            data = StepMaterializationData(told)
            self._event(DagsterEventType.ASSET_MATERIALIZATION, f"Published {name}.", data, name)
        else:
            kept = "passed" if told.passed else "failed"
            said = f"Check {told.check_name} of {name} {kept}: {told.description}"
            self._event(DagsterEventType.ASSET_CHECK_EVALUATION, said, told, name)

    def _failed(self, one: Stage, error: BaseException) -> None:
        """The step's failure with the error's stack, and the stage's partition as failed."""
        info = SerializableErrorInfo(
            in_a_line(str(error)), [*map(in_lines, traceback.format_exception(error))], type(error).__name__
        )
        code = {EXIT_CODE_KEY: dg.MetadataValue.int(error.exit_code)} if isinstance(error, AacoError) else {}
        why = UserFailureData(label="error", description=in_a_line(str(error)), metadata=code)  # type: ignore[no-untyped-call]
        data = StepFailureData(info, why, ErrorSource.USER_CODE_ERROR)  # type: ignore[no-untyped-call]
        self._event(DagsterEventType.STEP_FAILURE, f"{one.name} failed: {error}", data, one.name)
        if len(self._sessions) == 1:
            self.missed(self._sessions[0], one)

    def _event(self, kind: DagsterEventType, message: str, data: Any = None, step: str | None = None) -> None:
        event = DagsterEvent(
            event_type_value=kind.value,
            job_name=JOB,
            message=in_a_line(message),
            event_specific_data=data,
            step_key=step,
        )
        self._instance.report_dagster_event(event, self.id, _LEVELS.get(kind, logging.INFO))


_LEVELS: Final = {DagsterEventType.STEP_FAILURE: logging.ERROR, DagsterEventType.RUN_FAILURE: logging.ERROR}
