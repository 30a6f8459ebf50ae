"""The frame of a section of the report's page: heading, what it says, its body, and the SQL that gave it.

What a section says is `html` and the modules beside it.
"""

import re
from collections.abc import Sequence
from html import escape
from typing import Final

from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.report.document.session import Document

#: How the paragraph begins that stands where a section has nothing to show.
NOTHING: Final = '<p class="empty">Nothing to show:'


def section(document: Document, name: str, heading: str, intro: str, body: str, *, statements: Sequence[str]) -> str:
    """A section; `intro` and `body` are HTML, `statements` name the parts of the document it was made from."""
    snippets = [document["statements"][part] for part in statements if part in document["statements"]]
    tables = [table for table in all_tables() if any(re.search(rf"\b{table}\b", text) for text in snippets)]
    codes = "".join(
        f'<div class="snippet"><pre tabindex="0"><code>{escape(_command(text))}</code></pre>'
        '<button type="button" class="copy">Copy</button></div>'
        for text in snippets
    )
    source = ", ".join(f"<code>{table}</code>" for table in tables)
    return (
        f'<section id="{name}" aria-labelledby="{name}-heading"><h2 id="{name}-heading">{heading}</h2>'
        f'<p class="intro">{intro}</p>{body}'
        + (f'<details class="source"><summary>From {source}: the SQL</summary>{codes}</details>' if codes else "")
        + "</section>"
    )


def _command(statement: str) -> str:
    """The statement as a command for a shell."""
    return 'aaco sql "' + re.sub(r'(["\\$`])', r"\\\1", statement) + '"'


def empty(document: Document, stage: str) -> str:
    """What stands where a section has nothing to show."""
    return f"{NOTHING} {escape(why_empty(document, stage, 'it has no rows'))}</p>"


def why_empty(document: Document, stage: str, otherwise: str) -> str:
    """Why a section has nothing to show, in a sentence; `otherwise` is said of a stage that ran and missed nothing."""
    if any(row["stage"] == stage for row in document["unpublished_stages"]):
        return f"the stage {stage} has published nothing for this session."
    reasons = [
        f"{row['item']}: {row['reason']}"
        for row in document["evidence"]
        if row["stage"] == stage and row["status"] != "present"
    ]
    return ("; ".join(reasons) or f"the stage {stage} ran, and {otherwise}").rstrip(".") + "."
