"""Collective operations: their parts, who waited for whom, and each part's bandwidth.

Collectives that the capture does not describe are recognized by kernel name, stream and time.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.thresholds import LAUNCH_SIZED_NS
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION, COMPUTE, group_codes
from aaco_pipeline.analysis.timeline.device_timeline import Times, covered_by

#: Operations that no participant can finish before the last one has begun.
SYNCHRONIZING: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
#: Operations between two ranks; other ranks of the communicator do not take part.
POINT_TO_POINT: Final = ("send", "recv")
#: Operations to which every rank contributes the same number of bytes.
_EQUAL_SIZES: Final = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "barrier")
#: Operations by the start of their name in lower case, letters only; the first match counts.
_NAMES: Final[Mapping[str, str]] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}
_RCCL: Final = "rccl"
_RANGE: Final = re.compile("^(?:nccl:|nccl(?=[A-Z])|rccl)")
#: Ranges in which PyTorch and the library itself name their launches.
_OF_LIBRARY: Final = "^nccl[:A-Z]"
_THREAD: Final = ("process_id", "thread_id")
_STATED: Final = ("communicator", "group_size", "sequence", "size_bytes")
_MEMBER: Final = ("communicator", "process_id", "device_id")
_KEY: Final = ("communicator", "number", "repeat")
_UNMATCHED: Final = {"communicator": pl.String, "reason": pl.String, "parts": pl.Int64}


@dataclass(frozen=True)
class Matched:
    """Parts with their collective, and the reasons why some could not be matched.

    `parts`: the result of `parts`, with collective_id, parts_found (of the collective), participants, `matched` (False
    if other parts of the collective may be missing) and `numbered` (whether the capture states the number).
    `unmatched`: communicator, reason, parts.
    """

    parts: pl.DataFrame
    unmatched: pl.DataFrame


def operation(name: str) -> str | None:
    """Return the operation that a library, framework or range names in `name`; None if there is none."""
    letters = re.sub("[^a-z]", "", _RANGE.sub("", name).lower())
    return next((known for beginning, known in _NAMES.items() if letters.startswith(beginning)), None)


def parts(activities: pl.DataFrame, markers: pl.DataFrame, api_calls: pl.DataFrame) -> pl.DataFrame:
    """Describe each communication kernel by the ranges that enclose its launch.

    Columns: dispatch_id, process_id, device_id, start_ns, end_ns, name, communicator, group_size, sequence, size_bytes;
    null if no range states them, as for kernels launched before the capture began.

    Args:
        activities: From `activities.device_activities`.
        markers: The table.
        api_calls: The table.
    """
    kernels = activities.filter((pl.col("category") == COMMUNICATION) & (pl.col("activity_kind") == "dispatch")).select(
        "process_id",
        "device_id",
        "start_ns",
        end_ns=pl.max_horizontal("start_ns", "end_ns"),
        dispatch_id="activity_id",
        thread_id="call_thread_id",
        call_start_ns="call_start_ns",
    )
    recorded = markers.drop_nulls(["collective", "thread_id"])
    # An unknown operation keeps its name from the capture and its place in the communicator's order.
    operations = pl.col("collective").replace(_operations(recorded.get_column("collective")))
    stated = recorded.select(*_THREAD, "start_ns", "end_ns", *_STATED, operation=operations)
    named = _named(markers.filter(pl.col("name").str.contains(_OF_LIBRARY)))
    called = _named(api_calls.filter(pl.col("domain") == _RCCL))
    described = _enclosed(_enclosed(kernels, stated), pl.concat([named, called]))
    return described.select(
        *("dispatch_id", "process_id", "device_id", "start_ns", "end_ns"),
        *(pl.coalesce("operation", "range_operation").alias("name"), *_STATED),
    ).sort("process_id", "start_ns", "dispatch_id")


def matched(parts: pl.DataFrame) -> Matched:
    """Match the parts of several processes to collectives; `Matched` describes the columns.

    Parts without a communicator, and those between two ranks, are separate collectives. Without stated numbers, one
    disagreement on count, name or size leaves the whole communicator unmatched, since every later number may be off.
    """
    known = pl.col("communicator").is_not_null() & ~pl.col("name").is_in(POINT_TO_POINT).fill_null(False)
    apart = parts.filter(~known).with_columns(matched=pl.lit(False), numbered=pl.lit(False))
    numbered = _numbered(parts.filter(known))
    reasons = _reasons(numbered)
    numbered = numbered.join(reasons, on=_KEY, how="left").with_columns(matched=pl.col("reason").is_null())
    unmatched = numbered.filter(~pl.col("matched")).group_by("communicator", "reason").agg(parts=pl.len())
    unstated = apart.filter(pl.col("communicator").is_null()).height
    listed = [unmatched.sort("communicator", "reason").cast(_UNMATCHED).select(*_UNMATCHED)]  # type: ignore[arg-type]
    if unstated:
        reason = "nothing states which communicator they used, or their launch is not in the capture"
        listed.append(pl.DataFrame([(None, reason, unstated)], schema=_UNMATCHED, orient="row"))
    together = pl.concat([numbered, apart], how="diagonal").with_row_index("row")
    alone = pl.when(~pl.col("matched")).then("row")
    # Numbered by first start, so that the numbers follow the run.
    groups = together.group_by(*_KEY, alone.alias("alone"), maintain_order=True).agg(
        "row",
        first_ns=pl.col("start_ns").min(),
        parts_found=pl.len().cast(pl.Int64),
        participants=pl.col("process_id").n_unique().cast(pl.Int64),
    )
    groups = groups.sort("first_ns", maintain_order=True).with_columns(
        collective_id=pl.int_range(pl.len(), dtype=pl.Int32)
    )
    placed = groups.select("collective_id", "parts_found", "participants", "row").explode("row")
    rows = together.join(placed, on="row").sort("collective_id", "process_id", "dispatch_id")
    return Matched(
        rows.select(*parts.columns, "collective_id", "parts_found", "participants", "matched", "numbered"),
        pl.concat(listed),
    )


def collectives(matched: Matched, clocks: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """Compute rows of the table `collectives` without the session, with an additional column `contradicted`.

    A collective is contradicted if, on aligned clocks, one process left before another arrived, by more than their
    uncertainty. Its parts are then not one operation, and no waits are known.

    Args:
        matched: Parts by collective.
        clocks: From `ranks.rank_clocks`.
        activities: The activities from which the parts were taken.
    """
    aligned = clocks.select("process_id", "clock", "offset_ns", "uncertainty_ns", "drift_ratio", "anchor_ns")
    rows = matched.parts.join(aligned, on="process_id", how="left", maintain_order="left")
    moved = pl.col("offset_ns").fill_null(0) + _drifted()
    rows = rows.with_columns(arrival_ns=pl.col("start_ns") + moved, leaving_ns=pl.col("end_ns") + moved)
    rows = rows.join(_judged(rows), on="collective_id", how="left", maintain_order="left")
    known = pl.col("complete") & ~pl.col("contradicted")
    last = pl.col("last_ns") == pl.col("arrival_ns")
    return rows.select(
        *("collective_id", "process_id", "dispatch_id", "name", "communicator", "participants"),
        "size_bytes",
        "arrival_ns",
        expected_participants="group_size",
        wait_ns=pl.when(known).then(pl.col("last_ns") - pl.col("arrival_ns")),
        arrival_spread_ns=pl.when(known).then(pl.col("last_ns") - pl.col("first_ns")),
        is_straggler=pl.when(known).then(last & pl.col("one_is_late")),
        exposed_ns=pl.Series(_exposed(rows, clocks, activities), dtype=pl.Int64),
        contradicted="contradicted",
    )


def _operations(names: pl.Series) -> dict[str, str]:
    """Return the operations that these texts name, by text."""
    return {name: found for name in names.unique().drop_nulls().to_list() if (found := operation(name)) is not None}


def _named(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of a thread whose name states the operation, with that operation as `range_operation`."""
    known = _operations(ranges.get_column("name"))
    stated = pl.col("name").replace_strict(known, default=None, return_dtype=pl.String)
    found = ranges.select(*_THREAD, "start_ns", "end_ns", range_operation=stated)
    return found.drop_nulls(["range_operation", "thread_id"])


def _enclosed(kernels: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of the range that was open on the launching thread when each kernel was launched."""
    facts = [name for name in ranges.columns if name not in (*_THREAD, "start_ns", "end_ns")]
    own = ranges.select(*_THREAD, *facts, opened_ns="start_ns", closed_ns="end_ns").sort("opened_ns")
    found = kernels.sort("call_start_ns").join_asof(
        own,
        left_on="call_start_ns",
        right_on="opened_ns",
        by=list(_THREAD),
        strategy="backward",
        check_sortedness=False,
    )
    inside = pl.col("call_start_ns") <= pl.col("closed_ns")
    return found.with_columns(pl.when(inside).then(pl.col(name)).alias(name) for name in facts).drop(
        "opened_ns", "closed_ns"
    )


def _numbered(parts: pl.DataFrame) -> pl.DataFrame:
    """Add the number within the communicator, stated or by order, and the repetition of that number."""
    ordered = parts.sort(*_MEMBER, "start_ns", "dispatch_id")
    stated = pl.col("sequence").is_not_null().all().over("communicator")
    position = pl.int_range(pl.len()).over(_MEMBER)
    return ordered.with_columns(
        numbered=stated, number=pl.when(stated).then("sequence").otherwise(position)
    ).with_columns(repeat=pl.int_range(pl.len()).over(*_MEMBER, "number"))


def _reasons(numbered: pl.DataFrame) -> pl.DataFrame:
    """Return why a collective's parts cannot be one operation; null if they can."""
    members = numbered.group_by(_MEMBER).len().group_by("communicator").agg(least=pl.min("len"), most=pl.max("len"))
    each = numbered.group_by(_KEY).agg(
        numbered=pl.col("numbered").first(),
        names=pl.col("name").n_unique(),
        sizes=pl.col("size_bytes").n_unique(),
        groups=pl.col("group_size").n_unique(),
        beyond=pl.len() > pl.col("group_size").min(),
        equal=pl.col("name").first().is_in(_EQUAL_SIZES),
    )
    disagree = (pl.col("names") > 1) | (pl.col("equal") & (pl.col("sizes") > 1)) | (pl.col("groups") > 1)
    uneven = ~pl.col("numbered") & (pl.col("least") != pl.col("most"))
    counts = pl.format("processes have from {} to {} collectives, and nothing numbers them", "least", "most")
    spoiled = pl.when(pl.col("numbered")).then(disagree).otherwise(disagree.any().over("communicator"))
    reason = (
        pl.when(uneven)
        .then(counts)
        .when(spoiled)
        .then(pl.lit("processes disagree on name, size or group at the same number"))
        .when(pl.col("beyond").fill_null(False))
        .then(pl.lit("more processes have the communicator than its group has ranks"))
    )
    return each.join(members, on="communicator").select(*_KEY, reason=reason)


def _drifted() -> pl.Expr:
    """Growth of a drifting offset since its anchor, in whole ns; zero without drift."""
    grown = (pl.col("start_ns") - pl.col("anchor_ns")).cast(pl.Float64) * pl.col("drift_ratio")
    return grown.round().cast(pl.Int64).fill_null(0)


def _judged(rows: pl.DataFrame) -> pl.DataFrame:
    """For each collective: first and last arrival, whether complete or contradicted, and whether one is surely late."""
    last = pl.col("arrival_ns").arg_max()
    ends = rows.group_by("collective_id").agg(
        first_ns=pl.col("arrival_ns").min(),
        last_ns=pl.col("arrival_ns").max(),
        last_clock=pl.col("clock").get(last),
        last_uncertainty=pl.col("uncertainty_ns").get(last),
        last_process=pl.col("process_id").get(last),
        last_dispatch=pl.col("dispatch_id").get(last),
        complete=pl.col("matched").all()
        & pl.col("offset_ns").is_not_null().all()
        & (pl.col("group_size") == pl.len()).fill_null(False).all(),
    )
    both = rows.join(ends, on="collective_id")
    foreign = pl.col("clock") != pl.col("last_clock")
    doubt = pl.when(foreign).then(pl.col("uncertainty_ns") + pl.col("last_uncertainty")).otherwise(0).fill_null(0)
    other = (pl.col("process_id") != pl.col("last_process")) | (pl.col("dispatch_id") != pl.col("last_dispatch"))
    left_before = pl.col("name").is_in(SYNCHRONIZING) & (pl.col("last_ns") > pl.col("leaving_ns") + doubt)
    late = other & (pl.col("last_ns") - pl.col("arrival_ns") > doubt)
    found = both.group_by("collective_id").agg(
        contradicted=(left_before.fill_null(False) & pl.col("complete")).any(),
        one_is_late=(late.sum() == other.sum()) & other.any(),
    )
    return ends.select("collective_id", "first_ns", "last_ns", "complete").join(found, on="collective_id")


def _exposed(rows: pl.DataFrame, clocks: pl.DataFrame, activities: pl.DataFrame) -> Times:
    """Time of each part's kernel in which its device ran no compute of the same clock, in ns.

    Devices may share a number in captures that name no host, and times of two clocks are not comparable at all.
    """
    computing = activities.filter(pl.col("category") == COMPUTE).select("process_id", "device_id", "start_ns", "end_ns")
    computing = computing.join(clocks.select("process_id", "clock"), on="process_id", how="left")
    both = pl.concat([rows.select(computing.columns), computing])
    codes = group_codes(both, ("clock", "device_id"))
    order = np.argsort(codes, kind="stable")  # the parts of each code come before its compute
    known, firsts = np.unique(codes[order], return_index=True)
    starts, ends = (both.get_column(name).to_numpy() for name in ("start_ns", "end_ns"))
    hidden = np.zeros(rows.height, np.int64)
    for members in np.split(order, firsts[1:]) if len(known) else ():
        count = int(np.searchsorted(members, rows.height))
        ours, theirs = members[:count], members[count:]
        hidden[ours] = covered_by(starts[theirs], ends[theirs]).between(starts[ours], ends[ours])
    exposed: Times = ends[: rows.height] - starts[: rows.height] - hidden
    return exposed


#: Name of a group of ranks in captures that do not name it; a number follows.
UNNAMED: Final = "unnamed group"
#: Operations that a rank may leave before the others have arrived.
_LEFT_EARLY: Final = ("broadcast", "reduce", "gather", "scatter", "send", "recv")
#: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`, `ncclKernel_AllReduce_RING_LL_Sum_float(...)`.
_KERNEL: Final = re.compile(r"^nccl\w*?Kernel_([A-Za-z]+)")
#: One kernel serves all point-to-point operations, including the parts of an all-to-all.
_BETWEEN_TWO: Final = ("SendRecv", "send_recv")
_LANE: Final = ("process_id", "device_id", "lane")


@dataclass(frozen=True)
class _Lane:
    """One stream's kernels in order: their rows, and which of them involve all ranks."""

    process: int
    rows: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    holds: npt.NDArray[np.bool_]

    def overlaps(self, other: "_Lane") -> bool:
        """Return whether each kernel that involves all ranks overlapped its counterpart."""
        apart = (self.start >= other.end) | (other.start >= self.end)
        return self.process != other.process and not bool((apart & self.holds).any())


def kernel_operation(name: str) -> str | None:
    """Return the operation stated by a kernel's name; None for generic kernels and for any other kernel."""
    found = _KERNEL.match(name)
    if found is None:
        return None
    return _BETWEEN_TWO[1] if found[1].startswith(_BETWEEN_TWO[0]) else operation(found[1])


def put_together(
    parts: pl.DataFrame, activities: pl.DataFrame, kernels: pl.DataFrame, clocks: pl.DataFrame
) -> pl.DataFrame:
    """Add name, communicator and group_size as far as kernels and streams show them.

    Processes with different clocks are not compared, because their times are unrelated.

    Args:
        parts: From `parts`, for a capture without communicators.
        activities: The activities from which the parts were taken.
        kernels: The table.
        clocks: process_id and clock.
    """
    names = kernels.get_column("name").unique().drop_nulls().to_list()
    stated = {name: found for name in names if (found := kernel_operation(name)) is not None}
    known = pl.col("kernel_name").replace_strict(stated, default=None, return_dtype=pl.String)
    of_dispatch = activities.filter(pl.col("activity_kind") == "dispatch").select(
        "kernel_id", dispatch_id="activity_id", lane=pl.coalesce("stream_id", "queue_id")
    )
    named = (
        parts.join(of_dispatch, on="dispatch_id", how="left", maintain_order="left")
        .join(kernels.select("kernel_id", kernel_name="name"), on="kernel_id", how="left", maintain_order="left")
        .join(clocks.select("process_id", "clock"), on="process_id", how="left", maintain_order="left")
        .with_columns(name=pl.coalesce("name", known))
    )
    groups = sorted(_groups(named), key=lambda group: min(int(lane.start[0]) for lane in group))
    group_of = np.full(named.height, -1, np.int64)
    for number, group in enumerate(groups):
        for lane in group:
            group_of[lane.rows] = number
    sizes = {number: len(group) for number, group in enumerate(groups)}
    size = pl.Series(group_of).replace_strict(sizes, default=None, return_dtype=pl.Int64)
    name = pl.format(f"{UNNAMED} {{}}", pl.Series(group_of))
    return named.with_columns(communicator=pl.when(size.is_not_null()).then(name), group_size=size).select(
        parts.columns
    )


def _groups(named: pl.DataFrame) -> Iterable[Sequence[_Lane]]:
    """Find streams of several processes that form one group: the same operations, always at the same times."""
    held = ~pl.col("name").is_in(_LEFT_EARLY).fill_null(False)
    ordered = named.with_row_index("row").with_columns(held=held).sort("start_ns", "dispatch_id")
    lanes = ordered.group_by("clock", *_LANE, maintain_order=True).agg("name", "row", "start_ns", "end_ns", "held")
    for _, alike in lanes.group_by("clock", "name", maintain_order=True):
        processes = alike.get_column("process_id").to_list()
        if len(set(processes)) > 1:
            columns = [alike.get_column(name) for name in ("row", "start_ns", "end_ns", "held")]
            lists = zip(*([one.to_numpy() for one in column] for column in columns), strict=True)
            yield from _together([_Lane(process, *one) for process, one in zip(processes, lists, strict=True)])


def _together(lanes: Sequence[_Lane]) -> Iterable[Sequence[_Lane]]:
    """Find groups of equal operations that all overlap each other throughout; empty if ambiguous."""
    beside = [frozenset(i for i, lane in enumerate(lanes) if lane is one or one.overlaps(lane)) for one in lanes]
    for group in dict.fromkeys(beside):
        if len(group) > 1 and all(beside[i] == group for i in group):
            yield [lanes[i] for i in sorted(group)]


#: Below this fraction of the fabric's rate, something other than the fabric is the limit.
FAR_BELOW: Final = 0.1
LATE_OR_BROKEN: Final = "a late rank or a broken transport"
_TOO_SMALL: Final = "too small for its rate to tell anything"
_NO_FABRIC: Final = "the rate of the links between such devices is not known"
_NO_NETWORK: Final = "more ranks than a device has peers: the rate of the network is not known"
#: nccl-tests uses the size of the full array; in these operations each of n ranks contributes 1/n of it.
_PARTS: Final = ("all_gather", "gather")


def with_rates(collectives: pl.DataFrame, dispatches: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """Add duration_ns, algorithm_bytes_per_s, bus_bytes_per_s, share_ratio and remark to rows of `collectives`.

    The ceiling is the rate at which a device can exchange data with the others of its group over one link to each. The
    share is relative to the published rate, which no transport reaches. `links` comes from
    `hardware.device_facts.peer_links`.
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
    # Even at a tenth of the rate, such a message would take less time than a launch.
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
    """Factor from algorithm to bus bandwidth; null for operations without a factor in nccl-tests."""
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
