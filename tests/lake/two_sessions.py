"""Two sessions, a day apart, with what the helper views read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Filled

STARTED: Final = datetime(2025, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)


def two_sessions(filled: Filled, folder: Path) -> Path:
    """A lake of two sessions with what the helper views read, which no test changes."""
    lake = TraceLake(folder)
    for number, session in enumerate((SESSION, LATER)):
        started = STARTED + timedelta(days=number)
        metrics: dict[str, list[Any]] = {
            "metric": ["latency_p50", "latency_p90", "latency_p50", "latency_p50"],
            "pass": ["latency", "latency", "trace", "latency"],
            "phase": ["measure", "measure", "measure", "warmup"],
            "value": [10.0 + number, 20.0 + number, 99.0, 98.0],
        }
        stats = {"kernel_id": [0, 1], "dispatch_count": [3, 4 + number], "total_ns": [30, 40]}
        kernels: dict[str, list[Any]] = {
            "kernel_id": [0, 1],
            "name": ["relu", "gemm"],
            "short_name": ["r", "g"],
            "fingerprint": ["f", None],
        }
        signal = {"signal": "s", "value": 1.5, "unit": "ns", "threshold": None, "weight": 0.5, "source": "kernels"}
        lake.publish(
            session,
            "everything",
            {
                "sessions": filled(
                    "sessions", {"started_at": [started], "model_name": [f"model_{number}"], "host": ["x"]}
                ),
                "session_metrics": filled("session_metrics", metrics),
                "kernels": filled("kernels", kernels),
                "kernel_stats": filled("kernel_stats", stats),
                "bottlenecks": filled("bottlenecks", {"evidence": [[signal]], "missing": [["a", "b"]]}),
            },
        )
    return lake.path
