"""The stage `critical_path`: the chain of activities that bounds the run time, and waits between processes.

The graph comes from `aaco_pipeline.analysis.timeline.dependency_graph` and the path from
`analysis.timeline.critical_path`. Process clocks and collectives are handled in `analysis.timeline.ranks` and
`analysis.timeline.collectives`.
"""

from typing import Final

import polars as pl

from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION, RECORDED_FROM, Recorded, recorded
from aaco_pipeline.analysis.timeline.collectives import with_rates
from aaco_pipeline.analysis.timeline.critical_path import critical_path as path_of
from aaco_pipeline.analysis.timeline.critical_path import largest_savings, path_by_iteration
from aaco_pipeline.analysis.timeline.dependency_graph import Network, network
from aaco_pipeline.analysis.timeline.ranks import NONE, Ranks, ranks_of
from aaco_pipeline.assets.stage import FINDINGS, Check, Outcome, Session, stage
from aaco_pipeline.hardware.device_facts import peer_links
from aaco_pipeline.lake.evidence import Evidence, Status
from aaco_pipeline.lake.validation import empty_table, in_contract, to_contract

_READ: Final = (*RECORDED_FROM, "markers", "processes", "clock_domains", "devices", FINDINGS)
_OF_COLLECTIVES: Final = ("dispatches", "api_calls")
_TABLES: Final = ("critical_path", "critical_path_summary", "what_if", "rank_clocks", "collectives")
#: Number of kernels in the what-if analysis (each costs one pass over the graph), and their assumed speedup.
_ASKED: Final = 5
_SPEEDUP: Final = 2.0
_NOT_DESCRIBED: Final = "the capture describes no collective: names are of ranges and kernels, and sizes are not known"
_BY_STREAMS: Final = (
    "put together by their streams, which agree in number and names of collectives and overlap throughout: the capture "
    "states no group"
)


@stage(
    reads=_READ,
    publishes=_TABLES,
    after=("timeline",),
    group="analysis",
    kinds=("polars", "parquet"),
    checks=(
        Check(
            "conservation",
            "The critical path and what it leaves unexplained are the window; its categories are the path.",
            lambda tables: invariants.path_is_conserved(tables["critical_path_summary"]),
            ("critical_path_summary",),
        ),
    ),
)
def critical_path(session: Session) -> Outcome:
    """What must become faster to shorten the run, and how much slack does everything else have?"""
    run = session.derive(recorded, RECORDED_FROM)
    if not run.activities.height:
        missing = Evidence("activity network", "absent", "the session has no device activities with times")
        return Outcome({name: empty_table(name) for name in _TABLES}, [missing])
    # These tables can be large, and only collectives need them.
    talks = (run.activities.get_column("category") == COMMUNICATION).any()
    tables = session.tables(*(name for name in _READ if talks or name not in _OF_COLLECTIVES))
    tables = {**{name: empty_table(name) for name in _OF_COLLECTIVES}, **tables}
    graph = network(run.activities, run.calls, run.waits)
    found = path_of(graph)
    several = ranks_of(tables, run.activities, run.calls)
    parts = path_by_iteration(found.steps, tables["iterations"].filter(pl.col("pass") == "trace"))
    weighed = found.activities.with_columns(pl.col("activity_kind", "binding_edge").cast(pl.String)).join(
        found.kernels.select("kernel_id", "criticality"), on="kernel_id", how="left", maintain_order="left"
    )
    largest = found.summary.filter(pl.col("category_ns") > 0).sort("category_ns", "category", descending=[True, False])
    # If every activity has zero length, the path has no categories.
    window, path = found.summary.select("window_ns", "path_ns").row(0) if found.summary.height else (0, 0)
    return Outcome(
        {
            "critical_path": in_contract("critical_path", weighed),
            "critical_path_summary": to_contract(
                "critical_path_summary", pl.concat([found.summary, parts], how="vertical_relaxed")
            ),
            "what_if": to_contract("what_if", largest_savings(graph, found.kernels, _ASKED, _SPEEDUP)),
            "rank_clocks": in_contract("rank_clocks", several.clocks),
            "collectives": in_contract(
                "collectives", with_rates(several.collectives, tables["dispatches"], peer_links(tables["devices"]))
            ),
        },
        [*_evidence(graph, run), *_ranks_evidence(several)],
        {
            "window_ns": window,
            "path_ns": path,
            "unexplained_ns": window - path,
            "bound_start_ratio": found.bound_start_ratio,
            **{f"largest_{i + 1}": name for i, name in enumerate(largest.get_column("category").head(3))},
            **_ranks_headline(several),
        },
        largest.select("category", "category_ns", "category_ratio"),
        "where the path's time went",
    )


def _ranks_headline(several: Ranks) -> dict[str, int | str | None]:
    """Summarize collectives: number, exposed time, and the process that the others waited for most often."""
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
    """Report the sources of the collectives, and why waits between processes are unknown."""
    found, clocks = several.collectives, several.clocks
    if not found.height:
        return [Evidence("collectives", "present", "no communication kernel ran", None, 0)]
    unnamed = int(found.get_column("name").null_count())
    told = f"{unnamed} of {found.height} parts are not named by anything in the capture" if unnamed else None
    items = [Evidence("collectives", "partial" if unnamed else "present", told, None, found.height)]
    if not several.described:
        items.append(Evidence("groups and sizes of collectives", "absent", _NOT_DESCRIBED))
    waits = int(found.get_column("wait_ns").is_not_null().sum())
    if found.get_column("process_id").n_unique() == 1:
        items.append(Evidence("waits between ranks", "absent", "one rank only: the others' traces are not here"))
    elif waits:
        status: Status = "present" if waits == found.height else "partial"
        by_order = None if several.numbered else "matched by order of issue: the capture does not number collectives"
        how = by_order if several.described else _BY_STREAMS
        items.append(Evidence("waits between ranks", status, how, None, waits))
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
    unaligned = clocks.filter(pl.col("method") == NONE)
    if unaligned.height:
        items.append(Evidence("clocks of ranks", "partial", unaligned.item(0, "reason"), None, unaligned.height))
    if clocks.height > 1:
        reason = "each process's times are as captured, and no dependency between processes is in the network"
        items.append(Evidence("critical path across processes", "partial", reason, None, clocks.height))
    return items


def _evidence(network: Network, run: Recorded) -> list[Evidence]:
    """Report the size of the graph, and its inferred and contradicted dependencies."""
    edges = len(network.target)
    items = [Evidence("activity network", "present", f"{network.nodes.height} activities, {edges} edges", None, edges)]
    inferred = int(network.inferred.sum())
    if inferred:
        reason = f"{inferred} of {edges} are inferred from order, not recorded"
        items.append(Evidence("dependencies", "partial", reason, None, inferred))
    for reason, count in network.left_out.select("reason", "edges").iter_rows():
        if count:
            items.append(Evidence(f"dependencies {reason}", "partial", "their times contradict them", None, count))
    if not run.calls.height:
        reason = "no calls were recorded: the host's part of the path is unexplained"
        items.append(Evidence("host calls", "absent", reason))
    return items
