"""Work and metrics from hardware counters: operations by format, bytes by memory level, ratios per kernel.

`counter_table` provides the counters as one row per dispatch.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.roofline.counter_table import FACTS, counter_table
from aaco_pipeline.hardware.counters import AMOUNTS, MULTIPROCESSORS, RATIOS, TRAITS, Family, floating_formats
from aaco_pipeline.hardware.counters.formulas import (
    DerivedMetric,
    derived_metrics,
    read_size_is_assumed,
    term,
    work_formulas,
)
from aaco_pipeline.lake.contracts import polars_types

#: Columns of `work_of`, in order.
WORK: Final = pl.Schema(
    {
        "dispatch_id": pl.Int32(),
        "kernel_id": pl.Int32(),
        "device_id": pl.Int32(),
        "duration_ns": pl.Int64(),
        "counted_duration_ns": pl.Int64(),
        **{name: pl.Float64() for name in (*AMOUNTS, *RATIOS)},
        "flops_is_lower_bound": pl.Boolean(),
        "quality_flags": pl.List(pl.String()),
    }
)
#: Meaning of each flag; a figure carries the flags that affect it.
FLAGS: Final = {
    "packed_math_possible": "packed instructions do two operations a lane and are counted as one",
    "formats_not_counted": "a number format that the architecture computes in was not counted",
    "no_vector_format_counters": "the counters do not tell the VALU's number formats apart, so there are no FLOPs",
    "matrix_instructions_included": "VALU instructions include matrix instructions, which are not counted apart",
    "masked_lanes_counted": "lanes that the execution mask switched off are counted as operations",
    "request_size_assumed": "the sizes of reads were not counted; larger ones are taken for 128 bytes",
    "writes_left_in_l2": "fewer writes left the L2 than entered it: it still holds them, or merged them",
    "implausible_clock": "the cycles mean a clock the device cannot run at; what divides by them is null",
    "implausible_level_clock": "the same of the pass that accumulated resident wavefronts",
    "clock_not_checked": "the cycles could not be checked against the device's highest clock",
    "device_from_product": "compute units, XCCs or highest clock are not stated; the product's were taken",
    "no_duration": "the base trace holds no duration of the dispatch",
    "first_dispatch": "the kernel's first dispatch took longer than the others: cold caches, page faults, compilation",
    "joined_by_kernel": "counted in executions that could not be told to be a dispatch: means of the kernel's own",
    "missing_counters": "a counter that a formula needs was not collected",
    "incomplete_channels": "the capture holds some of the L2's channels only, and no sum",
    "unknown_architecture": "there are no formulas for the device's architecture",
}
#: A first dispatch longer than this multiple of the median of the kernel's other dispatches is flagged.
FIRST_DISPATCH: Final = 1.15
#: Below this fraction of active lanes, the FLOPs of masked lanes are significant.
_FEW_LANES: Final = 0.95
#: Fabric writes below this fraction of the L2's writes are flagged.
_WRITES_PASSED_ON: Final = 0.98
#: Counters used only for flags.
_FOR_FLAGS: Final = ("TCC_WRITE", "SQ_INSTS_VALU")


def work_of(table: pl.DataFrame) -> pl.DataFrame:
    """Return each counted dispatch's work, from the result of `with_work`: the columns of `WORK`.

    A kernel that was counted in no known dispatch has a row without dispatch_id: the means of its executions. An amount
    is null if a required counter is missing. `duration_ns` comes from the base trace; it is null if there is none or
    the times are unusable. `counted_duration_ns` is the mean over counter passes. `flops_is_lower_bound` is null if no
    FLOPs are known. `quality_flags` are from `FLAGS`.
    """
    single = pl.col("dispatch_id").is_not_null()
    single_or_alone = single | ~single.any().over("kernel_id")
    return table.filter(single_or_alone).select(pl.col(name).cast(dtype) for name, dtype in WORK.items())


@cache
def needed_counters() -> frozenset[str]:
    """Plain names of all counters that any family's formulas and the flags read."""
    names = set(_FOR_FLAGS)
    for family in Family:
        for formula in (*work_formulas(family).values(), read_size_is_assumed(family), _is_packed()):
            names.update(formula.meta.root_names())
    return frozenset(names)


def with_work(table: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of `WORK` to the frame of `counter_table`, which must have the counters of `needed_counters`."""
    parts = table.partition_by("family", as_dict=True)
    if not parts:
        added = (pl.lit(None, dtype).alias(name) for name, dtype in WORK.items() if name not in table.columns)
        return table.with_columns(added)
    frames = [
        part.with_columns(**work_formulas(Family(family))).with_columns(
            flops_is_lower_bound=_lower_bound(Family(family))
        )
        for (family,), part in parts.items()
    ]
    return _with_flags(pl.concat(frames).sort("dispatch_id"))


def _lower_bound(family: Family) -> pl.Expr:
    """Return whether FLOPs may exceed the count; null if none are known."""
    formats = floating_formats(family)
    if not formats:
        return pl.lit(None, pl.Boolean)
    known = pl.any_horizontal(pl.col(name).is_not_null() for name in formats)
    packed = pl.lit(False) if family in MULTIPROCESSORS else _is_packed().fill_null(True)
    return pl.when(known).then(packed | _uncounted(formats))


def _is_packed() -> pl.Expr:
    return term("packable_instructions", Family.UNKNOWN) > 0


def _uncounted(formats: list[str]) -> pl.Expr:
    return pl.any_horizontal(pl.col(name).is_null() for name in formats)


def _with_flags(table: pl.DataFrame) -> pl.DataFrame:
    """Add `quality_flags` to the table, in the order of `FLAGS`."""
    table = table.with_columns(is_late_start=_is_slow_first(table))
    conditions = _conditions()
    flags = [pl.when(conditions[name]).then(pl.lit(name)) for name in FLAGS]
    return table.with_columns(quality_flags=pl.concat_list(flags).list.drop_nulls()).drop("is_late_start")


def _conditions() -> dict[str, pl.Expr]:
    """The condition of each flag."""
    within = {family: pl.col("family") == family.value for family in Family}
    uncounted = [within[family] & _uncounted(floating_formats(family)) for family in Family if floating_formats(family)]
    unsplit = [
        within[family] for family in Family if family is not Family.UNKNOWN and not TRAITS[family].counts_vector_formats
    ]
    together = [
        within[f] for f in Family if TRAITS[f].has_matrix_instructions and not TRAITS[f].counts_matrix_instructions
    ]
    assumed = [within[family] & read_size_is_assumed(family) for family in Family]
    knows_flops = pl.col("flops_is_lower_bound").is_not_null()
    of_wavefronts = ~pl.any_horizontal(within[family] for family in MULTIPROCESSORS)
    return {
        "packed_math_possible": knows_flops & _is_packed(),
        "formats_not_counted": knows_flops & pl.any_horizontal(uncounted),
        "no_vector_format_counters": pl.any_horizontal(unsplit),
        "matrix_instructions_included": pl.any_horizontal(together) & pl.col("valu_instructions").is_not_null(),
        "masked_lanes_counted": knows_flops & of_wavefronts & (pl.col("active_threads_ratio") < _FEW_LANES),
        "request_size_assumed": pl.any_horizontal(assumed),
        "writes_left_in_l2": pl.col("TCC_EA_WRREQ") < _WRITES_PASSED_ON * pl.col("TCC_WRITE"),
        "implausible_clock": pl.col("clock_is_implausible"),
        "implausible_level_clock": pl.col("level_clock_is_implausible") & pl.col("SQ_LEVEL_WAVES_ACCUM").is_not_null(),
        "clock_not_checked": pl.col("clock_is_unchecked"),
        "device_from_product": pl.col("is_of_product"),
        "no_duration": pl.col("duration_ns").is_null(),
        "first_dispatch": pl.col("is_late_start"),
        "joined_by_kernel": pl.col("dispatch_id").is_null(),
        "missing_counters": pl.any_horizontal(within[family] & _lacks(family) for family in Family),
        "incomplete_channels": pl.col("channels_are_incomplete"),
        "unknown_architecture": within[Family.UNKNOWN],
    }


def _lacks(family: Family) -> pl.Expr:
    """Return whether a counter-based amount of the family is null; formats and clocks have their own flags."""
    if family is Family.UNKNOWN:
        return pl.lit(False)
    names = ["wavefronts", "fabric_read_bytes", "fabric_write_bytes"]
    names += ["l2_bytes", "vl1d_bytes", "lds_bytes"] if family in MULTIPROCESSORS else ["valu_instructions"]
    if TRAITS[family].l2_bytes_per_request is not None:
        names += ["l2_bytes", "vl1d_bytes", "lds_bytes"]
    return pl.any_horizontal(pl.col(name).is_null() for name in names)


def _is_slow_first(table: pl.DataFrame) -> pl.Series:
    """Return whether a dispatch is its kernel's first and took longer than the others usually do."""
    length = pl.coalesce("duration_ns", "counted_duration_ns")
    is_first = pl.col("dispatch_id") == pl.col("dispatch_id").min().over("kernel_id")
    usual = table.with_columns(length=length, is_first=is_first).with_columns(
        usual=pl.col("length").filter(~pl.col("is_first")).median().over("kernel_id")
    )
    slow = pl.col("is_first") & (pl.col("length") > FIRST_DISPATCH * pl.col("usual"))
    return usual.select(slow.fill_null(False)).to_series()


#: Columns of `metrics_of`, in order: the contract `counter_metrics` without the session.
METRICS: Final = pl.Schema(polars_types("counter_metrics"))
#: Columns affected by each flag; a metric computed from one of them carries the flag.
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
#: Meaning of the only flag that applies solely to figures.
METRIC_FLAGS: Final = {**FLAGS, _NOTHING_COUNTED: "what the metric divides by was zero in every dispatch"}
Matrix = npt.NDArray[np.float64]


def metrics_of(table: pl.DataFrame) -> pl.DataFrame:
    """Metrics of each kernel over its counted dispatches, from the result of `counted`: `METRICS`, sorted.

    `value` is the sum of the numerators over the sum of the denominators; `mean`, `min` and `max` are over the `n`
    dispatches with the metric. If there are none, `value` comes from the kernel's executions that match no known
    dispatch; `n` is then 0 and the flag `joined_by_kernel` is set.
    """
    parts = [_of_family(part, Family(family)) for (family,), part in table.partition_by("family", as_dict=True).items()]
    return pl.concat([METRICS.to_frame(), *parts]).sort("kernel_id", "metric")


def counted(
    counters: pl.DataFrame, dispatches: pl.DataFrame, devices: pl.DataFrame, *, check_clock: bool = True
) -> pl.DataFrame:
    """Build the frame of `counter_table` with all counters used by metrics, the work and its flags.

    If `check_clock` is false, figures divided by cycles are kept even if these imply an impossible clock.
    """
    needed = _every_counter() if counters.height else frozenset[str]()
    return with_work(counter_table(counters, dispatches, devices, needed, check_clock=check_clock))


@cache
def _every_counter() -> frozenset[str]:
    """Plain names of all counters used by figures, work and flags."""
    of_figures = {name for family in Family for metric in derived_metrics(family) for name in metric.columns()}
    return (needed_counters() | of_figures) - {*AMOUNTS, *RATIOS, *FACTS}


def _is_counted(table: pl.DataFrame, metric: DerivedMetric) -> bool:
    """Return whether any counter used by the metric was collected."""
    columns = (metric.columns() - {*FACTS}) or {"GRBM_GUI_ACTIVE"}
    return any(table.get_column(name).count() for name in columns)


def _evaluated(table: pl.DataFrame, known: Sequence[DerivedMetric]) -> tuple[Matrix, Matrix]:
    """Numerators and denominators, one row per metric and one column per table row; NaN for null."""
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
    """Return `metrics_of` the dispatches on devices of one family."""
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
    """One row per metric and kernel; the kernel varies fastest."""
    of_figure = np.repeat(np.arange(len(known)), kernels.size)
    return pl.DataFrame(
        {
            "kernel_id": np.tile(kernels, len(known)),
            "metric": pl.Series([metric.name for metric in known]).gather(of_figure),
            "unit": pl.Series([metric.unit for metric in known]).gather(of_figure),
        }
    )


def _flagged(frame: pl.DataFrame, table: pl.DataFrame, known: Sequence[DerivedMetric]) -> pl.DataFrame:
    """Add `quality_flags`: the dispatches' flags that affect the metric, and the reason if it is null."""
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
    """Return the flags that affect a metric, from the columns that it uses."""
    columns = metric.columns()
    flags = [flag for flag, named in _BEARS_ON.items() if columns & named]
    return [*flags, *_OPERATION_FLAGS] if metric.unit.startswith("flop") else flags
