"""Read the SQL statements that collect a session's document; all of them are files in `report/sql`.

Each ends in an ORDER BY without ties, so that equal tables give equal documents; `{session}` is the session's id. Other
modules put the rows into words.
"""

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

#: Maximum number of rows in shortened lists.
LISTED_KERNELS: Final = 60
LISTED_INSTRUCTIONS: Final = 3
#: Maximum number of kernels with their own page.
PAGED_KERNELS: Final = 16
_LIMITS: Final = {
    "listed_kernels": LISTED_KERNELS,
    "listed_instructions": LISTED_INSTRUCTIONS,
    "paged_kernels": PAGED_KERNELS,
}
_PART: Final = re.compile(r"^-- (fragment|statement): (\w+)\n((?:.+\n)+)", re.MULTILINE)
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
_ROWS: Final = re.compile(r"\[(\w+)(:whole)?\]")


def statements(name: str) -> Mapping[str, str]:
    """Return the statements of a file by name, each on one line.

    `{fragment}` inserts another fragment of the file, `[table]` the table's rows of the session, and `[table:whole]`
    only the rows of complete kernels.
    """
    text = files("aaco_pipeline.report").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    known = {name: str(limit) for name, limit in _LIMITS.items()}
    found: dict[str, str] = {}
    for kind, title, body in _PART.findall(text):
        line = _ROWS.sub(_rows, " ".join(_COMMENT.sub("", body).split()))
        for fragment, value in known.items():
            line = line.replace(f"{{{fragment}}}", value)
        (known if kind == "fragment" else found)[title] = line
    return found


def _rows(found: re.Match[str]) -> str:
    whole = " AND dispatch_id IS NULL" if found[2] else ""
    return f"(SELECT * FROM {found[1]} WHERE session_id = '{{session}}'{whole})"


SUMMARY: Final = statements("summary")
OF_CAMPAIGN: Final = statements("of_campaign")
SECTIONS: Final = statements("sections")
TIMELINE: Final = statements("timeline")
KERNEL_PAGES: Final = statements("kernel_pages")
RANKS: Final = statements("ranks")
DELAYS: Final = statements("delays")
MISSING: Final = statements("missing")

#: Stages whose tables a report shows, with the items that are missing if a stage published nothing.
STAGES: Final = (
    ("capture", "the workload and how it ran"),
    ("session_environment", "the environment, the devices and the clocks"),
    ("inference_run", "the iterations and their figures"),
    ("kernel_trace", "the kernels and when they ran"),
    ("completeness", "what the recording lacks"),
    ("timeline", "the kernels' shares and the device's busy time"),
    ("critical_path", "the critical path"),
    ("model_graph", "the model's operators, their work and their traffic"),
    ("roofline", "how close each kernel came to the roofline, and its occupancy"),
    ("att_enrichment", "the instructions wavefronts stalled on"),
    ("classification", "what limits the session and its kernels"),
    ("regression", "where it lies among earlier sessions, and what changed"),
    ("telemetry", "host and device samples during the iterations"),
)
