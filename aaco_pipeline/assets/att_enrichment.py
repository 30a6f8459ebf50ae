"""The stage `att_enrichment`: what a thread trace or program-counter samples say about single instructions.

Reading them is `aaco_pipeline.formats.thread_trace`; they never give durations to the timeline.
"""

from pathlib import Path
from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.assets.kernel_trace import kernel_trace
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.formats import inference_capture, ingested_capture, profiled_capture
from aaco_pipeline.formats.reading import no_rows
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "att_enrichment"
TABLES: Final = ("att_instructions", "evidence")


def read_att_enrichment(lake: TraceLake, session: str) -> Outcome:
    """The traced and sampled instructions of a capture; none for a session without a thread trace."""
    instructions = _instructions(lake.raw(session))
    item = (
        Evidence("instructions", "present", None, "thread trace", instructions.height)
        if instructions.height
        else Evidence("instructions", "absent", "the session has no thread trace and no program-counter samples")
    )
    stalls = instructions.get_column("stall_cycles").sum()
    return Outcome(
        {"att_instructions": instructions, "evidence": evidence_frame(STAGE, [item])},
        {"instructions": instructions.height, "stall_cycles": int(stalls)},
        instructions.group_by("instruction_class")
        .agg(instructions=pl.len(), hits=pl.col("hits").sum(), stall_cycles=pl.col("stall_cycles").sum())
        .sort("stall_cycles", descending=True),
        "instruction classes",
    )


def _instructions(raw: Path) -> pl.DataFrame:
    if ingested_capture.probe(raw):
        return ingested_capture.read(raw).reading().tables["att_instructions"]
    capture = inference_capture.read(raw)
    if profiled_capture.base_pass(capture) is None:
        return no_rows("att_instructions")
    return profiled_capture.read(capture).tables["att_instructions"]


@dg.asset(
    partitions_def=session_partitions,
    group_name="analysis",
    kinds={"parquet"},
    owners=OWNERS,
    deps=[kernel_trace],
    metadata=stage_metadata(TABLES),
)
def att_enrichment(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """Which instructions did the wavefronts wait at?"""
    with expected_errors():
        store = lake.open()
        return publish_outcome(store, context.partition_key, STAGE, read_att_enrichment(store, context.partition_key))
