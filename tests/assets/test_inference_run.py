"""The stage `inference_run` on really measured sessions: the iterations asked for, and their latency."""

import polars as pl

from aaco_pipeline.lake.store import TraceLake
from tests.sessions import made_by


def test_iterations_are_those_asked_for_with_warm_up_kept_apart(lake: TraceLake, session: str) -> None:
    counted = lake.read("iterations", session).group_by("pass", "phase").len().sort("pass", "phase").rows()
    assert counted == [
        ("latency", "measure", 5),
        ("latency", "warmup", 2),
        ("trace", "measure", 5),
        ("trace", "warmup", 2),
    ]


def test_latency_is_the_unprofiled_pass_without_its_warm_up(lake: TraceLake, session: str) -> None:
    iterations = lake.read("iterations", session)
    measured = iterations.filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure"))
    headline = made_by(lake, session, "inference_run").headline
    assert headline["latency_p50_ns"] == measured.get_column("latency_ns").median()
    metrics = lake.read("session_metrics", session).filter(pl.col("metric") == "latency_p50")
    value = metrics.filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure")).item(0, "value")
    assert value == headline["latency_p50_ns"]
