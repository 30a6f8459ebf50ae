"""Plan a sweep over batch sizes and prompt lengths, and publish the scaling curve of its sessions.

The job `observe` measures a session; `aaco_pipeline.analysis.sessions.metrics` has the curve's formulas.
"""

from collections.abc import Sequence

import polars as pl

from aaco_pipeline.analysis.sessions.metrics import scaling_curve
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.campaigns import new_name, publish

STAGE = "sweep"


def sweep_points(
    request: MeasurementRequest, batches: Sequence[int], prompts: Sequence[int]
) -> list[MeasurementRequest]:
    """Create a request per batch size and prompt length, in ascending order, all in one new campaign."""
    campaign, _ = new_name("sweep")
    lengths: list[int | None] = [*sorted(set(prompts))] or [None]
    return [
        MeasurementRequest(**{**dict(request), "batch_size": batch, "prompt_tokens": prompt, "campaign_id": campaign})
        for prompt in lengths
        for batch in sorted(set(batches))
    ]


def publish_curve(lake: TraceLake, campaign: str, sessions: Sequence[str]) -> pl.DataFrame:
    """Publish and return the campaign's rows of `scaling`, computed from its sessions' published tables."""
    metrics = (
        lake.read("session_metrics", sessions)
        .filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure"))
        .select("session_id", "metric", "value", "ci_low", "ci_high")
    )

    def of(metric: str, **columns: str) -> pl.DataFrame:
        return metrics.filter(pl.col("metric") == metric).select("session_id", **columns)

    what = lake.read("sessions", sessions).select("session_id", "batch_size", "prompt_tokens", "output_tokens")
    whole = "latency_p50" if what.get_column("output_tokens").null_count() else "request_latency_p50"
    points = (
        what.join(
            of(whole, time_ns="value", time_ci_low_ns="ci_low", time_ci_high_ns="ci_high"), on="session_id", how="left"
        )
        .join(of("time_to_first_token_p50", time_to_first_token_ns="value"), on="session_id", how="left")
        .join(of("time_per_output_token_p50", time_per_output_token_ns="value"), on="session_id", how="left")
    )
    return publish(lake, campaign, STAGE, {"scaling": scaling_curve(points)})["scaling"]
