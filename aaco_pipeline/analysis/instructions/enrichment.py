"""Instructions with their costs and reasons to stall, from thread traces and from program-counter samples together.

What a thread trace says is `thread_trace`, what samples say `samples`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.instructions import samples, thread_trace
from aaco_pipeline.hardware.instruction_classes import instruction_class
from aaco_pipeline.lake.validation import empty_table, to_contract

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
    reasons = [samples.sample_reasons(pc_samples, dispatches)]
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
        reasons.append(samples.listed_reasons(summed))
    sampled = samples.sampled_instructions(pc_samples, dispatches)
    sampled = sampled.with_columns(instruction_class=instruction_class(pl.col("instruction")))
    instructions = to_contract("att_instructions", pl.concat([traced, to_contract("att_instructions", sampled)]))
    stalls = pl.concat([thread_trace.stalls(instructions), samples.sampled_stalls(pl.concat(reasons))])
    share = thread_trace.traced_share(known["waves"], known["wave_starts"])
    return Enrichment(instructions, to_contract("att_stalls", stalls), traced, share)
