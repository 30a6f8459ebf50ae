"""Beginning a campaign, and running it in this process as one real run of its job."""

from typing import Final

import dagster as dg

from aaco_pipeline.automation.campaigns.definitions import ASSETS, JOB, run_campaign
from aaco_pipeline.automation.campaigns.plan import Plan, write_plan
from aaco_pipeline.automation.dead_runs import reap
from aaco_pipeline.automation.partitions import CAMPAIGN_PARTITIONS_NAME
from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
from aaco_pipeline.resources.host.process_identity import process_tags
from aaco_pipeline.resources.project import Project

#: A person is told in one line what ended a campaign; its whole story is in the run's log.
_QUIET: Final = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def begin(lake: TraceLake, instance: dg.DagsterInstance, plan: Plan) -> None:
    """Write the plan, then make the campaign known to Dagster: no partition is without a plan. One begun stays so."""
    write_plan(lake, plan)
    instance.add_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME, [plan.campaign])


def run(project: Project, lake: TraceLake, instance: dg.DagsterInstance, campaign: str) -> None:
    """Run what is left of a campaign; raises the AacoError that ended it, KeyboardInterrupt when it was interrupted."""
    resources = {"lake": LakeResource(path=str(lake.path)), "runner": InferenceRunner(configs=str(project.configs))}
    definitions = dg.Definitions(assets=ASSETS, jobs=[run_campaign], resources=resources)
    job = definitions.resolve_job_def(JOB)
    reap(instance)  # what was killed of the campaign is told as failed before it goes on
    try:
        # Killed before its first step, a run that says whose it is counts as dead, and not as one that is to begin.
        job.execute_in_process(instance=instance, partition_key=campaign, tags=process_tags(), run_config=_QUIET)
        return
    except dg.DagsterExecutionInterruptedError as interrupted:
        raise KeyboardInterrupt from interrupted  # whoever tidies up knows that one
    except dg.Failure as failed:
        failure = failed
    # Outside of the block: raised within it, the cause would come to have the failure as its context, for ever round.
    raise failure.__cause__ if isinstance(failure.__cause__, AacoError) else failure
