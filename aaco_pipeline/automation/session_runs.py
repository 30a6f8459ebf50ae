"""Running a session's stages in this process, as one real run of the job `observe`.

Dagster's own executor spends most of a short session's time on steps: for each it starts, resolves inputs and writes
half a dozen events. Here the stages are called one after another on one opened capture, and the run is given what
people look at: its page, tags and partition, every stage's materialization with its metadata and versions, every
check's result, and the failure where there was one. What Dagster itself starts (`aaco ui`, sensors, backfills) runs the
same stages as assets, in `stage_assets`. `finish_session` makes whole what a killed or failed run left half.
"""

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.definitions.data_version import NULL_EVENT_POINTER
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
from aaco_pipeline.automation.attempts import ATTEMPT_TAG, PARTITION_TAG, attempts_at
from aaco_pipeline.automation.dead_runs import reap
from aaco_pipeline.automation.event_storage import connections_kept
from aaco_pipeline.automation.pool_slot import pool_slot
from aaco_pipeline.automation.stage_assets import (
    EXIT_CODE_KEY,
    JOB,
    checked,
    described,
    evaluation,
    observe_job,
    version_tags,
)
from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.words.printable import in_a_line, in_lines
from aaco_pipeline.resources.dagster_resources import InferenceRunner
from aaco_pipeline.resources.host.memory import give_back_memory
from aaco_pipeline.resources.host.process_identity import process_tags
from aaco_pipeline.resources.progress import report_progress

#: The session a run is of; of a run that registers several, all of them, separated by commas.
SESSION_TAG: Final = "aaco/session"
#: Which version of all stages together a run was of.
_CODE_TAG: Final = ".dagster/aaco/code"


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
    run_id = str(uuid4())
    with connections_kept(instance, run_id), _Run(instance, session, steps, run_id, attempt) as run:
        opened = Session(lake, session, configs, runner.measure, run.log)
        # The pool's slot before the session, in the order in which Dagster's own executor takes the two.
        with run.slot(steps, opened) as free_slot, lake.running(session):
            state_expected(lake, session, chosen)
            still = set(due())
            for number, one in enumerate(steps):
                report_progress("stages", number, len(steps))
                if one.name not in still:
                    continue
                with run.step(one), failure_recorded(opened, one):
                    outcome = one(opened)
                    free_slot()  # only the first step may have measured
                    run.record(opened, one, outcome, publish(opened, one, outcome))
                    del outcome  # its tables may be large, and the next stage has its own
                    give_back_memory()


class CheckError(AacoError):
    """A blocking check of a stage failed: what follows would be computed from wrong tables."""

    exit_code = 1


class _Run:
    """One run of the job in Dagster's storage, written event by event."""

    def __init__(
        self, instance: dg.DagsterInstance, session: str, chosen: Sequence[Stage], run_id: str, attempt: int
    ) -> None:
        self._instance = instance
        self._chosen = chosen
        self._session = session
        self._id = run_id
        self._attempt = attempt
        #: Per stage the number of its newest materialization, as Dagster's storage counts them.
        self._stored: dict[str, int] = {}

    def __enter__(self) -> "_Run":
        version = sha256("".join(one.code_version for one in stages().values()).encode()).hexdigest()[:16]
        tags = {
            PARTITION_TAG: self._session,
            SESSION_TAG: self._session,
            ATTEMPT_TAG: str(self._attempt),
            _CODE_TAG: version,
            **process_tags(),
        }
        job, plan = self._snapshots(version)
        run = dg.DagsterRun(
            job_name=JOB,
            run_id=self._id,
            status=dg.DagsterRunStatus.NOT_STARTED,
            tags=tags,
            asset_selection=frozenset(dg.AssetKey(one.name) for one in self._chosen),
            job_snapshot_id=job,
            execution_plan_snapshot_id=plan,
        )
        self._instance.run_storage.add_run(run)
        self._event(DagsterEventType.RUN_START, f"Started the stages of session {self._session}.")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._event(
                DagsterEventType.RUN_SUCCESS, f"{len(self._chosen)} stages of session {self._session} have run."
            )
        elif isinstance(error, Exception):
            self._event(DagsterEventType.RUN_FAILURE, f"Session {self._session} is not whole: {error}")
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
        self._instance.report_engine_event(in_a_line(line), run_id=self._id, job_name=JOB)

    @contextmanager
    def step(self, one: Stage) -> Iterator[None]:
        """The stage as a step of the run; an error is recorded as its failure before it goes on."""
        began = time.monotonic()
        self._event(DagsterEventType.STEP_START, f"Started {one.name}.", step=one.name)
        try:
            yield
        except BaseException as error:
            self._failed(one, error)
            raise
        took = StepSuccessData(1000 * (time.monotonic() - began))  # type: ignore[no-untyped-call]
        self._event(DagsterEventType.STEP_SUCCESS, f"Finished {one.name}.", took, one.name)

    def record(self, session: Session, one: Stage, outcome: Outcome, entries: Sequence[Entry]) -> None:
        """The materialization of a stage and the results of its checks; CheckError when a blocking one failed."""
        key = dg.AssetKey(one.name)
        materialization = dg.AssetMaterialization(
            key,
            metadata=described(session, one, outcome, entries),
            partition=self._session,
            tags=version_tags(session.lake.manifest(session.id), one, self._pointer),
        )
        data = StepMaterializationData(materialization)
        self._event(DagsterEventType.ASSET_MATERIALIZATION, f"Published {one.name}.", data, one.name)
        stored = self._instance.get_latest_data_version_record(key, partition_key=self._session)
        assert stored is not None, "Dagster lost the event that was just stored"
        self._stored[one.name] = stored.storage_id
        target = AssetCheckEvaluationTargetMaterializationData(
            storage_id=stored.storage_id, run_id=self._id, timestamp=stored.timestamp
        )
        broken = []
        for result in checked(session, one):
            found = evaluation(one, self._session, result, target)
            kept = "passed" if result.passed else "failed"
            said = f"Check {result.check_name} of {one.name} {kept}: {result.description}"
            self._event(DagsterEventType.ASSET_CHECK_EVALUATION, said, found, one.name)
            if found.blocking and not result.passed:
                broken.append(said)
        if broken:
            raise CheckError("; ".join(broken))

    @contextmanager
    def slot(self, chosen: Sequence[Stage], session: Session) -> Iterator[Callable[[], None]]:
        """The slot of the pool of the stage that has still to measure; the function given frees it early.

        Stages that only read need none.
        """
        measuring = next((one for one in chosen if one.pool is not None), None)
        if measuring is None or measuring.pool is None or session.lake.raw(session.id).is_dir():
            yield lambda: None
            return
        with pool_slot(self._instance, self._id, measuring.pool, measuring.name) as held:
            yield held.close

    def _pointer(self, key: dg.AssetKey) -> str:
        """The number of a stage's newest materialization for this session, of this run or an earlier one."""
        name = key.to_user_string()
        if name not in self._stored:
            stored = self._instance.get_latest_data_version_record(key, partition_key=self._session)
            if stored is None:
                return NULL_EVENT_POINTER
            self._stored[name] = stored.storage_id
        return str(self._stored[name])

    def _failed(self, one: Stage, error: BaseException) -> None:
        """The step's failure with the error's stack, and the stage's partition as failed."""
        info = SerializableErrorInfo(
            in_a_line(str(error)), [*map(in_lines, traceback.format_exception(error))], type(error).__name__
        )
        code = {EXIT_CODE_KEY: dg.MetadataValue.int(error.exit_code)} if isinstance(error, AacoError) else {}
        why = UserFailureData(label="error", description=in_a_line(str(error)), metadata=code)  # type: ignore[no-untyped-call]
        data = StepFailureData(info, why, ErrorSource.USER_CODE_ERROR)  # type: ignore[no-untyped-call]
        self._event(DagsterEventType.STEP_FAILURE, f"{one.name} failed: {error}", data, one.name)
        if one.name not in self._stored:
            # What was planned and not materialized by a run that failed is what Dagster shows as a failed partition.
            planned = AssetMaterializationPlannedData(dg.AssetKey(one.name), self._session)
            self._event(DagsterEventType.ASSET_MATERIALIZATION_PLANNED, f"{one.name} is missing.", planned, one.name)

    def _event(self, kind: DagsterEventType, message: str, data: Any = None, step: str | None = None) -> None:
        event = DagsterEvent(
            event_type_value=kind.value,
            job_name=JOB,
            message=in_a_line(message),
            event_specific_data=data,
            step_key=step,
        )
        self._instance.report_dagster_event(event, self._id, _LEVELS.get(kind, logging.INFO))


_LEVELS: Final = {DagsterEventType.STEP_FAILURE: logging.ERROR, DagsterEventType.RUN_FAILURE: logging.ERROR}
