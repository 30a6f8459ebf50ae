"""The stage `att_enrichment`: what a thread trace or program-counter samples say about single instructions.

Reading them is `aaco_pipeline.formats.thread_trace`; they never give durations to the timeline.
"""

from pathlib import Path
from typing import Any, Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.instructions import samples as instruction_samples
from aaco_pipeline.analysis.instructions import thread_trace
from aaco_pipeline.assets.kernel_trace import kernel_trace
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.capture import ingested as ingested_capture
from aaco_pipeline.capture import profiled as profiled_capture
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.formats.thread_trace.instruction_classes import instruction_class
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "att_enrichment"
TABLES: Final = ("att_instructions", "att_stalls", "evidence")
_NEITHER: Final = "the session has no thread trace and no program-counter samples"


def read_att_enrichment(lake: TraceLake, session: str) -> Outcome:
    """Instructions with their costs, and the reasons of stalls; none for a session without trace and samples."""
    reading, asked = _reading(lake.raw(session))
    if reading is None:
        return _outcome(empty_table("att_instructions"), empty_table("att_stalls"), [], {})
    traced = _traced(reading)
    sampled = _sampled(reading)
    instructions = to_contract("att_instructions", pl.concat([traced, sampled]))
    stalls = pl.concat([thread_trace.stalls(instructions), _sampled_stalls(reading, traced)])
    share = _traced_share(reading)
    said = [*_stall_evidence(instructions, stalls), *_share_evidence(share), *_asked_evidence(reading, traced, asked)]
    waves, seen = (int(share.get_column(name).sum()) for name in ("traced_waves", "seen_waves"))
    whole = not share.get_column("traced_ratio").null_count()
    headline = {
        "traced_wavefronts": waves if share.height else None,
        "traced_ratio": waves / seen if share.height and whole else None,
    }
    return _outcome(instructions, to_contract("att_stalls", stalls), said, headline)


def _outcome(
    instructions: pl.DataFrame, stalls: pl.DataFrame, said: list[Evidence], headline: dict[str, float | None]
) -> Outcome:
    item = (
        Evidence("instructions", "present", None, "thread trace or program-counter samples", instructions.height)
        if instructions.height
        else Evidence("instructions", "absent", _NEITHER)
    )
    cycles, samples = (stalls.get_column(name) for name in ("stall_cycles", "samples"))
    largest = stalls.group_by("reason").agg(pl.col("stall_cycles", "samples").sum())
    largest = largest.sort("stall_cycles", "samples", "reason", descending=[True, True, False])
    return Outcome(
        {
            "att_instructions": instructions,
            "att_stalls": stalls,
            "evidence": evidence_frame(STAGE, [item, *said]),
        },
        {
            "instructions": instructions.height,
            "stall_cycles": int(cycles.sum()) if cycles.count() else None,
            "stalled_samples": int(samples.sum()) if samples.count() else None,
            "largest_stall_reason": largest.item(0, "reason") if largest.height else None,
            **headline,
        },
        stalls.sort("share_ratio", descending=True),
        "reasons to stall",
    )


def _reading(raw: Path) -> tuple[CaptureTables | None, tuple[str, ...]]:
    """What was captured, and the kernels that this project's own thread trace was asked for."""
    if ingested_capture.probe(raw):
        return ingested_capture.read(raw).reading(), ()
    capture = inference_capture.read(raw)
    if profiled_capture.base_pass(capture) is None:
        return None, ()
    asked = (one.kernel for one in capture.profiler_passes if one.kind == "thread_trace")
    return profiled_capture.read(capture), tuple(kernel for kernel in asked if kernel is not None)


def _detail(reading: CaptureTables, name: str) -> pl.DataFrame:
    """A detail of the thread traces; without rows and with the columns that are looked at when there are none."""
    found = reading.details.get(name)
    return pl.DataFrame(schema=_EMPTY[name]) if found is None else found


_AT: Final[dict[str, Any]] = {"part": pl.String, "wave_index": pl.Int32}
_EMPTY: Final[dict[str, dict[str, Any]]] = {
    "wait_executions": {**_AT, "line": pl.Int64, "stall": pl.Int64},
    "wait_dependencies": {**_AT, "wait": pl.Int64, "line": pl.Int64, "dependency_line": pl.Int64},
    "waves": {"part": pl.String, "shader_engine": pl.Int64, "cu": pl.Int64},
    "wave_starts": {"part": pl.String, "shader_engine": pl.Int64, "cu": pl.Int64, "waves": pl.Int64},
}


def _traced(reading: CaptureTables) -> pl.DataFrame:
    """The instructions that thread traces list, with what others waited for them; sampled listings are among them."""
    listed = reading.tables["att_instructions"]
    if not listed.height:
        return listed
    placed = pl.concat([listed, reading.details["instruction_parts"]], how="horizontal")
    found = thread_trace.charged(placed, _detail(reading, "wait_executions"), _detail(reading, "wait_dependencies"))
    return to_contract("att_instructions", found.drop("part"))


def _sampled(reading: CaptureTables) -> pl.DataFrame:
    tables = reading.tables
    found = instruction_samples.sampled_instructions(tables["pc_samples"], tables["dispatches"])
    return to_contract(
        "att_instructions", found.with_columns(instruction_class=instruction_class(pl.col("instruction")))
    )


def _sampled_stalls(reading: CaptureTables, traced: pl.DataFrame) -> pl.DataFrame:
    """`att_stalls` of samples, whether single ones or those that a decoder's listing has summed."""
    tables = reading.tables
    reasons = [instruction_samples.sample_reasons(tables["pc_samples"], tables["dispatches"])]
    if "sampled_stalls" in reading.details:
        of_part = pl.concat(
            [traced.select("kernel_id", "dispatch_id"), reading.details["instruction_parts"]], how="horizontal"
        )
        listed = reading.details["sampled_stalls"].join(of_part.unique(), on="part", how="left")
        reasons.append(instruction_samples.listed_reasons(listed))
    return instruction_samples.sampled_stalls(pl.concat(reasons))


def _traced_share(reading: CaptureTables) -> pl.DataFrame:
    return thread_trace.traced_share(_detail(reading, "waves"), _detail(reading, "wave_starts"))


def _stall_evidence(instructions: pl.DataFrame, stalls: pl.DataFrame) -> list[Evidence]:
    if not instructions.height:
        return []
    if not stalls.height:
        return [Evidence("stall reasons", "absent", "no stall was traced, and no sample has a reason")]
    cycles = int(stalls.get_column("stall_cycles").sum())
    rest = int(stalls.filter(pl.col("reason") == thread_trace.UNATTRIBUTED).get_column("stall_cycles").sum())
    told = f"{rest} of {cycles} stalled cycles are of waits of which the trace does not say what they waited for"
    said = [Evidence("stall reasons", "partial" if rest else "present", told if rest else None, rows=stalls.height)]
    if instructions.get_column("idle_cycles").count():
        why = (
            "whether lost arbitration, a register that was not ready or a missing instruction was the cause, a thread "
            "trace does not tell"
        )
        said.append(Evidence("reasons of idle cycles", "absent", why))
    return said


def _share_evidence(share: pl.DataFrame) -> list[Evidence]:
    """What part of the wavefronts was traced; no figure is scaled up to those that were not."""
    said = []
    for row in share.iter_rows(named=True):
        units = ", ".join(map(str, row["compute_units"])) or "not stated"
        told = f"{row['traced_waves']} wavefronts of compute unit {units} of shader engine {row['shader_engine']}"
        if row["seen_waves"] is not None:
            told += (
                f", of {row['seen_waves']} that began on the engine's {row['seen_compute_units']} compute units in use"
            )
        told += "; other engines were not traced, and no figure is scaled up to the whole grid"
        item = f"traced wavefronts of engine {row['shader_engine']} in {row['part']}"
        said.append(Evidence(item, "partial", told, row["part"], row["traced_waves"]))
    return said


def _asked_evidence(reading: CaptureTables, traced: pl.DataFrame, asked: tuple[str, ...]) -> list[Evidence]:
    """Whether the thread trace of this project's own session is of the kernel that it was asked for."""
    found = reading.tables["kernels"].join(traced.select("kernel_id").unique(), on="kernel_id", how="semi")
    names = set(found.get_column("name"))
    return [
        Evidence("kernel to trace", "absent", f"the trace asked for is of {kernel!r}, and no traced dispatch is")
        for kernel in asked
        if kernel not in names
    ]


@dg.asset(
    partitions_def=session_partitions,
    group_name="analysis",
    kinds={"parquet"},
    owners=OWNERS,
    deps=[kernel_trace],
    metadata=stage_metadata(TABLES),
)
def att_enrichment(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """Which instructions did the wavefronts wait at, and what for?"""
    with expected_errors():
        store = lake.open()
        return publish_outcome(store, context.partition_key, STAGE, read_att_enrichment(store, context.partition_key))
