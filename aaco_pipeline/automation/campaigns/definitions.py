"""Campaigns as Dagster sees them: a partition for each, an asset for each thing that comes of it, and their job.

What a campaign depends on in its sessions is lineage alone: which sessions are its own stands in the lake.
"""

from typing import Final

import dagster as dg

from aaco_pipeline.automation.campaigns.measuring import measure_campaign
from aaco_pipeline.automation.partitions import campaign_partitions
from aaco_pipeline.automation.stage_assets import OWNERS, expected_errors
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
from aaco_pipeline.resources.host.process_identity import process_tags

#: The job of all that a campaign makes.
JOB: Final = "run_campaign"


@dg.asset(
    partitions_def=campaign_partitions,
    group_name="judgement",
    kinds={"onnx", "parquet"},
    owners=OWNERS,
    description="Which fresh sessions belong to the campaign? Measures the blocks that are left of its plan.",
)
def campaign_sessions(
    context: dg.AssetExecutionContext, lake: LakeResource, runner: InferenceRunner
) -> dg.MaterializeResult:  # type: ignore[type-arg]
    context.instance.add_run_tags(context.run_id, process_tags())
    with expected_errors():
        rows = measure_campaign(
            lake.open(),
            context.instance,
            context.partition_key,
            runner.folder,
            run_id=context.run_id,
            log=context.log.info,
        )
    counted = rows.group_by("arm", "purpose", "state").len("sessions").sort("arm", "purpose", "state")
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": rows.height,
            **{f"{arm} {purpose} sessions {state}": count for arm, purpose, state, count in counted.iter_rows()},
        }
    )


run_campaign = dg.define_asset_job(
    JOB,
    selection=dg.AssetSelection.assets(campaign_sessions),
    executor_def=dg.in_process_executor,
    description="All of one campaign, from its first session to its verdict. Blocks that are finished are kept.",
)
