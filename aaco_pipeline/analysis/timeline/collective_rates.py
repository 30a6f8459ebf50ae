"""How fast each part of a collective moved its bytes, and what that is of the fabric's rate.

The bandwidths are those of nccl-tests (doc/PERFORMANCE.md): the algorithm bandwidth is size over time, the bus
bandwidth that times a factor by operation and ranks, which makes it comparable with what one device's links carry. The
time is the kernel's own, in which a rank also waits for others. Who takes part in what is `collectives`.
"""

from typing import Final

import polars as pl

from aaco_pipeline.analysis.thresholds import LAUNCH_SIZED_NS

#: Below this share of the fabric's rate something else than the fabric sets the pace.
FAR_BELOW: Final = 0.1
LATE_OR_BROKEN: Final = "a late rank or a broken transport"
_TOO_SMALL: Final = "too small for its rate to tell anything"
_NO_FABRIC: Final = "the rate of the links between such devices is not known"
_NO_NETWORK: Final = "more ranks than a device has peers: the rate of the network is not known"
#: The size by nccl-tests is that of the whole array: of these operations a rank puts in one part of as many as ranks.
_PARTS: Final = ("all_gather", "gather")


def with_rates(collectives: pl.DataFrame, dispatches: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """The rows of `collectives` with duration_ns, algorithm_bytes_per_s, bus_bytes_per_s, share_ratio and remark.

    `links` is what `hardware.device_facts.peer_links` gives. The ceiling is what a device can exchange with the others
    of its group over a link to each, so that a share is of the published rate, which no transport reaches.
    """
    took = dispatches.select("dispatch_id", "device_id", duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    rows = collectives.join(took, on="dispatch_id", how="left", maintain_order="left")
    rows = rows.join(links, on="device_id", how="left", maintain_order="left")
    ranks = pl.col("expected_participants")
    whole = pl.col("size_bytes") * pl.when(pl.col("name").is_in(_PARTS)).then(ranks).otherwise(1)
    seconds = pl.when(pl.col("duration_ns") > 0).then(pl.col("duration_ns") / 1e9)
    rows = rows.with_columns(algorithm_bytes_per_s=whole / seconds)
    rows = rows.with_columns(bus_bytes_per_s=pl.col("algorithm_bytes_per_s") * _factor(ranks))
    over_links = (ranks > 1) & (ranks - 1 <= pl.col("links"))
    ceiling = pl.when(over_links).then((ranks - 1) * pl.col("link_bytes_per_s"))
    rows = rows.with_columns(share_ratio=pl.col("bus_bytes_per_s") / ceiling)
    # At a tenth of the rate such a message would still take less than a launch.
    needed_ns = pl.col("bus_bytes_per_s") * pl.col("duration_ns") / (FAR_BELOW * ceiling)
    far_below = pl.col("share_ratio") < FAR_BELOW
    remark = (
        pl.when(pl.col("bus_bytes_per_s").is_null())
        .then(None)
        .when(pl.col("links").is_null())
        .then(pl.lit(_NO_FABRIC))
        .when(~over_links)
        .then(pl.lit(_NO_NETWORK))
        .when(far_below & (needed_ns < LAUNCH_SIZED_NS))
        .then(pl.lit(_TOO_SMALL))
        .when(far_below)
        .then(pl.lit(LATE_OR_BROKEN))
    )
    return rows.with_columns(remark=remark).drop("device_id", "links", "link_bytes_per_s")


def _factor(ranks: pl.Expr) -> pl.Expr:
    """What the algorithm bandwidth is multiplied with; null for operations that nccl-tests gives no factor for."""
    once = (ranks - 1) / ranks
    name = pl.col("name")
    return (
        pl.when(ranks < 1)
        .then(None)
        .when(name == "all_reduce")
        .then(2 * once)
        .when(name.is_in(["all_gather", "reduce_scatter", "all_to_all"]))
        .then(once)
        .when(name.is_in(["broadcast", "reduce"]) & (ranks > 0))
        .then(1.0)
    )
