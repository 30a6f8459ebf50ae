"""The stage `critical_path`: which chain of activities the run could not be shorter than, and the slack of the others.

The network is `aaco_pipeline.analysis.activity_network`, the path `aaco_pipeline.analysis.critical_path`.
"""

from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis import activity_network
from aaco_pipeline.analysis import critical_path as path_analysis
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.assets.timeline import Recorded, recorded, timeline
from aaco_pipeline.formats.reading import canonical, no_rows
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "critical_path"
TABLES: Final = ("critical_path", "critical_path_summary", "evidence")


def read_critical_path(lake: TraceLake, session: str) -> Outcome:
    """The longest path, every activity's slack, and the path's time by category; empty without device activities."""
    run = recorded(lake, session)
    if not run.activities.height:
        missing = Evidence("activity network", "absent", "the session has no device activities with times")
        tables = {name: no_rows(name) for name in TABLES if name != "evidence"}
        return Outcome({**tables, "evidence": evidence_frame(STAGE, [missing])})
    network = activity_network.network(run.activities, run.calls, run.waits)
    found = path_analysis.critical_path(network)
    checks = dict(found.checks.select("check", "value").iter_rows())
    columns = no_rows("critical_path").columns
    activities = found.activities
    of_kernel = found.kernels.select("kernel_id", "criticality")
    weighed = activities.with_columns(pl.col("activity_kind", "binding_edge").cast(pl.String)).join(
        of_kernel, on="kernel_id", how="left", maintain_order="left"
    )
    largest = found.summary.filter(pl.col("category_ns") > 0).sort("category_ns", descending=True)
    window, path = (int(found.summary.item(0, name)) for name in ("window_ns", "path_ns"))
    return Outcome(
        {
            "critical_path": canonical("critical_path", weighed.select(columns)),
            "critical_path_summary": canonical("critical_path_summary", found.summary),
            "evidence": evidence_frame(STAGE, _evidence(network, run)),
        },
        {
            "window_ns": window,
            "path_ns": path,
            "unexplained_ns": window - path,
            "bound_start_ratio": checks.get("bound_start_ratio"),
            **{f"largest_{i + 1}": name for i, name in enumerate(largest.get_column("category").head(3))},
        },
        largest.select("category", "category_ns", "category_ratio"),
        "where the path's time went",
    )


def _evidence(network: activity_network.Network, run: Recorded) -> list[Evidence]:
    """What the network is made of, and what had to be concluded because nothing recorded it."""
    edges = len(network.target)
    items = [Evidence("activity network", "present", f"{network.nodes.height} activities, {edges} edges", None, edges)]
    inferred = int(network.inferred.sum())
    if inferred:
        items.append(
            Evidence(
                "dependencies",
                "partial",
                f"{inferred} of {edges} are inferred from order, not recorded",
                None,
                inferred,
            )
        )
    for reason, count in network.left_out.select("reason", "edges").iter_rows():
        if count:
            items.append(
                Evidence(f"dependencies left out: {reason}", "partial", "their times contradict them", None, count)
            )
    if not run.calls.height:
        items.append(
            Evidence("host calls", "absent", "no calls were recorded: the host's part of the path is unexplained")
        )
    return items


@dg.asset(
    partitions_def=session_partitions,
    group_name="analysis",
    kinds={"polars", "parquet"},
    owners=OWNERS,
    deps=[timeline],
    metadata=stage_metadata(TABLES),
)
def critical_path(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """What would have to become faster for the whole to become faster, and how much slack has everything else?"""
    with expected_errors():
        store = lake.open()
        return publish_outcome(store, context.partition_key, STAGE, read_critical_path(store, context.partition_key))
