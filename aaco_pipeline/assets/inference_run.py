"""The stage `inference_run`: the iterations of both passes, the gaps between them, and their metrics.

The formulas are in `aaco_pipeline.analysis.sessions`; kernels are handled by the stage `kernel_trace`.
"""

import polars as pl

from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.analysis.sessions.metrics import (
    gap_metrics,
    generation_metrics,
    iteration_gaps,
    latency_metrics,
    of_one_unit,
    units_of_work,
)
from aaco_pipeline.assets.stage import ALL_KINDS, Check, Outcome, Session, stage
from aaco_pipeline.report.html.plots import latency_of_session
from aaco_pipeline.statistics.steady_state import steady_state_metrics


@stage(
    reads=("sessions",),
    publishes=("iterations", "iteration_gaps", "iteration_blocks", "program_runs", "program_marks", "session_metrics"),
    group="capture",
    session_kinds=ALL_KINDS,
    kinds=("onnx", "parquet"),
    checks=(
        Check(
            "plausibility",
            "Iterations follow one another, take time, and use no negative CPU time.",
            lambda tables: invariants.iterations_are_plausible(tables["iterations"], tables["iteration_blocks"]),
            ("iterations", "iteration_blocks"),
        ),
        Check(
            "conservation",
            "Iterations and the gaps between them are the whole of each pass, to the nanosecond.",
            lambda tables: invariants.passes_are_conserved(
                tables["iterations"], tables["iteration_gaps"], tables["iteration_blocks"]
            ),
            ("iterations", "iteration_gaps", "iteration_blocks"),
        ),
    ),
    plots={"latency of each measured iteration": latency_of_session},
)
def inference_run(session: Session) -> Outcome:
    """How long does one inference take, how steady is it, and how much does profiling distort it?"""
    captured = session.capture
    tables = captured.tables()
    iterations, blocks, runs = (tables[name] for name in ("iterations", "iteration_blocks", "program_runs"))
    # In a recorded program, the time between steps is the program's own work.
    gaps = iteration_gaps(iterations if captured.facts().ran_here else iterations.clear(), blocks)
    what = session.tables("sessions")["sessions"].row(0, named=True)
    found = [
        latency_metrics(of_one_unit(iterations, runs), blocks, what["batch_size"]),
        gap_metrics(iterations, gaps),
        steady_state_metrics(units_of_work(iterations)),
    ]
    if what["output_tokens"]:
        found.append(generation_metrics(iterations, what["batch_size"], what["prompt_tokens"]))
    metrics = pl.concat(found)
    latency = metrics.filter(pl.col("pass").is_null() | (pl.col("pass") == "latency"))
    values = dict(latency.select("metric", "value").iter_rows())
    return Outcome(
        {
            "iterations": iterations,
            "iteration_gaps": gaps,
            "iteration_blocks": blocks,
            "program_runs": runs,
            "program_marks": tables["program_marks"],
            "session_metrics": metrics,
        },
        captured.evidence("iterations"),
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
