"""The stage `completeness`: losses in the recording, and the figures that they reduce to bounds or invalidate.

Computed by `aaco_pipeline.analysis.completeness`; `stage` applies the findings to every stage that reads the recording.
"""

from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.examination import EXAMINED, examined
from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, everything, recorded
from aaco_pipeline.assets.stage import Outcome, Session, stage
from aaco_pipeline.lake.evidence import Evidence, Status

_READ: Final = tuple(dict.fromkeys((*EXAMINED, *RECORDED_FROM)))
#: Columns used from tables with one row per launch; a non-empty table in `_ASKING` needs more.
_COLUMNS: Final = {
    "dispatches": (
        *("dispatch_id", "process_id", "device_id", "queue_id", "stream_id", "kernel_id", "correlation_id"),
        *("start_ns", "end_ns", "graph_node_id", "self_ns"),
    ),
    "api_calls": ("process_id", "domain", "start_ns", "end_ns"),
}
_ASKING: Final = ("counters", "captured_launches")
#: Capture tables that describe thread traces.
_TRACED: Final = ("att_instructions", "instruction_parts", "waves", "wave_starts")
_STATUS: Final[dict[str, Status]] = {"fault": "invalid", "bound": "partial", "note": "partial"}


@stage(
    reads=_READ,
    publishes=("completeness", "completeness_findings"),
    group="analysis",
    kinds=("polars", "parquet"),
)
def completeness(session: Session) -> Outcome:
    """Can this recording support the answer: what was launched, recorded, linked, counted and lost?"""
    tables, captured = session.tables(*(name for name in _READ if name not in _COLUMNS)), session.capture.tables()
    # With no warm-up to exclude, these are the activities that the timeline uses.
    warm_up = tables["iterations"].filter(pl.col("pass") == "trace").height > 0
    if warm_up:
        run = everything({name: session.columns(name, columns) for name, columns in RECORDED_FROM.items()})
    else:
        run = session.derive(recorded, RECORDED_FROM)
    if any(tables[name].height for name in _ASKING):
        tables |= session.tables(*_COLUMNS)
    else:
        tables |= {name: session.columns(name, columns) for name, columns in _COLUMNS.items()}
    traced = {name: captured[name] for name in _TRACED if name in captured}
    evidence = (*session.capture.evidence("files"), *session.capture.evidence("trace"))
    found = examined({**tables, **traced}, run, evidence)
    counts = dict(found.findings.group_by("severity").len().iter_rows())
    gravest = found.findings.item(0, "finding") if found.findings.height else None
    return Outcome(
        {"completeness": found.ledger, "completeness_findings": found.findings},
        list(_evidence(found.findings)),
        {"faults": counts.get("fault", 0), "bounds": counts.get("bound", 0), "gravest": gravest},
        found.findings.select("severity", "finding", "subject", "evidence", "mend"),
        "findings",
    )


def _evidence(findings: pl.DataFrame) -> list[Evidence]:
    if not findings.height:
        return [Evidence("completeness of the recording", "present", "nothing that it states shows a loss", None, 0)]
    return [
        Evidence(
            f"finding {row['finding_id']}: {row['finding']} ({row['subject']})",
            _STATUS[row["severity"]],
            f"{row['evidence']} To record it whole: {row['mend']}",
            "completeness_findings",
            row["records"],
        )
        for row in findings.iter_rows(named=True)
    ]
