"""Match graph launches with the captures that they replay, and thus their kernels with operators.

`aaco_pipeline.analysis.completeness.graphs` handles replays that were only partly recorded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.completeness.launches import launches
from aaco_pipeline.analysis.roofline.operators.formulas import activities_of, owners
from aaco_pipeline.lake.evidence import Evidence, Status
from aaco_pipeline.lake.validation import empty_table, to_contract

SIZES: Final = tuple(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz")
INPUTS: Final = ("operator", "shapes", "types", "strides", "values")
#: The warm-up of a capture is searched for in this many launches before it.
_LOOKED_AT: Final = 200_000
_MOST_TRIED: Final = 100
Numbers = npt.NDArray[np.int64]


def captured_launches(
    tables: Mapping[str, pl.DataFrame], named: pl.DataFrame | None = None, trace: str = ""
) -> pl.DataFrame:
    """Rows of the table `captured_launches` for one trace, with graphs numbered from 0 in capture order.

    Args:
        tables: A trace's api_calls, operator_inputs, dispatches and kernels.
        named: call_id, kernel, and work-items of grid and workgroup, as stated by the calls that launch them.
        trace: The name of the trace.
    """
    calls = tables["api_calls"]
    names = calls.get_column("name").unique().cast(pl.String)
    if not names.str.contains("StreamBeginCapture", literal=True).any():
        return empty_table("captured_launches")
    empty = pl.DataFrame(schema={"call_id": pl.Int32, "process_id": pl.Int32, "correlation_id": pl.UInt64})
    every = launches(calls, empty.select("call_id"), empty).sort("start_ns", "call_id")
    every = every.select("process_id", "thread_id", "call_id", "kind", "capture", launched_ns="start_ns")
    every = _with_operators(every.with_row_index("row"), calls, tables["operator_inputs"])
    stated = _stated(every, tables, named)
    every = every.join(stated, on="call_id", how="left", maintain_order="left")
    own = pl.concat([every.clear(), *(_named(graph, every) for graph in _graphs(every))])
    return to_contract(
        "captured_launches",
        own.select(
            *("kind", "kernel", *SIZES, "named_by", *INPUTS),
            graph=pl.col("capture").rank("dense").cast(pl.Int32) - 1,
            position=pl.int_range(pl.len()).over("capture").cast(pl.Int32),
            trace=pl.lit(trace),
            launched_ns=pl.lit(None, pl.Int64) if trace else pl.col("launched_ns"),
            operator_call="operator_call_id",
        ),
    )


def _with_operators(every: pl.DataFrame, calls: pl.DataFrame, inputs: pl.DataFrame) -> pl.DataFrame:
    """Add the operator call to which each launch counts, and that operator's inputs; null outside any operator."""
    owned = owners(every, calls, inputs).select("row", "operator_call_id")
    found = owned.join(inputs, left_on="operator_call_id", right_on="call_id", how="left")
    return every.join(found, on="row", how="left", maintain_order="left")


def _stated(every: pl.DataFrame, tables: Mapping[str, pl.DataFrame], named: pl.DataFrame | None) -> pl.DataFrame:
    """call_id, kernel, its size and `named_by`: from the call, or from its only record."""
    found = []
    if named is not None:
        found.append(named.with_columns(pl.col("kernel").cast(pl.String), named_by=pl.lit("call")))
    ran = tables["dispatches"].drop_nulls("correlation_id").unique(["process_id", "correlation_id"], keep="none")
    ran = ran.join(tables["kernels"].select("kernel_id", kernel="name"), on="kernel_id", how="left")
    key = ["process_id", "correlation_id"]
    outer = tables["api_calls"].select("call_id", *key).filter(pl.col("correlation_id").is_not_null())
    recorded = outer.join(ran, on=key, how="inner").select("call_id", "kernel", *SIZES, named_by=pl.lit("warm_up"))
    found.append(recorded.join(every.select("call_id"), on="call_id", how="semi"))
    rows = pl.concat([one.select("call_id", "kernel", *SIZES, "named_by") for one in found])
    return rows.unique("call_id", keep="first", maintain_order=True)


def _graphs(every: pl.DataFrame) -> Iterator[pl.DataFrame]:
    yield from every.drop_nulls("capture").partition_by("capture", maintain_order=True)


def _named(graph: pl.DataFrame, every: pl.DataFrame) -> pl.DataFrame:
    """Name a captured graph's unnamed launches after the kernels of the preceding warm-up."""
    kernels = pl.col("kind") == "kernel"
    if not graph.filter(kernels & pl.col("kernel").is_null()).height:
        return graph
    unnamed = graph.with_columns(
        *(pl.lit(None, graph.schema[name]).alias(name) for name in ("kernel", *SIZES, "named_by"))
    )
    first = graph.row(0, named=True)
    before = every.filter(
        pl.col("capture").is_null()
        & (pl.col("launched_ns") < first["launched_ns"])
        & pl.col("thread_id").eq_missing(first["thread_id"])
        & (pl.col("process_id") == first["process_id"])
    ).tail(_LOOKED_AT)
    at = _place(_codes(before, graph), graph.height)
    if at is None:
        return unnamed
    warm_up = before.slice(at, graph.height)
    if warm_up.filter(kernels & pl.col("kernel").is_null()).height:
        return unnamed
    return (
        unnamed.drop("kernel", *SIZES, "named_by")
        .hstack(warm_up.select("kernel", *SIZES, "named_by"))
        .select(graph.columns)
    )


def _codes(before: pl.DataFrame, graph: pl.DataFrame) -> Numbers:
    """Number each distinct launch by kind, operator and inputs: those before the capture, then the graph's."""
    both = pl.concat([one.select("kind", *INPUTS) for one in (before, graph)])
    distinct = both.unique().with_row_index("code")
    codes = both.join(distinct, on=["kind", *INPUTS], nulls_equal=True, how="left", maintain_order="left")
    return codes.get_column("code").cast(pl.Int64).to_numpy()


def _place(codes: Numbers, length: int) -> int | None:
    """Find the latest position of the last `length` numbers among those before them; None if they do not occur."""
    before, wanted = codes[:-length], codes[-length:]
    last = len(before) - length
    if last < 0:
        return None
    middle = length // 2
    could = before[: last + 1] == wanted[0]
    could &= before[middle : middle + last + 1] == wanted[middle]
    could &= before[length - 1 :] == wanted[-1]
    for at in np.flatnonzero(could)[::-1][:_MOST_TRIED]:
        if np.array_equal(before[at : at + length], wanted):
            return int(at)
    return None


_GRAPH_LAUNCH: Final = r"^(?:hip|cuda|cu)GraphLaunch"
#: Kernels that ROCm's runtime uses for copies and fills.
_OF_RUNTIME: Final = "__amd_rocclr_"
#: Levels of a capture's knowledge about its launches, most specific first, and the columns to compare.
_LEVELS: Final = {
    "names and sizes": ("kind", "kernel_id", *SIZES),
    "names": ("kind", "kernel_id"),
    "count and order": ("kind",),
}
#: Level at which a capture of one level is compared with a replay of another: what both know.
_PAIRS: Final = tuple(
    (level, captures, launched)
    for level in _LEVELS
    for captures in _LEVELS
    for launched in list(_LEVELS)[:2]
    if list(_LEVELS).index(level) == max(list(_LEVELS).index(captures), list(_LEVELS).index(launched))
)
#: Origins of inputs: the trace itself, or a captured graph and how it was matched.
FROM_TRACE: Final = "trace"
FROM_CAPTURE: Final = {level: f"captured graph, by {level}" for level in _LEVELS}
BY_COUNT: Final = FROM_CAPTURE["count and order"]
_ACTIVITY: Final = ("activity_kind", "activity_id", "kernel_id", "device_id", "duration_ns", "from_or_to_host")


@dataclass(frozen=True)
class Replays:
    """Graph launches matched with captures.

    `launches`: one row per matched kernel, copy or fill with an operator, as in `formulas.owned_launches`, with
    `inputs_from`; each replay of an operator's call has its own `call_id`, listed in `inputs`, which has the columns of
    `operator_inputs`. `graphs`: one row per graph launch with records: call_id, process_id, start_ns, n (records),
    kernels, longest (their summed time in ns), matched (graph of `captured_launches`; null for none), by (the level of
    the match) and reason (if not matched). `records`: the result of `replayed`.
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
    """Match the work of graph launches with `captured_launches`; all arguments are canonical tables."""
    rows = replayed(dispatches, copies, api_calls, kernels)
    known = with_kernel_ids(captured, kernels)
    graphs = _matched(rows, known)
    launches, inputs = _as_calls(rows, known, graphs, _next(api_calls))
    return Replays(launches, inputs, graphs, rows)


def replayed(
    dispatches: pl.DataFrame, copies: pl.DataFrame, api_calls: pl.DataFrame, kernels: pl.DataFrame
) -> pl.DataFrame:
    """List the records of graph launches, in device order within each launch.

    Columns: launch (the replaying call), launched_ns, process_id, position, kind (`kernel`, or `copy` for copies and
    fills, which ROCm runs as its own kernels), stream_id, the sizes, and those of `formulas.activities_of`.
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
    """Add the session's `kernel_id` (-1 for an unknown kernel) and the `level` to `captured_launches`.

    The level is the information available for all kernels of the graph: `names and sizes`, `names` or `count and
    order`.
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
    """`of`, n and `print`: a hash shared by sequences that are equal at a level. Copies are compared only by kind."""
    compared = [pl.when(pl.col("kind") == "kernel").then(name).alias(name) for name in _LEVELS[level] if name != "kind"]
    each = pl.struct("position", "kind", *compared).hash(seed=17)
    return rows.select(of, each=each).group_by(of, maintain_order=True).agg(n=pl.len(), print=pl.col("each").sum())


def _matched(rows: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """The field `graphs` of `Replays`."""
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
        # Equal captures with different operators make the match ambiguous.
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
    found = graphs.with_columns(
        *(pl.when(~on_several).then(name).alias(name) for name in ("matched", "by")), reason=reason
    )
    found = found.rename({"launch": "call_id", "launched_ns": "start_ns"})
    return found.select("call_id", "process_id", "start_ns", "n", "kernels", "longest", "matched", "by", "reason")


def _level_of_replay() -> pl.Expr:
    """Return the kernels of a replay: their names, and their sizes if the profiler recorded them."""
    sized, by_name, _ = _LEVELS
    lacks = (pl.col("kind") == "kernel") & pl.any_horizontal(pl.col(name).is_null() for name in SIZES)
    return pl.when(lacks.any().over("launch")).then(pl.lit(by_name)).otherwise(pl.lit(sized))


def _contents(known: pl.DataFrame) -> pl.DataFrame:
    """graph and `content`: a hash shared by graphs whose operators had the same inputs."""
    call = pl.col("operator_call").rank("dense").over("graph")
    each = pl.struct("position", call.alias("call"), *INPUTS).hash(seed=18)
    return known.select("graph", each=each).group_by("graph").agg(content=pl.col("each").sum())


def _as_calls(
    rows: pl.DataFrame, known: pl.DataFrame, graphs: pl.DataFrame, first: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Launches and inputs of `Replays`, with calls numbered from `first`."""
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
    """Number of replays with known operators, by level, and reasons for the others; empty without replays."""
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
    parts = [f"{count} of {total} graph launches by {level}" for level, count in by.iter_rows()]
    open_ = graphs.drop_nulls("reason").group_by("reason", maintain_order=True).len().sort("len", descending=True)
    parts += [f"{count} not: {reason}" for reason, count in open_.iter_rows()]
    if apart := _difference(found, captured, kernels):
        parts.append(apart)
    status: Status = "present" if not open_.height else "partial" if by.height else "absent"
    reason = "matched with captured graphs: " + "; ".join(parts)
    yield Evidence(item, status, reason, "captured_launches", captured.height)


def _difference(found: Replays, captured: pl.DataFrame, kernels: pl.DataFrame) -> str | None:
    """Describe where the longest unmatched replay differs from the capture with the longest common start."""
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
