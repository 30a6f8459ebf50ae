"""Figures of complete sessions, one row each: latency, throughput, gaps between iterations, tokens, scaling.

`invariants` checks the conditions that every session's tables must meet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.model.node_mapping import kernel_activity_ratio
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import to_contract


@dataclass(frozen=True)
class Usage:
    """Usage over the measured iterations of one pass: their number and length, CPU time and run-queue delay.

    CPU time and delay are summed over all threads during `length_ns`; null if they were not read.
    """

    iterations: int
    length_ns: int
    cpu_time_ns: int | None
    run_delay_ns: int | None


def usage(iterations: pl.DataFrame, blocks: pl.DataFrame, name: str) -> Usage:
    """Return the usage in the pass `name`: over its blocks, or over its timed iterations if the loop read it there."""
    measured = (pl.col("pass") == name) & (pl.col("phase") == "measure")
    own = blocks.filter(measured).with_columns(length_ns=pl.col("end_ns") - pl.col("start_ns"))
    if own.is_empty():
        own = iterations.filter(measured).drop_nulls("latency_ns").with_columns(iterations=1, length_ns="latency_ns")
    cpu, delay = (
        None if own.is_empty() or own.get_column(column).null_count() else int(own.get_column(column).sum())
        for column in ("cpu_time_ns", "run_delay_ns")
    )
    return Usage(int(own.get_column("iterations").sum()), int(own.get_column("length_ns").sum()), cpu, delay)


def iteration_gaps(iterations: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Compute rows of `iteration_gaps`: the time before, between and after the iterations of each pass.

    A pass spans its blocks, or else its first to last iteration. Iterations without times have no gaps.
    """
    whole = blocks.group_by("pass").agg(pass_start_ns=pl.col("start_ns").min(), pass_end_ns=pl.col("end_ns").max())
    timed = (
        iterations.drop_nulls(["start_ns", "end_ns"])
        .sort("pass", "iteration")
        .join(whole, on="pass", how="left", maintain_order="left")
        .with_columns(counted=pl.col("cpu_time_ns").is_not_null())
    )
    columns = ("pass", "before_iteration", "phase", "start_ns", "end_ns", "counted")
    before = timed.select(
        "pass",
        "counted",
        before_iteration="iteration",
        phase=pl.col("phase").shift(1).over("pass").fill_null(pl.col("phase")),
        start_ns=pl.col("end_ns").shift(1).over("pass").fill_null(pl.col("pass_start_ns")),
        end_ns="start_ns",
    )
    last = timed.unique("pass", keep="last", maintain_order=True)
    after = last.select(
        "pass", "counted", "phase", before_iteration=pl.col("iteration") + 1, start_ns="end_ns", end_ns="pass_end_ns"
    )
    borders = pl.concat(
        blocks.select("pass", before_iteration=pl.col("first_iteration") + further, border=True)
        for further in (pl.lit(0, pl.Int32), pl.col("iterations").cast(pl.Int32))
    ).unique()
    gaps = pl.concat([before.select(columns), after.select(columns)]).drop_nulls(["start_ns", "end_ns"])
    return to_contract(
        "iteration_gaps",
        gaps.join(borders, on=["pass", "before_iteration"], how="left")
        .with_columns(
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            reads_counters=pl.col("counted") | pl.col("border").fill_null(False),
        )
        .drop("counted", "border")
        .sort("pass", "before_iteration"),
    )


def gap_metrics(iterations: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Rows of `session_metrics` for each pass with gaps: gap_ratio and gap_longest, over its measured part.

    gap_ratio = time of the gaps after measured iterations / (that time + the iterations'); gap_longest is in ns.
    """
    measured = pl.col("phase") == "measure"
    inside = iterations.filter(measured).group_by("pass").agg(inside_ns=pl.col("latency_ns").sum())
    lay = (
        gaps.filter(measured)
        .group_by("pass")
        .agg(between_ns=pl.col("duration_ns").sum(), longest_ns=pl.col("duration_ns").max(), n=pl.len())
    )
    rows = [
        {"metric": metric, "pass": row["pass"], "phase": "measure", "value": float(value), "unit": unit, "n": row["n"]}
        for row in lay.join(inside, on="pass").sort("pass").iter_rows(named=True)
        for metric, value, unit in (
            ("gap_ratio", row["between_ns"] / (row["between_ns"] + row["inside_ns"]), "ratio"),
            ("gap_longest", row["longest_ns"], "ns"),
        )
    ]
    return pl.DataFrame(rows, schema=METRICS)


def of_one_unit(iterations: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Return the iterations whose latencies are comparable.

    If a program marks nothing, its unprofiled iterations are complete `runs` (table `program_runs`). Iterations of the
    traced run, known from the profiler's ranges, are then only parts of a run and are omitted.
    """
    keys = ["run", "start_ns", "end_ns"]
    unprofiled = iterations.filter(pl.col("pass") == "latency")
    whole = unprofiled.join(runs.select(keys), on=keys, how="semi").height
    return iterations if not whole else unprofiled


METRICS: Final = polars_types("session_metrics")
CONFIDENCE: Final = 0.95
_QUANTILES: Final = (("p50", 0.50), ("p90", 0.90), ("p99", 0.99))


def latency_metrics(iterations: pl.DataFrame, blocks: pl.DataFrame, batch_size: int | None) -> pl.DataFrame:
    """Rows of `session_metrics` from the measured iterations of each pass, excluding warm-up.

    For each pass: latency_p50, _p90, _p99 (observed values, nearest rank, with distribution-free intervals), _mean,
    _standard_deviation (n - 1), _coefficient_of_variation, _interquartile_range, cpu_time_mean and run_delay_mean
    (`usage` / iterations), and throughput = iterations x batch size / summed latency, in tokens if an iteration is one
    token. From both passes: profiler_distortion = median latency of the profiled pass / median of the unprofiled one. A
    figure without enough iterations is null.
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
    """Rows of `session_metrics` over complete windows: active_ratio over all devices, and kernels_per_iteration.

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
    """Rows of `session_metrics` from the busiest device's `launch_cost`; none for None.

    exposed_launch, exposed_launch_ratio and launch_tax_score count known launches; micro_kernel_ratio and dispatch_rate
    count dispatches. `launch_cost` has the formulas.
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
    """Rows of `session_metrics` on kernels per node, for three different graphs.

    kernel_amplification_ratio = `launched` kernels in one measured iteration / nodes of the graph that ran, after the
    runtime's optimizations. kernel_amplification_ratio_of_model is the same over the model's nodes except those that
    only fold constants. kernel_amplification_ratio_undivided = all measured `dispatches` / all nodes of the model,
    which grows with the length of the run. `n` is the number of nodes. A ratio below one is normal because of fusion.
    Null if a part is unknown or zero.
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


def quantile_interval(ordered: npt.NDArray[np.int64], quantile: float) -> tuple[float, float | None, float | None]:
    """Return the nearest-rank quantile of sorted values with a distribution-free interval from order statistics.

    For n independent values, the number at or below the true quantile q is binomial(n, q), so the values of ranks l and
    u enclose it with probability P(l <= B < u). The ranks leave at most (1 - CONFIDENCE)/2 on each side; a side is None
    if n is too small for it (for P99, n < 368 above). Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd
    ed., 2003, section 7.1. Values of one process are autocorrelated, which makes the interval too narrow.
    """
    from scipy.special import bdtr

    count = len(ordered)
    tail = (1 - CONFIDENCE) / 2
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
    """Rows for the 50th, 90th and 99th percentile of times in ns, each with its interval; null without values."""
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


def requests(iterations: pl.DataFrame) -> pl.DataFrame:
    """One row per request: `pass`, `phase`, `request`, `tokens`, `first_token_ns`, `end_to_end_ns`, `per_token_ns`.

    A request begins with the token of index 0. Its end-to-end time is the sum of its tokens' latencies, because
    counters are read between tokens. `per_token_ns` (float) = (end to end - first token) / (tokens - 1); null for a
    request of one token. Empty for iterations that are not tokens.
    """
    return (
        iterations.drop_nulls("token_index")
        .sort("pass", "iteration")
        .with_columns(request=(pl.col("token_index") == 0).cum_sum().over("pass") - 1)
        .group_by("pass", "request", maintain_order=True)
        .agg(
            pl.col("phase").first(),
            tokens=pl.len(),
            first_token_ns=pl.col("latency_ns").first(),
            end_to_end_ns=pl.col("latency_ns").sum(),
        )
        .with_columns(
            per_token_ns=pl.when(pl.col("tokens") > 1).then(
                (pl.col("end_to_end_ns") - pl.col("first_token_ns")) / (pl.col("tokens") - 1)
            )
        )
    )


def units_of_work(iterations: pl.DataFrame) -> pl.DataFrame:
    """Comparable units within a session, in order: `iteration`, `run`, `time_ns` of those measured without a profiler.

    A unit is an iteration, or a complete request if iterations are tokens, which slow down as the cache grows.
    """
    measured = iterations.filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure")).sort("iteration")
    if measured.get_column("token_index").null_count() == measured.height:
        return measured.select("iteration", "run", time_ns="latency_ns")
    first = measured.filter(pl.col("token_index") == 0).get_column("iteration")
    return requests(measured).select(first, run=pl.lit(None, pl.Int32), time_ns="end_to_end_ns")


def generation_metrics(iterations: pl.DataFrame, batch_size: int, prompt_tokens: int) -> pl.DataFrame:
    """Rows of `session_metrics` for a session that generated tokens, over the measured requests of each pass.

    time_to_first_token and request_latency (one value per request), time_per_output_token (one per request of two or
    more tokens) and inter_token_latency (every gap between tokens, pooled), each as _p50, _p90 and _p99 with the
    interval of `quantile_interval`; output_tokens_per_s = all tokens of the batch / total request time;
    output_tokens_per_s_per_user = 1 / mean time per output token; prefill_tokens_per_s = tokens of the batch's prompts
    / mean time to the first token.
    """
    rows: list[dict[str, object]] = []
    for (name,), of_pass in requests(iterations).group_by("pass", maintain_order=True):
        measured = of_pass.filter(pl.col("phase") == "measure")
        if measured.is_empty():
            continue
        gaps = iterations.filter(
            (pl.col("pass") == name) & (pl.col("phase") == "measure") & (pl.col("token_index") > 0)
        ).get_column("latency_ns")
        first, per_token = measured.get_column("first_token_ns"), measured.get_column("per_token_ns").drop_nulls()
        for metric, values in (
            ("time_to_first_token", first),
            ("time_per_output_token", per_token),
            ("inter_token_latency", gaps),
            ("request_latency", measured.get_column("end_to_end_ns")),
        ):
            rows.extend({"pass": name, **row} for row in quantile_rows(metric, values))
        rates = {
            "output_tokens_per_s": _rate(
                batch_size * int(measured.get_column("tokens").sum()), measured["end_to_end_ns"].sum()
            ),
            "output_tokens_per_s_per_user": _rate(1, per_token.mean()),
            "prefill_tokens_per_s": _rate(batch_size * prompt_tokens, first.mean()),
        }
        rows.extend(
            {"pass": name, "metric": metric, "value": rate, "unit": "token/s", "n": measured.height}
            for metric, rate in rates.items()
        )
    return pl.DataFrame([{**row, "phase": "measure"} for row in rows], schema=METRICS)


def _rate(tokens: int, duration_ns: object) -> float | None:
    return tokens * 1e9 / duration_ns if isinstance(duration_ns, int | float) and duration_ns > 0 else None


#: A batch size is sufficient if its throughput is at least this fraction of the best one.
SATURATION_RATIO: Final = 0.95
#: A curve that deviates from its chord by less than this fraction of both axes' ranges has no knee.
LEAST_KNEE_DISTANCE: Final = 0.1


def scaling_curve(points: pl.DataFrame) -> pl.DataFrame:
    """Compute rows of `scaling` from one row per session.

    `points` has session_id, batch_size, prompt_tokens, output_tokens (null unless tokens are generated), the median
    time of one iteration, or of one request if tokens are generated, with its interval (`time_ns`, `time_ci_low_ns`,
    `time_ci_high_ns`), time_to_first_token_ns and time_per_output_token_ns.

    throughput = batch x (output tokens, else 1) / median time, with an interval from the time's. Within one prompt
    length: speedup = throughput / that of the smallest batch; efficiency = speedup / (batch / smallest batch). The knee
    is the batch at which the curve, scaled to the unit square, is farthest above its chord (Satopaa et al., Finding a
    "Kneedle" in a Haystack, 2011), if by 0.1 or more. Saturation is the smallest batch with 95 % of the best
    throughput. It is null if that is the largest batch measured, because the end was then not reached.
    """
    work = pl.col("batch_size") * pl.col("output_tokens").fill_null(1)
    curve = points.sort("prompt_tokens", "batch_size", "session_id", nulls_last=False).with_columns(
        throughput_per_s=work * 1e9 / pl.col("time_ns"),
        throughput_ci_low_per_s=work * 1e9 / pl.col("time_ci_high_ns"),
        throughput_ci_high_per_s=work * 1e9 / pl.col("time_ci_low_ns"),
        throughput_unit=pl.when(pl.col("output_tokens").is_null())
        .then(pl.lit("inference/s"))
        .otherwise(pl.lit("token/s")),
    )
    groups = [_with_landmarks(group) for _, group in curve.group_by("prompt_tokens", maintain_order=True)]
    return pl.concat(groups).with_row_index("point") if groups else curve


def _with_landmarks(curve: pl.DataFrame) -> pl.DataFrame:
    """Add speedup, efficiency, knee and saturation to one prompt length's points."""
    batch, rate = pl.col("batch_size"), pl.col("throughput_per_s")
    scaled = curve.with_columns(
        speedup_ratio=rate / rate.first(),
        efficiency_ratio=rate / rate.first() / (batch / batch.first()),
        enough=rate >= SATURATION_RATIO * rate.max(),
        above=(rate - rate.min()) / (rate.max() - rate.min()) - (batch - batch.min()) / (batch.max() - batch.min()),
    )
    first_enough = pl.col("enough").arg_max()
    place = pl.int_range(pl.len())
    return scaled.with_columns(
        is_saturated=(place == first_enough) & (first_enough < pl.len() - 1) & (batch.n_unique() > 1),
        is_knee=(
            (place == pl.col("above").arg_max())
            & (pl.col("above") >= LEAST_KNEE_DISTANCE)
            & pl.col("above").is_finite()
        ).fill_null(False),
    ).drop("enough", "above")
