"""The asset checks: the invariants every session's tables must keep, each for one partition at a time.

The invariants' arithmetic is `aaco_pipeline.analysis.sessions.invariants`, the contracts' is
`aaco_pipeline.lake.validation`; here is only which asset each guards and whether a broken one blocks what follows.
"""

import warnings
from collections.abc import Mapping
from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.analysis.sessions.invariants import Finding
from aaco_pipeline.assets import att_enrichment as att_stage
from aaco_pipeline.assets import capture as capture_stage
from aaco_pipeline.assets import classification as classification_stage
from aaco_pipeline.assets import critical_path as path_stage
from aaco_pipeline.assets import inference_run as inference_stage
from aaco_pipeline.assets import kernel_trace as trace_stage
from aaco_pipeline.assets import model_graph as graph_stage
from aaco_pipeline.assets import perfetto_trace as perfetto_stage
from aaco_pipeline.assets import report as report_stage
from aaco_pipeline.assets import roofline as roofline_stage
from aaco_pipeline.assets import session_environment as environment_stage
from aaco_pipeline.assets import telemetry as telemetry_stage
from aaco_pipeline.assets import timeline as timeline_stage
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import expected_errors
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import conform
from aaco_pipeline.resources.dagster_resources import LakeResource

# Checks have to be partitioned, or a session's broken promise hides behind a later session's kept one; Dagster calls
# exactly that argument a preview. Named here so that no other warning is silenced with it.
warnings.filterwarnings(
    "ignore", "Specifying a partitions_def on an AssetCheckSpec is currently in preview", dg.PreviewWarning
)

STAGE_ASSETS: Final[Mapping[str, dg.AssetsDefinition]] = {
    capture_stage.STAGE: capture_stage.capture,
    environment_stage.STAGE: environment_stage.session_environment,
    inference_stage.STAGE: inference_stage.inference_run,
    trace_stage.STAGE: trace_stage.kernel_trace,
    telemetry_stage.STAGE: telemetry_stage.telemetry,
    timeline_stage.STAGE: timeline_stage.timeline,
    path_stage.STAGE: path_stage.critical_path,
    graph_stage.STAGE: graph_stage.model_graph,
    att_stage.STAGE: att_stage.att_enrichment,
    roofline_stage.STAGE: roofline_stage.roofline,
    classification_stage.STAGE: classification_stage.classification,
    perfetto_stage.STAGE: perfetto_stage.perfetto_trace,
    report_stage.STAGE: report_stage.report,
}


def published_tables_fulfil_contracts(lake: TraceLake, session: str, stage: str) -> Finding:
    """Every table that `stage` published is there, unchanged since, and as its contract says."""
    entries = lake.manifest(session).of_stage(stage)
    broken: list[str] = []
    for entry in entries:
        try:
            table = contract(entry.table)
            conform(table, lake.read_entry(entry), session)
        except LakeError as error:
            broken.append(str(error))
    holds = bool(entries) and not broken
    statement = "; ".join(broken) or (f"{len(entries)} tables as declared" if entries else "nothing is published")
    return Finding(holds, statement, {"tables": len(entries), "broken": len(broken)})


def _contract_check(stage: str, asset: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset,
        name="contract",
        blocking=True,
        partitions_def=session_partitions,
        description="Every published table of the stage is intact and fulfils its contract.",
    )
    def check(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
        with expected_errors():
            return _result(published_tables_fulfil_contracts(lake.open(), context.partition_key, stage))

    return check


@dg.asset_check(
    asset=inference_stage.inference_run,
    name="plausibility",
    blocking=True,
    partitions_def=session_partitions,
    description="Iterations follow one another, take time, and use no negative CPU time.",
)
def inference_plausibility(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    with expected_errors():
        iterations = lake.open().read("iterations", context.partition_key)
        return _result(invariants.iterations_are_plausible(iterations))


@dg.asset_check(
    asset=trace_stage.kernel_trace,
    additional_deps=[inference_stage.inference_run],
    name="conservation",
    blocking=True,
    partitions_def=session_partitions,
    description="Kernel self times of an iteration sum to no more than the iteration took.",
)
def kernel_conservation(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    with expected_errors():
        store, session = lake.open(), context.partition_key
        finding = invariants.kernel_time_fits_iterations(
            _kernels_within_calls(store, session), store.read("iterations", session)
        )
        return _result(finding)


@dg.asset_check(
    asset=trace_stage.kernel_trace,
    additional_deps=[inference_stage.inference_run],
    name="coverage",
    partitions_def=session_partitions,
    description="Every traced iteration has its kernels, and every kernel lies in its iteration.",
)
def kernel_coverage(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    with expected_errors():
        store, session = lake.open(), context.partition_key
        iterations = store.read("iterations", session)
        kernels = _kernels_within_calls(store, session)
        finding = invariants.trace_covers_iterations(kernels, iterations if kernels.height else iterations.clear())
        return _result(finding, dg.AssetCheckSeverity.WARN)


@dg.asset_check(
    asset=timeline_stage.timeline,
    name="conservation",
    blocking=True,
    partitions_def=session_partitions,
    description="On every device, busy time plus gaps is the window, to the nanosecond.",
)
def timeline_conservation(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    with expected_errors():
        store, session = lake.open(), context.partition_key
        return _result(invariants.window_is_conserved(store.read("timeline", session), store.read("gaps", session)))


@dg.asset_check(
    asset=path_stage.critical_path,
    name="conservation",
    blocking=True,
    partitions_def=session_partitions,
    description="The critical path and what it leaves unexplained are the window; its categories are the path.",
)
def path_conservation(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    with expected_errors():
        summary = lake.open().read("critical_path_summary", context.partition_key)
        return _result(invariants.path_is_conserved(summary))


@dg.asset_check(
    asset=graph_stage.model_graph,
    additional_deps=[timeline_stage.timeline],
    name="conservation",
    blocking=True,
    partitions_def=session_partitions,
    description="Operators' kernel time and the unattributed rest are the kernels' time, to the nanosecond.",
)
def operator_conservation(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    with expected_errors():
        store, session = lake.open(), context.partition_key
        finding = invariants.operator_time_is_conserved(
            store.read("operator_kernels", session), store.read("kernel_stats", session)
        )
        return _result(finding)


@dg.asset_check(
    asset=att_stage.att_enrichment,
    name="conservation",
    blocking=True,
    partitions_def=session_partitions,
    description="The reasons of the stalls add up to the stalled cycles of the traced instructions.",
)
def stall_conservation(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    with expected_errors():
        store, session = lake.open(), context.partition_key
        finding = invariants.stalls_are_conserved(
            store.read("att_instructions", session), store.read("att_stalls", session)
        )
        return _result(finding)


@dg.asset_check(
    asset=roofline_stage.roofline,
    name="plausibility",
    partitions_def=session_partitions,
    description="No kernel is above what its device can do by its published figures.",
)
def roofline_plausibility(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    with expected_errors():
        bounds = lake.open().read("resource_bounds", context.partition_key)
        return _result(invariants.roofs_are_plausible(bounds), dg.AssetCheckSeverity.WARN)


def _kernels_within_calls(store: TraceLake, session: str) -> pl.DataFrame:
    """The dispatches that must lie within their iteration: not a device's, which runs beside the host's calls."""
    dispatches = store.read("dispatches", session)
    provider = store.read("sessions", session).item(0, "provider")
    return dispatches if provider == "CPUExecutionProvider" else dispatches.clear()


def _result(finding: Finding, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=finding.holds, severity=severity, description=finding.statement, metadata=dict(finding.figures)
    )


ALL_CHECKS: Final = (
    *(_contract_check(stage, asset) for stage, asset in STAGE_ASSETS.items()),
    inference_plausibility,
    kernel_conservation,
    kernel_coverage,
    timeline_conservation,
    path_conservation,
    operator_conservation,
    stall_conservation,
    roofline_plausibility,
)
