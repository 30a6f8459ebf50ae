"""Kernel optimization in Dagster: an asset that the user materializes with a configuration.

Source and harness must be in a folder listed in `configs/trusted_folders.yaml`; the source is never written.
"""

from typing import Any, Final

import dagster as dg
import polars as pl
from pydantic import Field

from aaco_pipeline.automation.resources import Lake, Runner
from aaco_pipeline.automation.stage_assets import OWNERS
from aaco_pipeline.automation.stage_events import expected_errors, markdown_table
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.optimizing.asking import DEFAULT_BUDGET_NS, DEFAULT_THRESHOLD, Order, TargetChoice
from aaco_pipeline.pipeline.optimizing.search import run
from aaco_pipeline.report.markdown import fenced
from aaco_pipeline.report.optimization.document import optimization_report
from aaco_pipeline.report.optimization.search import ATTEMPTS, remarks, sentence
from aaco_pipeline.resources.host.kernel_files import process_tags
from aaco_pipeline.resources.project_settings import trusted_folders

JOB: Final = "optimize_kernel"
#: Materialization metadata: the name of the search.
SEARCH_KEY: Final = "optimization"


class OptimizeKernel(dg.Config):
    """The kernel and source to optimize."""

    source: str = Field(
        description="A standalone HIP or CUDA source with a harness, in a folder of configs/trusted_folders.yaml; "
        "of the samples the name alone: row_dot.hip."
    )
    kernel: str | None = Field(None, description="The kernel; else its harness' own, or the session's.")
    harness: str | None = Field(None, description="The harness' file, in such a folder; else beside it.")
    session: str | None = Field(None, description="Session whose evidence chooses the kernel and is given on.")
    target: TargetChoice = Field("auto", description="Where candidates run.")
    budget_seconds: float = Field(DEFAULT_BUDGET_NS / 1e9, gt=0, le=7 * 86_400, description="Time in all.")
    threshold_ratio: float = Field(DEFAULT_THRESHOLD, ge=0, le=1, description="Least gain that counts: 0.02 is 2 %.")


def told(lake: TraceLake, search: str) -> dict[str, Any]:
    """Describe a finished search, for display in Dagster."""
    document = optimization_report(lake, search)
    patch = document["evidence"]["patch_text"]
    # A gain is a speedup factor, not a percentage; the columns are those of the command.
    shown = pl.DataFrame(
        {name.lstrip("*"): [show(row) for row in document["attempts"]] for name, show in ATTEMPTS.items()},
        schema_overrides={name.lstrip("*"): pl.String for name in ATTEMPTS},
    )
    return {
        "answer": "\n".join((sentence(document), *remarks(document))),
        "attempts": dg.MetadataValue.md(markdown_table(shown)),
        **({} if patch is None else {"change": dg.MetadataValue.md(fenced(patch, "diff"))}),
        "page": f"aaco report {search}",
        SEARCH_KEY: search,
        "journal": document["journal"],
        "dagster/row_count": shown.height,
    }


@dg.asset(
    group_name="optimization",
    kinds={"parquet"},
    owners=OWNERS,
    description="Can this kernel be made faster? Proposes changes, proves each right and faster, or rejects it.",
)
def optimization(
    context: dg.AssetExecutionContext, config: OptimizeKernel, lake: Lake, runner: Runner
) -> dg.MaterializeResult:  # type: ignore[type-arg]
    context.instance.add_run_tags(context.run.run_id, process_tags())
    opened = lake.open()
    with expected_errors():
        trusted = trusted_folders(runner.folder)
        order = Order(
            trusted.locate(config.source),
            kernel=config.kernel,
            harness=None if config.harness is None else trusted.locate(config.harness),
            session=config.session,
            target=config.target,
            budget_ns=round(config.budget_seconds * 1e9),
            threshold_ratio=config.threshold_ratio,
        )
        ended = run(runner.folder, opened, order, context.log.info, trusted.read)
    return dg.MaterializeResult(metadata=told(opened, ended.name))


optimize_kernel = dg.define_asset_job(
    JOB,
    selection=dg.AssetSelection.assets(optimization),
    executor_def=dg.in_process_executor,
    description="One search for a faster kernel, from its baseline to its patch.",
)
