"""What is known of each kernel that could name its bottleneck: one column per signal, null where nothing measured it.

Whether a roof limits a kernel is decided by `kernel_limits`, whose answer the signals carry. What keeps a kernel from
its roofs is a share of its time here, an estimate each: they overlap, and are no sum. Which values make which label is
decided by the rules of `aaco_pipeline.analysis.bottlenecks.rules`.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.bottlenecks.kernel_limits import ROOF_LABELS, grids, kernel_limits
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION_FAMILY

#: Figures of `counter_metrics` taken as they are, by the signal's name.
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
#: Units that, while they are busy, can take nothing else: what they need is no time without a cause.
_WORKING: Final = ("vector_busy", "matrix_busy", "scalar_busy", "lds_busy")
#: Reasons of `att_stalls`, of traces and of samples, whose share is a signal.
_STALLED: Final[Mapping[str, str]] = {
    "stalled_on_memory": r"(?i)waiting for vector memory (?:loads|stores)|^waitcnt|memory_?wait",
    "stalled_on_atomics": r"(?i)atomic",
    "stalled_on_instructions": r"(?i)instruction fetch|no_instruction",
}
#: Operators that read where other data say: each access waits for an address that no prefetcher guesses.
_INDIRECT: Final = r"(?i)gather|scatter|embedding|index|lookup|sparse|^kv cache$|^moe routing$"
_COST: Final = "not all of what its formula is made of was measured"
_NO_ROOF: Final = "no work by counters or by shapes, or no ceiling, to compare the time with"

#: Per signal its unit, the table it comes from, and what it means that it is null.
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
    """One row per kernel with statistics: kernel_id, total_ns, dispatch_count and the columns of `KERNEL_SIGNALS`.

    `tables` are those of one session: kernel_stats, kernels, dispatches, roofline, resource_bounds, counter_metrics,
    occupancy, att_stalls, operator_kernels, model_nodes. Shares are 0..1, nearness to roofs may exceed 1 where a
    ceiling was beaten. `on_cpu` is the share of the kernels' time in which they had a CPU, 1 on other devices: while
    they waited for one they were at no roof for a reason of its own, so that nearness to roofs is of the rest of their
    time. `too_short_to_judge` is 1 where the median dispatch is as short as a launch: then no roof and no cost is
    known.
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
    """Kernels' rows of the roofline; one that only moves data has its nearest bound where the roofline names none.

    The roofline leaves a row open whose arithmetic it cannot place. Where the model says that there is no arithmetic,
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
    # A measured ceiling goes before a published one, as in the roofline.
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
    """The decision of `kernel_limits` as signals, a roof's under its label."""

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
    """What each cause costs at most, as a share of the kernel's time; docs/bottlenecks.md has the formulas.

    Time in which no unit worked is what latency cost. Little's law says how: the wavefronts that the
    device could hold and did not would have hidden their share of it, which is occupancy's, and stalls share it out by
    their reasons. What a unit did in vain is a part of the time that it worked.
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
    """Scratch memory of a work-item: what the launches got, else what the compiler fixed."""
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
    """Per kernel each reason's share of the stalls of all its traced dispatches together."""
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
    """Whether the kernel reads through indices, and whether it communicates, by its operator or its family."""
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
