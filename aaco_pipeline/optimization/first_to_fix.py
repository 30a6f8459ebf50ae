"""Rank kernels to work on by their time on the critical path and their distance from the roof."""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types

#: Number of kernels listed, largest possible savings first.
MOST_KERNELS: Final = 20
_MEMORY: Final = ("vector_loads", "restrict", "unrolling")
_COMPUTE: Final = ("accumulators", "unrolling", "restrict")
#: Proposers (`aaco_pipeline.optimization.proposers`) that address each limiting resource, most promising first. Other
#: limits require another algorithm, number format or launch, which no proposer provides.
PROPOSERS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "latency": ("accumulators", "vector_loads", "unrolling", "block_size"),
    "occupancy": ("block_size", "launch_bounds"),
    "spill": ("launch_bounds",),
    "lds_bank_conflict": ("lds_padding",),
    "memory_lds": ("lds_padding", "vector_loads"),
    "memory_dram": _MEMORY,
    "memory_infinity_cache": _MEMORY,
    "memory_fabric": _MEMORY,
    "memory_l2": _MEMORY,
    "memory_vl1d": _MEMORY,
    "compute_vector": _COMPUTE,
    "compute_scalar": _COMPUTE,
}
READS: Final = ("kernels", "kernel_stats", "dispatches", "critical_path", "what_if", "roofline", "bottlenecks")


def kernels_to_fix(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Compute rows of the table `kernels_to_fix`, without the session, from the tables in `READS`.

    `saves_at_most_ns` is the smaller of critical_ns and total_ns x (1 - roof_ratio): a fix saves at most the time
    without slack, and all dispatches together cannot be faster than their roof. The two are not multiplied, because it
    is unknown which dispatches are far from the roof. If no roof is known, it is null and critical_ns determines the
    order.
    """
    path = tables["critical_path"].filter(pl.col("activity_kind").cast(pl.String) == "dispatch")
    critical = (
        path.join(
            tables["dispatches"].select("dispatch_id", "kernel_id"), left_on="activity_id", right_on="dispatch_id"
        )
        .group_by("kernel_id")
        .agg(pl.col("criticality").max())
    )
    whole = pl.col("dispatch_id").is_null()
    roofs = tables["roofline"].filter(whole).select("kernel_id", "bound", roof_ratio=pl.col("efficiency_ratio"))
    imagined = (
        tables["what_if"]
        .sort("saved_ns", "speedup_ratio", descending=[True, False])
        .group_by("kernel_id", maintain_order=True)
        .agg(pl.col("speedup_ratio", "saved_ns").first())
    )
    labels = tables["bottlenecks"].filter(pl.col("kernel_id").is_not_null()).select("kernel_id", "label")
    found = tables["kernel_stats"].select("kernel_id", "total_ns", "share_ratio")
    for other in (critical, roofs, imagined, labels, tables["kernels"].select("kernel_id", "library")):
        found = found.join(other, on="kernel_id", how="left", maintain_order="left")
    critical_ns = (pl.col("criticality") * pl.col("total_ns")).round().cast(pl.Int64)
    headroom = 1 - pl.col("roof_ratio").clip(0, 1)
    found = found.with_columns(pl.col(pl.Categorical).cast(pl.String)).with_columns(
        critical_ns=critical_ns,
        headroom_ratio=headroom,
        # min_horizontal would ignore a null, but an unknown bound is not the same as no bound.
        saves_at_most_ns=pl.when(critical_ns.is_not_null() & headroom.is_not_null()).then(
            pl.min_horizontal(critical_ns, (pl.col("total_ns") * headroom).round().cast(pl.Int64))
        ),
        proposers=pl.col("label").replace_strict(
            {label: list(names) for label, names in PROPOSERS_OF.items()}, default=[], return_dtype=pl.List(pl.String)
        ),
        missing=_missing(),
    )
    could_save = pl.coalesce("saves_at_most_ns", "critical_ns", "total_ns")
    first = found.sort(could_save, "total_ns", "kernel_id", descending=[True, True, False]).head(MOST_KERNELS)
    types = polars_types("kernels_to_fix")
    return first.with_columns(rank=pl.int_range(pl.len()) + 1).select(
        pl.col(name).cast(types[name]) for name in types if name != "session_id"
    )


def same_kernel(recorded: str, name: str) -> bool:
    """Return whether a recorded kernel, with parameters or template arguments, is the source's `name`."""
    plain = (
        recorded.removesuffix(".kd").replace("(anonymous namespace)::", "").split("(", 1)[0].split("<", 1)[0].strip()
    )
    return plain.split(" ")[-1].split("::")[-1] == name


# ---- inside ----------------------------------------------------------------------------------------------------------


def _missing() -> pl.Expr:
    """Describe the missing information that would make a row more precise."""
    lacking = (
        ("criticality", "its place on the critical path"),
        ("roof_ratio", "a roof: its work was not counted"),
        ("label", "what limits it: too little was counted"),
    )
    said = [pl.when(pl.col(name).is_null()).then(pl.lit(words)) for name, words in lacking]
    return pl.concat_list(said).list.drop_nulls()
