"""Stages as Dagster sees them: each an asset of its name with its checks, its column schema and what it depends on.

A stage is defined in `aaco_pipeline.assets.stage`. The one that may measure is a step of its own, of one session, with
a slot of the pool; all others are one step, which goes from session to session (`stage_batches`).
"""

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import dagster as dg

from aaco_pipeline.assets.stage import Outcome, Session, Stage, stages, views
from aaco_pipeline.automation.partitions import session_partitions
from aaco_pipeline.automation.resources import Lake, Runner
from aaco_pipeline.automation.stage_batches import MOST_SESSIONS_A_RUN, Batch
from aaco_pipeline.automation.stage_events import (
    check_result,
    check_specs,
    data_version,
    described,
    tell,
)
from aaco_pipeline.automation.stale import rerun_when_stale
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.pipeline.checks import checked

#: The job of all stages.
JOB: Final = "observe"
OWNERS: Final = ["team:aaco"]
#: Of a contract's units those that are none.
_NO_UNITS: Final = ("id", "name", "text", "bool", "varies")

#: What Dagster warns of and is meant so, each named so that nothing else is silenced with it. Checks have to be
#: partitioned, or a session's broken promise hides behind a later session's kept one. Many sessions are one run, but
#: for the stage that may measure; a backfill of all stages therefore takes its policy.
_MEANT_SO: Final = (
    ("Specifying a partitions_def on an AssetCheckSpec is currently in preview", dg.PreviewWarning),
    ("Parameter `backfill_policy` of function `multi_asset` is currently in beta", dg.BetaWarning),
    ("Parameter `use_user_code_server` of initializer `AutomationConditionSensorDefinition", dg.BetaWarning),
    (r"Asset job \S+ materializes assets with varying BackfillPolicies", UserWarning),
)
for _said, _kind in _MEANT_SO:
    warnings.filterwarnings("ignore", _said, _kind)


@cache
def stage_assets() -> tuple[dg.AssetsDefinition, ...]:
    """Every stage as an asset, in the order they run, and the views after them."""
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
    """The contracts of the tables a stage publishes as one schema, each column named `table.column`."""
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
    """The asset of a stage that may measure: never begun by itself, and for one session at a time."""

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
        yield from made  # steps that depend on this one begin when it has an output

    return asset


def _analysed(chosen: Sequence[Stage]) -> dg.AssetsDefinition:
    """The assets of all stages that only read, as one step; a run may have any of them."""

    @dg.multi_asset(
        name="stages",
        specs=[
            dg.AssetSpec(
                one.name,
                deps=list(one.dependencies),
                description=one.question,
                group_name=one.group,
                kinds=set(one.kinds),
                owners=OWNERS,
                # A view is not stale by its code: whoever opens one has it made by the present code.
                code_version=None if one.is_view else one.code_version,
                metadata={"dagster/column_schema": column_schema(one)},
                automation_condition=None if one.is_view else rerun_when_stale(),
                skippable=True,
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
        # Each session was told of when it was done: an output would materialize all of them at once, once more.
        yield from ()

    return assets
