"""The stage `inference_run`: every iteration of both passes, and the latency figures over the measured ones.

The figures' formulas are `aaco_pipeline.analysis.metrics`; kernels are the next stage's.
"""

from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.metrics import latency_metrics
from aaco_pipeline.assets.capture import capture
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.formats import inference_capture
from aaco_pipeline.lake.evidence import evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "inference_run"
TABLES: Final = ("iterations", "session_metrics", "evidence")


def read_inference_run(lake: TraceLake, session: str) -> Outcome:
    """The iterations and their metrics. Latency is the unprofiled pass's; the profiled pass shows its distortion."""
    raw = inference_capture.read(lake.raw(session))
    iterations = raw.iterations()
    batch_size = lake.read("sessions", session).item(0, "batch_size")
    metrics = latency_metrics(iterations, batch_size)
    latency = metrics.filter(pl.col("pass").is_null() | (pl.col("pass") == "latency"))
    values = dict(latency.select("metric", "value").iter_rows())
    return Outcome(
        {
            "iterations": iterations,
            "session_metrics": metrics,
            "evidence": evidence_frame(STAGE, raw.inference_evidence()),
        },
        {
            "latency_p50_ns": values.get("latency_p50"),
            "latency_p90_ns": values.get("latency_p90"),
            "latency_p99_ns": values.get("latency_p99"),
            "throughput_per_s": values.get("throughput"),
            "profiler_distortion_ratio": values.get("profiler_distortion"),
        },
        metrics.select("metric", "pass", "value", "unit", "ci_low", "ci_high"),
        "metrics",
    )


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
        store = lake.open()
        return publish_outcome(store, context.partition_key, STAGE, read_inference_run(store, context.partition_key))
