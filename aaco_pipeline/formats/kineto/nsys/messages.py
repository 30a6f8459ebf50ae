"""What Nsight Systems says in an export of what it lost: its diagnostic messages, and an export that has no end.

Their words are those in the table `DIAGNOSTIC_EVENT` of real exports.
"""

import re
from collections.abc import Collection
from typing import Final

from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.formats.kineto.nsys.export import Export, whole
from aaco_pipeline.formats.parsing.redaction import safe_prose
from aaco_pipeline.formats.rocpd.lookup import integer, text
from aaco_pipeline.lake.evidence import DROPPED

#: Severities of the table that are a warning and an error.
_WARNED: Final = (2, 3)
_LOST: Final = re.compile(r"Not all CUDA events might have been collected|\b(?:dropped|lost|discarded|overflow\w*)\b")
_COUNT: Final = re.compile(r"\b(\d{1,15})\b[^.]{0,60}\b(?:dropped|lost|discarded)\b")
_LISTED: Final = 6
_LONGEST: Final = 300


def say_messages(export: Export, processes: Collection[int | None], findings: Findings) -> None:
    """State what the tool says it lost, and its other warnings; those of processes without records are left out.

    It warns of every process that it followed, also of shells and compilers that never used a GPU.
    """
    rows = export.records("DIAGNOSTIC_EVENT", "severity", "text", "globalPid")
    followed = {integer(row["globalPid"]) for row in export.records("PROCESSES", "globalPid")}
    warned = [
        said
        for row in rows
        if row["severity"] in _WARNED and (said := text(row["text"]))
        if (key := integer(row["globalPid"])) in processes or key not in followed
    ]
    lost = list(dict.fromkeys(said for said in warned if _LOST.search(said)))
    if lost:
        counts = [int(found[1]) for said in lost if (found := _COUNT.search(said))]
        findings.say(DROPPED, "partial", _quoted(lost), sum(counts) if counts else None)
    others = list(dict.fromkeys(said for said in warned if said not in lost))
    if others:
        findings.say("warnings of the tool", "partial", _quoted(others), len(others))


def say_end(export: Export, findings: Findings) -> None:
    """State how long the recording was, or that the export has no end."""
    rows = export.records("ANALYSIS_DETAILS", "duration", "startTime", "stopTime")
    lengths = [length for row in rows if (length := whole(row["duration"]))]
    if lengths:
        findings.say("end of the recording", "present", f"it lasted {max(lengths) / 1e9:,.3f} s", len(rows))
    elif "ANALYSIS_DETAILS" in export.kinds:
        reason = "its end is missing: ANALYSIS_DETAILS is empty, as after an export that was interrupted"
        findings.say("end of the recording", "partial", f"{reason}; export the report again", 0)
    else:
        findings.say("end of the recording", "absent", "the export does not say how long it was: no ANALYSIS_DETAILS")


def _quoted(messages: list[str]) -> str:
    told = "; ".join(" ".join(safe_prose(one[:_LONGEST]).split()).rstrip(".") for one in messages[:_LISTED])
    further = len(messages) - _LISTED
    return f"{told}; and {further} more" if further > 0 else told
