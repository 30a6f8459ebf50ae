"""Hardware counters of all passes at their places: a dispatch of the base trace, or a kernel where none can be told.

Passes are runs of their own. An execution is a dispatch's where both runs number it alike, else where both ran the
kernel on that grid equally often: then the n-th is the n-th. Of a pass that counted the first executions of each kernel
alone the n-th is the n-th of at least as many. What neither tells keeps its kernel and no dispatch. Whatever the base
trace lacks, no value is left out.
"""

from collections.abc import Sequence
from typing import Final

import polars as pl

from aaco_pipeline.capture.merging.base import Base
from aaco_pipeline.capture.merging.parts import NamedReading
from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

#: How an execution found its place, as `counters.matched_by` says it.
DISPATCH: Final = "dispatch"
EXECUTION: Final = "execution"
KERNEL: Final = "kernel"
_LAUNCH: Final = ("process", "name", "grid", "workgroup")
_RESOURCES: Final = ("name", "arch_vgprs", "accum_vgprs", "sgprs")


def counters(parts: Sequence[NamedReading], base: Base) -> tuple[pl.DataFrame, pl.DataFrame, list[Evidence]]:
    """The table `counters` of all parts, and `kernels` with those that only a counter pass ran."""
    kernels = base.tables["kernels"]
    of_dispatch = base.tables["dispatches"].select("dispatch_id", "kernel_id")
    found = [empty_table("counters")]
    found_by: dict[str, dict[str, int]] = {EXECUTION: {}, KERNEL: {}}
    for part in parts:
        # A format whose file is one pass does not name it.
        named = pl.when(pl.col("pass") == "").then(pl.lit(part.name)).otherwise("pass").alias("pass")
        values = part.table("counters").with_columns(named).drop("kernel_id", "matched_by", "source_dispatch_id")
        if values.is_empty():
            continue
        if part.name in base.dispatch_offsets:
            offset = base.dispatch_offsets[part.name]
            own = part.keys.select(pl.col("dispatch_id") + offset, "source_dispatch_id")
            places = own.join(of_dispatch, on="dispatch_id", how="left").with_columns(
                matched_by=pl.lit(DISPATCH), session_dispatch="dispatch_id"
            )
            values = values.with_columns(pl.col("dispatch_id") + offset)
        else:
            kernels, places = _placed(part, base, kernels)
        placed = values.join(places, on="dispatch_id", how="left", maintain_order="left")
        for how, counts in found_by.items():
            counts[part.name] = placed.filter(pl.col("matched_by") == how).height
        placed = placed.with_columns(dispatch_id="session_dispatch").drop("session_dispatch")
        found.append(to_contract("counters", placed))
    return pl.concat(found), kernels, _evidence(found_by)


def _evidence(found_by: dict[str, dict[str, int]]) -> list[Evidence]:
    """How many values, of which passes, found no dispatch by number."""
    findings = Findings()
    words = {
        EXECUTION: (
            "counter values matched by execution",
            "are of dispatches that their pass numbers otherwise: the n-th of a kernel and grid that ran as often, or "
            "whose first were counted",
        ),
        KERNEL: (
            "counter values matched to dispatches",
            "belong to executions that the base trace numbers otherwise or lacks: they are their kernels', and no "
            "single dispatch's",
        ),
    }
    for how, counts in found_by.items():
        count = sum(counts.values())
        item, told = words[how]
        passes = ", ".join(name for name, values in counts.items() if values)
        findings.note(count, item, "partial", f"{count} values of {passes} {told}")
    return findings.evidence


def _placed(part: NamedReading, base: Base, kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The kernels, and for each execution of a further pass: session_dispatch, kernel_id, matched_by, and its number.

    Of several processes in the base trace one execution is only looked for in that of its own rank.
    """
    kernels, of_part = _kernels(part, kernels)
    executions = part.keys.join(of_part, on="dispatch_id", how="left").with_columns(_process(part, base))
    # Numbers of those that were counted alone are not the trace's.
    by_number = _by_number(executions.clear() if part.counts_first else executions, base.keys)
    by_turn = _by_turn(executions, base.keys, by_number, first=part.counts_first)
    rest = executions.select("dispatch_id").join(pl.concat([by_number, by_turn]), on="dispatch_id", how="anti")
    alone = rest.with_columns(session_dispatch=pl.lit(None, pl.Int32), matched_by=pl.lit(KERNEL))
    places = executions.select("dispatch_id", "source_dispatch_id", "kernel_id").join(
        pl.concat([by_number, by_turn, alone]), on="dispatch_id", how="left"
    )
    of_base = base.tables["dispatches"].select(session_dispatch="dispatch_id", base_kernel="kernel_id")
    places = places.join(of_base, on="session_dispatch", how="left", maintain_order="left")
    return kernels, places.with_columns(kernel_id=pl.coalesce("base_kernel", "kernel_id")).drop("base_kernel")


def _process(part: NamedReading, base: Base) -> pl.Expr:
    """The base trace's process for each of the part's; null where it cannot be told."""
    processes = base.tables["processes"]
    if processes.height <= 1:
        return pl.col("process")
    ranks = dict(processes.drop_nulls("rank").unique("rank", keep="none").select("rank", "process_id").iter_rows())
    own = {number: ranks.get(rank) for number, rank in part.table("processes").select("process_id", "rank").iter_rows()}
    return pl.col("process").replace_strict(own, default=None, return_dtype=pl.Int32)


def _by_number(executions: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Executions with the number, kernel and grid of one dispatch: dispatch_id, session_dispatch, matched_by.

    None of a kernel and grid that ran equally often in both and whose numbers do not all agree: there a number that
    does agree is another turn's.
    """
    theirs = keys.select("process", "source_dispatch_id", "name", session_dispatch="dispatch_id", base_grid="grid")
    theirs = theirs.unique(["process", "source_dispatch_id", "name"], keep="none")
    alike = executions.join(theirs, on=["process", "source_dispatch_id", "name"], how="left", maintain_order="left")
    differs = (pl.col("grid") != pl.col("base_grid")).fill_null(False)
    alike = alike.with_columns(session_dispatch=pl.when(~differs).then("session_dispatch"))
    often = keys.group_by(_LAUNCH).agg(base_count=pl.len())
    alike = alike.join(often, on=_LAUNCH, how="left", nulls_equal=True, maintain_order="left").with_columns(
        count=pl.len().over(_LAUNCH), whole=pl.col("session_dispatch").is_not_null().all().over(_LAUNCH)
    )
    shifted = (pl.col("count") == pl.col("base_count")).fill_null(False) & ~pl.col("whole")
    return alike.filter(pl.col("session_dispatch").is_not_null() & ~shifted).select(
        "dispatch_id", "session_dispatch", matched_by=pl.lit(DISPATCH)
    )


def _by_turn(executions: pl.DataFrame, keys: pl.DataFrame, taken: pl.DataFrame, *, first: bool) -> pl.DataFrame:
    """The other executions of kernels that ran on one grid as often in the base trace: the n-th is the n-th.

    With `first`, of those that ran at least as often there.
    """
    known = pl.col("process").is_not_null() & pl.col("grid").is_not_null()
    turn = pl.int_range(pl.len(), dtype=pl.Int32).over(_LAUNCH)
    ordered = pl.col("source_dispatch_id")

    def turns(frame: pl.DataFrame) -> pl.DataFrame:
        return (
            frame.filter(known)
            .sort(ordered, "dispatch_id", nulls_last=True)
            .with_columns(turn=turn, count=pl.len().over(_LAUNCH))
        )

    left = executions.join(taken, on="dispatch_id", how="anti", maintain_order="left")
    free = keys.join(taken.select(dispatch_id="session_dispatch"), on="dispatch_id", how="anti", maintain_order="left")
    theirs = turns(free).select(*_LAUNCH, "turn", base_count="count", session_dispatch="dispatch_id")
    as_often = pl.col("count") <= pl.col("base_count") if first else pl.col("count") == pl.col("base_count")
    return (
        turns(left)
        .join(theirs, on=[*_LAUNCH, "turn"], how="inner", nulls_equal=True)
        .filter(as_often)
        .select("dispatch_id", "session_dispatch", matched_by=pl.lit(EXECUTION))
    )


def _kernels(part: NamedReading, kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The session's kernels with those that only this part has, and the kernel of each of its executions.

    A kernel is the session's one of the same name and registers, else the first of the same name.
    """
    used = part.executions.select("dispatch_id", own="kernel_id")
    counted = part.table("counters").select("dispatch_id").unique()
    used = used.join(counted, on="dispatch_id", how="semi", maintain_order="left")
    own = part.table("kernels").join(used.select(kernel_id="own").unique(), on="kernel_id", how="semi")
    by_name = kernels.unique("name", keep="first", maintain_order=True)
    new = own.join(by_name, on="name", how="anti", maintain_order="left")
    new = new.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32) + kernels.height)
    kernels = pl.concat([kernels, new.select(kernels.columns)])
    exact = kernels.unique(_RESOURCES, keep="first", maintain_order=True).select(*_RESOURCES, exact="kernel_id")
    named = kernels.unique("name", keep="first", maintain_order=True).select("name", named="kernel_id")
    numbers = (
        own.select(*_RESOURCES, own="kernel_id")
        .join(exact, on=_RESOURCES, how="left", nulls_equal=True)
        .join(named, on="name", how="left")
        .select("own", kernel_id=pl.coalesce("exact", "named"))
    )
    return kernels, used.join(numbers, on="own", how="left", maintain_order="left").drop("own")
