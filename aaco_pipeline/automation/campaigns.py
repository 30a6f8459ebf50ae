"""Campaigns in Dagster: a partition for each, an asset for each of its results, and their job.

Dependencies on sessions are lineage only: the lake knows which sessions belong to a campaign.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import dagster as dg
import polars as pl

from aaco_pipeline.automation.resources import Lake, Runner, campaign_partitions
from aaco_pipeline.automation.stage_assets import OWNERS
from aaco_pipeline.automation.stage_events import data_version, expected_errors, markdown_table
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import STAGE as JUDGING
from aaco_pipeline.pipeline.comparing.judging import judge_campaign
from aaco_pipeline.pipeline.comparing.measuring import STAGE as MEASURING
from aaco_pipeline.pipeline.comparing.measuring import measure_campaign
from aaco_pipeline.pipeline.comparing.running import roll_forward
from aaco_pipeline.pipeline.nightly.alerts import STAGE as ALERTING
from aaco_pipeline.pipeline.nightly.alerts import judge_night, waits_for
from aaco_pipeline.pipeline.nightly.series import STAGE as HISTORY
from aaco_pipeline.pipeline.nightly.series import judge_between_nights, publish_history
from aaco_pipeline.report.comparing.campaign import verdict_document
from aaco_pipeline.report.comparing.verdict import changes_in_words, forecast_in_words, sentence
from aaco_pipeline.report.formatting import capital
from aaco_pipeline.resources.host.kernel_files import process_tags

#: The job that produces all results of a campaign.
JOB: Final = "run_campaign"


Told = Mapping[str, Any]


def sessions_told(lake: TraceLake, campaign: str) -> Told:
    """Count a campaign's sessions by arm, purpose and state, for display in Dagster."""
    rows = lake.read("campaign_sessions", campaign)
    counted = rows.group_by("arm", "purpose", "state").len("sessions").sort("arm", "purpose", "state")
    return {
        "dagster/row_count": rows.height,
        **{f"{arm} {purpose} sessions {state}": count for arm, purpose, state, count in counted.iter_rows()},
    }


def verdicts_told(lake: TraceLake, campaign: str) -> Told:
    """Describe a campaign's verdicts, for display in Dagster."""
    verdicts = lake.read("verdicts", campaign)
    candidates = verdicts.get_column("candidate").unique(maintain_order=True)
    # Narrow screens cut off the last columns. Effects are ratios of times, so they are not shown as percentages.
    effects = {"times": "effect_ratio", "from": "ci_low", "to": "ci_high"}
    shown = verdicts.select(
        "metric",
        "verdict",
        *(pl.col(column).round(4).alias(name) for name, column in effects.items()),
        pl.col("minimum_detectable_ratio").alias("detectable_ratio"),
        "candidate",
    )
    return {
        "verdict": "\n".join(sentence(verdict_document(lake, campaign, one)) for one in candidates),
        "verdicts": dg.MetadataValue.md(markdown_table(shown)),
        "dagster/row_count": verdicts.height,
    }


def history_told(lake: TraceLake, campaign: str) -> Told:
    """Describe the benchmark's nights up to this campaign, for display in Dagster."""
    tables = {name: lake.read(name, campaign) for name in ("nights", "change_points", "forecasts")}
    changes: list[Mapping[str, Any]] = [*tables["change_points"].iter_rows(named=True)]
    forecasts = map(forecast_in_words, tables["forecasts"].iter_rows(named=True))
    return {
        "finding": "\n".join([*changes_in_words(changes), *forecasts]) or "no change of level",
        "nights": tables["nights"].get_column("campaign").n_unique(),
        "dagster/row_count": sum(frame.height for frame in tables.values()),
    }


def alerts_told(lake: TraceLake, campaign: str) -> Told:
    """Describe the alerts that a night raises, confirms or closes, for display in Dagster."""
    events = lake.read("alerts", campaign)
    told = [
        f"{capital(event)}: {', '.join(reasons)}" for event, reasons in events.select("event", "reasons").iter_rows()
    ]
    waits = waits_for(lake, campaign)
    waiting = f"waits for the verdict of {', '.join(waits)}" if waits else "no event"
    return {"finding": "\n".join(told) or waiting, "dagster/row_count": events.height}


@dg.asset(
    partitions_def=campaign_partitions,
    group_name="judgement",
    kinds={"onnx", "parquet"},
    owners=OWNERS,
    description="Which fresh sessions belong to the campaign? Measures the blocks that are left of its plan.",
)
def campaign_sessions(context: dg.AssetExecutionContext, lake: Lake, runner: Runner) -> dg.MaterializeResult:  # type: ignore[type-arg]
    context.instance.add_run_tags(context.run.run_id, process_tags())
    opened = lake.open()
    with expected_errors():
        measure_campaign(opened, context.partition_key, runner.folder, context.log.info)
    return _made(context, opened, {})


@dg.asset(
    partitions_def=campaign_partitions,
    deps=[campaign_sessions],
    group_name="judgement",
    kinds={"polars", "parquet"},
    owners=OWNERS,
    description="Is the candidate slower than the baseline, by how much, and why? From the campaign's finished blocks.",
)
def campaign_verdicts(context: dg.AssetExecutionContext, lake: Lake) -> dg.MaterializeResult:  # type: ignore[type-arg]
    opened, campaign = lake.open(), context.partition_key
    with expected_errors():
        judge_campaign(opened, campaign)
        between = judge_between_nights(opened, campaign)
    told = {} if between is None else {"between nights": sentence(verdict_document(opened, between))}
    return _made(context, opened, told)


@dg.asset(
    partitions_def=campaign_partitions,
    deps=[campaign_verdicts],
    group_name="judgement",
    kinds={"polars", "parquet"},
    owners=OWNERS,
    description="Where does this night lie among the benchmark's nights, where did its level change, and where to?",
)
def history(context: dg.AssetExecutionContext, lake: Lake) -> dg.MaterializeResult:  # type: ignore[type-arg]
    opened = lake.open()
    with expected_errors():
        publish_history(opened, context.partition_key)
    return _made(context, opened, {})


@dg.asset(
    partitions_def=campaign_partitions,
    deps=[campaign_verdicts],
    group_name="judgement",
    kinds={"polars", "parquet"},
    owners=OWNERS,
    description="Which alerts does the night raise, confirm or end? Once the last campaign of its time slot is judged.",
)
def alerts(context: dg.AssetExecutionContext, lake: Lake, runner: Runner) -> dg.MaterializeResult:  # type: ignore[type-arg]
    opened = lake.open()
    with expected_errors():
        judge_night(opened, context.partition_key)
        rolled = roll_forward(opened, runner)
    return _made(context, opened, {"rolling baseline": ", ".join(rolled) or "as it was"})


def _made(context: dg.AssetExecutionContext, lake: TraceLake, told: Told) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Describe a campaign asset's published result; its version prevents a second adoption."""
    campaign, asset = context.partition_key, context.asset_key.to_user_string()
    return dg.MaterializeResult(
        metadata={**told, **TOLD[asset](lake, campaign)},
        data_version=dg.DataVersion(data_version(lake.manifest(campaign, "campaign").of_stage(STAGE_OF_ASSET[asset]))),
    )


#: Stage in the lake and display function of each asset.
STAGE_OF_ASSET: Final = {
    "campaign_sessions": MEASURING,
    "campaign_verdicts": JUDGING,
    "history": HISTORY,
    "alerts": ALERTING,
}
TOLD: Final[Mapping[str, Callable[[TraceLake, str], Told]]] = {
    "campaign_sessions": sessions_told,
    "campaign_verdicts": verdicts_told,
    "history": history_told,
    "alerts": alerts_told,
}

#: All assets of a campaign, in creation order.
ASSETS: Final = (campaign_sessions, campaign_verdicts, history, alerts)

run_campaign = dg.define_asset_job(
    JOB,
    selection=dg.AssetSelection.assets(*ASSETS),
    executor_def=dg.in_process_executor,
    description="All of one campaign, from its first session to its verdict. Blocks that are finished are kept.",
)
