"""The search for a faster kernel as Dagster sees it: an asset that a person materializes with what is asked for."""

from pathlib import Path
from typing import Final

import dagster as dg
import polars as pl
from pydantic import Field

from aaco_pipeline.automation.optimizing.asking import DEFAULT_BUDGET_NS, DEFAULT_THRESHOLD, Order
from aaco_pipeline.automation.optimizing.choosing import TargetChoice
from aaco_pipeline.automation.optimizing.running import run
from aaco_pipeline.automation.stage_assets import OWNERS, expected_errors, markdown_table
from aaco_pipeline.report.document.optimization import optimization_document
from aaco_pipeline.report.words.optimization import remarks, sentence
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
from aaco_pipeline.resources.host.process_identity import process_tags

JOB: Final = "optimize_kernel"
_SHOWN: Final = ("attempt", "transformation", "decision", "guard", "speedup_ratio", "ci_low", "ci_high", "reason")


class OptimizeKernel(dg.Config):
    """Which kernel of which source to make faster."""

    source: str = Field(description="A standalone HIP or CUDA source with a harness, a path that this host can read.")
    kernel: str | None = Field(None, description="The kernel; else its harness' own, or the session's.")
    harness: str | None = Field(None, description="The harness' file; else NAME_harness.py beside the source.")
    session: str | None = Field(None, description="Session whose evidence chooses the kernel and is given on.")
    target: TargetChoice = Field("auto", description="Where candidates run.")
    budget_seconds: float = Field(DEFAULT_BUDGET_NS / 1e9, gt=0, le=7 * 86_400, description="Time in all.")
    threshold_ratio: float = Field(DEFAULT_THRESHOLD, ge=0, le=1, description="Least gain that counts: 0.02 is 2 %.")
    apply: bool = Field(False, description="Replace the source by what was accepted; else it is left as a patch.")


@dg.asset(
    group_name="optimization",
    kinds={"parquet"},
    owners=OWNERS,
    description="Can this kernel be made faster? Proposes changes, proves each right and faster, or rejects it.",
)
def optimization(
    context: dg.AssetExecutionContext, config: OptimizeKernel, lake: LakeResource, runner: InferenceRunner
) -> dg.MaterializeResult:  # type: ignore[type-arg]
    context.instance.add_run_tags(context.run.run_id, process_tags())
    order = Order(
        Path(config.source),
        kernel=config.kernel,
        harness=None if config.harness is None else Path(config.harness),
        session=config.session,
        target=config.target,
        budget_ns=round(config.budget_seconds * 1e9),
        threshold_ratio=config.threshold_ratio,
        apply=config.apply,
    )
    opened = lake.open()
    with expected_errors():
        ended = run(runner.folder, opened, order, context.log.info)
    document = optimization_document(opened, ended.name)
    attempts = opened.read("optimization_attempts", ended.name)
    shown = attempts.select(_SHOWN).with_columns(pl.col("speedup_ratio", "ci_low", "ci_high").round(3))
    return dg.MaterializeResult(
        metadata={
            "answer": "\n".join((sentence(document), *remarks(document))),
            "attempts": dg.MetadataValue.md(markdown_table(shown)),
            "optimization": ended.name,
            "journal": document["journal"],
            "dagster/row_count": attempts.height,
        }
    )


optimize_kernel = dg.define_asset_job(
    JOB,
    selection=dg.AssetSelection.assets(optimization),
    executor_def=dg.in_process_executor,
    description="One search for a faster kernel, from its baseline to its patch.",
)
