"""Grade iterations (disturbed by the machine, spikes, causes) and the quietness of the session.

`decomposition` computes the parts of each iteration.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.delays.interference import INTERRUPTS, ON_CPU
from aaco_pipeline.analysis.delays.thread_states import PREEMPTED, QUEUED, STOPPED, THROTTLED, UNKNOWN
from aaco_pipeline.analysis.sessions.metrics import METRICS, quantile_interval
from aaco_pipeline.lake.contracts import polars_types

CLEAN: Final = "clean"
DISTURBED: Final = "disturbed"
ON_CPU_LONGER: Final = "on_cpu_longer"
#: A spike exceeds the median by this many noise widths and by this fraction of the median.
_NOISE_WIDTHS: Final = 5
_LEAST_SHARE: Final = 0.1
#: Factor from a quartile to the width of normal noise.
_QUARTILE_WIDTHS: Final = 0.6745
#: A cause explains a spike if its own excess is at least this fraction of the spike's.
_EXPLAINS: Final = 0.5
#: Causes outside the program. Its own waits (locks, its files, faults) do not count, nor does the timer tick.
_OUTSIDE: Final = (PREEMPTED, THROTTLED, STOPPED, QUEUED, INTERRUPTS)
#: Even a quiet machine takes this much for a wake-up and a timer tick. Less is not a disturbance.
_LEAST_DISTURBANCE_NS: Final = 50_000
_DISTURBANCE_SHARE: Final = 0.01
_LEAST_FOR_TAILS: Final = 100
_RESAMPLES: Final = 200
_BLOCK: Final = 20
_SEED: Final = 17


def iteration_grades(iterations: pl.DataFrame, delays: pl.DataFrame) -> pl.DataFrame:
    """Compute `iteration_grades` for the iterations of one pass that have parts in `delays`, including warm-up."""
    spans = iterations.drop_nulls(["start_ns", "end_ns"]).with_columns(latency_ns=pl.col("end_ns") - pl.col("start_ns"))
    measured = spans.filter(pl.col("phase") == "measure")
    if not measured.height or not delays.height:
        return pl.DataFrame(schema=_GRADES)
    latency = measured.get_column("latency_ns").to_numpy()
    # Nearest rank, like `latency_p50`, so that a spike's latency minus its excess is the reported median.
    median, quarter = np.percentile(latency, [50, 25], method="inverted_cdf")
    limit = max(_NOISE_WIDTHS * (median - quarter) / _QUARTILE_WIDTHS, _LEAST_SHARE * median)
    excess = _excess(delays, measured).sort(
        "pass", "iteration", "excess_ns", "cause", descending=[False, False, True, False]
    )
    most = excess.unique(["pass", "iteration"], keep="first", maintain_order=True)
    least = max(_LEAST_DISTURBANCE_NS, _DISTURBANCE_SHARE * median)
    outside = delays.filter(pl.col("cause").is_in(_OUTSIDE)).sort(
        "pass", "iteration", "duration_ns", "cause", descending=[False, False, True, False]
    )
    disturbed = outside.group_by("pass", "iteration", maintain_order=True).agg(
        disturbed_ns=pl.col("duration_ns").sum(), disturbed_by=pl.col("cause").first()
    )
    unknown = delays.filter(pl.col("cause") == UNKNOWN).select("pass", "iteration", unknown_ns="duration_ns")
    key = ["pass", "iteration"]
    rows = (
        spans.select(*key, "latency_ns")
        .join(disturbed, on=key, how="left")
        .join(unknown, on=key, how="left")
        .join(most.select(*key, cause="cause", most_ns="excess_ns"), on=key, how="left")
        .with_columns(
            pl.col("disturbed_ns").fill_null(0),
            pl.col("unknown_ns").fill_null(0),
            excess_ns=pl.col("latency_ns") - int(median),
        )
    )
    is_disturbed, is_unknown = pl.col("disturbed_ns") > least, pl.col("unknown_ns") > least
    rows = rows.with_columns(is_spike=pl.col("excess_ns") > limit)
    explains = (
        pl.col("is_spike") & (pl.col("most_ns") >= _EXPLAINS * pl.col("excess_ns")) & (pl.col("cause") != UNKNOWN)
    )
    named = pl.when(pl.col("cause") == ON_CPU).then(pl.lit(ON_CPU_LONGER)).otherwise("cause")
    return rows.select(
        *key,
        grade=pl.when(is_disturbed)
        .then(pl.lit(DISTURBED))
        .when(is_unknown)
        .then(pl.lit(UNKNOWN))
        .otherwise(pl.lit(CLEAN)),
        disturbed_by=pl.when(is_disturbed).then("disturbed_by"),
        disturbed_ns=pl.when(~is_unknown | is_disturbed).then("disturbed_ns"),
        is_spike="is_spike",
        excess_ns="excess_ns",
        spike_cause=pl.when(explains).then(named),
        # If other parts shrank, the cause grew by more than the total; at most all of it is explained.
        explained_ns=pl.when(explains).then(pl.min_horizontal("most_ns", "excess_ns")),
    ).sort(key)


_GRADES: Final = polars_types("iteration_grades")


def delay_figures(iterations: pl.DataFrame, delays: pl.DataFrame, grades: pl.DataFrame) -> pl.DataFrame:
    """Compute `delay_figures` for the measured iterations of one pass."""
    measured = iterations.filter(pl.col("phase") == "measure").drop_nulls(["start_ns", "end_ns"]).sort("iteration")
    if not measured.height or not delays.height:
        return pl.DataFrame(schema=_FIGURES)
    latency = (measured.get_column("end_ns") - measured.get_column("start_ns")).to_numpy()
    name = measured.item(0, "pass")
    rows = []
    spikes = grades.filter("is_spike").join(measured.select("pass", "iteration"), on=["pass", "iteration"], how="semi")
    of_measured = delays.join(measured.select("pass", "iteration"), on=["pass", "iteration"], how="semi")
    for (cause,), some in of_measured.sort("cause").group_by("cause", maintain_order=True):
        joined = measured.select("iteration").join(some, on="iteration", how="left", maintain_order="left")
        part = joined.get_column("duration_ns").fill_null(0).to_numpy()
        more = np.maximum(part - np.median(part), 0)
        named = ON_CPU_LONGER if cause == ON_CPU else cause
        rows.append(
            {
                "pass": name,
                "cause": cause,
                "iterations": int((more > 0).sum()),
                "spikes": spikes.filter(pl.col("spike_cause") == named).height,
                "total_ns": int(part.sum()),
                "variance_share_ratio": _variance_share(part, latency),
                "tail_share_ratio": _tail_share(part, latency),
                **_p99_without(latency, more),
            }
        )
    return pl.DataFrame(rows, schema=_FIGURES)


_FIGURES: Final = polars_types("delay_figures")
_Array = npt.NDArray[np.int64]


def _excess(delays: pl.DataFrame, measured: pl.DataFrame) -> pl.DataFrame:
    """Return each part's excess over its own median over the measured iterations; a missing part counts as zero."""
    within = delays.join(measured.select("pass", "iteration"), on=["pass", "iteration"], how="semi")
    some = []
    for (cause,), rows in within.group_by("cause", maintain_order=True):
        parts = np.zeros(measured.height)
        parts[: rows.height] = rows.get_column("duration_ns").to_numpy()
        some.append({"cause": cause, "typical_ns": round(float(np.median(parts)))})
    typical = pl.DataFrame(some, schema={"cause": pl.String, "typical_ns": pl.Int64})
    joined = delays.join(typical, on="cause", how="left")
    return joined.with_columns(excess_ns=pl.col("duration_ns") - pl.col("typical_ns").fill_null(0))


def _variance_share(part: _Array, latency: _Array) -> float | None:
    spread = float(np.var(latency))
    return float(np.mean((part - part.mean()) * (latency - latency.mean()))) / spread if spread > 0 else None


def _tail_share(part: _Array, latency: _Array) -> float | None:
    if len(latency) < _LEAST_FOR_TAILS:
        return None
    low, high, far = np.percentile(latency, [40, 60, 99])
    middle, tail = (latency >= low) & (latency <= high), latency >= far
    apart = latency[tail].mean() - latency[middle].mean()
    return float((part[tail].mean() - part[middle].mean()) / apart) if apart > 0 else None


def _p99_without(latency: _Array, more: _Array) -> dict[str, int | None]:
    """Return P99 without the cause's time beyond its median, and a 95 % interval from a block bootstrap.

    Nearest rank, like `latency_p99`: a constant cause leaves it unchanged.
    """
    if len(latency) < _LEAST_FOR_TAILS:
        return {"p99_without_ns": None, "ci_low_ns": None, "ci_high_ns": None}
    without = latency - more
    chance = np.random.default_rng(_SEED)
    begins = chance.integers(0, len(without) - _BLOCK + 1, (_RESAMPLES, -(-len(without) // _BLOCK)))
    # One resample at a time: all at once would take the memory of two hundred sessions.
    within = np.arange(_BLOCK)
    resampled = [_p99(without[(one[:, None] + within).ravel()[: len(without)]]) for one in begins]
    low, high = np.percentile(resampled, [2.5, 97.5])
    figure = _p99(without)
    return {"p99_without_ns": figure, "ci_low_ns": round(float(low)), "ci_high_ns": round(float(high))}


def _p99(values: _Array) -> int:
    return round(float(np.percentile(values, 99, method="inverted_cdf")))


#: Figures over the clean iterations, reported in addition to those over all iterations.
_UNDISTURBED: Final = {"latency_p50_undisturbed": 0.50, "latency_p99_undisturbed": 0.99}


def quietness_metrics(iterations: pl.DataFrame, grades: pl.DataFrame, probes: pl.DataFrame) -> pl.DataFrame:
    """Rows of `session_metrics` on how quiet the machine was.

    Three figures: the disturbed fraction of each pass's measured iterations that can be graded (null if none can),
    quantiles over the clean iterations (nearest rank like `latency_p50`), and the fraction of the probes' time that
    disappeared without a kernel event.
    """
    rows: list[dict[str, Any]] = []
    measured = iterations.filter(pl.col("phase") == "measure").join(grades, on=["pass", "iteration"])
    for (name,), some in measured.sort("pass", "iteration").group_by("pass", maintain_order=True):
        of = {"pass": name, "phase": "measure"}
        disturbed = some.filter(pl.col("grade") == DISTURBED).height
        judged = disturbed + some.filter(pl.col("grade") == CLEAN).height
        ratio = disturbed / judged if judged else None
        rows.append({**of, "metric": "disturbed_ratio", "value": ratio, "unit": "ratio", "n": judged})
        clean = np.sort(some.filter(pl.col("grade") == CLEAN).get_column("latency_ns").drop_nulls().to_numpy())
        values = {metric: quantile_interval(clean, at)[0] for metric, at in _UNDISTURBED.items()} if len(clean) else {}
        if len(clean):
            values["latency_mean_undisturbed"] = float(clean.mean())
        rows += [{**of, "metric": key, "value": one, "unit": "ns", "n": len(clean)} for key, one in values.items()]
    known = probes.drop_nulls("unseen_ns")
    if known.height:
        spent = int((known.get_column("end_ns") - known.get_column("start_ns")).sum())
        share = int(known.get_column("unseen_ns").sum()) / spent if spent else None
        rows.append({"metric": "unseen_pause_ratio", "value": share, "unit": "ratio", "n": known.height})
    return pl.DataFrame(rows, schema=METRICS)
