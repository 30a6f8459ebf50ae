"""What a thread trace says about a kernel: why its wavefronts stalled, what the waits waited for, and what costs most.

A wavefront stalls at a wait instruction (`s_waitcnt` and its successors) until memory operations that it issued before
are done; the decoder lists which. That stall is charged to them. A stall at any other instruction is that
instruction's own: the unit that executes it takes no more. Everything is in shader clock cycles of the traced
wavefronts, those of one compute unit, and never scaled up to the grid. Stalled cycles are part of an instruction's
latency. Idle cycles are not: they come before it, and whether arbitration lost, a register not ready or a missing
instruction was the cause, a thread trace does not tell.

How many operations a wait waited for, and whom to charge:

- Vector memory and LDS operations complete in the order in which they were issued (LLVM, "User Guide for AMDGPU
  Backend", memory model), so a wait ends with the last of them, and that one is charged.
- Scalar memory and flat operations may complete in any order; all of them are charged alike.
- A wait for several kinds of operations is charged to each kind alike, for no record says which one was last.

Cycles stay whole: what does not divide goes, one cycle each, to the first in the decoder's order.
"""

from typing import Final

import polars as pl

#: Reason for stalls of waits of which the trace does not say what they waited for.
UNATTRIBUTED: Final = "unattributed"
_KEYS: Final = ("kernel_id", "dispatch_id", "capture")
#: Of an instruction: its class, how its mnemonic may begin, the reason when it stalls itself, the reason when a wait
#: waits for it, and whether operations of the kind complete in order. The first that fits holds; "" is any class.
_KINDS: Final = (
    ("matrix", "", "matrix pipe busy", "waiting for the matrix pipe", False),
    ("valu", "", "vector ALU busy", "waiting for the vector ALU", False),
    ("salu", "", "scalar ALU busy", "waiting for the scalar ALU", False),
    ("vmem", r"[a-z0-9]+_atomic", "vector memory atomic issue", "waiting for vector memory atomics", True),
    ("vmem", r"[a-z0-9]+_store", "vector memory store issue", "waiting for vector memory stores", True),
    ("vmem", r"[a-z0-9]+_(wb|inv)", "cache control issue", "waiting for cache control", True),
    ("vmem", "", "vector memory load issue", "waiting for vector memory loads", True),
    ("flat", r"flat_atomic", "vector memory atomic issue", "waiting for vector memory atomics", False),
    ("flat", r"flat_store", "vector memory store issue", "waiting for vector memory stores", False),
    ("flat", "", "vector memory load issue", "waiting for vector memory loads", False),
    ("lds", r"(ds|lds)_(read|load|direct_load|param_load)", "LDS read issue", "waiting for LDS reads", True),
    ("lds", r"ds_(write|store)", "LDS write issue", "waiting for LDS writes", True),
    ("lds", "", "LDS operation issue", "waiting for LDS operations", True),
    ("smem", "", "scalar memory issue", "waiting for scalar memory", False),
    ("export", "", "export issue", "waiting for exports", True),
    ("message", "", "message issue", "waiting for messages", False),
    ("barrier", "", "barrier", "waiting for a barrier", False),
    ("branch", "", "branch", "waiting for a branch", False),
    ("wait", "", "programmed delay", "waiting for a delay", False),
    ("", "", "other instruction", "waiting for other instructions", False),
)
_COUNTER_WAIT: Final = r"^s_wait"


def is_counter_wait() -> pl.Expr:
    """Whether the instruction of a row waits for operations issued before, and not for cycles to pass or a barrier."""
    return ((pl.col("instruction_class") == "wait") & mnemonic().str.contains(_COUNTER_WAIT)).fill_null(False)


def mnemonic() -> pl.Expr:
    """The instruction of a row without its operands; null when it is not known."""
    return pl.col("instruction").str.to_lowercase().str.extract(r"^\s*(\S+)")


def charged(instructions: pl.DataFrame, wait_executions: pl.DataFrame, wait_dependencies: pl.DataFrame) -> pl.DataFrame:
    """The instructions with `charged_stall_cycles`: what others stalled, in cycles, waiting for this one.

    `instructions` are rows of `att_instructions` with the column `part`, the trace that a row is from. The other two
    have `part` and `wave_index`: `wait_executions` with line and stall of each executed wait in order of execution,
    `wait_dependencies` with wait, line and dependency_line (null when it waited for nothing known) as the decoder
    lists them. Null for rows without hits, and for traces that do not say what their waits waited for. The result
    never exceeds the waits' own `stall_cycles`: of a line whose executions stalled longer than the listing says,
    nothing is charged.
    """
    by_line = charges(instructions, wait_executions, wait_dependencies)
    sums = by_line.group_by("part", line="producer_line").agg(charge=pl.col("stall_cycles").sum())
    known = pl.col("part").is_in(wait_dependencies.drop_nulls("dependency_line").get_column("part").unique().implode())
    waits = (is_counter_wait() & (pl.col("hits") > 0)).any().over("part")
    first = pl.struct("part", "line").is_first_distinct()  # of a line that a damaged listing has twice
    return (
        instructions.drop("charged_stall_cycles", strict=False)
        .join(sums, on=["part", "line"], how="left", maintain_order="left")
        .with_columns(
            charged_stall_cycles=pl.when(pl.col("hits").is_not_null() & (known | ~waits)).then(
                pl.when(first).then(pl.col("charge")).fill_null(0)
            )
        )
        .drop("charge")
    )


def charges(instructions: pl.DataFrame, wait_executions: pl.DataFrame, wait_dependencies: pl.DataFrame) -> pl.DataFrame:
    """Who is charged for which wait: part, line (of the wait), producer_line, stall_cycles. Arguments as of `charged`.

    A wait that a wavefront executes several times is listed once for each time that something was outstanding. Where
    it is listed as often as it was executed, each listing has the stall of its own execution. Where it is not, it
    cannot be known which belong together, and the wavefront's stalls at that line are shared by its listings alike.
    """
    lines = instructions.filter(pl.col("line").is_not_null()).unique(["part", "line"], keep="first")
    producers = (
        wait_dependencies.with_row_index("listed")
        .join(
            lines.select("part", dependency_line="line", kind=_kind()),
            on=["part", "dependency_line"],
            how="inner",
            maintain_order="left",
        )
        .unique(["part", "wave_index", "wait", "dependency_line"], keep="last", maintain_order=True)
    )
    entry = ("part", "wave_index", "wait")
    ordered = pl.col("kind").is_in([number for number, row in enumerate(_KINDS) if row[4]])
    last = pl.col("listed") == pl.col("listed").max().over(*entry, "kind")
    chosen = producers.filter(~ordered | last)
    stalls = _entry_stalls(lines, wait_executions, wait_dependencies)
    kinds = pl.col("kind").rank("dense").over(entry).cast(pl.Int64) - 1
    place = pl.int_range(pl.len(), dtype=pl.Int64).over(*entry, "kind")
    return (
        chosen.join(stalls, on=entry, how="inner", maintain_order="left")
        .with_columns(share=_share(pl.col("stall"), pl.col("kind").n_unique().over(entry), kinds))
        .with_columns(stall_cycles=_share(pl.col("share"), pl.len().over(*entry, "kind"), place))
        .group_by("part", "line", producer_line="dependency_line")
        .agg(pl.col("stall_cycles").sum())
        .sort("part", "line", "producer_line")
    )


def _entry_stalls(lines: pl.DataFrame, executions: pl.DataFrame, dependencies: pl.DataFrame) -> pl.DataFrame:
    """The stall of each listed wait: part, wave_index, wait, stall. Lines that contradict the listing are left out."""
    at = ("part", "wave_index", "line")
    occurrence = pl.int_range(pl.len(), dtype=pl.Int64).over(at)
    waits = lines.filter(is_counter_wait()).select("part", "line", stated="stall_cycles")
    executed = (
        executions.join(waits, on=["part", "line"], how="inner", maintain_order="left")
        .filter(pl.col("stall").sum().over("part", "line") <= pl.col("stated"))
        .with_columns(occurrence=occurrence, executed=pl.len().over(at), whole=pl.col("stall").sum().over(at))
    )
    entries = dependencies.unique(["part", "wave_index", "wait"], keep="first", maintain_order=True)
    entries = entries.with_columns(occurrence=occurrence, entries=pl.len().over(at))
    wholes = executed.unique(at, keep="first").select(*at, "executed", "whole")
    return (
        entries.join(wholes, on=at, how="inner", maintain_order="left")
        .join(executed.select(*at, "occurrence", "stall"), on=[*at, "occurrence"], how="left", maintain_order="left")
        .select(
            "part",
            "wave_index",
            "wait",
            stall=pl.when(pl.col("executed") == pl.col("entries"))
            .then("stall")
            .otherwise(_share(pl.col("whole"), pl.col("entries"), pl.col("occurrence"))),
        )
    )


def breakdown(instructions: pl.DataFrame) -> pl.DataFrame:
    """Stalled cycles by reason and by the instruction that caused them, most first within a dispatch.

    Columns: kernel_id, dispatch_id, capture, reason, mnemonic (null when unattributed), stall_cycles. `instructions`
    are rows of `att_instructions` with `charged_stall_cycles`, as the lake has them; traces are never added up. Over
    all rows of a trace the cycles are exactly its instructions' `stall_cycles`; rows that were sampled and not traced
    count for nothing.
    """
    traced = instructions.filter(pl.col("stall_cycles").is_not_null()).with_columns(
        mnemonic=mnemonic(), kind=_kind(), waits=is_counter_wait(), charge=pl.col("charged_stall_cycles").fill_null(0)
    )
    own = traced.filter(~pl.col("waits")).select(*_KEYS, "mnemonic", _reason(2), "stall_cycles")
    awaited = traced.select(*_KEYS, "mnemonic", _reason(3), stall_cycles="charge")
    rest = traced.group_by(_KEYS).agg(
        mnemonic=pl.lit(None, pl.String),
        reason=pl.lit(UNATTRIBUTED),
        stall_cycles=pl.col("stall_cycles").filter("waits").sum() - pl.col("charge").sum(),
    )
    return (
        pl.concat([own, awaited, rest])
        .group_by(*_KEYS, "reason", "mnemonic")
        .agg(pl.col("stall_cycles").sum())
        .filter(pl.col("stall_cycles") != 0)
        .sort(
            *_KEYS,
            "stall_cycles",
            "reason",
            "mnemonic",
            descending=[False, False, False, True, False, False],
            nulls_last=True,
        )
    )


def stalls(instructions: pl.DataFrame) -> pl.DataFrame:
    """`att_stalls` of the traced instructions: one row for each reason, the cycles of a dispatch conserved exactly."""
    found = breakdown(instructions).group_by(*_KEYS, "reason").agg(pl.col("stall_cycles").sum())
    whole = pl.col("stall_cycles").sum().over(_KEYS)
    return found.select(
        "kernel_id",
        "dispatch_id",
        "reason",
        "stall_cycles",
        samples=pl.lit(None, pl.Int64),
        share_ratio=pl.col("stall_cycles") / whole,
        capture="capture",
    ).sort(*_KEYS, "stall_cycles", "reason", descending=[False, False, False, True, False], nulls_last=True)


def traced_share(waves: pl.DataFrame, wave_starts: pl.DataFrame) -> pl.DataFrame:
    """How much of a shader engine was traced: one row for each trace and engine that has traced wavefronts.

    `waves` has part, shader_engine and cu of each traced wavefront; `wave_starts` part, shader_engine, cu and waves,
    how many began on every compute unit of the engine while it was traced. Columns: part, shader_engine,
    compute_units (their numbers), traced_waves, seen_waves, seen_compute_units, traced_ratio; the last three are null
    where the capture has no record of the other compute units. Other engines are not seen at all.
    """
    seen = wave_starts.group_by("part", "shader_engine").agg(
        seen_waves=pl.col("waves").sum(), seen_compute_units=pl.col("cu").n_unique().cast(pl.Int64)
    )
    return (
        waves.group_by("part", "shader_engine")
        .agg(compute_units=pl.col("cu").drop_nulls().unique().sort(), traced_waves=pl.len().cast(pl.Int64))
        .join(seen, on=["part", "shader_engine"], how="left")
        .with_columns(
            traced_ratio=pl.when(pl.col("seen_waves") >= pl.col("traced_waves")).then(
                pl.col("traced_waves") / pl.col("seen_waves")
            )
        )
        .sort("part", "shader_engine")
    )


def _kind() -> pl.Expr:
    """The number in `_KINDS` of a row's instruction."""
    name = mnemonic().fill_null("")
    tests = [
        pl.when(
            (pl.col("instruction_class") == kind if kind else pl.lit(True)) & name.str.contains(f"^({pattern})")
        ).then(pl.lit(number, pl.Int64))
        for number, (kind, pattern, *_) in enumerate(_KINDS)
    ]
    return pl.coalesce(tests)


def _reason(column: int) -> pl.Expr:
    return (
        pl.col("kind")
        .replace_strict({number: row[column] for number, row in enumerate(_KINDS)}, return_dtype=pl.String)
        .alias("reason")
    )


def _share(amount: pl.Expr, among: pl.Expr, place: pl.Expr) -> pl.Expr:
    """The whole part of `amount` for the one at `place` (from 0) when `among` share it."""
    count = among.cast(pl.Int64)
    return amount // count + (place < amount % count).cast(pl.Int64)
