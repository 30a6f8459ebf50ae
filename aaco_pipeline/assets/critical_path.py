"""The stage `critical_path`: which chain of activities the run could not be shorter than, and who waited for whom.

The network is `aaco_pipeline.analysis.timeline.dependency_graph`, the path
`aaco_pipeline.analysis.timeline.critical_path`; processes' clocks and their collectives are
`aaco_pipeline.analysis.timeline.ranks` and `collectives`.
"""

from dataclasses import dataclass
from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.timeline import collectives, ranks
from aaco_pipeline.analysis.timeline import critical_path as path_analysis
from aaco_pipeline.analysis.timeline import dependency_graph as activity_network
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION, device_activities
from aaco_pipeline.analysis.timeline.path_by_iteration import path_by_iteration
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.assets.timeline import Recorded, recorded, timeline
from aaco_pipeline.lake.evidence import Evidence, Status, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "critical_path"
TABLES: Final = ("critical_path", "critical_path_summary", "what_if", "rank_clocks", "collectives", "evidence")
#: Kernels that are asked about, and how many times as fast they are imagined: each costs a pass over the network.
_ASKED: Final = 5
_SPEEDUP: Final = 2.0


@dataclass(frozen=True)
class Ranks:
    """The processes' clocks and parts in collectives, in the columns of the analyses, and what kept parts apart."""

    clocks: pl.DataFrame
    collectives: pl.DataFrame
    unmatched: pl.DataFrame
    numbered: bool


def read_critical_path(lake: TraceLake, session: str) -> Outcome:
    """The longest path, every activity's slack, the path's time by category, and the collectives of all processes.

    Empty without device activities.
    """
    run = recorded(lake, session)
    if not run.activities.height:
        missing = Evidence("activity network", "absent", "the session has no device activities with times")
        tables = {name: empty_table(name) for name in TABLES if name != "evidence"}
        return Outcome({**tables, "evidence": evidence_frame(STAGE, [missing])})
    network = activity_network.network(run.activities, run.calls, run.waits)
    found = path_analysis.critical_path(network)
    checks = dict(found.checks.select("check", "value").iter_rows())
    columns = empty_table("critical_path").columns
    several = read_ranks(lake, session, run)
    tables_of_ranks = (("rank_clocks", several.clocks), ("collectives", several.collectives))
    parts = path_by_iteration(found.steps, run.iterations.filter(pl.col("pass") == "trace"))
    summary = pl.concat([found.summary, parts], how="vertical_relaxed")
    savings = path_analysis.largest_savings(network, found.kernels, _ASKED, _SPEEDUP)
    activities = found.activities
    of_kernel = found.kernels.select("kernel_id", "criticality")
    weighed = activities.with_columns(pl.col("activity_kind", "binding_edge").cast(pl.String)).join(
        of_kernel, on="kernel_id", how="left", maintain_order="left"
    )
    largest = found.summary.filter(pl.col("category_ns") > 0).sort("category_ns", descending=True)
    window, path = (int(found.summary.item(0, name)) for name in ("window_ns", "path_ns"))
    return Outcome(
        {
            "critical_path": to_contract("critical_path", weighed.select(columns)),
            "critical_path_summary": to_contract("critical_path_summary", summary),
            "what_if": to_contract("what_if", savings),
            **{name: to_contract(name, frame.select(empty_table(name).columns)) for name, frame in tables_of_ranks},
            "evidence": evidence_frame(STAGE, [*_evidence(network, run), *_ranks_evidence(several)]),
        },
        {
            "window_ns": window,
            "path_ns": path,
            "unexplained_ns": window - path,
            "bound_start_ratio": checks.get("bound_start_ratio"),
            **{f"largest_{i + 1}": name for i, name in enumerate(largest.get_column("category").head(3))},
            **_ranks_headline(several),
        },
        largest.select("category", "category_ns", "category_ratio"),
        "where the path's time went",
    )


def saving(lake: TraceLake, session: str, kernel: int, speedup: float) -> pl.DataFrame:
    """The row of `what_if` for one kernel and any speed-up above zero; none when the session has no activities."""
    run = recorded(lake, session)
    if not run.activities.height:
        return empty_table("what_if")
    network = activity_network.network(run.activities, run.calls, run.waits)
    kernels = path_analysis.critical_path(network).kernels.filter(pl.col("kernel_id") == kernel)
    found = path_analysis.largest_savings(network, kernels, 1, speedup)
    if found.is_empty():
        nothing = {"kernel_id": kernel, "speedup_ratio": speedup, "critical_ns": 0, "saved_ns": 0, "saved_ratio": 0.0}
        found = pl.DataFrame([nothing])
    return to_contract("what_if", found)


def read_ranks(lake: TraceLake, session: str, run: Recorded) -> Ranks:
    """Clocks and collectives over everything that was captured, for numbers within a communicator count from there."""

    def table(name: str) -> pl.DataFrame:
        return lake.read(name, session).drop("session_id")

    activities = run.activities
    if (activities.get_column("category") == COMMUNICATION).any():
        timed = table("dispatches").filter(pl.col("end_ns") >= pl.col("start_ns"))
        activities = device_activities(timed, run.copies, run.kernels, run.calls)
    matched = collectives.matched(collectives.parts(activities, table("markers"), run.api_calls))
    clocks = ranks.rank_clocks(table("processes"), table("clock_domains"), matched)
    found = collectives.collectives(matched, clocks, activities)
    return Ranks(clocks, found, matched.unmatched, bool(matched.parts.get_column("numbered").all()))


def _ranks_headline(several: Ranks) -> dict[str, int | str | None]:
    """How many collectives, how long nothing hid them, and which process the others waited for most often."""
    found = several.collectives
    if not found.height:
        return {}
    late = found.filter(pl.col("is_straggler")).group_by("process_id").len()
    late = late.sort("len", "process_id", descending=[True, False])
    return {
        "collectives": found.get_column("collective_id").n_unique(),
        "exposed_ns": int(found.get_column("exposed_ns").sum()),
        "straggler_process": int(late.item(0, "process_id")) if late.height else None,
    }


def _ranks_evidence(several: Ranks) -> list[Evidence]:
    """What the collectives rest on, and why waits between processes are not known where they are not."""
    found, clocks = several.collectives, several.clocks
    if not found.height:
        return [Evidence("collectives", "present", "no communication kernel ran", None, 0)]
    unnamed = int(found.get_column("name").null_count())
    told = f"{unnamed} of {found.height} parts are not named by anything in the capture" if unnamed else None
    items = [Evidence("collectives", "partial" if unnamed else "present", told, None, found.height)]
    waits = int(found.get_column("wait_ns").is_not_null().sum())
    if found.get_column("process_id").n_unique() == 1:
        items.append(Evidence("waits between ranks", "absent", "one rank only: the others' traces are not here"))
    elif waits:
        status: Status = "present" if waits == found.height else "partial"
        by_order = None if several.numbered else "matched by order of issue: the capture does not number collectives"
        items.append(Evidence("waits between ranks", status, by_order, None, waits))
    else:
        reason = "no collective has the parts of all its ranks, on clocks that are aligned"
        items.append(Evidence("waits between ranks", "absent", reason))
    apart = several.unmatched.group_by("communicator", maintain_order=True).agg("reason", pl.col("parts").sum())
    for communicator, reasons, parts in apart.iter_rows():
        item = f"collectives left apart: {communicator or 'of no stated communicator'}"
        items.append(Evidence(item, "partial", "; ".join(reasons), None, parts))
    contradicted = int(found.get_column("contradicted").sum())
    if contradicted:
        reason = "one process left before another arrived: their waits are not known"
        items.append(Evidence("collectives that contradict the clocks", "partial", reason, None, contradicted))
    unaligned = clocks.filter(pl.col("method") == ranks.NONE)
    if unaligned.height:
        items.append(Evidence("clocks of ranks", "partial", unaligned.item(0, "reason"), None, unaligned.height))
    if clocks.height > 1:
        reason = "each process's times are as captured, and no dependency between processes is in the network"
        items.append(Evidence("critical path across processes", "partial", reason, None, clocks.height))
    return items


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
            items.append(Evidence(f"dependencies {reason}", "partial", "their times contradict them", None, count))
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
