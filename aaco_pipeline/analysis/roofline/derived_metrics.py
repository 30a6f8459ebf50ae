"""Derived metrics from hardware counters: of each dispatch, and of each kernel as ratios of sums.

The metrics are those of `aaco_pipeline.hardware.counters.formulas`; `docs/counters.md` lists them. A metric is there
for a kernel when any counter it is made of was collected; it is null where another one
lacks or is not to be believed, and its flags (`aaco_pipeline.analysis.roofline.counter_work.FLAGS`) say which.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.roofline.counter_table import FACTS, counter_table
from aaco_pipeline.analysis.roofline.counter_work import FLAGS, needed_counters, with_work
from aaco_pipeline.hardware.counters import AMOUNTS, RATIOS, Family
from aaco_pipeline.hardware.counters.formulas import DerivedMetric, derived_metrics
from aaco_pipeline.lake.contracts import polars_types

#: The columns of `metrics_of`, in order: the contract `counter_metrics` without the session.
METRICS: Final = pl.Schema(polars_types("counter_metrics"))
#: Columns that each flag bears on: a metric made of one of them carries the flag.
_BEARS_ON: Final = {
    "implausible_clock": frozenset(("active_cycles", "clock_mhz")),
    "implausible_level_clock": frozenset(("level_cycles",)),
    "clock_not_checked": frozenset(("active_cycles", "level_cycles", "clock_mhz")),
    "device_from_product": frozenset(("compute_units", "xcc_count", "active_cycles", "level_cycles", "clock_mhz")),
    "no_duration": frozenset(("duration_s",)),
    "first_dispatch": frozenset(("duration_s",)),
    "writes_left_in_l2": frozenset(("TCC_EA_WRREQ",)),
    "matrix_instructions_included": frozenset(("valu_instructions",)),
    "request_size_assumed": frozenset(("TCC_BUBBLE",)),
}
_OPERATION_FLAGS: Final = ("packed_math_possible", "formats_not_counted", "masked_lanes_counted")
_NOTHING_COUNTED: Final = "nothing_counted"
#: What the one flag means that only figures have.
METRIC_FLAGS: Final = {**FLAGS, _NOTHING_COUNTED: "what the metric divides by was zero in every dispatch"}
Matrix = npt.NDArray[np.float64]


def metrics_of(table: pl.DataFrame) -> pl.DataFrame:
    """Metrics of each kernel over its counted dispatches, from what `counted` gives: the columns of `METRICS`, sorted.

    `value` is the sum of the numerators over the sum of the denominators; `mean`, `min` and `max` are over dispatches,
    of which `n` gave the metric. Where none did, `value` is that of the kernel's executions that are no known dispatch:
    then `n` is 0 and the flag `joined_by_kernel` says so.
    """
    parts = [_of_family(part, Family(family)) for (family,), part in table.partition_by("family", as_dict=True).items()]
    return pl.concat([METRICS.to_frame(), *parts]).sort("kernel_id", "metric")


def counted(
    counters: pl.DataFrame, dispatches: pl.DataFrame, devices: pl.DataFrame, *, check_clock: bool = True
) -> pl.DataFrame:
    """The frame of `counter_table` with every counter that a metric is made of, the work and its flags.

    `check_clock` false keeps what divides by cycles that mean a clock the device cannot run at.
    """
    needed = _every_counter() if counters.height else frozenset[str]()
    return with_work(counter_table(counters, dispatches, devices, needed, check_clock=check_clock))


@cache
def _every_counter() -> frozenset[str]:
    """Plain names of all counters that figures, work and flags are made of."""
    of_figures = {name for family in Family for metric in derived_metrics(family) for name in metric.columns()}
    return (needed_counters() | of_figures) - {*AMOUNTS, *RATIOS, *FACTS}


def _is_counted(table: pl.DataFrame, metric: DerivedMetric) -> bool:
    """Whether any counter that the metric is made of was collected."""
    columns = (metric.columns() - {*FACTS}) or {"GRBM_GUI_ACTIVE"}
    return any(table.get_column(name).count() for name in columns)


def _evaluated(table: pl.DataFrame, known: Sequence[DerivedMetric]) -> tuple[Matrix, Matrix]:
    """Numerators and denominators, one row per metric and one column per row of the table; NaN for null."""
    one = pl.lit(1.0)
    numerators = [metric.numerator.cast(pl.Float64).alias(f"n{i}") for i, metric in enumerate(known)]
    denominators = [
        (one if metric.denominator is None else metric.denominator).cast(pl.Float64).alias(f"d{i}")
        for i, metric in enumerate(known)
    ]
    evaluated = table.select(pl.col("dispatch_id"), *numerators, *denominators).drop("dispatch_id")
    both = evaluated.to_numpy().T.astype(np.float64)
    return both[: len(known)], both[len(known) :]


def _usable(numerators: Matrix, denominators: Matrix) -> npt.NDArray[np.bool_]:
    usable: npt.NDArray[np.bool_] = np.isfinite(numerators) & np.isfinite(denominators) & (denominators != 0)
    return usable


def _of_family(table: pl.DataFrame, family: Family) -> pl.DataFrame:
    """`metrics_of` the dispatches on devices of one family."""
    known = [metric for metric in derived_metrics(family) if _is_counted(table, metric)]
    table = table.sort("kernel_id")
    if not known or not table.height:
        return METRICS.to_frame()
    numerators, denominators = _evaluated(table, known)
    usable = _usable(numerators, denominators)
    kernels = table.get_column("kernel_id").to_numpy()
    first = np.flatnonzero(np.r_[True, kernels[1:] != kernels[:-1]])
    of_dispatches = usable & table.get_column("dispatch_id").is_not_null().to_numpy()
    n = np.add.reduceat(of_dispatches.astype(np.int64), first, axis=1)
    rows_of_kernel = np.diff(np.r_[first, kernels.size])
    counts = np.where(np.repeat(n, rows_of_kernel, axis=1) > 0, of_dispatches, usable)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = numerators / denominators
        sums = [np.add.reduceat(np.where(counts, part, 0.0), first, axis=1) for part in (numerators, denominators)]
        columns = {
            "value": sums[0] / sums[1],
            "mean": np.add.reduceat(np.where(of_dispatches, each, 0.0), first, axis=1) / n,
            "min": np.minimum.reduceat(np.where(of_dispatches, each, np.inf), first, axis=1),
            "max": np.maximum.reduceat(np.where(of_dispatches, each, -np.inf), first, axis=1),
        }
    known_of = np.add.reduceat(counts.astype(np.int64), first, axis=1) > 0
    frame = _listed(known, kernels[first]).with_columns(
        *(
            pl.Series(name, np.where(known_of if name == "value" else n > 0, values, np.nan).ravel(), nan_to_null=True)
            for name, values in columns.items()
        ),
        n=pl.Series(n.ravel()),
    )
    frame = frame.with_columns(is_zero=pl.Series((np.add.reduceat(denominators == 0, first, axis=1) > 0).ravel()))
    return _flagged(frame, table, known).select(pl.col(name).cast(dtype) for name, dtype in METRICS.items())


def _listed(known: Sequence[DerivedMetric], kernels: npt.NDArray[np.int32]) -> pl.DataFrame:
    """One row per metric and kernel, the kernel running fastest."""
    of_figure = np.repeat(np.arange(len(known)), kernels.size)
    return pl.DataFrame(
        {
            "kernel_id": np.tile(kernels, len(known)),
            "metric": pl.Series([metric.name for metric in known]).gather(of_figure),
            "unit": pl.Series([metric.unit for metric in known]).gather(of_figure),
        }
    )


def _flagged(frame: pl.DataFrame, table: pl.DataFrame, known: Sequence[DerivedMetric]) -> pl.DataFrame:
    """The frame with `quality_flags`: those of the kernel's dispatches that bear on the metric, and why it is null."""
    of_kernel = table.select("kernel_id", flag="quality_flags").explode("flag").drop_nulls().unique()
    by_kernel = frame.filter(pl.col("value").is_not_null() & (pl.col("n") == 0))
    by_kernel = by_kernel.select("kernel_id", "metric", flag=pl.lit("joined_by_kernel"))
    of_figure = pl.DataFrame(
        [(metric.name, flag) for metric in known for flag in _flags_of(metric)],
        schema={"metric": pl.String, "flag": pl.String},
        orient="row",
    )
    bearing = of_kernel.join(of_figure, on="flag").select("kernel_id", "metric", "flag")
    null = frame.filter(pl.col("value").is_null()).select("kernel_id", "metric", "is_zero")
    clocked = bearing.filter(pl.col("flag").str.starts_with("implausible")).select("kernel_id", "metric")
    unclear = null.join(clocked, on=["kernel_id", "metric"], how="anti")
    reason = pl.when("is_zero").then(pl.lit(_NOTHING_COUNTED)).otherwise(pl.lit("missing_counters"))
    reasons = unclear.select("kernel_id", "metric", flag=reason)
    order = pl.Enum(list(METRIC_FLAGS))
    flags = (
        pl.concat([bearing, reasons, by_kernel])
        .group_by("kernel_id", "metric")
        .agg(quality_flags=pl.col("flag").cast(order).unique().sort().cast(pl.String))
    )
    joined = frame.join(flags, on=["kernel_id", "metric"], how="left", maintain_order="left")
    return joined.with_columns(pl.col("quality_flags").fill_null(pl.lit([], pl.List(pl.String))))


def _flags_of(metric: DerivedMetric) -> list[str]:
    """The flags that bear on a metric, by what it is made of."""
    columns = metric.columns()
    flags = [flag for flag, named in _BEARS_ON.items() if columns & named]
    return [*flags, *_OPERATION_FLAGS] if metric.unit.startswith("flop") else flags
