"""The stage `inference_run`: every iteration of both passes, and the latency figures over the measured ones.

The figures' formulas are `aaco_pipeline.analysis.sessions`; kernels are the next stage's.
"""

import polars as pl

from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.analysis.sessions.metrics import latency_metrics
from aaco_pipeline.analysis.sessions.token_latency import generation_metrics, units_of_work
from aaco_pipeline.assets.stage import Check, Outcome, Session, stage
from aaco_pipeline.report.html.svg import latency_of_session
from aaco_pipeline.statistics.steady_state import steady_state_metrics


@stage(
    reads=("sessions",),
    publishes=("iterations", "session_metrics"),
    group="capture",
    kinds=("onnx", "parquet"),
    checks=(
        Check(
            "plausibility",
            "Iterations follow one another, take time, and use no negative CPU time.",
            lambda tables: invariants.iterations_are_plausible(tables["iterations"]),
            ("iterations",),
        ),
    ),
    plots={"latency of each measured iteration": latency_of_session},
)
def inference_run(session: Session) -> Outcome:
    """How long does one inference take, how steady is it, and how much does profiling distort it?"""
    iterations = session.capture.tables()["iterations"]
    what = session.tables("sessions")["sessions"].row(0, named=True)
    metrics = pl.concat(
        [
            latency_metrics(iterations, what["batch_size"]),
            steady_state_metrics(units_of_work(iterations)),
            *(
                [generation_metrics(iterations, what["batch_size"], what["prompt_tokens"])]
                if what["output_tokens"]
                else []
            ),
        ]
    )
    latency = metrics.filter(pl.col("pass").is_null() | (pl.col("pass") == "latency"))
    values = dict(latency.select("metric", "value").iter_rows())
    return Outcome(
        {"iterations": iterations, "session_metrics": metrics},
        session.capture.evidence("iterations"),
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
