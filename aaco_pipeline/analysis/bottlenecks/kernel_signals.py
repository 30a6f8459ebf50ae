"""Signals about each kernel that could identify its bottleneck, one column each; null if not measured.

Only this module decides whether a kernel's nearest roof limits it, for labels, reports and sessions.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.thresholds import (
    AT_A_ROOF,
    AT_A_ROOF_BY_SHAPES,
    AT_A_ROOF_STREAMING,
    BALANCED,
    LAUNCH_SIZED_NS,
    ROOF_UNCERTAINTY,
)
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION_FAMILY

#: Labels of the resources of `ceilings` that can limit a kernel.
LABEL_OF_RESOURCE: Final[Mapping[str, str]] = {
    "vector": "compute_vector",
    "vector_packed": "compute_vector",
    "vector_integer": "compute_vector",
    "vector_issue": "compute_vector",
    "scalar_issue": "compute_scalar",
    "matrix": "compute_matrix",
    "dram": "memory_dram",
    "infinity_cache": "memory_infinity_cache",
    "fabric": "memory_fabric",
    "l3": "memory_l3",
    "l2": "memory_l2",
    "l1": "memory_l1",
    "vl1d": "memory_vl1d",
    "lds": "memory_lds",
}
ROOF_LABELS: Final = tuple(dict.fromkeys(LABEL_OF_RESOURCE.values()))
#: Quality flag of the roofline for work derived from shapes and formulas, which is a lower bound.
MODEL_BASED: Final = "model_based"
#: Decoration that tools add to a kernel's symbol; it does not distinguish code.
_DECORATION: Final = r"\s*\[clone [^\]]*\]|\.kd$"

#: The columns of `kernel_limits`.
SCHEMA: Final = pl.Schema(
    {
        **{"kernel_id": pl.Int32, "too_short": pl.Boolean, "nearest": pl.String, "share": pl.Float64},
        **dict.fromkeys(("is_limit", "is_near", "is_sure"), pl.Boolean),
        **{"second": pl.String, "second_share": pl.Float64},
    }
)


def kernel_limits(
    placed: pl.DataFrame, stats: pl.DataFrame, launched: pl.DataFrame, indirect: pl.DataFrame, on_cpu: float = 1.0
) -> pl.DataFrame:
    """Decide which roof limits each kernel: one row per kernel with statistics, sorted by kernel_id.

    Args:
        placed: Rows of `roofline` about complete kernels.
        stats: `kernel_stats`; a kernel's duration is the median of its dispatches, so that a short kernel that was once
            descheduled still counts as short.
        launched: kernel_id, name and `grid`, which identifies the grids of its launches.
        indirect: kernel_id and `indirect_access`: 1 if it reads through indices, 0 if not, null if unknown.
        on_cpu: Share of the kernels' time in which they had a CPU, 1 on other devices. Nearness to roofs refers to
            that time alone.

    Returns:
        The columns of `SCHEMA`. `nearest` and `second` are labels of roofs, `share` and `second_share` of the kernel's
        time, not clamped; all null where the roofline names none for it nor for the same code, or the kernel is
        `too_short`. `is_limit`: the nearest roof limits it. `is_near`: it does not, but might within the uncertainty.
        `is_sure`: nothing within the uncertainty contradicts it. `second` is present only where it needed nearly as
        long.
    """
    known = (
        stats.select("kernel_id", median_ns="p50_ns")
        .join(_labelled(placed, on_cpu), on="kernel_id", how="left", maintain_order="left")
        .join(launched, on="kernel_id", how="left", maintain_order="left")
        .join(indirect.select("kernel_id", "indirect_access"), on="kernel_id", how="left", maintain_order="left")
        .with_columns(code=pl.col("name").str.replace_all(_DECORATION, "") + " " + pl.col("grid").fill_null(""))
    )
    judged = _of_same_code(known).with_columns(needed=_threshold())
    near_second = pl.col("second_share") >= BALANCED * pl.col("share")
    return (
        judged.with_columns(
            is_limit=pl.col("share") >= pl.col("needed"),
            is_near=pl.col("share").is_between(pl.col("needed") - ROOF_UNCERTAINTY, pl.col("needed"), closed="left"),
            is_sure=pl.col("share") >= pl.col("needed") + ROOF_UNCERTAINTY,
            second=pl.when(near_second & pl.col("nearest").is_not_null()).then("second"),
        )
        .with_columns(second_share=pl.when(pl.col("second").is_not_null()).then("second_share"))
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
        .sort("kernel_id")
    )


def grids(dispatches: pl.DataFrame) -> pl.DataFrame:
    """kernel_id and `grid`: the grid and work-group sizes of each kernel's launches, as one string."""
    sizes = dispatches.select("kernel_id", "grid_work_items", "workgroup_work_items").unique()
    text = pl.format("{}/{}", pl.col("grid_work_items").fill_null(0), pl.col("workgroup_work_items").fill_null(0))
    return sizes.group_by("kernel_id").agg(grid=text.sort().str.join(","))


def _labelled(placed: pl.DataFrame, on_cpu: float) -> pl.DataFrame:
    def label(column: str) -> pl.Expr:
        return pl.col(column).replace_strict(LABEL_OF_RESOURCE, default=None, return_dtype=pl.String)

    return placed.drop_nulls("efficiency_ratio").select(
        "kernel_id",
        "duration_ns",
        nearest=label("bound"),
        own_share=pl.col("efficiency_ratio") / on_cpu,
        second=label("second_bound"),
        second_share=pl.col("second_ratio") / on_cpu,
        is_model_based=pl.col("quality_flags").list.contains(MODEL_BASED),
    )


def _of_same_code(kernels: pl.DataFrame) -> pl.DataFrame:
    """Add `too_short` and `share`, and decide `nearest` and `second` over all kernels of the same code and grid.

    The same code may do different work: a kernel whose duration or roof share differs from the others' by more than the
    uncertainty is decided on its own. A kernel of the same duration whose work was not placed gets the group's result.
    """
    length = pl.when(pl.col("code").is_not_null()).then(pl.col("median_ns").mean().over("code"))
    alike = ((pl.col("median_ns") - length).abs() <= ROOF_UNCERTAINTY * length).fill_null(False)
    rows = kernels.with_columns(alike=alike).with_columns(
        too_short=pl.when("alike").then(length).otherwise("median_ns") < LAUNCH_SIZED_NS
    )
    roofs = _roofs_of_codes(rows)
    for place, roof in (("first", 0), ("other", 1)):
        own = roofs.filter(pl.col("rank") == roof).select("code", pl.col("label", "together").name.prefix(f"{place}_"))
        rows = rows.join(own, on="code", how="left", maintain_order="left")

    def own_share(label: str) -> pl.Expr:
        share = pl.when(pl.col("nearest") == pl.col(label)).then("own_share")
        return share.when(pl.col("second") == pl.col(label)).then("second_share")

    unplaced = pl.col("nearest").is_null() & pl.col("alike")
    like_them = (own_share("first_label") - pl.col("first_together")).abs() <= ROOF_UNCERTAINTY
    joins = pl.col("code").is_not_null() & (unplaced | like_them.fill_null(False))
    by_shapes = pl.col("is_model_based").max().over("code")
    long_enough = ~pl.col("too_short").fill_null(False)
    decided = {
        "nearest": ("first_label", "nearest"),
        "share": ("first_together", "own_share"),
        "second": ("other_label", "second"),
        "second_share": ("other_together", "second_share"),
    }
    return rows.with_columns(
        *(
            pl.when(long_enough).then(pl.when(joins).then(pl.col(together)).otherwise(pl.col(own))).alias(name)
            for name, (together, own) in decided.items()
        ),
        is_model_based=pl.when(unplaced & pl.col("code").is_not_null()).then(by_shapes).otherwise("is_model_based"),
    )


def _roofs_of_codes(rows: pl.DataFrame) -> pl.DataFrame:
    """code, label, together, rank: each roof's share over a code's kernels together; the nearest has rank 0."""
    weighed = rows.drop_nulls("code").with_columns(weight=pl.col("duration_ns").fill_null(1))
    named = [
        weighed.select("code", "weight", label=label, share=share)
        for label, share in (("nearest", "own_share"), ("second", "second_share"))
    ]
    of_code = pl.concat(named).drop_nulls(["label", "share"]).group_by("code", "label")
    time = (pl.col("share") * pl.col("weight")).sum()
    summed = of_code.agg(time=time, together=time / pl.col("weight").sum())
    ordered = summed.sort("code", "time", "label", descending=[False, True, False])
    return ordered.with_columns(rank=pl.int_range(pl.len()).over("code"))


def _threshold() -> pl.Expr:
    by_shapes = pl.col("is_model_based").fill_null(False) & pl.col("nearest").str.starts_with("memory_")
    streams = by_shapes & (pl.col("indirect_access") == 0).fill_null(False)
    return pl.when(streams).then(AT_A_ROOF_STREAMING).when(by_shapes).then(AT_A_ROOF_BY_SHAPES).otherwise(AT_A_ROOF)


#: Figures of `counter_metrics` used unchanged, keyed by signal name.
_COUNTED: Final[Mapping[str, str]] = {
    "vector_busy": "valu_busy_ratio",
    "matrix_busy": "matrix_busy_ratio",
    "scalar_busy": "salu_busy_ratio",
    "lds_busy": "lds_busy_ratio",
    "address_unit_busy": "address_unit_busy_ratio",
    "data_return_busy": "data_return_busy_ratio",
    "l2_busy": "l2_busy_ratio",
    "scratch_busy": "scratch_busy_ratio",
    "lds_bank_conflict": "lds_bank_conflict_ratio",
    "active_threads": "active_threads_ratio",
    "instruction_cache_hits": "l1i_hit_ratio",
    "atomic_share_of_writes": "fabric_atomic_ratio",
    "waiting": "dependency_wait_ratio",
}
#: Units that accept nothing else while busy, so the time that they need has a known cause.
_WORKING: Final = ("vector_busy", "matrix_busy", "scalar_busy", "lds_busy")
#: Reasons in `att_stalls`, from traces and samples, whose share is a signal.
_STALLED: Final[Mapping[str, str]] = {
    "stalled_on_memory": r"(?i)waiting for vector memory (?:loads|stores)|^waitcnt|memory_?wait",
    "stalled_on_atomics": r"(?i)atomic",
    "stalled_on_instructions": r"(?i)instruction fetch|no_instruction",
}
#: Operators with indirect reads: each access waits for an address that no prefetcher can predict.
_INDIRECT: Final = r"(?i)gather|scatter|embedding|index|lookup|sparse|^kv cache$|^moe routing$"
_COST: Final = "not all of what its formula is made of was measured"
_NO_ROOF: Final = "no work by counters or by shapes, or no ceiling, to compare the time with"

#: Unit, source table and meaning of null for each signal.
KERNEL_SIGNALS: Final[Mapping[str, tuple[str, str, str]]] = {
    "too_short_to_judge": ("flag", "kernel_stats", "its dispatches are long enough to be judged"),
    "nearest_roof": ("ratio", "roofline", _NO_ROOF),
    "roof_sure": ("flag", "roofline", _NO_ROOF),
    **{f"at_{label}": ("ratio", "roofline", "this roof does not limit it, or is not known") for label in ROOF_LABELS},
    **{f"near_{label}": ("ratio", "roofline", "this roof is not close to limiting it") for label in ROOF_LABELS},
    **{f"second_{label}": ("ratio", "roofline", "this roof is not as near as the first") for label in ROOF_LABELS},
    "scratch": ("bytes", "kernels", "the capture does not state scratch memory"),
    **dict.fromkeys(_COUNTED, ("ratio", "counter_metrics", "the counters for it were not taken")),
    **dict.fromkeys(_STALLED, ("ratio", "att_stalls", "the kernel was neither traced nor sampled")),
    "achieved_occupancy": ("ratio", "occupancy", "resident wavefronts were not counted"),
    "theoretical_occupancy": ("ratio", "occupancy", "registers, LDS or workgroup size are not stated"),
    "grid_rounds": ("ratio", "occupancy", "the grid or the device is not known"),
    **dict.fromkeys(("cost_of_divergence", "cost_of_lds_bank_conflict"), ("ratio", "counter_metrics", _COST)),
    "cost_of_spill": ("ratio", "counter_metrics", "the kernel has no scratch memory, or its use was not counted"),
    **dict.fromkeys(("cost_of_atomics", "cost_of_instruction_fetch"), ("ratio", "att_stalls", _COST)),
    "cost_of_occupancy": ("ratio", "occupancy", _COST),
    "cost_of_latency": ("ratio", "roofline", _NO_ROOF),
    "indirect_access": ("flag", "kernels", "neither the kernel's operator nor its name says what it does"),
    "communicates": ("flag", "kernels", "the kernel's family is not known"),
}


def kernel_signals(tables: Mapping[str, pl.DataFrame], on_cpu: float = 1.0) -> pl.DataFrame:
    """Collect the signals: kernel_id, total_ns, dispatch_count and the columns of `KERNEL_SIGNALS`, one row per kernel.

    Shares are 0..1; a roof share may exceed 1 if a measured ceiling was exceeded. `too_short_to_judge` is 1 if the
    median dispatch is as short as a launch; then neither a roof nor a cost is known.

    Args:
        tables: kernel_stats, kernels, dispatches, roofline, resource_bounds, counter_metrics, occupancy, att_stalls,
            operator_kernels and model_nodes of one session.
        on_cpu: Share of the kernels' time in which they had a CPU, 1 on other devices. Waiting for a CPU has a cause of
            its own, so nearness to roofs refers to the rest of their time.
    """
    stats = tables["kernel_stats"].select("kernel_id", "total_ns", "dispatch_count", "p50_ns")
    kinds = _kinds(tables["kernels"], tables["operator_kernels"], tables["model_nodes"])
    launched = (
        tables["kernels"].select("kernel_id", "name").join(grids(tables["dispatches"]), on="kernel_id", how="left")
    )
    limits = kernel_limits(_placed(tables), stats, launched, kinds, on_cpu)
    parts = (
        limits,
        _scratch(tables["kernels"], tables["dispatches"]),
        _counted(tables["counter_metrics"]),
        _stalled(tables["att_stalls"]),
        _occupancy(tables["occupancy"]),
        kinds,
    )
    for part in parts:
        stats = stats.join(part, on="kernel_id", how="left", maintain_order="left")
    known = _with_costs(_with_roofs(stats))
    return known.select(
        "kernel_id", "total_ns", "dispatch_count", *(pl.col(name).cast(pl.Float64) for name in KERNEL_SIGNALS)
    ).sort("kernel_id")


def _placed(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the kernels' roofline rows, adding the nearest bound for kernels that only move data if it is missing.

    The roofline leaves a row open if it cannot place its arithmetic. If the model shows that there is no arithmetic,
    the bytes alone decide.
    """
    own = tables["roofline"].filter(pl.col("dispatch_id").is_null())
    nodes = tables["model_nodes"].select("node_id", "flops")
    moving = (
        tables["operator_kernels"]
        .join(nodes, on="node_id", how="left")
        .group_by("kernel_id")
        .agg(moves_data=(pl.col("flops") == 0).fill_null(False).all())
        .filter("moves_data")
    )
    # As in the roofline, a measured ceiling takes precedence over a published one.
    nearest = (
        tables["resource_bounds"]
        .drop_nulls("share_ratio")
        .sort("ceiling_source", "share_ratio", "resource", descending=[False, True, False])
        .unique("kernel_id", keep="first", maintain_order=True)
        .join(moving, on="kernel_id", how="semi")
        .select("kernel_id", nearest="resource", nearest_share="share_ratio")
    )
    open_rows = own.join(nearest, on="kernel_id", how="left")
    return open_rows.with_columns(
        bound=pl.coalesce("bound", "nearest"), efficiency_ratio=pl.coalesce("efficiency_ratio", "nearest_share")
    )


def _with_roofs(kernels: pl.DataFrame) -> pl.DataFrame:
    """Convert the decision of `kernel_limits` to signals; a roof's signal is named after its label."""

    def of(label: str, column: str, holds: str, share: str) -> pl.Expr:
        return pl.when((pl.col(column) == label) & pl.col(holds)).then(share)

    return kernels.with_columns(
        *(of(label, "nearest", "is_limit", "share").alias(f"at_{label}") for label in ROOF_LABELS),
        *(of(label, "nearest", "is_near", "share").alias(f"near_{label}") for label in ROOF_LABELS),
        *(of(label, "second", "is_limit", "second_share").alias(f"second_{label}") for label in ROOF_LABELS),
        too_short_to_judge=pl.when("too_short").then(1.0),
        nearest_roof="share",
        roof_sure="is_sure",
    )


def _with_costs(kernels: pl.DataFrame) -> pl.DataFrame:
    """Bound the cost of each cause as a fraction of the kernel's time; docs/bottlenecks.md has the formulas.

    Time in which no unit worked is the cost of latency. By Little's law, the wavefronts that the device had room for
    but did not run would have hidden a proportional part of it, which is the cost of occupancy; the stall reasons
    divide it further. Wasted work of a unit is part of its busy time.
    """
    busiest = pl.max_horizontal("nearest_roof", *_WORKING)
    idle = pl.when(pl.col("nearest_roof").is_not_null()).then((1 - busiest).clip(0, 1))
    resident = pl.col("achieved_occupancy").clip(0, 1)
    named = pl.sum_horizontal("stalled_on_atomics", "stalled_on_instructions")
    judged = ~pl.col("too_short_to_judge").is_not_null()
    costs = {
        "cost_of_divergence": pl.col("vector_busy") * (1 - pl.col("active_threads")),
        "cost_of_lds_bank_conflict": pl.col("lds_busy") * pl.col("lds_bank_conflict"),
        "cost_of_spill": pl.when(pl.col("scratch") > 0).then("scratch_busy"),
        "cost_of_atomics": pl.col("stalled_on_atomics") * idle,
        "cost_of_instruction_fetch": pl.col("stalled_on_instructions") * idle,
        "cost_of_occupancy": idle * (1 - resident),
        "cost_of_latency": idle * resident.fill_null(1.0) * (1 - named).clip(0, 1),
    }
    return kernels.with_columns(**{name: pl.when(judged).then(cost.clip(0, 1)) for name, cost in costs.items()})


def _scratch(kernels: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Return the scratch memory per work-item, from the launches or else from the compiler."""
    launched = dispatches.group_by("kernel_id").agg(launched=pl.col("scratch_bytes").max())
    return kernels.join(launched, on="kernel_id", how="left").select(
        "kernel_id", scratch=pl.max_horizontal("launched", "static_scratch_bytes")
    )


def _counted(metrics: pl.DataFrame) -> pl.DataFrame:
    kernels = metrics.select("kernel_id").unique(maintain_order=True)
    for signal, metric in _COUNTED.items():
        own = metrics.filter(pl.col("metric") == metric).select("kernel_id", pl.col("value").alias(signal))
        kernels = kernels.join(own, on="kernel_id", how="left")
    return kernels


def _stalled(stalls: pl.DataFrame) -> pl.DataFrame:
    """Return each reason's share of the stalls over all traced dispatches of a kernel."""
    weight = pl.coalesce("stall_cycles", "samples").cast(pl.Float64)
    own = stalls.drop_nulls("kernel_id").with_columns(weight=weight)
    total = pl.col("weight").sum()
    return own.group_by("kernel_id").agg(
        pl.when(total > 0)
        .then(pl.col("weight").filter(pl.col("reason").str.contains(pattern)).sum() / total)
        .alias(name)
        for name, pattern in _STALLED.items()
    )


def _occupancy(occupancy: pl.DataFrame) -> pl.DataFrame:
    return occupancy.filter(pl.col("dispatch_id").is_null()).select(
        "kernel_id",
        achieved_occupancy="achieved_ratio",
        theoretical_occupancy="theoretical_ratio",
        grid_rounds="grid_waves_ratio",
    )


def _kinds(kernels: pl.DataFrame, operator_kernels: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return whether a kernel has indirect reads, and whether it communicates, from its operator or its family."""
    types = (
        operator_kernels.drop_nulls("node_id")
        .join(nodes.select("node_id", "op_type"), on="node_id")
        .sort("kernel_id", "node_id")
        .group_by("kernel_id", maintain_order=True)
        .agg(pl.col("op_type").first())
    )
    named = kernels.join(types, on="kernel_id", how="left")
    kind = pl.coalesce("op_type", "family")
    return named.select(
        "kernel_id",
        indirect_access=kind.str.contains(_INDIRECT).cast(pl.Float64),
        communicates=(pl.col("family") == COMMUNICATION_FAMILY).cast(pl.Float64),
    )
