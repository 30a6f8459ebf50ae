"""Stages as Dagster sees them: each an asset of its name with its checks, its column schema and what it depends on.

What a stage is lives in `aaco_pipeline.assets.stage`, how a step runs one in `stage_batches`. Stages also run without
Dagster's steps, in `session_runs` and `reanalysis`; what Dagster is told of them is the same, `stage_events`.
"""

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import dagster as dg

from aaco_pipeline.assets.stage import Stage, stages, views
from aaco_pipeline.automation.partitions import session_partitions
from aaco_pipeline.automation.resources import Lake, LakeResource, Runner
from aaco_pipeline.automation.stage_batches import MOST_SESSIONS_A_RUN, run_stage
from aaco_pipeline.automation.stage_events import CONTRACT
from aaco_pipeline.automation.stale import rerun_when_stale
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.resources.measure.runner import InferenceRunner

#: The job of all stages.
JOB: Final = "observe"
OWNERS: Final = ["team:aaco"]
_CONTRACT_IS: Final = "Every published table of the stage is intact and fulfils its contract."
#: Of a contract's units those that are none.
_NO_UNITS: Final = ("id", "name", "text", "bool", "varies")

#: What Dagster warns of and is meant so, each named so that nothing else is silenced with it. Checks have to be
#: partitioned, or a session's broken promise hides behind a later session's kept one. Many sessions are one run, but
#: for the stage that may measure; a backfill of all stages therefore takes its policy.
_MEANT_SO: Final = (
    ("Specifying a partitions_def on an AssetCheckSpec is currently in preview", dg.PreviewWarning),
    ("Parameter `backfill_policy` of function `asset` is currently in beta", dg.BetaWarning),
    ("Parameter `use_user_code_server` of initializer `AutomationConditionSensorDefinition", dg.BetaWarning),
    (r"Asset job \S+ materializes assets with varying BackfillPolicies", UserWarning),
)
for _said, _kind in _MEANT_SO:
    warnings.filterwarnings("ignore", _said, _kind)


@cache
def stage_assets() -> tuple[dg.AssetsDefinition, ...]:
    """Every stage as an asset, in the order they run, and the views after them."""
    return tuple(_asset(one) for one in (*stages().values(), *views().values()))


observe = dg.define_asset_job(
    JOB,
    selection=dg.AssetSelection.assets(*stages()),
    executor_def=dg.in_process_executor,
    description="All stages of one session, from capture to analysis. A captured session is not measured again.",
)


@cache
def observe_job() -> dg.JobDefinition:
    """The job with its assets, as the code location resolves it."""
    resources = {"lake": LakeResource(), "runner": InferenceRunner()}
    definitions = dg.Definitions(assets=stage_assets(), jobs=[observe], resources=resources)
    return definitions.resolve_job_def(JOB)


def check_specs(one: Stage) -> list[dg.AssetCheckSpec]:
    """The checks of a stage, for each session by itself: its contract and what it promises; of a view none."""
    contract_check = [] if one.is_view else [(CONTRACT, _CONTRACT_IS, True)]
    said = [*contract_check, *((check.name, check.description, check.blocking) for check in one.checks)]
    return [
        dg.AssetCheckSpec(name, asset=one.name, description=text, blocking=blocking, partitions_def=session_partitions)
        for name, text, blocking in said
    ]


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


def _asset(one: Stage) -> dg.AssetsDefinition:
    specs = check_specs(one)

    @dg.asset(
        name=one.name,
        deps=list(one.dependencies),
        check_specs=specs,
        partitions_def=session_partitions,
        description=one.question,
        group_name=one.group,
        kinds=set(one.kinds),
        owners=OWNERS,
        pool=one.pool,
        # A view is not stale by its code: whoever opens one has it made by the present code.
        code_version=None if one.is_view else one.code_version,
        metadata={"dagster/column_schema": column_schema(one)},
        # What may measure is never begun by itself, and for one session at a time.
        backfill_policy=None if one.pool is not None else dg.BackfillPolicy.multi_run(MOST_SESSIONS_A_RUN),
        automation_condition=None if one.pool is not None or one.is_view else rerun_when_stale(),
    )
    def asset(context: dg.AssetExecutionContext, lake: Lake, runner: Runner) -> Iterator[Any]:
        yield from run_stage(context, one, lake.open(), runner)

    return asset
