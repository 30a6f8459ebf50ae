"""Costs and stall reasons of single instructions, from program-counter samples and thread traces together.

What a thread trace alone shows is `thread_trace`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.instructions import thread_trace
from aaco_pipeline.hardware.instruction_classes import instruction_class
from aaco_pipeline.lake.validation import empty_table, to_contract

#: The hardware's reasons, as the readers name them, in words.
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
_KEYS: Final = ("kernel_id", "dispatch_id", "capture")
_PLACE: Final = (*_KEYS, "code_object_id", "address", "instruction", "source")


def sampled_instructions(pc_samples: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """The sampled instructions: kernel_id, dispatch_id, capture (null), code_object_id, address, instruction, source
    and samples.

    `pc_samples` is the table, `dispatches` has dispatch_id and kernel_id. Samples of all dispatches of a kernel are
    summed; dispatch_id is null unless all are of one. Every sample counts, whether the wavefront issued or stalled.
    """
    return (
        _of_kernels(pc_samples, dispatches)
        .group_by(_PLACE)
        .agg(samples=pl.len().cast(pl.Int64))
        .sort(*_PLACE, nulls_last=True)
    )


def sample_reasons(pc_samples: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """How often which reason was found: kernel_id, dispatch_id, capture (null), reason (in words), samples.

    Stalled samples only.
    """
    return _counted(
        _of_kernels(pc_samples.filter(~pl.col("wave_issued")), dispatches).select(
            *_KEYS, reason=pl.col("stall_reason").fill_null("none"), samples=pl.lit(1, pl.Int64)
        )
    )


def listed_reasons(sampled_stalls: pl.DataFrame) -> pl.DataFrame:
    """As `sample_reasons`, of a listing that has kernel_id, dispatch_id, capture and a column of counts a reason.

    The decoder's listing counts stalled samples only.
    """
    return _counted(
        sampled_stalls.unpivot(
            [name for name in REASONS if name in sampled_stalls.columns],
            index=list(_KEYS),
            variable_name="reason",
            value_name="samples",
        )
    )


def sampled_stalls(reasons: pl.DataFrame) -> pl.DataFrame:
    """`att_stalls` of sampled kernels, from what `sample_reasons` and `listed_reasons` give; cycles are null."""
    found = reasons.group_by(*_KEYS, "reason").agg(pl.col("samples").sum())
    return found.select(
        "kernel_id",
        "dispatch_id",
        "reason",
        stall_cycles=pl.lit(None, pl.Int64),
        samples="samples",
        share_ratio=pl.col("samples") / pl.col("samples").sum().over(_KEYS),
        capture="capture",
    ).sort(*_KEYS, "samples", "reason", descending=[False, False, False, True, False], nulls_last=True)


def _of_kernels(pc_samples: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """The samples with their kernel, and with their dispatch only where the kernel was sampled in no other.

    They are of no thread trace.
    """
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
#: Frames of thread traces as they look where a capture has none.
_EMPTY: Final[Mapping[str, Mapping[str, Any]]] = {
    "wait_executions": {**_AT, "line": pl.Int64, "stall": pl.Int64},
    "wait_dependencies": {**_AT, "wait": pl.Int64, "line": pl.Int64, "dependency_line": pl.Int64},
    "waves": {"part": pl.String, "shader_engine": pl.Int64, "cu": pl.Int64},
    "wave_starts": {"part": pl.String, "shader_engine": pl.Int64, "cu": pl.Int64, "waves": pl.Int64},
}


@dataclass(frozen=True)
class Enrichment:
    """`instructions` and `stalls` are the lake's tables; `traced` those instructions that thread traces list.

    `traced_share` says for each engine what part of its wavefronts was traced, as `thread_trace.traced_share`.
    """

    instructions: pl.DataFrame
    stalls: pl.DataFrame
    traced: pl.DataFrame
    traced_share: pl.DataFrame


def enriched(
    listed: pl.DataFrame, pc_samples: pl.DataFrame, dispatches: pl.DataFrame, details: Mapping[str, pl.DataFrame]
) -> Enrichment:
    """From the instructions that thread traces list, the samples, and the frames that came with the traces.

    `details` has, where a trace was taken, instruction_parts (the part of each listed instruction), wait_executions,
    wait_dependencies, waves, wave_starts and sampled_stalls, as the reader of thread traces describes them.
    """
    if listed.is_empty() and pc_samples.is_empty():
        nothing = thread_trace.traced_share(*(pl.DataFrame(schema=_EMPTY[name]) for name in ("waves", "wave_starts")))
        return Enrichment(listed, empty_table("att_stalls"), listed, nothing)
    known = {name: details.get(name, pl.DataFrame(schema=schema)) for name, schema in _EMPTY.items()}
    traced = listed
    reasons = [sample_reasons(pc_samples, dispatches)]
    if listed.height:
        placed = pl.concat([listed, details["instruction_parts"]], how="horizontal")
        charged = thread_trace.charged(placed, known["wait_executions"], known["wait_dependencies"])
        traced = to_contract("att_instructions", charged.drop("part"))
    if "sampled_stalls" in details:
        parts = [traced.select("kernel_id", "dispatch_id", "capture", "line"), details["instruction_parts"]]
        of_line = pl.concat(parts, how="horizontal").unique(["part", "line"], keep="first", maintain_order=True)
        summed = details["sampled_stalls"].join(
            of_line, on=["part", "line"], how="left", nulls_equal=True, maintain_order="left"
        )
        reasons.append(listed_reasons(summed))
    sampled = sampled_instructions(pc_samples, dispatches)
    sampled = sampled.with_columns(instruction_class=instruction_class(pl.col("instruction")))
    instructions = to_contract("att_instructions", pl.concat([traced, to_contract("att_instructions", sampled)]))
    stalls = pl.concat([thread_trace.stalls(instructions), sampled_stalls(pl.concat(reasons))])
    share = thread_trace.traced_share(known["waves"], known["wave_starts"])
    return Enrichment(instructions, to_contract("att_stalls", stalls), traced, share)
