"""The launches from which graphs were captured, in order, each with its operator and what is known of its kernel.

While a stream is captured, launches run nothing: the trace has the host's calls and the operators around them, and no
device activity. A kernel's name and size are known where the launch states them, as ROCm's do; else where the same
operators launched the same kinds of work before the capture on the same thread, as a warm-up does, and these left
records. Which replay runs which graph is `replays`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.completeness.launches import launches
from aaco_pipeline.analysis.roofline.operators.calls import owners
from aaco_pipeline.lake.validation import empty_table, to_contract

SIZES: Final = tuple(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz")
INPUTS: Final = ("operator", "shapes", "types", "strides", "values")
#: Beyond this many launches before a capture its warm-up is not looked for.
_LOOKED_AT: Final = 200_000
_MOST_TRIED: Final = 100
Numbers = npt.NDArray[np.int64]


def captured_launches(
    tables: Mapping[str, pl.DataFrame], named: pl.DataFrame | None = None, trace: str = ""
) -> pl.DataFrame:
    """Rows of the table `captured_launches` of one trace, graphs numbered from 0 in the order of their captures.

    `tables` has a trace's api_calls, operator_inputs, dispatches and kernels; `named` (call_id, kernel, work-items of
    grid and workgroup) what calls state of the kernels that they launch. `trace` is what the trace is called.
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
    """The launches with the operator's call that each counts to, and that operator's inputs; null outside any."""
    owned = owners(every, calls, inputs).select("row", "operator_call_id")
    found = owned.join(inputs, left_on="operator_call_id", right_on="call_id", how="left")
    return every.join(found, on="row", how="left", maintain_order="left")


def _stated(every: pl.DataFrame, tables: Mapping[str, pl.DataFrame], named: pl.DataFrame | None) -> pl.DataFrame:
    """call_id, kernel, its size and `named_by`: by the call, or by the one record that it left."""
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
    """A captured graph's launches with the kernels of the warm-up before it, where they have no names themselves."""
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
    """A number for each distinct launch by kind, operator and inputs: those before the capture, then the graph's."""
    both = pl.concat([one.select("kind", *INPUTS) for one in (before, graph)])
    distinct = both.unique().with_row_index("code")
    codes = both.join(distinct, on=["kind", *INPUTS], nulls_equal=True, how="left", maintain_order="left")
    return codes.get_column("code").cast(pl.Int64).to_numpy()


def _place(codes: Numbers, length: int) -> int | None:
    """Where the last `length` numbers are found among those before them, at the latest place; None where nowhere."""
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
