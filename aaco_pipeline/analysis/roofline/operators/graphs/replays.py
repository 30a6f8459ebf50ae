"""Which captured graph each graph launch replays, and so whose operators' work its kernels, copies and fills do.

A replay and a capture are matched whole or not at all: as many launches, in the same order, of the same kinds, of the
same kernels where the capture knows their names, and of the same sizes where both know those. Where several captures
are alike in that and their operators had other inputs, or where a replay ran on several streams, whose order on the
device need not be that of the launches, nothing is matched, and the reason is told.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.roofline.operators.calls import activities_of
from aaco_pipeline.analysis.roofline.operators.graphs.captured import INPUTS, SIZES
from aaco_pipeline.lake.evidence import Evidence, Status

_GRAPH_LAUNCH: Final = r"^(?:hip|cuda|cu)GraphLaunch"
#: Kernels that ROCm's runtime runs for copies and fills.
_OF_RUNTIME: Final = "__amd_rocclr_"
#: What a capture knows of its launches, most first, and the columns that are compared.
_LEVELS: Final = {
    "names and sizes": ("kind", "kernel_id", *SIZES),
    "names": ("kind", "kernel_id"),
    "count and order": ("kind",),
}
#: At which level a capture that knows one of them is held against a replay that knows another: what both know.
_PAIRS: Final = tuple(
    (level, captures, launched)
    for level in _LEVELS
    for captures in _LEVELS
    for launched in list(_LEVELS)[:2]
    if list(_LEVELS).index(level) == max(list(_LEVELS).index(captures), list(_LEVELS).index(launched))
)
#: Where inputs come from that the trace itself has, and those of a captured graph by how it was matched.
FROM_TRACE: Final = "trace"
FROM_CAPTURE: Final = {level: f"captured graph, by {level}" for level in _LEVELS}
BY_COUNT: Final = FROM_CAPTURE["count and order"]
_ACTIVITY: Final = ("activity_kind", "activity_id", "kernel_id", "device_id", "duration_ns", "from_or_to_host")


@dataclass(frozen=True)
class Replays:
    """What graph launches ran, matched with captures.

    `launches`: a row per matched kernel, copy or fill with an operator, as `calls.owned_launches` gives them, with
    `inputs_from`; their `call_id` is one for each replay of an operator's call, in `inputs`, which is as
    `operator_inputs`. `graphs` has a row per graph launch that left records: call_id, process_id, start_ns, n
    (records), kernels, longest (their summed time in ns), matched (graph of `captured_launches`; null for none), by
    (what it was matched by) and reason (why not). `records` is what `replayed` gives.
    """

    launches: pl.DataFrame
    inputs: pl.DataFrame
    graphs: pl.DataFrame
    records: pl.DataFrame


def replays(
    dispatches: pl.DataFrame,
    copies: pl.DataFrame,
    api_calls: pl.DataFrame,
    kernels: pl.DataFrame,
    captured: pl.DataFrame,
) -> Replays:
    """Match what graph launches ran with `captured_launches`; all arguments are canonical tables."""
    rows = replayed(dispatches, copies, api_calls, kernels)
    known = with_kernel_ids(captured, kernels)
    graphs = _matched(rows, known)
    launches, inputs = _as_calls(rows, known, graphs, _next(api_calls))
    return Replays(launches, inputs, graphs, rows)


def replayed(
    dispatches: pl.DataFrame, copies: pl.DataFrame, api_calls: pl.DataFrame, kernels: pl.DataFrame
) -> pl.DataFrame:
    """A row per record of a graph launch, in the order of each launch's records on the device.

    Columns: launch (the call that replayed), launched_ns, process_id, position, kind (`kernel`, or `copy` of copies and
    fills, which ROCm runs as kernels of its own), stream_id, the sizes, and what `calls.activities_of` gives.
    """
    names = api_calls.get_column("name").unique().cast(pl.String)
    is_launch = pl.col("name").cast(pl.String).is_in(names.filter(names.str.contains(_GRAPH_LAUNCH)).implode())
    calls = api_calls.filter(is_launch & pl.col("correlation_id").is_not_null())
    key = ["process_id", "correlation_id"]
    calls = calls.select(*key, launch="call_id", launched_ns="start_ns").unique(key, keep="none")
    of_runtime = kernels.select("kernel_id", of_runtime=pl.col("name").str.starts_with(_OF_RUNTIME))
    found = []
    for table, kind, number in ((dispatches, "dispatch", "dispatch_id"), (copies, "memory_copy", "copy_id")):
        own = table.join(calls, on=key, how="semi")
        sizes = [pl.col(name) if name in own.columns else pl.lit(None, pl.Int64).alias(name) for name in SIZES]
        place = own.select("start_ns", "stream_id", *sizes, activity_id=number)
        found.append(activities_of(own, kind).join(place, on="activity_id", how="left"))
    rows = pl.concat(found).join(calls, on=key, how="inner").join(of_runtime, on="kernel_id", how="left")
    is_copy = (pl.col("activity_kind") == "memory_copy") | pl.col("of_runtime").fill_null(False)
    rows = rows.with_columns(kind=pl.when(is_copy).then(pl.lit("copy")).otherwise(pl.lit("kernel")))
    rows = rows.sort("launch", "start_ns", "activity_kind", "activity_id").drop("of_runtime", "correlation_id")
    return rows.with_columns(position=pl.int_range(pl.len()).over("launch").cast(pl.Int32))


def with_kernel_ids(captured: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """`captured_launches` with the session's `kernel_id` (-1 for a kernel that it does not have) and the `level`.

    The level is what is known of all kernels of the graph: `names and sizes`, `names` or `count and order`.
    """
    numbers = kernels.group_by(kernel=pl.col("name").cast(pl.String)).agg(pl.col("kernel_id").min())
    rows = captured.join(numbers, on="kernel", how="left", maintain_order="left")
    is_kernel = pl.col("kind") == "kernel"
    lacks_name = (is_kernel & pl.col("kernel").is_null()).any().over("graph")
    lacks_size = (is_kernel & pl.any_horizontal(pl.col(name).is_null() for name in SIZES)).any().over("graph")
    named = pl.when(pl.col("kernel").is_not_null()).then(pl.col("kernel_id").fill_null(-1))
    sized, by_name, by_count = _LEVELS
    level = pl.when(lacks_name).then(pl.lit(by_count)).when(lacks_size).then(pl.lit(by_name)).otherwise(pl.lit(sized))
    return rows.with_columns(kernel_id=named, level=level)


def fingerprints(rows: pl.DataFrame, of: str, level: str) -> pl.DataFrame:
    """`of`, n and `print`: a number that sequences share which are alike at a level. Copies are alike by kind alone."""
    compared = [pl.when(pl.col("kind") == "kernel").then(name).alias(name) for name in _LEVELS[level] if name != "kind"]
    each = pl.struct("position", "kind", *compared).hash(seed=17)
    return rows.select(of, each=each).group_by(of, maintain_order=True).agg(n=pl.len(), print=pl.col("each").sum())


def _matched(rows: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """The column `graphs` of `Replays`."""
    graphs = rows.group_by("launch", maintain_order=True).agg(
        pl.col("process_id", "launched_ns").first(),
        n=pl.len(),
        kernels=(pl.col("kind") == "kernel").sum(),
        streams=pl.col("stream_id").n_unique(),
        longest=pl.col("duration_ns").sum(),
    )
    graphs = graphs.with_columns(matched=pl.lit(None, pl.Int32), by=pl.lit(None, pl.String), alike=pl.lit(False))
    contents = _contents(known)
    rows = rows.with_columns(level=_level_of_replay())
    for level, captures, launched in _PAIRS:
        own, ran = known.filter(pl.col("level") == captures), rows.filter(pl.col("level") == launched)
        if not own.height or not ran.height:
            continue
        prints = fingerprints(own, "graph", level).join(contents, on="graph")
        # Captures that are alike and whose operators differ leave open which of them is replayed.
        candidates = prints.group_by("n", "print").agg(
            candidate=pl.col("graph").min(), several=pl.col("content").n_unique() > 1
        )
        seen = fingerprints(ran, "launch", level).join(candidates, on=["n", "print"], how="inner")
        graphs = graphs.join(seen.select("launch", "candidate", "several"), on="launch", how="left")
        is_open = pl.col("matched").is_null() & ~pl.col("alike") & pl.col("candidate").is_not_null()
        graphs = graphs.with_columns(
            matched=pl.when(is_open & ~pl.col("several")).then("candidate").otherwise("matched"),
            by=pl.when(is_open & ~pl.col("several")).then(pl.lit(level)).otherwise("by"),
            alike=pl.col("alike") | (is_open & pl.col("several")),
        ).drop("candidate", "several")
    on_several = pl.col("streams") > 1
    reason = (
        pl.when(on_several)
        .then(pl.format("it ran on {} streams, whose order need not be that of the launches", "streams"))
        .when("alike")
        .then(pl.lit("several captured graphs have these launches, and their operators other inputs"))
        .when(pl.col("matched").is_null())
        .then(pl.lit("no captured graph has these launches in this order"))
    )
    told = graphs.with_columns(
        *(pl.when(~on_several).then(name).alias(name) for name in ("matched", "by")), reason=reason
    )
    told = told.rename({"launch": "call_id", "launched_ns": "start_ns"})
    return told.select("call_id", "process_id", "start_ns", "n", "kernels", "longest", "matched", "by", "reason")


def _level_of_replay() -> pl.Expr:
    """What is known of all kernels of a replay: their names, and their sizes where the profiler recorded those."""
    sized, by_name, _ = _LEVELS
    lacks = (pl.col("kind") == "kernel") & pl.any_horizontal(pl.col(name).is_null() for name in SIZES)
    return pl.when(lacks.any().over("launch")).then(pl.lit(by_name)).otherwise(pl.lit(sized))


def _contents(known: pl.DataFrame) -> pl.DataFrame:
    """graph and `content`: a number that graphs share whose operators had the same inputs."""
    call = pl.col("operator_call").rank("dense").over("graph")
    each = pl.struct("position", call.alias("call"), *INPUTS).hash(seed=18)
    return known.select("graph", each=each).group_by("graph").agg(content=pl.col("each").sum())


def _as_calls(
    rows: pl.DataFrame, known: pl.DataFrame, graphs: pl.DataFrame, first: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Launches and inputs of `Replays`, calls numbered from `first`."""
    matched = graphs.select("matched", launch="call_id", inputs_from=pl.col("by").replace(FROM_CAPTURE)).drop_nulls()
    replay = rows.join(matched, on="launch", how="inner")
    owned = known.filter(pl.col("operator").is_not_null()).select("graph", "position", "operator_call", *INPUTS)
    found = replay.join(owned, left_on=["matched", "position"], right_on=["graph", "position"], how="inner")
    number = pl.struct("launch", "operator_call").rank("dense").cast(pl.Int32) - 1 + first
    found = found.with_columns(call_id=number).sort("launch", "position")
    inputs = found.select("call_id", *INPUTS).unique("call_id", keep="first", maintain_order=True)
    return found.select(*_ACTIVITY, "call_id", "inputs_from"), inputs


def _next(api_calls: pl.DataFrame) -> int:
    last = api_calls.get_column("call_id").max()
    return int(last) + 1 if isinstance(last, int) else 0


def graph_evidence(found: Replays, captured: pl.DataFrame, kernels: pl.DataFrame) -> Iterator[Evidence]:
    """Of how many replays the operators are known, by what, and why not of the others; without replays nothing."""
    graphs = found.graphs
    if graphs.is_empty():
        return
    item, total = "operators of replayed graphs", graphs.height
    if captured.is_empty():
        reason = (
            f"{total} graph launches: no capture of a graph is recorded; put the traces in which the graphs were "
            "captured, taken with record_shapes=True, into a folder capture_traces beside this one"
        )
        yield Evidence(item, "absent", reason, "captured_launches", 0)
        return
    by = graphs.drop_nulls("by").group_by("by", maintain_order=True).len()
    told = [f"{count} of {total} graph launches by {level}" for level, count in by.iter_rows()]
    open_ = graphs.drop_nulls("reason").group_by("reason", maintain_order=True).len().sort("len", descending=True)
    told += [f"{count} not: {reason}" for reason, count in open_.iter_rows()]
    if apart := _difference(found, captured, kernels):
        told.append(apart)
    status: Status = "present" if not open_.height else "partial" if by.height else "absent"
    yield Evidence(
        item, status, "matched with captured graphs: " + "; ".join(told), "captured_launches", captured.height
    )


def _difference(found: Replays, captured: pl.DataFrame, kernels: pl.DataFrame) -> str | None:
    """Where the longest replay that no capture is like differs from the capture that is like it furthest; in words."""
    rows = found.records
    apart = found.graphs.filter(pl.col("matched").is_null() & pl.col("reason").str.starts_with("no captured"))
    if not apart.height:
        return None
    known = with_kernel_ids(captured, kernels)
    launch = apart.sort("longest", "call_id", descending=[True, False]).item(0, "call_id")
    own = rows.filter(pl.col("launch") == launch).select("position", "kind", seen="kernel_id")
    both = known.select("graph", "trace", "position", "kind", "kernel", "kernel_id", "level").join(
        own, on="position", how="left", suffix="_seen"
    )
    by_count = pl.col("level") == list(_LEVELS)[-1]
    alike = (pl.col("kind") == pl.col("kind_seen")) & (
        by_count | (pl.col("kind") != "kernel") | (pl.col("kernel_id") == pl.col("seen"))
    )
    first = both.group_by("graph", "trace", maintain_order=True).agg(
        size=pl.len(), until=pl.col("position").filter(~alike.fill_null(False)).min()
    )
    nearest = first.with_columns(pl.col("until").fill_null(pl.col("size"))).sort(
        "until", "graph", descending=[True, False]
    )
    graph, trace, size, until = nearest.row(0)
    theirs = known.filter((pl.col("graph") == graph) & (pl.col("position") == until))
    ours = own.filter(pl.col("position") == until).join(
        kernels.select("kernel_id", "short_name"), left_on="seen", right_on="kernel_id", how="left"
    )
    capture = _called(theirs, "kernel")
    replay = _called(ours, "short_name")
    of = f" of {trace}" if trace else ""
    return (
        f"the replay of call {launch} has {own.height} launches; the nearest, captured graph {graph}{of}, has {size}, "
        f"and they agree up to launch {until}: there the replay has {replay}, the capture {capture}"
    )


def _called(row: pl.DataFrame, name: str) -> str:
    if not row.height:
        return "none"
    named = row.item(0, name)
    return f"a {row.item(0, 'kind')}" if named is None else str(named)[:80]
