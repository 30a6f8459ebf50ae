"""Find graph launches whose replays were only partly recorded.

Replays are compared with their nodes, with a recorded capture, or with each other.
"""

from collections.abc import Iterator
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.findings import (
    ANSWER,
    BUSY,
    IDLE,
    KERNEL_SUMS,
    Finding,
    Grade,
    counted,
    of_total,
    whole_number,
)
from aaco_pipeline.analysis.completeness.findings import milliseconds as ms
from aaco_pipeline.analysis.roofline.operators.graph_replays import Replays, with_kernel_ids
from aaco_pipeline.lake.evidence import AS_A_WHOLE

_MEND: Final = "of ROCm upgrade to 7.2.2 or later (libraries that the framework brings along, too), else: {graph_nodes}"


def replays(launched: pl.DataFrame, activities: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Count the records of each graph launch by kernel, or by node if records name nodes.

    Columns: call_id, process_id, start_ns, node (null if no node is named), kernel_id (null for a launch without any
    record), n. `dispatches` provides the nodes. A launch without records outside the recorded time of the device is
    omitted, because its work cannot have run there.
    """
    graphs = launched.filter(pl.col("kind") == "graph").select("call_id", "process_id", "start_ns")
    run = activities.filter(pl.col("activity_kind") == "dispatch").select(
        "kernel_id", dispatch_id="activity_id", call_id=pl.coalesce("call_id", "outermost_call_id")
    )
    run = run.join(dispatches.select("dispatch_id", node="graph_node_id"), on="dispatch_id", how="left")
    each = run.join(graphs.select("call_id"), on="call_id", how="semi")
    counts = each.group_by("call_id", "node", "kernel_id").agg(n=pl.len().cast(pl.Int64))
    every = graphs.join(counts, on="call_id", how="left").with_columns(pl.col("n").fill_null(0))
    first, last = activities.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return every.filter((pl.col("n") > 0) | pl.col("start_ns").is_between(first, last))


def of_replays(replayed: pl.DataFrame, shortfalls: pl.DataFrame | None) -> Iterator[Finding]:
    """Find replays with fewer kernels than their graph has, per process.

    `replayed` comes from `replays`, `shortfalls` from the function of that name; it is None if no capture is known.
    """
    for (process,), own in replayed.group_by("process_id", maintain_order=True):
        number = whole_number(process)
        total = own.get_column("call_id").n_unique()
        whole = own.group_by("call_id").agg(pl.col("n").sum())
        empty = whole.filter(pl.col("n") == 0).height
        compared = None if shortfalls is None else shortfalls.join(own.select("call_id"), on="call_id", how="semi")
        # If the captured graph is known, replays are not compared with each other.
        by = _by_likeness(own) if compared is None or not _known(compared) else _by_capture(compared)
        found = _by_node(own) or by
        if found is None and not empty:
            continue
        lost, short, how, grade = found or (0, empty, "launched a graph and left no record at all", "observed")
        certain = grade == "observed" or empty > 0
        yield Finding(
            "graph_kernels_missing",
            "fault" if certain else "bound",
            f"process {number}",
            f"{of_total(max(short, empty), total)} graph launches {how}"
            + (f"; {counted(lost, 'kernel')} are missing at least" if lost else "")
            + (f"; {counted(empty, 'launch', 'launches')} left no record at all" if empty and found else "")
            + ".",
            _MEND,
            "observed" if certain else grade,
            process_id=number,
            start_ns=whole_number(own.get_column("start_ns").min()),
            records=lost or None,
            voids=ANSWER if certain else (),
            at_least=(*BUSY, *KERNEL_SUMS),
            at_most=IDLE,
        )


def of_whole(dispatches: pl.DataFrame, kernels: pl.DataFrame) -> Iterator[Finding]:
    """Find graphs whose launches left one record each, which hides the kernels and their times, per process."""
    whole = kernels.select("kernel_id", whole=pl.col("name").str.ends_with(AS_A_WHOLE))
    if not whole.get_column("whole").any():
        return
    rows = dispatches.join(whole, on="kernel_id", how="left").with_columns(pl.col("whole").fill_null(False))
    length = pl.col("end_ns") - pl.col("start_ns")
    for (process,), own in rows.group_by("process_id", maintain_order=True):
        graphs = own.filter("whole")
        if not graphs.height:
            continue
        inside, every = (int(frame.select(length.sum()).item() or 0) for frame in (graphs, own))
        yield Finding(
            "graphs_recorded_whole",
            "bound",
            f"process {process}",
            f"{counted(graphs.height, 'graph launch', 'graph launches')} {'was' if graphs.height == 1 else 'were'} "
            f"recorded as one piece each, {ms(inside)} of the {ms(every)} of all dispatches: which kernels ran in "
            "them, and when none did, is not in the recording.",
            "record every kernel of a graph, which costs more: {graph_nodes}",
            process_id=whole_number(process),
            start_ns=whole_number(graphs.get_column("start_ns").min()),
            end_ns=whole_number(graphs.get_column("end_ns").max()),
            records=graphs.height,
            voids=ANSWER if inside * 2 >= every else (),
            at_least=KERNEL_SUMS,
            at_most=BUSY,
        )


_Found = tuple[int, int, str, Grade]


def _by_node(own: pl.DataFrame) -> _Found | None:
    """Find launches that lack nodes present in other launches of their graph.

    A node belongs to one instantiated graph, so launches that share a node replay the same graph.
    """
    noded = own.drop_nulls("node")
    if not noded.height:
        return None
    first = noded.group_by("call_id").agg(graph=pl.col("node").min())
    # Launches join the graph of their lowest recorded node; done twice for launches whose lowest node is missing.
    for _ in range(2):
        lowest = noded.join(first, on="call_id").group_by("node").agg(graph=pl.col("graph").min())
        first = noded.join(lowest, on="node").group_by("call_id").agg(graph=pl.col("graph").min())
    size = noded.join(first, on="call_id").group_by("graph").agg(size=pl.col("node").n_unique())
    have = noded.group_by("call_id").agg(have=pl.col("node").n_unique())
    lack = have.join(first, on="call_id").join(size, on="graph").with_columns(lack=pl.col("size") - pl.col("have"))
    short = lack.filter(pl.col("lack") > 0)
    if not short.height:
        return None
    return int(short["lack"].sum()), short.height, "lack nodes that other replays of the same graph have", "observed"


def _known(compared: pl.DataFrame) -> bool:
    return compared.get_column("lost").null_count() < compared.height


def _by_capture(compared: pl.DataFrame) -> _Found | None:
    """Find launches that recorded part of a captured graph; inferred if others fit no captured graph at all."""
    short = compared.filter(pl.col("lost") > 0)
    foreign = compared.get_column("lost").null_count()
    if short.height <= foreign:
        return None
    how = "recorded fewer kernels than the graph that was captured has"
    return int(short.get_column("lost").sum()), short.height, how, "inferred" if foreign else "observed"


def _by_likeness(own: pl.DataFrame) -> _Found | None:
    """Find launches with only part of the records of another launch of the same kernels, each in a unique way.

    A different graph is launched repeatedly with the same records, while losses differ between replays. The first and
    last launches alone prove nothing: a model that is split into graphs begins and ends with other pieces.
    """
    counts = own.drop_nulls("kernel_id").group_by("call_id", "kernel_id").agg(pl.col("n").sum())
    each = (
        counts.sort("kernel_id")
        .group_by("call_id")
        .agg(have=pl.col("n").sum(), what=pl.struct("kernel_id", "n").hash().sum())
        .join(own.group_by("call_id").agg(pl.col("start_ns").min()), on="call_id")
    )
    if each.height < 2 or each.get_column("what").n_unique() == 1:
        return None
    alone = each.filter(pl.len().over("what") == 1)
    most = counts.group_by("kernel_id").agg(most=pl.col("n").max())
    size = int(most.get_column("most").sum())
    # The largest launch of these kernels counts as complete; one with few of its records may belong to another graph.
    short = alone.filter((pl.col("have") < size) & (pl.col("have") * 5 >= size))
    first, last = each.select(pl.col("start_ns").min(), last=pl.col("start_ns").max()).row(0)
    within = pl.col("start_ns").is_between(first, last, closed="none")
    if short.filter(within).is_empty():
        return None
    lost = int((size - short.get_column("have")).sum())
    how = f"recorded fewer kernels than the {size} that replays of what looks like the same graph do"
    return lost, short.height, how, "inferred"


#: A replay that recorded less than this fraction of a captured graph may belong to another one.
_PART: Final = 5


def shortfalls(found: Replays, captured: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Minimum number of missing kernels per graph launch with records: call_id and lost; 0 for none, null if unknown.

    `captured` is the table `captured_launches`. A launch made before the last capture of its own trace is not compared
    by number, because its graph may have been captured before the recording.
    """
    own = found.records.filter(pl.col("kind") == "kernel")
    counts = own.group_by("launch", "kernel_id").agg(n=pl.len().cast(pl.Int64))
    have = counts.group_by("launch").agg(have=pl.col("n").sum(), kernels=pl.len())
    known = with_kernel_ids(captured, kernels).filter(pl.col("kind") == "kernel")
    named = known.filter(pl.col("kernel").is_not_null().all().over("graph"))
    if named.height:
        lost = _by_names(counts, have, named)
    else:
        over = pl.lit(known.get_column("launched_ns").max(), pl.Int64)
        later = found.graphs.filter(over.is_null() | (pl.col("start_ns") > over))
        lost = _by_number(have.join(later.select(launch="call_id"), on="launch", how="semi"), known)
    matched = found.graphs.select(launch="call_id", is_matched=pl.col("matched").is_not_null())
    each = matched.join(lost, on="launch", how="left")
    return each.select(call_id="launch", lost=pl.when("is_matched").then(0).otherwise("lost"))


def _by_names(counts: pl.DataFrame, have: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """launch and lost, by the smallest captured graph that contains every kernel of the launch at least as often."""
    # Replays with identical kernel counts are compared once.
    each = counts.sort("kernel_id").group_by("launch").agg(what=pl.struct("kernel_id", "n").hash(seed=19).sum())
    same = each.group_by("what").agg(first=pl.col("launch").min(), launch="launch")
    sizes = named.group_by("graph").agg(size=pl.len().cast(pl.Int64))
    whole = named.group_by("graph", "kernel_id").agg(most=pl.len().cast(pl.Int64))
    ones = counts.join(same.select(launch="first"), on="launch", how="semi")
    fitting = ones.join(whole, on="kernel_id").filter(pl.col("n") <= pl.col("most"))
    both = fitting.group_by("launch", "graph").agg(fit=pl.len()).join(have, on="launch").join(sizes, on="graph")
    holds = both.filter((pl.col("fit") == pl.col("kernels")) & (pl.col("have") * _PART >= pl.col("size")))
    lost = holds.group_by("launch").agg(lost=(pl.col("size") - pl.col("have")).min())
    spread = same.select("launch", "first").explode("launch")
    return spread.join(lost, left_on="first", right_on="launch", how="inner").select("launch", "lost")


def _by_number(have: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """launch and lost, if all captured graphs have the same size."""
    sizes = known.group_by("graph").agg(size=pl.len().cast(pl.Int64)).get_column("size").unique()
    if len(sizes) != 1:
        return have.select("launch", lost=pl.lit(None, pl.Int64)).clear()
    lost = sizes[0] - pl.col("have")
    return have.filter(lost >= 0).select("launch", lost=lost)
