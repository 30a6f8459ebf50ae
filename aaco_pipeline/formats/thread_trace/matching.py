"""Which dispatch of the base trace a thread trace is of, and what the traces of one run hold together.

A dispatch is the traced one when the capture gives it the same number and its kernel has a name that the trace states.
A number alone is not enough: another run of the program may have numbered its dispatches otherwise.
"""

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

#: How the tools mark the descriptor of a kernel at the end of its name.
_DESCRIPTOR: Final = re.compile(r"(\[clone\.kd\]|\.kd)$")
_SHOWN: Final = 80
_CARRIED: Final = ("waves", "wait_dependencies", "sampled_stalls")


def matched_instructions(
    parts: Sequence[tuple[str, CaptureTables]], keys: pl.DataFrame, dispatches: pl.DataFrame
) -> tuple[pl.DataFrame, dict[str, pl.DataFrame], list[Evidence]]:
    """The `att_instructions` of all parts, each at the dispatch it is of, and what else was traced with them.

    `parts` are named readings; `keys` has dispatch_id, source_dispatch_id and name (of the kernel) of each dispatch of
    the base trace, `dispatches` its dispatch_id and kernel_id. Each row has its part as `capture`, and the number that
    the trace states as `source_dispatch_id`. A trace whose dispatch is not found keeps null in dispatch_id and
    kernel_id, and evidence says why. Details, each with the column `part`, as `thread_trace.read` describes them:
    `waves`, `wait_dependencies` and `sampled_stalls`; `wait_executions` (wave_index, line, stall, of the instructions
    of class `wait`, in order of execution), `wave_starts` (shader_engine, cu, waves: how many began there, traced or
    not) and `instruction_parts` (one row for each row of the instructions, in their order).
    """
    found: list[pl.DataFrame] = []
    evidence: list[Evidence] = []
    details: dict[str, list[pl.DataFrame]] = {}
    for part, reading in parts:
        instructions = reading.tables.get("att_instructions", empty_table("att_instructions"))
        if not instructions.height:
            continue
        traced = reading.details.get("traced_dispatch")
        number = traced.item(0, "source_dispatch_id") if traced is not None and traced.height else None
        instructions = instructions.with_columns(capture=pl.lit(part), source_dispatch_id=pl.lit(number, pl.UInt64))
        dispatch, reason = _dispatch(traced, keys)
        if dispatch is None:
            evidence.append(Evidence(f"dispatch that {part} traced", "absent", reason, part))
        else:
            kernel = dispatches.filter(pl.col("dispatch_id") == dispatch).get_column("kernel_id").item()
            instructions = instructions.with_columns(
                dispatch_id=pl.lit(dispatch, pl.Int32), kernel_id=pl.lit(kernel, pl.Int32)
            )
        found.append(instructions)
        details.setdefault("instruction_parts", []).append(pl.DataFrame({"part": [part] * instructions.height}))
        for name, frame in _details(reading, instructions).items():
            details.setdefault(name, []).append(frame.select(pl.lit(part).alias("part"), pl.all()))
    if not found:
        return empty_table("att_instructions"), {}, evidence
    together = {name: pl.concat(frames) for name, frames in details.items()}
    return to_contract("att_instructions", pl.concat(found)), together, evidence


def _details(reading: CaptureTables, instructions: pl.DataFrame) -> dict[str, pl.DataFrame]:
    given = {name: reading.details[name] for name in _CARRIED if name in reading.details}
    if "wave_instructions" in reading.details:
        waits = instructions.filter(pl.col("instruction_class") == "wait").select("line").unique()
        executed = reading.details["wave_instructions"].select("wave_index", "line", "stall")
        given["wait_executions"] = executed.join(waits, on="line", how="semi", maintain_order="left")
    if "occupancy" in reading.details:
        began = reading.details["occupancy"].filter("started")
        starts = began.group_by("shader_engine", "cu").agg(waves=pl.len().cast(pl.Int64))
        given["wave_starts"] = starts.sort("shader_engine", "cu")
    return given


def _dispatch(traced: pl.DataFrame | None, keys: pl.DataFrame) -> tuple[int | None, str]:
    """The one dispatch with the number and the name that a trace states; else None and why."""
    number = traced.item(0, "source_dispatch_id") if traced is not None and traced.height else None
    if traced is None or number is None:
        return None, "the thread trace does not say which dispatch it is of"
    stated = [*traced.item(0, "kernel_names"), *traced.item(0, "kernel_display_names")]
    numbered = keys.filter(pl.col("source_dispatch_id") == number)
    if not numbered.height:
        return None, f"the base trace has no dispatch of number {number}"
    if not stated:
        return None, f"the thread trace names no kernel, so that dispatch {number} cannot be told to be the traced one"
    names = {plain_name(name) for name in stated}
    alike = numbered.filter(
        pl.Series([plain_name(name) in names for name in numbered.get_column("name")], dtype=pl.Boolean)
    )
    if alike.height == 1:
        return int(alike.item(0, "dispatch_id")), ""
    if alike.height:
        return None, f"the base trace has {alike.height} dispatches of number {number} with the traced kernel's name"
    others = ", ".join(_shown(name) for name in numbered.get_column("name").unique(maintain_order=True))
    return None, f"dispatch {number} of the base trace is of {others}, and the trace is of {_shown(stated[-1])}"


def plain_name(name: str | None) -> str:
    """A kernel's name as two tools may be compared by: without spaces, in which they differ, and without its mark."""
    return _DESCRIPTOR.sub("", re.sub(r"\s+", "", name or ""))


def _shown(name: str | None) -> str:
    text = name or "a kernel without a name"
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…")
