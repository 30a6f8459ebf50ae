"""Figures about a whole session, one row each, from its iterations and its timeline.

Comparing sessions is not here: iterations of one process are not independent, so the intervals below say how well
this session's own quantile is known and nothing about another session.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.model.node_mapping import kernel_activity_ratio
from aaco_pipeline.analysis.sessions.iteration_gaps import Usage, usage
from aaco_pipeline.lake.contracts import polars_types

CONFIDENCE: Final = 0.95
_QUANTILES: Final = (("p50", 0.50), ("p90", 0.90), ("p99", 0.99))


def latency_metrics(iterations: pl.DataFrame, blocks: pl.DataFrame, batch_size: int | None) -> pl.DataFrame:
    """Rows of `session_metrics` from the measured iterations of each pass, warm-up excluded.

    For each pass: latency_p50, _p90, _p99 (observed values, nearest rank, with distribution-free intervals), _mean,
    _standard_deviation (n - 1), _coefficient_of_variation, _interquartile_range, cpu_time_mean and run_delay_mean
    (`usage` / iterations), and throughput = iterations x batch size / summed latency, in tokens when an iteration is
    one token. From both passes:
    profiler_distortion = median latency of the profiled pass / median of the unprofiled one. A figure without enough
    iterations is null.
    """
    rows: list[dict[str, object]] = []
    for name in ("latency", "trace"):
        measured = iterations.filter((pl.col("pass") == name) & (pl.col("phase") == "measure"))
        used = usage(iterations, blocks, name)
        rows.extend({"pass": name, "phase": "measure", **row} for row in _of_pass(measured, used, batch_size))
    medians = {row["pass"]: row["value"] for row in rows if row["metric"] == "latency_p50"}
    unprofiled, profiled = medians.get("latency"), medians.get("trace")
    if isinstance(unprofiled, float) and isinstance(profiled, float) and unprofiled > 0:
        distortion = {"metric": "profiler_distortion", "value": profiled / unprofiled, "unit": "ratio"}
        rows.append({"pass": None, "phase": "measure", **distortion})
    return pl.DataFrame(rows, schema=METRICS)


def timeline_metrics(timeline: pl.DataFrame, kernels_per_iteration: float | None) -> pl.DataFrame:
    """Rows of `session_metrics` from the whole windows: active_ratio over all devices, and kernels_per_iteration.

    active_ratio = summed busy time of the devices / summed length of their windows.
    """
    whole = timeline.filter(pl.col("iteration").is_null())
    window = int((whole.get_column("window_end_ns") - whole.get_column("window_start_ns")).sum())
    active = int(whole.get_column("busy_ns").sum()) / window if window else None
    rows = [
        {"metric": "active_ratio", "value": active, "unit": "ratio", "n": whole.height},
        {"metric": "kernels_per_iteration", "value": kernels_per_iteration, "unit": "count", "n": None},
    ]
    return pl.DataFrame([{"pass": "trace", "phase": "measure", **row} for row in rows], schema=METRICS)


def launch_metrics(device: Mapping[str, Any] | None) -> pl.DataFrame:
    """Rows of `session_metrics` from what `launch_cost` gives for one device, the busiest; none for None.

    exposed_launch, exposed_launch_ratio and launch_tax_score with the number of known launches, micro_kernel_ratio and
    dispatch_rate with that of dispatches; `launch_cost` has the formulas.
    """
    figures = (
        ("exposed_launch", "exposed_launch_ns", "ns", "launches"),
        ("exposed_launch_ratio", "exposed_launch_ratio", "ratio", "launches"),
        ("launch_tax_score", "launch_tax_score", "kHz", "launches"),
        ("micro_kernel_ratio", "micro_kernel_ratio", "ratio", "dispatches"),
        ("dispatch_rate", "dispatch_rate_per_s", "dispatch/s", "dispatches"),
    )
    rows = [
        {"metric": metric, "pass": "trace", "phase": "measure", "value": row[value], "unit": unit, "n": row[count]}
        for row in ([] if device is None else [device])
        for metric, value, unit, count in figures
    ]
    return pl.DataFrame(rows, schema=METRICS)


def amplification_metrics(
    launched: float | None, dispatches: int, executed_nodes: int | None, computing_nodes: int, model_nodes: int
) -> pl.DataFrame:
    """Rows of `session_metrics` on kernels for each node of the graph, three times with different graphs.

    kernel_amplification_ratio = `launched` kernels in one measured iteration / nodes of the graph that ran, after the
    runtime's optimizations; kernel_amplification_ratio_of_model the same over the model's nodes that do not only fold
    constants; kernel_amplification_ratio_undivided = all measured `dispatches` / all nodes of the model, the
    predecessors' figure, which grows with the length of the run. `n` is the number of nodes. Fusion makes less than
    one normal. Null where a part is unknown or zero.
    """
    figures = (
        ("kernel_amplification_ratio", launched, executed_nodes),
        ("kernel_amplification_ratio_of_model", launched, computing_nodes),
        ("kernel_amplification_ratio_undivided", dispatches, model_nodes),
    )
    rows = [
        {"metric": metric, "value": kernel_activity_ratio(count, nodes) if count and nodes else None, "n": nodes}
        for metric, count, nodes in figures
    ]
    common = {"pass": "trace", "phase": "measure", "unit": "ratio"}
    return pl.DataFrame([{**common, **row} for row in rows], schema=METRICS)


def kernels_per_iteration(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> float | None:
    """Mean number of dispatches in a measured iteration of the traced pass; null without iterations or dispatches."""
    measured = iterations.filter((pl.col("pass") == "trace") & (pl.col("phase") == "measure")).get_column("iteration")
    if measured.is_empty() or dispatches.is_empty():
        return None
    return dispatches.filter(pl.col("iteration").is_in(measured.implode())).height / len(measured)


def quantile_interval(
    ordered: npt.NDArray[np.int64], quantile: float, confidence: float = CONFIDENCE
) -> tuple[float, float | None, float | None]:
    """The nearest-rank quantile of sorted values and a distribution-free confidence interval from order statistics.

    For n independent values the number at or below the true quantile q is binomial(n, q), so the values of ranks l
    and u enclose it with probability P(l <= B < u). The ranks are the ones that leave at most (1 - confidence)/2 on
    each side; a side is None when n is too small for it to exist (for P99, n < 368 above). Source: H. A. David and
    H. N. Nagaraja, Order Statistics, 3rd ed., 2003, section 7.1. Values of one process are autocorrelated: then the
    interval is too narrow.
    """
    from scipy.special import bdtr

    count = len(ordered)
    tail = (1 - confidence) / 2
    value = float(ordered[max(1, int(np.ceil(count * quantile))) - 1])
    at_most = bdtr(np.arange(count + 1, dtype=np.float64), count, quantile)  # P(B <= k)
    # Low rank l: the largest with P(B < l) <= tail. High rank u: the smallest with P(B >= u) <= tail.
    below = np.concatenate(([0.0], at_most[:-1]))  # P(B < k)
    low_rank = int(np.flatnonzero(below <= tail)[-1])
    enough = np.flatnonzero(1 - below <= tail)
    high_rank = int(enough[0]) if len(enough) else count + 1
    low = float(ordered[low_rank - 1]) if low_rank >= 1 else None
    high = float(ordered[high_rank - 1]) if high_rank <= count else None
    return value, low, high


def quantile_rows(metric: str, values: pl.Series) -> list[Mapping[str, object]]:
    """The 50th, 90th and 99th percentile of times in ns as rows, each with its interval; null without values."""
    ordered = values.sort().to_numpy()
    count = len(ordered)
    found = [(name, quantile_interval(ordered, share) if count else (None, None, None)) for name, share in _QUANTILES]
    return [
        {"metric": f"{metric}_{name}", "value": value, "unit": "ns", "n": count, "ci_low": low, "ci_high": high}
        for name, (value, low, high) in found
    ]


def _of_pass(measured: pl.DataFrame, used: Usage, batch_size: int | None) -> list[Mapping[str, object]]:
    times = measured.get_column("latency_ns")
    latency = np.sort(times.to_numpy())
    count, total = len(latency), int(latency.sum())
    if count == 0:
        return []
    mean = float(latency.mean())
    deviation = float(latency.std(ddof=1)) if count > 1 else None
    variation = deviation / mean if deviation is not None and mean else None
    upper, lower = (quantile_interval(latency, q)[0] for q in (0.75, 0.25))
    unit = "inference/s" if measured.get_column("token_index").null_count() else "token/s"
    figures: tuple[tuple[str, float | None, str, int], ...] = (
        ("latency_mean", mean, "ns", count),
        ("latency_standard_deviation", deviation, "ns", count),
        ("latency_coefficient_of_variation", variation, "ratio", count),
        ("latency_interquartile_range", upper - lower, "ns", count),
        *(
            (metric, *((None, "ns", 0) if total_ns is None else (total_ns / used.iterations, "ns", used.iterations)))
            for metric, total_ns in (("cpu_time_mean", used.cpu_time_ns), ("run_delay_mean", used.run_delay_ns))
        ),
        ("throughput", count * batch_size * 1e9 / total if batch_size is not None and total else None, unit, count),
    )
    return [
        *quantile_rows("latency", times),
        *({"metric": metric, "value": value, "unit": unit, "n": n} for metric, value, unit, n in figures),
    ]


METRICS: Final = pl.Schema(polars_types("session_metrics"))
