"""The stage `inference_run`: every iteration of both passes, and the latency figures over the measured ones.

The figures' formulas are `aaco_pipeline.analysis.sessions.metrics`; kernels are the next stage's.
"""

from collections.abc import Mapping
from typing import Any, Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.sessions.metrics import METRICS, latency_metrics
from aaco_pipeline.analysis.sessions.token_latency import generation_metrics, units_of_work
from aaco_pipeline.assets.capture import capture
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.capture import ingested as ingested_capture
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.svg import as_markdown_image, latency_plot
from aaco_pipeline.resources.dagster_resources import LakeResource
from aaco_pipeline.statistics.steady_state import steady_state_metrics

STAGE: Final = "inference_run"
TABLES: Final = ("iterations", "session_metrics", "evidence")


def read_inference_run(lake: TraceLake, session: str) -> Outcome:
    """The iterations and their metrics. Latency is the unprofiled pass's; the profiled pass shows its distortion."""
    if ingested_capture.probe(lake.raw(session)):
        iterations = ingested_capture.read(lake.raw(session)).reading().tables["iterations"]
        evidence = _ingested_evidence(iterations)
    else:
        raw = inference_capture.read(lake.raw(session))
        iterations, evidence = raw.iterations(), raw.inference_evidence()
    what = lake.read("sessions", session).row(0, named=True)
    metrics = pl.concat(
        [
            latency_metrics(iterations, what["batch_size"]),
            steady_state_metrics(units_of_work(iterations)),
            _generation(iterations, what),
        ]
    )
    latency = metrics.filter(pl.col("pass").is_null() | (pl.col("pass") == "latency"))
    values = dict(latency.select("metric", "value").iter_rows())
    return Outcome(
        {
            "iterations": iterations,
            "session_metrics": metrics,
            "evidence": evidence_frame(STAGE, evidence),
        },
        {
            "latency_p50_ns": values.get("latency_p50"),
            "latency_p90_ns": values.get("latency_p90"),
            "latency_p99_ns": values.get("latency_p99"),
            "throughput_per_s": values.get("throughput"),
            "profiler_distortion_ratio": values.get("profiler_distortion"),
            "time_to_first_token_p50_ns": values.get("time_to_first_token_p50"),
            "output_tokens_per_s": values.get("output_tokens_per_s"),
        },
        metrics.select("metric", "pass", "value", "unit", "ci_low", "ci_high"),
        "metrics",
    )


def _ingested_evidence(iterations: pl.DataFrame) -> tuple[Evidence, ...]:
    """A capture made elsewhere was profiled throughout: it tells nothing of the speed without a profiler."""
    traced = (
        Evidence("iterations", "present", None, "markers", iterations.height)
        if iterations.height
        else Evidence("iterations", "absent", "no marker delimits iterations (step#0, iteration 0, ProfilerStep#0)")
    )
    return traced, Evidence("unprofiled pass", "absent", "the capture was made elsewhere, under a profiler")


def _generation(iterations: pl.DataFrame, what: Mapping[str, Any]) -> pl.DataFrame:
    if what["output_tokens"] is None:
        return METRICS.to_frame()
    return generation_metrics(iterations, what["batch_size"], what["prompt_tokens"])


@dg.asset(
    partitions_def=session_partitions,
    group_name="capture",
    kinds={"onnx", "parquet"},
    owners=OWNERS,
    deps=[capture],
    metadata=stage_metadata(TABLES),
)
def inference_run(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """How long does one inference take, how steady is it, and how much does profiling distort it?"""
    with expected_errors():
        store, session = lake.open(), context.partition_key
        outcome = read_inference_run(store, session)
        result = publish_outcome(store, session, STAGE, outcome)
        plot = latency_plot(outcome.tables["iterations"])
        if plot is None:
            return result
        image = dg.MetadataValue.md(as_markdown_image(plot, "latency of each measured iteration"))
        return result._replace(metadata={**(result.metadata or {}), "latency": image})
