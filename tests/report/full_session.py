"""A made-up session in which every stage has published, for all tests of reports."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from tests.report.made_up import EVIL, SESSION, publish_limits, rows_of

MODEL: Final = "made up for a test"


def latency_of(index: int) -> int:
    """A latency that wanders, with a slow iteration now and then."""
    return 4_000_000 + 7919 * (index * index % 97) + (9_000_000 if index % 211 == 210 else 0)


def publish_session(
    lake: TraceLake,
    *,
    iterations: int = 60,
    warmup: int = 5,
    kernels: Sequence[tuple[str, str]] = (("loop", "Loop"), (EVIL, "Conv"), ("relu", "Relu")),
    telemetry: bool = True,
    model: bool = True,
    limits: bool = True,
) -> None:
    """Publish a session with two passes; each traced iteration runs all kernels inside the first of them."""
    described = {"source_kind": "live", "model_name": MODEL, "provider": "CPUExecutionProvider", "batch_size": 1}
    described |= {"precision": "float32", "threads": 1, "host": "nowhere", "fingerprint": "0123456789abcdef"}
    started = {"started_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}
    lake.publish(SESSION, "capture", {"sessions": rows_of("sessions", [{**described, **started}])})
    facts = [{"category": "cpu", "key": "model", "value": "none", "in_fingerprint": True}]
    clocks = [{"domain": "monotonic", "offset_ns": -5, "uncertainty_ns": 0, "anchor": "defines the axis"}]
    lake.publish(
        SESSION,
        "session_environment",
        {
            "environment": rows_of("environment", facts),
            "devices": rows_of("devices", [{"device_id": 0, "vendor": "nobody"}]),
            "clock_domains": rows_of("clock_domains", clocks),
        },
    )

    passes = []
    for name, begin in (("latency", 0), ("trace", 60_000_000_000)):
        for index in range(warmup + iterations):
            start = begin + index * 15_000_000
            passes.append(
                {
                    "pass": name,
                    "iteration": index,
                    "phase": "warmup" if index < warmup else "measure",
                    "start_ns": start,
                    "end_ns": start + latency_of(index),
                    "latency_ns": latency_of(index),
                    "cpu_time_ns": latency_of(index) - 1000,
                    "run_delay_ns": index % 7 * 1000,
                }
            )
    ordered = sorted(latency_of(index) for index in range(warmup, warmup + iterations))
    median = float(ordered[len(ordered) // 2])
    figures = [
        {"metric": "latency_p50", "pass": name, "phase": "measure", "value": median, "unit": "ns", "n": iterations}
        | {"ci_low": median - 1e4, "ci_high": median + 1e4}
        for name in ("latency", "trace")
    ]
    figures += [
        {"metric": "latency_p99", "pass": "latency", "phase": "measure", "value": float(ordered[-1]), "unit": "ns"},
        {"metric": "throughput", "pass": "latency", "phase": "measure", "value": 212.5, "unit": "inference/s"},
        {"metric": "profiler_distortion", "phase": "measure", "value": 1.25, "unit": "ratio"},
    ]
    lake.publish(
        SESSION,
        "inference_run",
        {"iterations": rows_of("iterations", passes), "session_metrics": rows_of("session_metrics", figures)},
    )

    named = [{"kernel_id": i, "name": n, "short_name": s, "role": "main"} for i, (n, s) in enumerate(kernels)]
    traced = [row for row in passes if row["pass"] == "trace"]
    dispatches: list[dict[str, Any]] = []
    for row in traced:
        parent, each = len(dispatches), latency_of(int(str(row["iteration"]))) // (len(kernels) + 1)
        for kernel in range(len(kernels)):
            start = int(str(row["start_ns"])) + kernel * each + 1000
            end = start + each - 1000 if kernel else int(str(row["end_ns"])) - 1000
            dispatches.append(
                {
                    "dispatch_id": len(dispatches),
                    "thread_id": 7,
                    "kernel_id": kernel,
                    "start_ns": start,
                    "end_ns": end,
                    "self_ns": 1000 if kernel else 2000,
                    "iteration": row["iteration"],
                    "parent_dispatch_id": parent if kernel else None,
                    "below_resolution": kernel == 2,
                }
            )
    calls = [
        {"call_id": i, "thread_id": 7, "domain": "x", "name": "model_run"} | bounds(r) for i, r in enumerate(traced)
    ]
    missing = [Evidence("hardware counters", "absent", "nobody <b>counted</b>"), Evidence("events", "present", rows=3)]
    lake.publish(
        SESSION,
        "kernel_trace",
        {
            "kernels": rows_of("kernels", named),
            "dispatches": rows_of("dispatches", dispatches),
            "api_calls": rows_of("api_calls", calls),
            "evidence": evidence_frame("kernel_trace", missing),
        },
    )

    parts = [len(kernels) - index for index in range(len(kernels))]
    stats = [
        {"kernel_id": index, "dispatch_count": iterations, "total_ns": part * 1000 * iterations, "mean_ns": part * 1000}
        | {"share_ratio": part / sum(parts)}
        for index, part in enumerate(parts)
    ]
    whole = {"window_start_ns": 0, "window_end_ns": 100, "busy_ns": 90, "active_ratio": 0.9}
    whole["window_rule"] = "first_to_last_activity"  # type: ignore[assignment]
    lake.publish(
        SESSION, "timeline", {"kernel_stats": rows_of("kernel_stats", stats), "timeline": rows_of("timeline", [whole])}
    )
    path = {"scope": "session", "window_ns": 100, "path_ns": 90, "unexplained_ns": 10}
    categories = [{**path, "category": "compute", "category_ns": 90, "category_ratio": 1.0}]
    saving = {"kernel_id": 0, "speedup_ratio": 2.0, "critical_ns": 60, "saved_ns": 25, "saved_ratio": 0.25}
    path_tables: dict[str, list[dict[str, Any]]] = {"critical_path_summary": categories, "what_if": [saving]}
    lake.publish(SESSION, "critical_path", {name: rows_of(name, rows) for name, rows in path_tables.items()})
    place = {"metric": "latency_p50", "value_ns": 4_100_000, "compared_within": "host", "earlier_sessions": 12}
    place |= {"rank": 9, "low_ns": 3_900_000, "median_ns": 4_000_000, "high_ns": 4_300_000, "median_ratio": 1.025}
    place |= {"robust_z": 0.8, "previous_session": "20260101T030405Z-00000000"}
    change = {"rank": 0, "kind": "environment", "what": "rocm", "subject": "version", "from_value": "7.1"}
    change |= {"to_value": EVIL, "evidence": "environment.value"}
    tables = {"history_places": rows_of("history_places", [place])}
    lake.publish(SESSION, "regression", {**tables, "session_changes": rows_of("session_changes", [change])})
    if model:
        publish_model(lake, stats)
    if limits:
        publish_limits(lake)
    if telemetry:
        publish_telemetry(lake, int(str(traced[-1]["end_ns"])))


def bounds(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"start_ns": row["start_ns"], "end_ns": row["end_ns"]}


def publish_model(lake: TraceLake, stats: Sequence[Mapping[str, Any]]) -> None:
    """Operators for all kernels but the last, whose time stays unattributed; and one operator that no kernel ran."""
    nodes = [
        {"node_id": index, "name": f"node {index}", "op_type": "Conv", "domain": "ai.onnx"}
        | {"flops": 2e9, "read_bytes": 3 << 20, "written_bytes": 1 << 20, "shape_source": "made up"}
        for index in range(len(stats))
    ]
    matched = [
        {"kernel_id": row["kernel_id"], "dispatch_count": row["dispatch_count"], "total_ns": row["total_ns"]}
        | ({"node_id": index, "match": "name"} if index < len(stats) - 1 else {"match": "unattributed"})
        for index, row in enumerate(stats)
    ]
    tables = {"model_nodes": rows_of("model_nodes", nodes), "operator_kernels": rows_of("operator_kernels", matched)}
    lake.publish(SESSION, "model_graph", tables)


def publish_telemetry(lake: TraceLake, end: int) -> None:
    """Samples of a host that never was."""
    host = [
        {
            "time_ns": time,
            "cpu_ratio": index % 10 / 10 if index else None,
            "run_delay_ns": index * 1000,
            "rss_bytes": 400 << 20,
            "cpu_pressure_ratio": 0.1,
            "clock_mhz": 2400.0 + index % 5,
        }
        for index, time in enumerate(range(0, end, 100_000_000))
    ]
    device = [{"time_ns": row["time_ns"], "device_id": 0, "power_w": 300.0} for row in host]
    tables = {"system_samples": rows_of("system_samples", host), "gpu_samples": rows_of("gpu_samples", device)}
    lake.publish(SESSION, "telemetry", tables)
