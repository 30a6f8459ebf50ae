"""Beginning a campaign, and running it from its first session to its alerts."""

from collections.abc import Callable
from pathlib import Path

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.alerting import judge_night
from aaco_pipeline.pipeline.comparing.judging import judge_campaign
from aaco_pipeline.pipeline.comparing.measuring import measure_campaign
from aaco_pipeline.pipeline.comparing.plan import Plan, write_plan
from aaco_pipeline.pipeline.comparing.rolling import roll_forward
from aaco_pipeline.pipeline.comparing.series import publish_history
from aaco_pipeline.pipeline.comparing.stack_change import judge_between_nights
from aaco_pipeline.resources.measure.runner import InferenceRunner


def begin(lake: TraceLake, plan: Plan) -> None:
    """Write the plan, before which nothing of a campaign is measured; one that was begun stays as it is."""
    write_plan(lake, plan)


def run(configs: Path, lake: TraceLake, campaign: str, log: Callable[[str], None] = lambda line: None) -> None:
    """Run what is left of a campaign: its sessions, verdict, history and alerts; raise the AacoError that ended it."""
    measure_campaign(lake, campaign, configs, log)
    judge_campaign(lake, campaign)
    judge_between_nights(lake, campaign)
    publish_history(lake, campaign)
    judge_night(lake, campaign)
    roll_forward(lake, InferenceRunner(str(configs)))
