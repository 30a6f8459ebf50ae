"""The stage `att_enrichment`: stalls of individual instructions from a thread trace or program-counter samples.

The figures come from `aaco_pipeline.analysis.instructions`; they never provide durations for the timeline.
"""

from typing import Final

import polars as pl

from aaco_pipeline.analysis.instructions import UNATTRIBUTED, enriched
from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.assets.stage import FINDINGS, Check, Outcome, Session, stage
from aaco_pipeline.capture.face import THREAD_TRACE
from aaco_pipeline.lake.evidence import Evidence

_READ: Final = ("kernels", "dispatches", "pc_samples", FINDINGS)
_NEITHER: Final = "the session has no thread trace and no program-counter samples"


@stage(
    reads=_READ,
    publishes=("att_instructions", "att_stalls"),
    group="analysis",
    kinds=("rocm", "parquet"),
    checks=(
        Check(
            "conservation",
            "The reasons of the stalls add up to the stalled cycles of the traced instructions.",
            lambda tables: invariants.stalls_are_conserved(tables["att_instructions"], tables["att_stalls"]),
            ("att_instructions", "att_stalls"),
        ),
    ),
)
def att_enrichment(session: Session) -> Outcome:
    """Which instructions did the wavefronts wait at, and for what?"""
    captured, tables = session.capture.tables(), session.tables(*_READ)
    details = {name: captured[name] for name in THREAD_TRACE if name in captured}
    found = enriched(captured["att_instructions"], tables["pc_samples"], tables["dispatches"], details)
    instructions, stalls, share = found.instructions, found.stalls, found.traced_share
    waves, seen = (int(share.get_column(name).sum()) for name in ("traced_waves", "seen_waves"))
    whole = share.height and not share.get_column("traced_ratio").null_count()
    cycles, samples = (stalls.get_column(name) for name in ("stall_cycles", "samples"))
    largest = stalls.group_by("reason").agg(pl.col("stall_cycles", "samples").sum())
    largest = largest.sort("stall_cycles", "samples", "reason", descending=[True, True, False])
    asked = session.capture.facts().asked_to_trace
    return Outcome(
        {"att_instructions": instructions, "att_stalls": stalls},
        [
            Evidence("instructions", "present", None, "thread trace or program-counter samples", instructions.height)
            if instructions.height
            else Evidence("instructions", "absent", _NEITHER),
            *_stall_evidence(instructions, stalls),
            *_share_evidence(share),
            *_asked_evidence(tables["kernels"], found.traced, asked),
        ],
        {
            "instructions": instructions.height,
            "stall_cycles": int(cycles.sum()) if cycles.count() else None,
            "stalled_samples": int(samples.sum()) if samples.count() else None,
            "largest_stall_reason": largest.item(0, "reason") if largest.height else None,
            "traced_wavefronts": waves if share.height else None,
            "traced_ratio": waves / seen if whole else None,
        },
        stalls.sort("share_ratio", "reason", descending=[True, False]),
        "reasons to stall",
    )


def _stall_evidence(instructions: pl.DataFrame, stalls: pl.DataFrame) -> list[Evidence]:
    if not instructions.height:
        return []
    if not stalls.height:
        return [Evidence("stall reasons", "absent", "no stall was traced, and no sample has a reason")]
    cycles = int(stalls.get_column("stall_cycles").sum())
    rest = int(stalls.filter(pl.col("reason") == UNATTRIBUTED).get_column("stall_cycles").sum())
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
    """Report which wavefronts were traced; no figure is extrapolated to the others."""
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


def _asked_evidence(kernels: pl.DataFrame, traced: pl.DataFrame, asked: tuple[str, ...]) -> list[Evidence]:
    """Report the kernels that were requested for tracing but not traced."""
    names = set(kernels.join(traced.select("kernel_id").unique(), on="kernel_id", how="semi").get_column("name"))
    return [
        Evidence("kernel to trace", "absent", f"the trace asked for is of {kernel!r}, and no traced dispatch is")
        for kernel in asked
        if kernel not in names
    ]
