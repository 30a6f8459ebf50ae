"""What a session's own kernels sustained, as rows of the table `ceilings`: one fit for each device and number format.

Fitting, and what it refuses, is `aaco_pipeline.analysis.roofline.fit`; which kernels belong together is decided here.
Rows of the source `fitted` say what was reached. They judge no kernel: a roof made of the kernels below it would find
each of them at it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.roofline.fit import LEAST_POINTS, Envelope, Refusal, fit

FITTED: Final = "fitted"
_FORMATS: Final = ("fp64", "fp32", "fp16")
_MATRIX: Final = tuple(f"matrix_{name}_flops" for name in ("fp64", "fp32", "xf32", "fp16", "bf16", "fp8", "f6f4"))
#: A fused multiply-add is two operations.
_FLOPS_PER_LANE: Final = 2
_RESAMPLES: Final = 100
_COLUMNS: Final = ("device_id", "resource", "dtype", "value", "unit", "source", "reference")
_SCHEMA: Final = {
    **dict.fromkeys(_COLUMNS, pl.String()),
    "device_id": pl.Int32(),
    "value": pl.Float64(),
}


@dataclass(frozen=True)
class Fitted:
    """`ceilings`: rows of that table. `refused`: device_id, dtype and reason where the kernels do not allow a fit."""

    ceilings: pl.DataFrame
    refused: tuple[tuple[int, str, str], ...]


def fitted_ceilings(work: pl.DataFrame, devices: pl.DataFrame) -> Fitted:
    """The envelope of the kernels that compute in one format alone, one point for each kernel: means of its dispatches.

    `work` is what `counter_work` gives, `devices` that table, for its wavefront size. The time that is always
    spent is taken to be that of the device's shortest kernel. Formats with fewer kernels than a fit needs are left out
    without a word.
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
    """One row per kernel and device; a kernel with an unknown amount in any of its dispatches does not know it."""
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
    """The kernels that compute in this format alone, all their operations counted, as `envelope.fit` wants them."""
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
