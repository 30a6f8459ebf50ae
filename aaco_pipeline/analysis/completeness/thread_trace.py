"""Thread traces that hold nothing, or a part of what ran on the traced compute unit."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.findings import Finding, counted, of_total
from aaco_pipeline.lake.evidence import Evidence

_VOID: Final = (
    "att_instructions.hits",
    "att_instructions.latency_cycles",
    "att_instructions.stall_cycles",
    "att_stalls.stall_cycles",
)
_EMPTY_MEND: Final = (
    "rocprofv3 --att --att-shader-engine-mask 0xf --att-target-cu 1 --kernel-include-regex KERNEL -- COMMAND, with a "
    "launch that fills every shader engine"
)
_PARTIAL_MEND: Final = (
    "rocprofv3 --att with a larger --att-buffer-size (0x6000000) and fewer --att-simd-select, for one launch of the "
    "kernel; look for DATA_LOST among its messages"
)
_WAVEFRONTS: Final = "wavefronts"
_OF_SAMPLING: Final = "program-counter sampling"
_RAW: Final = ".att"


def of_thread_traces(tables: Mapping[str, pl.DataFrame], evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """What is missing of each decoded thread trace, and raw ones that nothing decoded.

    `tables` hold `att_instructions` and, where a trace was taken, the details `waves`, `wave_starts` and
    `instruction_parts`; `evidence` is what the readers say of the capture and of its files.
    """
    instructions = tables["att_instructions"]
    raw = [one.item for one in evidence if one.item.startswith("raw file ") and one.item.endswith(_RAW)]
    if raw and not instructions.height:
        yield _empty("raw thread traces", f"{counted(len(raw), 'raw thread trace')} lie beside it, none decoded.")
    for one in evidence:
        name, _, part = one.item.partition(" of ")
        if name != _WAVEFRONTS or _OF_SAMPLING in (one.reason or ""):
            continue
        subject = part or "thread trace"
        if one.status in ("absent", "invalid") and not _executed(tables, part):
            yield _empty(subject, f"no wavefront of it was decoded ({one.reason}): nothing that ran was seen.")
        elif one.status == "partial":
            yield _partial(subject, f"wavefronts that it lists cannot be read: {one.reason}.", None)
    yield from _unseen_waves(tables)


def _executed(tables: Mapping[str, pl.DataFrame], part: str) -> bool:
    """Whether a trace's instructions were executed by its own sums, the files of its wavefronts gone or not."""
    hits = tables["att_instructions"].get_column("hits").fill_null(0)
    parts = tables.get("instruction_parts")
    if part and parts is not None and parts.height == len(hits):
        hits = hits.filter(parts.get_column("part") == part)
    return bool((hits > 0).any())


def _unseen_waves(tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """Traced compute units on which more wavefronts began than were decoded."""
    if "waves" not in tables or "wave_starts" not in tables:
        return
    place = ["part", "shader_engine", "cu"]
    seen = tables["waves"].group_by(place).agg(seen=pl.len().cast(pl.Int64))
    both = seen.join(tables["wave_starts"], on=place).group_by("part").agg(pl.col("seen", "waves").sum())
    for part, decoded, began in both.sort("part").select("part", "seen", "waves").iter_rows():
        if decoded < began:
            words = f"{of_total(decoded, began)} wavefronts that began on the traced compute unit were decoded."
            yield _partial(part, words, began - decoded)


def _empty(subject: str, evidence: str) -> Finding:
    return Finding("thread_trace_empty", "fault", subject, evidence, _EMPTY_MEND, voids=_VOID)


def _partial(subject: str, evidence: str, records: int | None) -> Finding:
    return Finding("thread_trace_partial", "fault", subject, evidence, _PARTIAL_MEND, records=records, at_least=_VOID)
