"""Kinds of work that took device time, each with its heaviest operator or kernel and its distance from a roof."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.kernels.names import operator_family
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION_FAMILY
from aaco_pipeline.lake.contracts import polars_types

COMMUNICATION: Final = "communication"
GLUE: Final = "elementwise_and_copies"
UNNAMED: Final = "unnamed"
#: Families reported together, because fusion handles them alike.
_TOGETHER: Final = {
    "elementwise": GLUE,
    "copy/memset": GLUE,
    COMMUNICATION_FAMILY: COMMUNICATION,
    "conv": "convolution",
    "norm": "normalization",
    "embedding/gather": "gather",
    "sort/scan": "sort",
}
#: Kinds that stream over data that another kernel writes or reads next; once fused into it they cost no extra time.
FUSABLE: Final = frozenset({GLUE, "normalization", "softmax", "reduction", "quantization", "gather"})
Numbers = npt.NDArray[np.int64]


def kind_of(family: str | None) -> str:
    """Return the kind of work under which a kernel family is reported."""
    return UNNAMED if family is None else _TOGETHER.get(family, family.replace(" ", "_"))


def kinds_of_work(dispatches: pl.DataFrame, copies: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Compute rows of `kinds_of_work` without the session, most time first; empty without any work.

    An operator represents its kind only if operators of known work cover at least half of the kind's time; one small
    product is not representative.

    Args:
        dispatches: kernel_id, start_ns and end_ns of one device in its steady window.
        copies: start_ns and end_ns of fills and of copies within the device, in the same window.
        tables: kernels, roofline, operator_shapes, ceilings and the dispatches of the complete session; the last three
            only for that device.
    """
    kernels, ceilings = tables["kernels"], tables["ceilings"]
    families = kernels.get_column("family").cast(pl.String)
    kinds = {family: kind_of(family) for family in families.unique()}
    named = kernels.select(
        "kernel_id", kind=families.replace_strict(kinds, return_dtype=pl.String) if kinds else families
    )
    spent = _spent(tables["dispatches"], named)
    covering = _nearest_known(_covering(tables["operator_shapes"], spent), ceilings)
    ran = dispatches.select("kernel_id", "start_ns", "end_ns").join(named, on="kernel_id", how="left")
    moved = copies.select("start_ns", "end_ns", kind=pl.lit(GLUE))
    timed = pl.concat([ran.with_columns(pl.col("kind").fill_null(UNNAMED)), moved], how="diagonal").with_columns(
        time_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    if timed.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    by_kernel = timed.group_by("kind", "kernel_id").agg(
        time_ns=pl.col("time_ns").sum(), dispatch_count=pl.len().cast(pl.Int64)
    )
    heaviest = (
        by_kernel.drop_nulls("kernel_id")
        .sort("kind", "time_ns", "kernel_id", descending=[False, True, False])
        .unique("kind", keep="first", maintain_order=True)
    )
    whole = by_kernel.group_by("kind").agg(pl.col("time_ns", "dispatch_count").sum())
    is_communication = pl.col("kind") == COMMUNICATION
    base = (
        pl.when(is_communication)
        .then(pl.col("time_ns").sum())
        .otherwise(pl.col("time_ns").filter(~is_communication).sum())
    )
    return (
        whole.with_columns(share_ratio=pl.when(base > 0).then(pl.col("time_ns") / base).otherwise(0.0))
        .join(_alone(timed), on="kind", how="left")
        .join(heaviest.select("kind", "kernel_id"), on="kind", how="left")
        .join(_operators(covering), on="kind", how="left")
        .join(_achieved(tables["roofline"]), on="kernel_id", how="left")
        .join(_reached(tables, named, covering), on="kind", how="left")
        # If no operator represents the kind, its heaviest kernel does.
        .with_columns(
            pl.when(pl.col("operator").is_null()).then(f"kernel_{name}").otherwise(name).alias(name)
            for name in ("dtype", "rate", "rate_unit", "roof", "roof_ratio")
        )
        # Bandwidths have no number format.
        .with_columns(roof_dtype=pl.when(pl.col("rate_unit") == "flop/s").then("dtype"))
        .join(_roofs(ceilings), on=["roof", "roof_dtype"], how="left", nulls_equal=True, maintain_order="left")
        # A kernel of unknown number format gets the source that all formats of its roof share.
        .join(_sources_alone(ceilings), on="roof", how="left", maintain_order="left")
        .with_columns(
            roof_source=pl.coalesce("roof_source", pl.when(pl.col("roof_dtype").is_null()).then("only_source")),
            peak_ratio=pl.col("rate") / pl.col("published"),
        )
        .sort("time_ns", "kind", descending=[True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items())
    )


def _alone(timed: pl.DataFrame) -> pl.DataFrame:
    """Time in which only kernels of one kind ran: kind, alone_ns."""
    kinds = timed.get_column("kind").unique().sort()
    code = timed.get_column("kind").replace_strict(kinds, range(len(kinds)), return_dtype=pl.Int64).to_numpy()
    start, end = (timed.get_column(name).to_numpy() for name in ("start_ns", "end_ns"))
    moments = np.concatenate([start, end])
    order = np.argsort(moments, kind="stable")
    step = np.where(order < len(start), 1, -1).astype(np.int32)
    which = np.concatenate([code, code])[order]
    length = np.diff(moments[order], append=moments[order[-1:]])
    opened = np.zeros(len(order), np.int32)
    everything = np.cumsum(step, dtype=np.int32)
    alone = []
    for one in range(len(kinds)):
        opened = np.cumsum(step * (which == one), dtype=np.int32)
        alone.append(int(length[(opened > 0) & (opened == everything)].sum()))
    return pl.DataFrame({"kind": kinds, "alone_ns": pl.Series(alone, dtype=pl.Int64)})


def _spent(dispatches: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """Time of each kind's kernels over the complete session: kind, spent_ns."""
    kinds = dispatches.join(named, on="kernel_id").group_by(pl.col("kind").fill_null(UNNAMED))
    return kinds.agg(spent_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())


def _covering(shapes: pl.DataFrame, spent: pl.DataFrame) -> pl.DataFrame:
    """Rows of `operator_shapes` with kind and time_ns, for kinds that are mostly covered by operators.

    `spent` (kind, spent_ns) is each kind's kernel time wherever operators were analysed.
    """
    operators = shapes.get_column("operator").unique().sort()
    kind = pl.DataFrame(
        {"operator": operators, "kind": [kind_of(operator_family(one)) for one in operators]},
        schema={"operator": pl.String(), "kind": pl.String()},
    )
    own = (
        shapes.with_columns(pl.col("operator").cast(pl.String))
        .join(kind, on="operator")
        .with_columns(time_ns=pl.col("kernel_ns") + pl.col("copy_ns"))
        .join(spent, on="kind", how="left")
    )
    covered = pl.col("time_ns").sum().over("kind")
    return own.filter(covered >= _SPEAKS_FOR * pl.col("spent_ns").fill_null(0))


def _nearest_known(shapes: pl.DataFrame, ceilings: pl.DataFrame) -> pl.DataFrame:
    """Clear roofs that are not the nearest: if an operator's bytes take longer than its arithmetic and caches may have
    served some of them, its roof is unknown."""
    best = _best(ceilings).filter(pl.col("roof") == "dram").get_column("value").max()
    if not isinstance(best, int | float):
        return shapes
    memory = pl.col("achieved_bytes_per_s") / best
    is_nearer = ((pl.col("bound").cast(pl.String) != "dram") & (memory > pl.col("share_ratio"))).fill_null(False)
    return shapes.with_columns(pl.when(~is_nearer).then(name).alias(name) for name in ("bound", "share_ratio"))


def _reached(tables: Mapping[str, pl.DataFrame], named: pl.DataFrame, covering: pl.DataFrame) -> pl.DataFrame:
    """Time-weighted fraction of the roof that each kind's kernels reached: kind, reached_ratio.

    It is based on the kind's operators, or else on its kernels' rows of `roofline`; a kind for which less than half of
    the time is known has no row.
    """
    by_operator = covering.select("kind", "time_ns", "spent_ns", ratio="share_ratio", by=pl.lit(0))
    spent = _spent(tables["dispatches"], named)
    durations = tables["dispatches"].group_by("kernel_id").agg(time_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    by_kernel = (
        tables["roofline"]
        .filter(pl.col("dispatch_id").is_null())
        .select("kernel_id", ratio="efficiency_ratio")
        .join(durations, on="kernel_id")
        .join(named, on="kernel_id")
        .with_columns(pl.col("kind").fill_null(UNNAMED))
        .join(spent, on="kind")
        .select("kind", "time_ns", "spent_ns", "ratio", by=pl.lit(1))
    )
    return (
        pl.concat([by_operator, by_kernel], how="vertical_relaxed")
        .drop_nulls("ratio")
        .group_by("kind", "by")
        .agg(
            pl.col("time_ns").sum(),
            pl.col("spent_ns").first(),
            reached_ratio=(pl.col("ratio") * pl.col("time_ns")).sum() / pl.col("time_ns").sum(),
        )
        .filter((pl.col("time_ns") > 0) & (pl.col("time_ns") >= _SPEAKS_FOR * pl.col("spent_ns")))
        .sort("kind", "by")
        .unique("kind", keep="first", maintain_order=True)
        .select("kind", "reached_ratio")
    )


def _operators(shapes: pl.DataFrame) -> pl.DataFrame:
    """For each kind, the operator with known shapes in `_covering` that took the most time and has a rate."""
    arithmetic = (pl.col("flops") > 0).fill_null(False) & ~pl.col("kind").is_in(sorted(FUSABLE))
    return (
        shapes.sort("kind", "time_ns", "operator", "shapes", "types", descending=[False, True, False, False, False])
        .unique("kind", keep="first", maintain_order=True)
        .with_columns(
            pl.when(pl.col("time_ns") >= _WORTH_TELLING * pl.col("spent_ns")).then(name).alias(name)
            for name in ("achieved_flops_per_s", "achieved_bytes_per_s", "bound", "share_ratio")
        )
        .select(
            "kind",
            "operator",
            "shapes",
            dtype=pl.when(arithmetic).then(pl.col("dtype").cast(pl.String)),
            rate=pl.when(arithmetic).then("achieved_flops_per_s").otherwise("achieved_bytes_per_s"),
            rate_unit=pl.when(arithmetic & pl.col("achieved_flops_per_s").is_not_null())
            .then(pl.lit("flop/s"))
            .when(~arithmetic & pl.col("achieved_bytes_per_s").is_not_null())
            .then(pl.lit("byte/s")),
            roof=pl.col("bound").cast(pl.String),
            roof_ratio="share_ratio",
        )
    )


def _achieved(roofs: pl.DataFrame) -> pl.DataFrame:
    """Return the rate that a kernel achieved, from its row of `roofline`."""
    flops = pl.col("achieved_flops_per_s").is_not_null() & (pl.col("achieved_flops_per_s") > 0)
    return roofs.filter(pl.col("dispatch_id").is_null()).select(
        "kernel_id",
        kernel_dtype=pl.lit(None, pl.String),
        kernel_rate=pl.when(flops).then("achieved_flops_per_s").otherwise("achieved_bytes_per_s"),
        kernel_rate_unit=pl.when(flops)
        .then(pl.lit("flop/s"))
        .when(pl.col("achieved_bytes_per_s").is_not_null())
        .then(pl.lit("byte/s")),
        kernel_roof=pl.col("bound").cast(pl.String),
        kernel_roof_ratio="efficiency_ratio",
    )


def _roofs(ceilings: pl.DataFrame) -> pl.DataFrame:
    """Source of each roof by resource and number format, and the published figure: roof, dtype, …, published.

    As in the roofline, a measured ceiling takes precedence over a reported one, and a reported one over a published
    one.
    """
    first = _best(ceilings)
    spec = ceilings.filter(pl.col("source").cast(pl.String) == "spec")
    keys = [pl.col("resource").cast(pl.String).alias("roof"), pl.col("dtype").cast(pl.String).alias("roof_dtype")]
    published = spec.group_by(keys).agg(pl.col("value").max())
    return first.select("roof", "roof_dtype", roof_source="source").join(
        published.rename({"value": "published"}), on=["roof", "roof_dtype"], how="left", nulls_equal=True
    )


def _best(ceilings: pl.DataFrame) -> pl.DataFrame:
    """The most trusted ceiling by resource and number format: roof, roof_dtype, value, source."""
    order = pl.col("source").replace_strict(_PRECEDENCE, default=len(_PRECEDENCE), return_dtype=pl.Int64)
    named = ceilings.select(
        "value",
        pl.col("source").cast(pl.String),
        roof=pl.col("resource").cast(pl.String),
        roof_dtype=pl.col("dtype").cast(pl.String),
    )
    return named.sort("roof", "roof_dtype", order).unique(["roof", "roof_dtype"], keep="first", maintain_order=True)


def _sources_alone(ceilings: pl.DataFrame) -> pl.DataFrame:
    """The source of each resource's roofs if it is the same for all number formats: roof, only_source."""
    by_format = _roofs(ceilings).group_by("roof")
    one = pl.when(pl.col("roof_source").n_unique() == 1).then(pl.col("roof_source").first())
    return by_format.agg(only_source=one)


#: Findings that cover at least this fraction of a kind's time are taken as representative.
_SPEAKS_FOR: Final = 0.5
#: An operator's rate is reported if it covers at least this fraction of its kind's time.
_WORTH_TELLING: Final = 0.1
#: Roof sources, most trusted first.
_PRECEDENCE: Final = {"measured": 0, "reported": 1, "spec": 2}
_SCHEMA: Final = polars_types("kinds_of_work")
