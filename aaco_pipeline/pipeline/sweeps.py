"""A sweep: which sessions belong to one campaign of batch sizes and prompt lengths, and the curve they make together.

Measuring a session is the job `observe`; the curve's formulas are `aaco_pipeline.analysis.sessions.metrics`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from secrets import token_hex

import polars as pl

from aaco_pipeline.analysis.sessions.metrics import scaling_curve
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract

STAGE = "sweep"


def sweep_points(
    request: MeasurementRequest, batches: Sequence[int], prompts: Sequence[int]
) -> list[MeasurementRequest]:
    """One request for each batch size and prompt length, in ascending order, all of one new campaign."""
    campaign = f"sweep-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{token_hex(4)}"
    lengths: list[int | None] = [*sorted(set(prompts))] or [None]
    return [
        MeasurementRequest(**{**dict(request), "batch_size": batch, "prompt_tokens": prompt, "campaign_id": campaign})
        for prompt in lengths
        for batch in sorted(set(batches))
    ]


def publish_curve(lake: TraceLake, campaign: str, sessions: Sequence[str]) -> pl.DataFrame:
    """Publish and return the campaign's rows of `scaling`, from what its sessions have published."""
    metrics = (
        lake.read("session_metrics", sessions)
        .filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure"))
        .select("session_id", "metric", "value", "ci_low", "ci_high")
    )

    def of(metric: str, *columns: str) -> pl.DataFrame:
        return metrics.filter(pl.col("metric") == metric).select("session_id", *columns)

    what = lake.read("sessions", sessions).select("session_id", "batch_size", "prompt_tokens", "output_tokens")
    whole = "latency_p50" if what.get_column("output_tokens").null_count() else "request_latency_p50"
    points = (
        what.join(of(whole, "value", "ci_low", "ci_high"), on="session_id", how="left")
        .rename({"value": "time_ns", "ci_low": "time_ci_low_ns", "ci_high": "time_ci_high_ns"})
        .join(of("time_to_first_token_p50", "value"), on="session_id", how="left")
        .rename({"value": "time_to_first_token_ns"})
        .join(of("time_per_output_token_p50", "value"), on="session_id", how="left")
        .rename({"value": "time_per_output_token_ns"})
    )
    curve = to_contract("scaling", scaling_curve(points))
    lake.publish(campaign, STAGE, {"scaling": curve}, scope="campaign")
    return curve
