"""Shared by the reports' tests: rows that fulfil a table's contract, and a session's made-up limits."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import contract, polars_dtype
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.terminal import print_view
from aaco_pipeline.report.view import View

SESSION: Final = "20260102T030405Z-0123abcd"
EVIL: Final = "</script><img src=x onerror=alert(1)>|`**&amp;"
PLAIN: Final[Mapping[str, object]] = {"string": "x", "bool": False, "int32": 0, "int64": 0, "float64": 0.0}


def rows_of(table: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """A frame that fulfils the contract of `table`: what the rows say, else null, else a plain value."""
    series = []
    for declared in contract(table).columns:
        plain = None if declared.nullable else PLAIN.get(declared.dtype, [])
        values = [row.get(declared.name, plain) for row in rows]
        series.append(pl.Series(declared.name, values, dtype=polars_dtype(declared.dtype)))
    return pl.DataFrame(series)


def printed(view: View) -> str:
    """Return a view as a terminal shows it."""
    out = io.StringIO()
    print_view(view, out)
    return out.getvalue()


#: Two levels of memory and two number formats, of which no kernel used the second.
CEILINGS: Final[Sequence[dict[str, Any]]] = (
    {"resource": "dram", "value": 1e12, "unit": "byte/s", "source": "measured"},
    {"resource": "dram", "value": 1.6e12, "unit": "byte/s", "source": "spec"},
    {"resource": "l2", "value": 5e12, "unit": "byte/s", "source": "spec"},
    {"resource": "vector", "dtype": "fp32", "value": 2e13, "unit": "flop/s", "source": "measured"},
    {"resource": "vector", "dtype": "fp32", "value": 2.2e13, "unit": "flop/s", "source": "spec"},
    {"resource": "matrix", "dtype": "fp16", "value": 2e14, "unit": "flop/s", "source": "spec"},
)
#: Kernels 0 and 1 have a place in the roofline; of kernel 2 nothing was counted.
ROOFLINE: Final[Sequence[dict[str, Any]]] = (
    {"kernel_id": 0, "achieved_flops_per_s": 2e11, "dram_arithmetic_intensity": 0.25, "l2_arithmetic_intensity": 0.1}
    | {"flops_by_type": [{"dtype": "fp32", "flops": 1e9}], "bound": "dram", "efficiency_ratio": 0.8}
    | {"quality_flags": ["few_samples:l2"]},
    {"kernel_id": 1, "achieved_flops_per_s": 1.5e13, "dram_arithmetic_intensity": 40.0, "bound": "vector"}
    | {"flops_by_type": [{"dtype": "fp32", "flops": 1e9}], "efficiency_ratio": 0.75},
)
BOUNDS: Final[Sequence[dict[str, Any]]] = (
    {"kernel_id": 0, "resource": "dram", "unit": "byte", "work": 4e9, "lower_bound_ns": 800, "share_ratio": 0.8}
    | {"ceiling_source": "measured", "work_source": "counters"},
    {"kernel_id": 0, "resource": "dram", "unit": "byte", "work": 4e9, "lower_bound_ns": 500, "share_ratio": 0.5}
    | {"ceiling_source": "spec", "work_source": "counters"},
    {"kernel_id": 0, "resource": "l2", "unit": "byte", "work": 9e9, "lower_bound_ns": 300, "share_ratio": 0.3}
    | {"ceiling_source": "spec", "work_source": "counters"},
    {"kernel_id": 0, "resource": "vector", "dtype": "fp32", "unit": "flop", "work": 1e9, "lower_bound_ns": 50}
    | {"share_ratio": 0.05, "ceiling_source": "measured", "work_source": "counters"},
)
DRAM_EVIDENCE: Final = {"signal": "at_memory_dram", "value": 0.8, "unit": "ratio", "threshold": 0.6} | {
    "weight": 1.0,
    "source": "roofline",
}
LONG: Final = {"signal": "duration", "value": 20_000.0, "unit": "ns", "threshold": 10_000.0} | {
    "weight": 0.0,
    "source": "kernel_stats",
}
SHARE: Final = {"signal": "share_device", "value": 0.5, "unit": "ratio", "threshold": None} | {
    "weight": 1.0,
    "source": "time_shares",
}
ADVICE: Final = "Fuse the elementwise work and the copies into their neighbours"
VERDICT: Final = f"{ADVICE}. That saves at most 30.0 % of the time."
BOTTLENECKS: Final[Sequence[dict[str, Any]]] = (
    {"scope": "session", "label": "device", "runner_up": "launch", "score": 0.5, "evidence": [LONG, SHARE]}
    | {"missing": ["the steady state"], "recommendation": VERDICT},
    {"scope": "kernel", "kernel_id": 0, "label": "memory_dram", "score": 0.8, "evidence": [LONG, DRAM_EVIDENCE]}
    | {"missing": [], "recommendation": "Move fewer bytes."},
    {"scope": "kernel", "kernel_id": 1, "label": "compute_vector", "runner_up": EVIL, "score": 0.75}
    | {"evidence": [DRAM_EVIDENCE], "missing": []},
    {"scope": "kernel", "kernel_id": 2, "evidence": [], "missing": ["nearest_roof", "at_memory_dram", "scratch"]},
)
#: The session's answer: of 1,000 ns the device worked half, and the host held it up for nearly as long.
ANSWER: Final[Mapping[str, Any]] = {
    **{"class": "device", "second_class": "launch", "device_id": 0, "window_start_ns": 0, "window_end_ns": 1100},
    **{
        "window_ns": 1000,
        "window_rule": "2 repetitions of 3 activities",
        "beside_ns": 100,
        "repetitions": 2,
        "period_ns": 500,
    },
    **{"class_ratio": 0.5, "busy_ratio": 0.5, "kind": "elementwise_and_copies", "subject": "relu", "advice": ADVICE},
    **{"saves_at_most_ns": 300, "sharpen": ["the steady state"], "sharpen_commands": ["warm up"]},
}
TIME_SHARES: Final[Sequence[dict[str, Any]]] = tuple(
    {"share": share, "reason": reason, "time_ns": time, "share_ratio": time / 1000, "grade": "observed"}
    for share, reason, time in (
        *(("device", None, 500), ("launch", None, 480), ("sync", None, 20), ("copy", None, 0)),
        ("launch", "contention", 100),
    )
)
KINDS_OF_WORK: Final[Sequence[dict[str, Any]]] = (
    {"kind": "gemm", "time_ns": 200, "share_ratio": 0.4, "dispatch_count": 4, "alone_ns": 200, "kernel_id": 0}
    | {"dtype": "bf16", "rate": 4e14, "rate_unit": "flop/s", "roof": "matrix", "roof_ratio": 0.36}
    | {"roof_source": "spec", "operator": "mm", "shapes": "[2, 3]"},
    {"kind": "elementwise_and_copies", "time_ns": 300, "share_ratio": 0.6, "dispatch_count": 8, "alone_ns": 300}
    | {"kernel_id": 1, "rate": 2.1e12, "rate_unit": "byte/s"},
)
#: How quiet the machine was, and the longest spike: preempted.
QUIET: Final[Mapping[str, Any]] = {"iterations": 300, "clean": 280, "disturbed": 20, "unknown": 0} | {
    "disturbed_by": "preempted",
    "spikes": 1,
}
SPIKE: Final[Mapping[str, Any]] = {
    **{"iteration": 57, "latency_ns": 9_000_000, "excess_ns": 4_000_000, "spike_cause": "preempted"},
    **{"explained_ns": 3_900_000, "occurrences": 1, "evidence_grade": "observed", "by_kind": "thread"},
    **{"by_name": "hog", "by_thread_id": 900},
}
OCCUPANCY: Final[Sequence[dict[str, Any]]] = (
    {"kernel_id": 0, "theoretical_ratio": 0.5, "achieved_ratio": 0.25, "limiter": "vector registers"}
    | {"next_ratio": 0.625, "next_step": "vector registers: 136 to 128", "workgroups_per_cu": 2}
    | {"grid_waves_ratio": 2.5, "tail_ratio": 0.2},
)
METRICS: Final[Sequence[dict[str, Any]]] = (
    {"kernel_id": 0, "metric": "l2_hit_ratio", "unit": "ratio", "value": 0.25, "mean": 0.25, "min": 0.2, "max": 0.3}
    | {"n": 4},
    {"kernel_id": 0, "metric": "fabric_bandwidth", "unit": "byte/s", "value": 5e11, "mean": 5e11, "min": 4e11}
    | {"max": 6e11, "n": 4},
    {"kernel_id": 0, "metric": "obscure_requests", "unit": "request", "value": 7.0, "mean": 7.0, "min": 7.0}
    | {"max": 7.0, "n": 4},
    {"kernel_id": 0, "metric": "valu_busy_ratio", "unit": "ratio", "n": 0, "quality_flags": ["not_counted"]},
)
INSTRUCTIONS: Final[Sequence[dict[str, Any]]] = tuple(
    {"kernel_id": 1, "dispatch_id": 1, "code_object_id": 1, "address": 4 * line, "line": line, "hits": 4}
    | {"instruction": f"load_{line} {EVIL}", "instruction_class": "vector memory"}
    | {"stall_cycles": 1000 * line, "latency_cycles": 2000 * line, "idle_cycles": 0}
    for line in range(1, 6)
)
STALLS: Final[Sequence[dict[str, Any]]] = (
    {"kernel_id": 1, "dispatch_id": 1, "reason": "waiting for loads", "stall_cycles": 15_000, "share_ratio": 1.0},
)


def publish_limits(lake: TraceLake, session: str = SESSION) -> None:
    """Publish the limits of kernels 0, 1 and 2 as three stages do; nothing is known of the last."""
    roofline = {"ceilings": CEILINGS, "roofline": ROOFLINE, "resource_bounds": BOUNDS}
    roofline |= {"occupancy": OCCUPANCY, "counter_metrics": METRICS}
    _publish(lake, session, "completeness", {"completeness": [], "completeness_findings": []})
    _publish(lake, session, "roofline", roofline)
    _publish(lake, session, "att_enrichment", {"att_instructions": INSTRUCTIONS, "att_stalls": STALLS})
    judged = {"bottlenecks": BOTTLENECKS, "answers": [ANSWER], "time_shares": TIME_SHARES}
    _publish(lake, session, "classification", {**judged, "kinds_of_work": KINDS_OF_WORK})


def _publish(lake: TraceLake, session: str, stage: str, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    frames = {name: rows_of(name, rows) for name, rows in tables.items()}
    lake.publish(session, stage, {**frames, "evidence": evidence_frame(stage, [Evidence(stage, "present")])})
