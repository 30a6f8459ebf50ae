"""Sustained ceilings of a device, fitted to many kernels of one kind, as rows of the table `ceilings`.

`aaco_pipeline.hardware` provides ceilings from data sheets and measurements.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.lake.contracts import polars_types

Floats = npt.NDArray[np.float64]

LEAST_POINTS: Final = 8
#: Minimum number of points clearly on either side of the ridge, and the time ratio that counts as clear.
LEAST_ON_A_SIDE: Final = 3
CLEARLY: Final = 1.5
#: Bytes that differ by less than this factor cannot separate bandwidth from overhead.
LEAST_SPREAD_OF_BYTES: Final = 1.5
#: Two populations differ in log residuals by more than this, which exceeds any device noise.
POPULATIONS_DIFFER: Final = 0.08
#: Residual at which the loss changes from squared to linear: about the noise of a repeated kernel.
_TYPICAL_RESIDUAL: Final = 0.01
_LARGEST_SHARPNESS: Final = 60.0
_INTERVAL: Final = (0.025, 0.975)


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % bootstrap interval; both ends equal the value if the caller fixed it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Envelope:
    """A fitted roof. `overhead_is_fixed` is true if the caller specified T0 instead of fitting it.

    Errors are in the logarithm of the duration, which is about the relative error.
    """

    peak_flops_per_s: Estimate
    bandwidth_bytes_per_s: Estimate
    overhead_ns: Estimate
    sharpness: Estimate
    overhead_is_fixed: bool
    points: int
    median_error: float
    largest_error: float


@dataclass(frozen=True)
class Refusal:
    """The reason why there is no roof. `kind`: `too_few_points`, `operations_not_counted`, `overhead_not_identifiable`,
    `one_sided` or `mixed_population`."""

    kind: str
    reason: str


@dataclass(frozen=True)
class _Points:
    flops: Floats
    bytes: Floats
    ns: Floats


@dataclass(frozen=True)
class _Fit:
    peak: float
    """flop/ns"""
    bandwidth: float
    """byte/ns"""
    sharpness: float
    overhead: float
    """ns"""


def fit(
    points: pl.DataFrame,
    overhead_ns: float | None = None,
    flops_per_instruction: float | None = None,
    resamples: int = 200,
) -> Envelope | Refusal:
    """Fit the roof of kernels of one number format, with one row per dispatch.

    Refuses if there are too few kernels, if they lie on one side of the ridge, if operations are missing, or if they
    form two populations, such as partly vectorized code.

    Args:
        points: flops, bytes and duration_ns, and optionally instructions (vector instructions issued) and
            flops_is_lower_bound. Rows without a duration or a fitted amount are omitted.
        overhead_ns: Fixes T0. Required if all kernels move about the same number of bytes, because then every T0 has a
            W that fits equally well. The best estimate is the shortest kernel of the same capture.
        flops_per_instruction: Count arithmetic in issue slots worth this many operations (2 x lanes of a wavefront for
            unpacked multiply-adds). This is the better model for short loops: addresses and loop counters take slots
            too, and would otherwise count as overhead.
        resamples: Bootstrap resamples for the intervals.
    """
    work = "flops" if flops_per_instruction is None else "instructions"
    known = points.drop_nulls([work, "bytes", "duration_ns"])
    known = known.filter(pl.col("duration_ns") > 0, (pl.col(work) > 0) | (pl.col("bytes") > 0))
    refusal = _unusable(known, overhead_ns, flops_per_instruction)
    if refusal is not None:
        return refusal
    data = _arrays(known, flops_per_instruction)
    found = _fitted(data, overhead_ns, _start(data, overhead_ns))
    refusal = _unfit(data, found, known)
    if refusal is not None:
        return refusal
    residuals = np.log(data.ns) - np.log(_model(data, found))
    low, high = _bootstrap(data, found, residuals, overhead_ns, resamples)
    return Envelope(
        peak_flops_per_s=Estimate(found.peak * 1e9, low[0] * 1e9, high[0] * 1e9),
        bandwidth_bytes_per_s=Estimate(found.bandwidth * 1e9, low[1] * 1e9, high[1] * 1e9),
        sharpness=Estimate(found.sharpness, low[2], high[2]),
        overhead_ns=Estimate(found.overhead, low[3], high[3]),
        overhead_is_fixed=overhead_ns is not None,
        points=len(data.ns),
        median_error=float(np.median(np.abs(residuals))),
        largest_error=float(np.abs(residuals).max()),
    )


def _unusable(known: pl.DataFrame, overhead_ns: float | None, flops_per_instruction: float | None) -> Refusal | None:
    """Return the reason why nothing can be fitted to these rows, if any."""
    if known.height < LEAST_POINTS:
        return Refusal("too_few_points", f"{known.height} kernels with known work and duration; {LEAST_POINTS} needed")
    if flops_per_instruction is None and "flops_is_lower_bound" in known.columns:
        uncounted = int(known.get_column("flops_is_lower_bound").fill_null(False).sum())
        if uncounted:
            return Refusal(
                "operations_not_counted",
                f"the operations of {uncounted} of {known.height} kernels are a lower bound, and so the peak would be; "
                "count issue slots instead (flops_per_instruction)",
            )
    moved = known.get_column("bytes").cast(pl.Float64).to_numpy()
    smallest, largest = float(moved.min()), float(moved.max())
    if overhead_ns is None and largest < LEAST_SPREAD_OF_BYTES * smallest:
        return Refusal(
            "overhead_not_identifiable",
            f"all kernels move between {smallest:.4g} and {largest:.4g} bytes, so that bandwidth and overhead cannot "
            "be told apart; state the overhead, or vary the size",
        )
    shortest = float(known.get_column("duration_ns").cast(pl.Float64).to_numpy().min())
    if overhead_ns is not None and overhead_ns >= shortest:
        return Refusal(
            "overhead_not_identifiable",
            f"the stated overhead of {overhead_ns:.0f} ns is not below the shortest kernel's {shortest:.0f} ns",
        )
    return None


def _arrays(known: pl.DataFrame, flops_per_instruction: float | None) -> _Points:
    flops = pl.col("flops") if flops_per_instruction is None else pl.col("instructions") * flops_per_instruction
    columns = known.select(flops.cast(pl.Float64).alias("flops"), pl.col("bytes", "duration_ns").cast(pl.Float64))
    return _Points(*(columns.get_column(name).to_numpy() for name in ("flops", "bytes", "duration_ns")))


def _start(data: _Points, overhead_ns: float | None) -> _Fit:
    """Return the best observed rates, from which a roof cannot be far below."""
    overhead = float(data.ns.min()) / 10 if overhead_ns is None else overhead_ns
    busy = data.ns - overhead
    return _Fit(float((data.flops / busy).max()), float((data.bytes / busy).max()), 4.0, overhead)


def _logarithms(data: _Points, one: _Fit) -> tuple[Floats, Floats, Floats]:
    """Logarithms of the times of arithmetic, of traffic, and of both together; -inf for no work."""
    with np.errstate(divide="ignore"):
        arithmetic, traffic = np.log(data.flops / one.peak), np.log(data.bytes / one.bandwidth)
    both = np.logaddexp(one.sharpness * arithmetic, one.sharpness * traffic) / one.sharpness
    return arithmetic, traffic, both


def _model(data: _Points, one: _Fit) -> Floats:
    """Return the durations in ns predicted by the model."""
    return np.asarray(one.overhead + np.exp(_logarithms(data, one)[2]), dtype=np.float64)


def _fitted(data: _Points, overhead_ns: float | None, start: _Fit) -> _Fit:
    """Fit the parameters in log space."""

    def decoded(x: Floats) -> _Fit:
        overhead = overhead_ns if overhead_ns is not None else float(np.exp(x[3]))
        return _Fit(float(np.exp(x[0])), float(np.exp(x[1])), float(np.exp(x[2])), overhead)

    target = np.log(data.ns)
    begin = [np.log(start.peak), np.log(start.bandwidth), np.log(start.sharpness)]
    lowest, highest = [-np.inf, -np.inf, 0.0], [np.inf, np.inf, float(np.log(_LARGEST_SHARPNESS))]
    if overhead_ns is None:
        begin.append(np.log(max(start.overhead, 1.0)))
        lowest.append(-np.inf)
        # The time spent by every kernel cannot exceed the shortest kernel's.
        highest.append(float(target.min()))
    from scipy.optimize import least_squares

    result = least_squares(
        lambda x: np.log(_model(data, decoded(x))) - target,
        np.clip(begin, lowest, np.array(highest) - 1e-6),
        jac=_jacobian(data, decoded, overhead_ns is None),
        bounds=(lowest, highest),
        loss="soft_l1",
        f_scale=_TYPICAL_RESIDUAL,
    )
    return decoded(np.asarray(result.x, dtype=np.float64))


def _jacobian(data: _Points, decoded: Callable[[Floats], _Fit], with_overhead: bool) -> Callable[[Floats], Floats]:
    """Derivatives of the model's logarithm with respect to the logarithms of its parameters."""

    def at(x: Floats) -> Floats:
        one = decoded(x)
        arithmetic, traffic, both = _logarithms(data, one)
        overlapped = np.exp(both)
        total = one.overhead + overlapped
        weight = np.exp(one.sharpness * (arithmetic - both))
        mean = np.where(weight > 0, weight * np.where(weight > 0, arithmetic, 0.0), 0.0)
        mean += np.where(weight < 1, (1 - weight) * np.where(weight < 1, traffic, 0.0), 0.0)
        by_sharpness = mean - both
        columns = [-overlapped * weight, -overlapped * (1 - weight), overlapped * by_sharpness]
        if with_overhead:
            columns.append(np.full(len(total), one.overhead))
        return np.asarray(np.column_stack(columns) / total[:, None], dtype=np.float64)

    return at


def _unfit(data: _Points, found: _Fit, known: pl.DataFrame) -> Refusal | None:
    """Return the reason why the fit cannot be trusted, if any."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (data.flops / found.peak) / (data.bytes / found.bandwidth)
    arithmetic, traffic = int((ratio >= CLEARLY).sum()), int((ratio <= 1 / CLEARLY).sum())
    for side, count in (("arithmetic", arithmetic), ("traffic", traffic)):
        if count < LEAST_ON_A_SIDE:
            return Refusal("one_sided", f"{count} kernels are limited by {side} clearly; {LEAST_ON_A_SIDE} needed")
    changed = _changed_code(known) or _two_populations(data, found, ratio)
    return Refusal("mixed_population", changed) if changed else None


def _changed_code(known: pl.DataFrame) -> str | None:
    """Detect operations per instruction that fall as operations grow: the compiler stopped vectorizing."""
    if "instructions" not in known.columns:
        return None
    rows = known.filter(pl.col("instructions") > 0, pl.col("flops") > 0).sort("flops")
    density = (rows.get_column("flops") / rows.get_column("instructions")).to_numpy()
    drops = np.maximum.accumulate(density) / density if len(density) else density
    if len(drops) and drops.max() > 1 + POPULATIONS_DIFFER:
        at = float(rows.get_column("flops")[int(drops.argmax())])
        return f"operations per instruction fall by a factor of {drops.max():.2f} at {at:.4g} operations"
    return None


def _two_populations(data: _Points, found: _Fit, ratio: Floats) -> str | None:
    """Detect, where arithmetic dominates, residuals that jump with intensity, a falling rate, or two residual groups.

    At equal overhead, the rate of one code never falls as its intensity grows: the model is monotonic in it.
    """
    order = np.argsort(ratio, kind="stable")
    order = order[ratio[order] >= 1.0]
    residuals = (np.log(data.ns) - np.log(_model(data, found)))[order]
    intensity = (data.flops / np.maximum(data.bytes, 1.0))[order]
    count = len(order)
    for split in range(LEAST_ON_A_SIDE, count - LEAST_ON_A_SIDE + 1):
        before = residuals[split - LEAST_ON_A_SIDE : split]
        after = residuals[split : split + LEAST_ON_A_SIDE]
        jump = float(np.median(after) - np.median(before))
        spread = max(float(np.ptp(before)), float(np.ptp(after)))
        if abs(jump) > max(POPULATIONS_DIFFER, spread):
            return f"durations jump by {np.expm1(jump):+.0%} against the model at {intensity[split]:.3g} flop/byte"
    ordered = np.sort(residuals)
    inside = slice(LEAST_ON_A_SIDE - 1, count - LEAST_ON_A_SIDE + 1)
    gaps = np.diff(ordered[inside])
    if len(gaps) and gaps.max() > POPULATIONS_DIFFER:
        at = int(gaps.argmax()) + LEAST_ON_A_SIDE
        if gaps.max() > 2 * max(float(ordered[:at].std()), float(ordered[at:].std())):
            return f"durations fall into two groups {np.expm1(gaps.max()):.0%} apart"
    return None


def _bootstrap(
    data: _Points, found: _Fit, residuals: Floats, overhead_ns: float | None, resamples: int
) -> tuple[list[float], list[float]]:
    """Return the interval's ends per parameter: peak, bandwidth, sharpness, overhead.

    Residuals are resampled rather than kernels, since resampling kernels could empty one side of the ridge.
    """
    draw = np.random.default_rng(0)
    model = _model(data, found)
    # Noise must not make a kernel shorter than the specified overhead.
    floor = 0.0 if overhead_ns is None else overhead_ns * (1 + 1e-9)
    rows = []
    for _ in range(resamples):
        noisy = np.maximum(model * np.exp(draw.choice(residuals, len(residuals))), floor)
        one = _fitted(_Points(data.flops, data.bytes, noisy), overhead_ns, found)
        rows.append((one.peak, one.bandwidth, one.sharpness, one.overhead))
    low, high = np.quantile(np.array(rows), _INTERVAL, axis=0)
    return low.tolist(), high.tolist()


FITTED: Final = "fitted"
_FORMATS: Final = ("fp64", "fp32", "fp16")
_MATRIX: Final = tuple(f"matrix_{name}_flops" for name in ("fp64", "fp32", "xf32", "fp16", "bf16", "fp8", "f6f4"))
#: A fused multiply-add is two operations.
_FLOPS_PER_LANE: Final = 2
_RESAMPLES: Final = 100
_SCHEMA: Final = polars_types("ceilings", *("device_id", "resource", "dtype", "value", "unit", "source", "reference"))


@dataclass(frozen=True)
class Fitted:
    """`ceilings`: rows of that table. `refused`: device_id, dtype and reason if the kernels do not allow a fit."""

    ceilings: pl.DataFrame
    refused: tuple[tuple[int, str, str], ...]


def fitted_ceilings(work: pl.DataFrame, devices: pl.DataFrame) -> Fitted:
    """Fit the envelope of the kernels that compute in a single format, one point per kernel: means of its dispatches.

    `work` comes from `counter_metrics.work_of`; `devices` is the table, used for the wavefront size. The constant
    overhead is assumed to be the time of the device's shortest kernel. Formats with too few kernels are skipped.
    """
    rows: list[tuple[object, ...]] = []
    refused: list[tuple[int, str, str]] = []
    lanes = dict(devices.select("device_id", "wavefront_size").iter_rows())
    for (device,), own in _by_kernel(work).partition_by("device_id", as_dict=True, maintain_order=True).items():
        width = lanes.get(device)
        for dtype in _FORMATS:
            points = _points(own, dtype)
            if points.height < LEAST_POINTS or width is None:
                continue
            shortest = float(own.get_column("duration_ns").min() or 0.0)  # type: ignore[arg-type]
            found = fit(points, shortest, _FLOPS_PER_LANE * width, _RESAMPLES)
            if isinstance(found, Refusal):
                refused.append((int(device), dtype, found.reason))
            else:
                rows += _rows(int(device), dtype, found)
    return Fitted(pl.DataFrame(rows, schema=_SCHEMA, orient="row"), tuple(refused))


def _by_kernel(work: pl.DataFrame) -> pl.DataFrame:
    """One row per kernel and device; an amount unknown in any of its dispatches is unknown for the kernel."""
    amounts = ("valu_instructions", "fabric_read_bytes", "fabric_write_bytes")
    flops = (*(f"valu_{name}_flops" for name in _FORMATS), *_MATRIX)
    timed = work.filter(pl.col("duration_ns") > 0, pl.col("dispatch_id").is_not_null())
    return timed.group_by("device_id", "kernel_id", maintain_order=True).agg(
        pl.col("duration_ns").mean(),
        *(pl.when(pl.col(name).null_count() == 0).then(pl.col(name).mean()) for name in amounts),
        *(pl.col(name).mean() for name in flops),
        flops_is_lower_bound=pl.col("flops_is_lower_bound").any(ignore_nulls=False),
    )


def _points(kernels: pl.DataFrame, dtype: str) -> pl.DataFrame:
    """Return the kernels that compute only in this format, with all operations counted, as input of `fit`."""
    name = f"valu_{dtype}_flops"
    others = [f"valu_{other}_flops" for other in _FORMATS if other != dtype]
    alone = pl.sum_horizontal(*others, *_MATRIX) == 0
    return kernels.filter((pl.col(name) > 0) & alone & ~pl.col("flops_is_lower_bound").fill_null(True)).select(
        "duration_ns",
        flops=name,
        bytes=pl.col("fabric_read_bytes") + pl.col("fabric_write_bytes"),
        instructions="valu_instructions",
    )


def _rows(device: int, dtype: str, found: Envelope) -> Iterator[tuple[object, ...]]:
    how = (
        f"envelope of {found.points} kernels in {dtype}, {found.overhead_ns.value / 1e3:.3g} us always spent as in the "
        f"shortest kernel, median error {100 * found.median_error:.2g} %; 95 % interval"
    )
    peak, bandwidth = found.peak_flops_per_s, found.bandwidth_bytes_per_s
    reference = f"{how} {peak.low / 1e9:,.0f} to {peak.high / 1e9:,.0f} GFLOP/s"
    yield device, "vector", dtype, peak.value, "flop/s", FITTED, reference
    reference = f"{how} {bandwidth.low / 1e9:,.0f} to {bandwidth.high / 1e9:,.0f} GB/s"
    yield device, "fabric", None, bandwidth.value, "byte/s", FITTED, reference
