"""What is known of each kernel that could name its bottleneck: one column per signal, null where nothing measured it.

Which values make which label is not decided here, but by the rules of `aaco_pipeline.analysis.bottlenecks.rules`.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.timeline.activities import COMMUNICATION_FAMILY

#: Which label a resource of `ceilings` stands for, once a kernel is at its roof.
LABEL_OF_RESOURCE: Final[Mapping[str, str]] = {
    "vector": "compute_vector",
    "vector_packed": "compute_vector",
    "vector_integer": "compute_vector",
    "vector_issue": "compute_vector",
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
#: How the roofline says that a second resource needed nearly as long.
_BALANCED: Final = "balanced:"
#: How the roofline says that the work is that of shapes and formulas, the least there can be.
_MODEL_BASED: Final = "model_based"
#: Figures of `counter_metrics` taken as they are, by the signal's name.
_COUNTED: Final[Mapping[str, str]] = {
    "lds_bank_conflict": "lds_bank_conflict_ratio",
    "lds_busy": "lds_busy_ratio",
    "active_threads": "active_threads_ratio",
    "instruction_cache_hits": "l1i_hit_ratio",
    "atomic_share_of_writes": "fabric_atomic_ratio",
    "waiting": "dependency_wait_ratio",
}
#: Reasons of `att_stalls`, of traces and of samples, whose share is a signal.
_STALLED: Final[Mapping[str, str]] = {
    "stalled_on_memory": r"(?i)waiting for vector memory (?:loads|stores)|^waitcnt|memory_?wait",
    "stalled_on_atomics": r"(?i)atomic",
    "stalled_on_instructions": r"(?i)instruction fetch|no_instruction",
}
#: Operators that read where other data say: each access waits for an address that no prefetcher guesses.
_INDIRECT: Final = r"(?i)gather|scatter|embedding|index|lookup|sparse|^kv cache$|^moe routing$"

#: Per signal its unit, the table it comes from, and what it means that it is null.
KERNEL_SIGNALS: Final[Mapping[str, tuple[str, str, str]]] = {
    "duration": ("ns", "kernel_stats", "no dispatch of the kernel has times"),
    "nearest_roof": ("ratio", "roofline", "no work by counters or by shapes, or no ceiling, to compare the time with"),
    **{f"at_{label}": ("ratio", "roofline", "another resource is nearer, or none is known") for label in ROOF_LABELS},
    "second_roof": ("ratio", "roofline", "no second resource is known to be as near"),
    "model_based": ("flag", "roofline", "no work by counters or by shapes, or no ceiling, to compare the time with"),
    "scratch": ("bytes", "kernels", "the capture does not state scratch memory"),
    **dict.fromkeys(_COUNTED, ("ratio", "counter_metrics", "the counters for it were not taken")),
    **dict.fromkeys(_STALLED, ("ratio", "att_stalls", "the kernel was neither traced nor sampled")),
    "achieved_occupancy": ("ratio", "occupancy", "resident wavefronts were not counted"),
    "theoretical_occupancy": ("ratio", "occupancy", "registers, LDS or workgroup size are not stated"),
    "grid_rounds": ("ratio", "occupancy", "the grid or the device is not known"),
    "indirect_access": ("flag", "kernels", "neither the kernel's operator nor its name says what it does"),
    "communicates": ("flag", "kernels", "the kernel's family is not known"),
}


def kernel_signals(tables: Mapping[str, pl.DataFrame], on_cpu: float = 1.0) -> pl.DataFrame:
    """One row per kernel with statistics: kernel_id, total_ns, dispatch_count and the columns of `KERNEL_SIGNALS`.

    `tables` are those of one session: kernel_stats, kernels, dispatches, roofline, resource_bounds, counter_metrics,
    occupancy, att_stalls, operator_kernels, model_nodes. Shares are 0..1, `nearest_roof` is above 1 where a ceiling
    was beaten. `on_cpu` is the share of the kernels' time in which they had a CPU, 1 on other devices: while they
    waited for one they were at no roof for a reason of its own, so that nearness to roofs is of the rest of their time.
    `duration` is the median: a short kernel that lost its CPU once is still a short one.
    """
    stats = tables["kernel_stats"].select("kernel_id", "total_ns", "dispatch_count", duration="p50_ns")
    parts = (
        _roofs(_placed(tables), on_cpu),
        _scratch(tables["kernels"], tables["dispatches"]),
        _counted(tables["counter_metrics"]),
        _stalled(tables["att_stalls"]),
        _occupancy(tables["occupancy"]),
        _kinds(tables["kernels"], tables["operator_kernels"], tables["model_nodes"]),
    )
    for part in parts:
        stats = stats.join(part, on="kernel_id", how="left", maintain_order="left")
    return stats.select(
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


def _roofs(placed: pl.DataFrame, on_cpu: float) -> pl.DataFrame:
    """How near each kernel came to its nearest roof, under that roof's label, and the second one's where as near."""
    own = placed.drop_nulls("efficiency_ratio")
    label = pl.col("bound").replace_strict(LABEL_OF_RESOURCE, default=None, return_dtype=pl.String)
    near = pl.col("quality_flags").list.eval(pl.element().str.starts_with(_BALANCED)).list.any()
    reached = pl.col("efficiency_ratio") / on_cpu
    return own.select(
        "kernel_id",
        *(pl.when(label == name).then(reached).alias(f"at_{name}") for name in ROOF_LABELS),
        nearest_roof=reached,
        second_roof=pl.when(near).then(reached),
        model_based=pl.col("quality_flags").list.contains(_MODEL_BASED).cast(pl.Float64),
    )


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
