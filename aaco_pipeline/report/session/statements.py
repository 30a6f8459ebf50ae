"""Read the SQL statements that gather a session's document; the files in `report/sql` hold all of them.

Each ends in an ORDER BY without ties, so that the same tables give the same document; `{session}` is the session's id.
How rows are put into words is decided elsewhere.
"""

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

#: Rows of the lists that are cut short.
LISTED_KERNELS: Final = 60
LISTED_INSTRUCTIONS: Final = 3
#: Kernels that have a page of their own.
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
    """The statements of a file by their names, each on one line.

    A fragment of the file stands in another part as `{fragment}`, `[table]` for the table's rows of the session, and
    `[table:whole]` for those of whole kernels among them.
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

#: The stages whose tables a report shows, with what is missing when one has published nothing.
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
