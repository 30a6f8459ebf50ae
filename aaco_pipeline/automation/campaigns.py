"""Campaigns as Dagster sees them: a partition for each, an asset for each thing that comes of it, and their job.

What a campaign depends on in its sessions is lineage alone: which sessions are its own stands in the lake.
"""

from collections.abc import Mapping
from typing import Any, Final

import dagster as dg
import polars as pl

from aaco_pipeline.automation.partitions import campaign_partitions
from aaco_pipeline.automation.resources import Lake, Runner
from aaco_pipeline.automation.stage_assets import OWNERS
from aaco_pipeline.automation.stage_events import expected_errors, markdown_table
from aaco_pipeline.pipeline.comparing.alerting import judge_night, waits_for
from aaco_pipeline.pipeline.comparing.judging import judge_campaign
from aaco_pipeline.pipeline.comparing.measuring import measure_campaign
from aaco_pipeline.pipeline.comparing.rolling import roll_forward
from aaco_pipeline.pipeline.comparing.series import publish_history
from aaco_pipeline.pipeline.comparing.stack_change import judge_between_nights
from aaco_pipeline.report.document.verdict import verdict_document
from aaco_pipeline.report.words.history import changes_in_words, forecast_in_words
from aaco_pipeline.report.words.units import capital
from aaco_pipeline.report.words.verdicts import sentence
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
def campaign_sessions(context: dg.AssetExecutionContext, lake: Lake, runner: Runner) -> dg.MaterializeResult:  # type: ignore[type-arg]
    context.instance.add_run_tags(context.run.run_id, process_tags())
    with expected_errors():
        rows = measure_campaign(lake.open(), context.partition_key, runner.folder, context.log.info)
    counted = rows.group_by("arm", "purpose", "state").len("sessions").sort("arm", "purpose", "state")
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": rows.height,
            **{f"{arm} {purpose} sessions {state}": count for arm, purpose, state, count in counted.iter_rows()},
        }
    )


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
        verdicts = judge_campaign(opened, campaign)["verdicts"]
        between = judge_between_nights(opened, campaign)
    candidates = verdicts.get_column("candidate").unique(maintain_order=True)
    # What a narrow screen cuts off goes last; an effect is how many times as long it takes, and no share.
    effects = {"times": "effect_ratio", "from": "ci_low", "to": "ci_high"}
    shown = verdicts.select(
        "metric",
        "verdict",
        *(pl.col(column).round(4).alias(name) for name, column in effects.items()),
        pl.col("minimum_detectable_ratio").alias("detectable_ratio"),
        "candidate",
    )
    return dg.MaterializeResult(
        metadata={
            "verdict": "\n".join(sentence(verdict_document(opened, campaign, one)) for one in candidates),
            "verdicts": dg.MetadataValue.md(markdown_table(shown)),
            **({} if between is None else {"between nights": sentence(verdict_document(opened, between))}),
            "dagster/row_count": verdicts.height,
        }
    )


@dg.asset(
    partitions_def=campaign_partitions,
    deps=[campaign_verdicts],
    group_name="judgement",
    kinds={"polars", "parquet"},
    owners=OWNERS,
    description="Where does this night lie among the benchmark's nights, where did its level change, and where to?",
)
def history(context: dg.AssetExecutionContext, lake: Lake) -> dg.MaterializeResult:  # type: ignore[type-arg]
    opened, campaign = lake.open(), context.partition_key
    with expected_errors():
        tables = publish_history(opened, campaign)
    nights = tables["nights"].get_column("campaign").n_unique()
    changes: list[Mapping[str, Any]] = [*tables["change_points"].iter_rows(named=True)]
    foretold = map(forecast_in_words, tables["forecasts"].iter_rows(named=True))
    told = [*changes_in_words(changes), *foretold]
    return dg.MaterializeResult(
        metadata={
            "finding": "\n".join(told) or "no change of level",
            "nights": nights,
            "dagster/row_count": sum(frame.height for frame in tables.values()),
        }
    )


@dg.asset(
    partitions_def=campaign_partitions,
    deps=[campaign_verdicts],
    group_name="judgement",
    kinds={"polars", "parquet"},
    owners=OWNERS,
    description="Which alerts does the night raise, confirm or end? Once the last campaign of its time slot is judged.",
)
def alerts(context: dg.AssetExecutionContext, lake: Lake, runner: Runner) -> dg.MaterializeResult:  # type: ignore[type-arg]
    opened, campaign = lake.open(), context.partition_key
    with expected_errors():
        events = judge_night(opened, campaign)["alerts"]
        waits = waits_for(opened, campaign)
        rolled = roll_forward(opened, runner)
    told = [
        f"{capital(event)}: {', '.join(reasons)}" for event, reasons in events.select("event", "reasons").iter_rows()
    ]
    waiting = f"waits for the verdict of {', '.join(waits)}" if waits else "no event"
    return dg.MaterializeResult(
        metadata={
            "finding": "\n".join(told) or waiting,
            "rolling baseline": ", ".join(rolled) or "as it was",
            "dagster/row_count": events.height,
        }
    )


#: Everything that a campaign makes, in the order it is made.
ASSETS: Final = (campaign_sessions, campaign_verdicts, history, alerts)

run_campaign = dg.define_asset_job(
    JOB,
    selection=dg.AssetSelection.assets(*ASSETS),
    executor_def=dg.in_process_executor,
    description="All of one campaign, from its first session to its verdict. Blocks that are finished are kept.",
)
