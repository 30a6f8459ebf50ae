"""Cost and stall reasons of individual instructions, from thread traces and program-counter samples.

A wavefront stalls at a wait instruction (`s_waitcnt` and its successors) until memory operations that it issued earlier
are done; the decoder lists them. That stall is charged to these operations. A stall at any other instruction is its
own: its execution unit is full. All figures are shader clock cycles of the traced wavefronts, which ran on one compute
unit, and are never scaled up to the grid. Stalled cycles are part of an instruction's latency. Idle cycles precede it,
and a thread trace does not show whether they come from lost arbitration, an operand that is not ready or a missing
instruction.

A wait's stall is charged to the operations that it waited for, as follows:

- Vector memory and LDS operations complete in the order in which they were issued (LLVM, "User Guide for AMDGPU
  Backend", memory model), so a wait ends with the last of them, and that one is charged.
- Scalar memory and flat operations may complete in any order; all of them are charged equally.
- A wait for several kinds of operations is charged to each kind equally, since no record says which one was last.

Cycles are integers: the remainder of a division is distributed, one cycle each, in the decoder's order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from aaco_pipeline.hardware.instruction_classes import instruction_class
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Reason of a wait's stall if the trace does not list the awaited operations.
UNATTRIBUTED: Final = "unattributed"
_KEYS: Final = ("kernel_id", "dispatch_id", "capture")
#: Instruction kinds: class ("" is any), mnemonic prefix pattern, reason of the instruction's own stall, reason of a
#: wait for it, and whether its operations complete in order. The first match counts.
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
    """Return whether instructions wait for earlier operations, rather than for a number of cycles or a barrier."""
    return ((pl.col("instruction_class") == "wait") & mnemonic().str.contains(_COUNTER_WAIT)).fill_null(False)


def mnemonic() -> pl.Expr:
    """Return the instruction without its operands; null if unknown."""
    return pl.col("instruction").str.to_lowercase().str.extract(r"^\s*(\S+)")


def charged(instructions: pl.DataFrame, wait_executions: pl.DataFrame, wait_dependencies: pl.DataFrame) -> pl.DataFrame:
    """Return the instructions with `charged_stall_cycles`: the cycles that waits for this instruction stalled.

    `instructions` are rows of `att_instructions` with the column `part`, the trace to which a row belongs. The other
    two have `part` and `wave_index`: `wait_executions` has line and stall of each executed wait in execution order;
    `wait_dependencies` has wait, line and dependency_line (null if it waited for nothing known) as listed by the
    decoder. The charge is null for rows without hits, and in traces that do not list awaited operations. Charges never
    exceed the waits' own `stall_cycles`: if the executions of a line stalled longer than its listed total, nothing is
    charged for that line.
    """
    by_line = charges(instructions, wait_executions, wait_dependencies)
    sums = by_line.group_by("part", line="producer_line").agg(charge=pl.col("stall_cycles").sum())
    known = pl.col("part").is_in(wait_dependencies.drop_nulls("dependency_line").get_column("part").unique().implode())
    waits = (is_counter_wait() & (pl.col("hits") > 0)).any().over("part")
    first = pl.struct("part", "line").is_first_distinct()  # a damaged listing may repeat a line
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
    """Return each wait's charges: part, line (of the wait), producer_line, stall_cycles. Arguments as in `charged`.

    A wait that a wavefront executes several times is listed once per execution with something outstanding. If it is
    listed as often as it was executed, each listing gets the stall of its own execution. Otherwise the two cannot be
    matched, and the wavefront's stalls at that line are divided equally among its listings.
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
    entry_stalls = _entry_stalls(lines, wait_executions, wait_dependencies)
    kinds = pl.col("kind").rank("dense").over(entry).cast(pl.Int64) - 1
    place = pl.int_range(pl.len(), dtype=pl.Int64).over(*entry, "kind")
    return (
        chosen.join(entry_stalls, on=entry, how="inner", maintain_order="left")
        .with_columns(share=_share(pl.col("stall"), pl.col("kind").n_unique().over(entry), kinds))
        .with_columns(stall_cycles=_share(pl.col("share"), pl.len().over(*entry, "kind"), place))
        .group_by("part", "line", producer_line="dependency_line")
        .agg(pl.col("stall_cycles").sum())
        .sort("part", "line", "producer_line")
    )


def _entry_stalls(lines: pl.DataFrame, executions: pl.DataFrame, dependencies: pl.DataFrame) -> pl.DataFrame:
    """Stall of each listed wait: part, wave_index, wait, stall. Lines that contradict the listing are omitted."""
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
    """Stalled cycles by reason and by the instruction that caused them, largest first within a dispatch.

    Columns: kernel_id, dispatch_id, capture, reason, mnemonic (null if unattributed), stall_cycles. `instructions` are
    rows of `att_instructions` with `charged_stall_cycles`; traces are never added together. The cycles of a trace add
    up to its instructions' `stall_cycles`; rows that were only sampled are ignored.
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
    """`att_stalls` of the traced instructions: one row for each reason; samples are null."""
    return _stall_rows(breakdown(instructions), "stall_cycles")


def traced_share(waves: pl.DataFrame, wave_starts: pl.DataFrame) -> pl.DataFrame:
    """Traced fraction of each shader engine: one row per trace and engine with traced wavefronts.

    `waves` has part, shader_engine and cu of each traced wavefront; `wave_starts` has part, shader_engine, cu and
    waves: the number that started on each compute unit of the engine during the trace. Columns: part, shader_engine,
    compute_units (their numbers), traced_waves, seen_waves, seen_compute_units, traced_ratio; the last three are null
    if the capture has no record of the other compute units. Other engines have no rows.
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
    """Return the index in `_KINDS` of a row's instruction."""
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
    """Return the integer share of `amount` at `place` (from 0) when it is divided among `among`."""
    count = among.cast(pl.Int64)
    return amount // count + (place < amount % count).cast(pl.Int64)


#: Descriptions of the hardware's stall reasons, by the name that the readers use.
REASONS: Final[Mapping[str, str]] = {
    "none": "no reason given",
    "no_instruction_available": "instruction fetch",
    "alu_dependency": "result of an ALU instruction not ready",
    "waitcnt": "wait counter",
    "internal_instruction": "internal instruction",
    "barrier_wait": "barrier",
    "arbiter_not_win": "other wavefront chosen",
    "arbiter_win_ex_stall": "execution unit busy",
    "other_wait": "other wait",
    "sleep_wait": "sleep",
}
_PLACE: Final = (*_KEYS, "code_object_id", "address", "instruction", "source")


def sampled_instructions(pc_samples: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Return the sampled instructions with their sample counts.

    Columns: kernel_id, dispatch_id, capture (null), code_object_id, address, instruction, source, samples. `dispatches`
    has dispatch_id and kernel_id. Samples of all dispatches of a kernel are summed; dispatch_id is null unless only one
    dispatch of the kernel was sampled. Samples of both issuing and stalled wavefronts count.
    """
    return (
        _of_kernels(pc_samples, dispatches)
        .group_by(_PLACE)
        .agg(samples=pl.len().cast(pl.Int64))
        .sort(*_PLACE, nulls_last=True)
    )


def sample_reasons(pc_samples: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Stalled samples by reason: kernel_id, dispatch_id, capture (null), reason (in words), samples."""
    return _counted(
        _of_kernels(pc_samples.filter(~pl.col("wave_issued")), dispatches).select(
            *_KEYS, reason=pl.col("stall_reason").fill_null("none"), samples=pl.lit(1, pl.Int64)
        )
    )


def listed_reasons(listing: pl.DataFrame) -> pl.DataFrame:
    """Return the same as `sample_reasons`, from the decoder's listing.

    `listing` has kernel_id, dispatch_id, capture and, for each reason, a column with the number of stalled samples.
    """
    return _counted(
        listing.unpivot(
            [name for name in REASONS if name in listing.columns],
            index=list(_KEYS),
            variable_name="reason",
            value_name="samples",
        )
    )


def sampled_stalls(reasons: pl.DataFrame) -> pl.DataFrame:
    """Rows of `att_stalls` for sampled kernels, from `sample_reasons` and `listed_reasons`; cycles are null."""
    return _stall_rows(reasons, "samples")


def _stall_rows(counts: pl.DataFrame, column: str) -> pl.DataFrame:
    """Build rows of `att_stalls` from counts by reason in `column`; the other kind of count is null."""
    both = {name: pl.lit(None, pl.Int64) if name != column else pl.col(name) for name in ("stall_cycles", "samples")}
    return (
        counts.group_by(*_KEYS, "reason")
        .agg(pl.col(column).sum())
        .select(
            "kernel_id",
            "dispatch_id",
            "reason",
            **both,
            share_ratio=pl.col(column) / pl.col(column).sum().over(_KEYS),
            capture="capture",
        )
        .sort(*_KEYS, column, "reason", descending=[False, False, False, True, False], nulls_last=True)
    )


def _of_kernels(pc_samples: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Return the samples with their kernel; dispatch_id is kept only if no other dispatch of the kernel was sampled."""
    one = pl.col("dispatch_id").n_unique().over("kernel_id") == 1
    return pc_samples.join(
        dispatches.select("dispatch_id", "kernel_id"), on="dispatch_id", how="left", maintain_order="left"
    ).with_columns(dispatch_id=pl.when(one).then("dispatch_id"), capture=pl.lit(None, pl.String))


def _counted(reasons: pl.DataFrame) -> pl.DataFrame:
    return (
        reasons.with_columns(pl.col("reason").replace(REASONS))
        .group_by(*_KEYS, "reason")
        .agg(pl.col("samples").sum())
        .filter(pl.col("samples") > 0)
        .sort(*_KEYS, "reason", nulls_last=True)
    )


_AT: Final[dict[str, Any]] = {"part": pl.String, "wave_index": pl.Int32}
#: Schemas of the thread-trace frames, for captures without them.
_EMPTY: Final[Mapping[str, Mapping[str, Any]]] = {
    "wait_executions": {**_AT, "line": pl.Int64, "stall": pl.Int64},
    "wait_dependencies": {**_AT, "wait": pl.Int64, "line": pl.Int64, "dependency_line": pl.Int64},
    "waves": {"part": pl.String, "shader_engine": pl.Int64, "cu": pl.Int64},
    "wave_starts": {"part": pl.String, "shader_engine": pl.Int64, "cu": pl.Int64, "waves": pl.Int64},
}


@dataclass(frozen=True)
class Enrichment:
    """The lake's tables `att_instructions` and `att_stalls`.

    `traced` contains the instructions listed by thread traces; `traced_share` is the result of that function.
    """

    instructions: pl.DataFrame
    stalls: pl.DataFrame
    traced: pl.DataFrame
    traced_share: pl.DataFrame


def enriched(
    listed: pl.DataFrame, pc_samples: pl.DataFrame, dispatches: pl.DataFrame, details: Mapping[str, pl.DataFrame]
) -> Enrichment:
    """Build the tables from thread-trace instructions, samples and the trace frames.

    If there is a trace, `details` has instruction_parts (the part of each listed instruction), wait_executions,
    wait_dependencies, waves, wave_starts and sampled_stalls, as described in the thread-trace reader.
    """
    if listed.is_empty() and pc_samples.is_empty():
        nothing = traced_share(*(pl.DataFrame(schema=_EMPTY[name]) for name in ("waves", "wave_starts")))
        return Enrichment(listed, empty_table("att_stalls"), listed, nothing)
    known = {name: details.get(name, pl.DataFrame(schema=schema)) for name, schema in _EMPTY.items()}
    traced = listed
    reasons = [sample_reasons(pc_samples, dispatches)]
    if listed.height:
        placed = pl.concat([listed, details["instruction_parts"]], how="horizontal")
        with_charges = charged(placed, known["wait_executions"], known["wait_dependencies"])
        traced = to_contract("att_instructions", with_charges.drop("part"))
    if "sampled_stalls" in details:
        parts = [traced.select("kernel_id", "dispatch_id", "capture", "line"), details["instruction_parts"]]
        by_line = pl.concat(parts, how="horizontal").unique(["part", "line"], keep="first", maintain_order=True)
        listing = details["sampled_stalls"].join(
            by_line, on=["part", "line"], how="left", nulls_equal=True, maintain_order="left"
        )
        reasons.append(listed_reasons(listing))
    sampled = sampled_instructions(pc_samples, dispatches)
    sampled = sampled.with_columns(instruction_class=instruction_class(pl.col("instruction")))
    instructions = to_contract("att_instructions", pl.concat([traced, to_contract("att_instructions", sampled)]))
    stall_rows = pl.concat([stalls(instructions), sampled_stalls(pl.concat(reasons))])
    share = traced_share(known["waves"], known["wave_starts"])
    return Enrichment(instructions, to_contract("att_stalls", stall_rows), traced, share)
