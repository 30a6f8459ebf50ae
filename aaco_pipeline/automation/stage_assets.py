"""Stages as Dagster assets: checks, column schema, dependencies, automation condition, and one step for many sessions.

The stages are in `aaco_pipeline.assets`; events of a published stage are in `stage_events`.
"""

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import dagster as dg

from aaco_pipeline.assets.stage import Outcome, Session, Stage, stages, state_expected, views
from aaco_pipeline.automation.resources import Lake, LakeResource, Runner, session_partitions
from aaco_pipeline.automation.runs import SESSIONS_TAG
from aaco_pipeline.automation.stage_events import (
    EXIT_CODE_KEY,
    amounts,
    check_result,
    check_specs,
    data_version,
    described,
    expected_errors,
    tell,
)
from aaco_pipeline.errors import AacoError, PassingLakeError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.layout import RUN_TIMEOUT_SECONDS
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.reanalysis import stale_sessions
from aaco_pipeline.pipeline.session_stages import CheckError, checked, run_stages
from aaco_pipeline.report.formatting import counted, in_a_line
from aaco_pipeline.resources.host.kernel_files import process_tags
from aaco_pipeline.resources.measure.runner import InferenceRunner

#: Maximum number of sessions per run; larger runs make Dagster's pages, database and retries slow.
MOST_SESSIONS_A_RUN: Final = 1000
#: Retries of a session after a transient lake error, and the first delay in seconds; each further delay doubles.
MOST_RETRIES: Final = 3
FIRST_WAIT_SECONDS: Final = 5.0
_NAMED: Final = 20
Publication = Callable[[Session, Stage, Outcome, Sequence[Entry]], None]
#: The job that runs all stages.
JOB: Final = "observe"
OWNERS: Final = ["team:aaco"]
#: Contract units that are not displayed.
_NO_UNITS: Final = ("id", "name", "text", "bool", "varies")
#: Dagster warnings about intended choices, matched by text: checks are partitioned so that each session keeps its own
#: result, and a backfill uses the policy of the stage that may measure.
_MEANT_SO: Final = (
    ("Specifying a partitions_def on an AssetCheckSpec is currently in preview", dg.PreviewWarning),
    ("Parameter `backfill_policy` of function `multi_asset` is currently in beta", dg.BetaWarning),
    ("Parameter `use_user_code_server` of initializer `AutomationConditionSensorDefinition", dg.BetaWarning),
    (r"Asset job \S+ materializes assets with varying BackfillPolicies", UserWarning),
)


class Batch:
    """Stages to run for every session of a step; `publication` is called after each published stage."""

    def __init__(
        self, context: dg.AssetExecutionContext, lake: TraceLake, runner: InferenceRunner, publication: Publication
    ) -> None:
        self._context = context
        self._lake = lake
        self._runner = runner
        self._publication = publication
        every = {**stages(), **views()}
        chosen = [one for name, one in every.items() if dg.AssetKey(name) in context.selected_asset_keys]
        #: Stages still to run, by session.
        self._left: dict[str, list[Stage]] = {session: list(chosen) for session in context.partition_keys}
        self._failed: dict[str, Exception] = {}

    def run(self) -> None:
        """Run the stages of all sessions, and raise Failure if any of them failed."""
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
            except Exception as error:  # noqa: BLE001  (raised at the end of the step)
                self._fail(session, error)

    def _run_one(self, session: str) -> None:
        """Run the remaining stages of one session under its lock; PassingLakeError ends it for now."""
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
                    if isinstance(error, CheckError):  # its published tables show the fault
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
    """Leave out all stages that depend, directly or indirectly, on the failed one."""
    without, kept = {failed.name}, list[Stage]()
    for one in left:
        if without.isdisjoint(one.dependencies):
            kept.append(one)
        else:
            without.add(one.name)
    return kept


class PublishedByOtherCode(dg.AutomationCondition[dg.AssetKey]):
    """True for sessions in which a different code version published the stage."""

    @property
    def name(self) -> str:
        return "published_by_other_code"

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        lake = LakeResource().open()
        stale = _stale_at(lake.path, context.evaluation_time)[context.key.to_user_string()]
        view = context.asset_graph_view
        found = view.get_subset_from_partition_keys(context.key, session_partitions, set(stale))
        return dg.AutomationResult(context, context.candidate_subset.compute_intersection(found))


def rerun_when_stale() -> dg.AutomationCondition[dg.AssetKey]:
    """Build the condition for rerunning a stage: once per code version, and after its inputs.

    A failed stage is not requested again until its code changes.
    """
    stale = PublishedByOtherCode()
    changed = stale.newly_true() | dg.AutomationCondition.code_version_changed()
    asked = dg.AutomationCondition.newly_requested()
    due = stale & changed.since(asked)
    with_its_source = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.will_be_requested())
    known = ~dg.AutomationCondition.missing() & ~dg.AutomationCondition.in_progress()
    return ((due | with_its_source) & known).with_label("stale by code version")


@lru_cache(1)
def _stale_at(lake: Path, time: datetime) -> Mapping[str, Collection[str]]:
    """Cache `stale_sessions` of all stages for one tick."""
    return stale_sessions(TraceLake(lake))


for _said, _kind in _MEANT_SO:
    warnings.filterwarnings("ignore", _said, _kind)


@cache
def stage_assets() -> tuple[dg.AssetsDefinition, ...]:
    """Create an asset for every stage in execution order, followed by the views."""
    measuring = [one for one in stages().values() if one.pool is not None]
    reading = [one for one in stages().values() if one.pool is None]
    return (*map(_measured, measuring), _analysed([*reading, *views().values()]))


observe = dg.define_asset_job(
    JOB,
    selection=dg.AssetSelection.assets(*stages()),
    executor_def=dg.in_process_executor,
    description="All stages of one session, from capture to analysis. A captured session is not measured again.",
)


def column_schema(one: Stage) -> dg.TableSchema:
    """Merge the contracts of a stage's tables into one schema with columns named `table.column`."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=f"{name}.{column.name}",
                type=column.dtype,
                description=column.meaning if column.unit in _NO_UNITS else f"{column.meaning} [{column.unit}]",
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for name in one.tables
            for column in contract(name).all_columns
        ]
    )


def _measured(one: Stage) -> dg.AssetsDefinition:
    """Create the asset of a stage that may measure: never started automatically, one session at a time."""

    @dg.asset(
        name=one.name,
        deps=list(one.dependencies),
        check_specs=check_specs(one),
        partitions_def=session_partitions,
        description=one.question,
        group_name=one.group,
        kinds=set(one.kinds),
        owners=OWNERS,
        pool=one.pool,
        code_version=one.code_version,
        metadata={"dagster/column_schema": column_schema(one)},
    )
    def asset(context: dg.AssetExecutionContext, lake: Lake, runner: Runner) -> Iterator[Any]:
        if len(context.partition_keys) > 1:
            raise dg.Failure(f"{one.name} may measure: a run of it is of one session", allow_retries=False)
        made: list[dg.MaterializeResult[Any]] = []

        def publication(session: Session, one: Stage, outcome: Outcome, entries: Sequence[Entry]) -> None:
            made.append(
                dg.MaterializeResult(
                    metadata=described(session, one, outcome, entries),
                    data_version=dg.DataVersion(data_version(entries)),
                    check_results=[check_result(one, result) for result in checked(session, one)],
                )
            )

        Batch(context, lake.open(), runner, publication).run()
        yield from made  # dependent steps can start after this yield

    return asset


def _analysed(chosen: Sequence[Stage]) -> dg.AssetsDefinition:
    """Create the assets of all read-only stages as one step; a run may select any of them."""

    @dg.multi_asset(
        name="stages",
        specs=[
            dg.AssetSpec(
                one.name,
                # A view never becomes stale through code changes: it is generated with the current code when opened.
                code_version=None if one.is_view else one.code_version,
                automation_condition=None if one.is_view else rerun_when_stale(),
                skippable=True,
                deps=list(one.dependencies),
                description=one.question,
                group_name=one.group,
                kinds=set(one.kinds),
                owners=OWNERS,
                metadata={"dagster/column_schema": column_schema(one)},
            )
            for one in chosen
        ],
        check_specs=[spec for one in chosen for spec in check_specs(one)],
        can_subset=True,
        partitions_def=session_partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(MOST_SESSIONS_A_RUN),
    )
    def assets(context: dg.AssetExecutionContext, lake: Lake, runner: Runner) -> Iterator[Any]:
        def publication(session: Session, one: Stage, outcome: Outcome, entries: Sequence[Entry]) -> None:
            tell(context, session, one, described(session, one, outcome, entries))

        Batch(context, lake.open(), runner, publication).run()
        # Each session was logged when it finished; yielding an output would materialize all of them again.
        yield from ()

    return assets
