"""A session, a difference or a verdict as Markdown, for a pull request or a note.

What it says comes from `document` and `words`; plots are the page's (`html`) alone.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from aaco_pipeline.report.comparing import (
    difference,
    verdict,
)
from aaco_pipeline.report.formatting import counted, duration, in_a_line, in_lines, share, size, work
from aaco_pipeline.report.optimization import (
    evidence,
    search,
)
from aaco_pipeline.report.session import (
    bottlenecks,
    spikes,
    view,
)
from aaco_pipeline.report.session.sentences import Document, Row, answer, half, history, run_description, title
from aaco_pipeline.report.session.view import Columns

_LISTED_ROWS: Final = 20
_LIMITS: Final[Columns] = {
    "kernel": lambda row: row["name"],
    "*share": lambda row: share(row["share_ratio"]),
    "limited by": bottlenecks.of_kernel,
    "bound": lambda row: bottlenecks.resource(row["bound"]),
    "*of that roof": lambda row: share(row["efficiency_ratio"]),
    "nearest lower bounds": lambda row: ", ".join(bottlenecks.nearest(row)) or None,
    "occupancy": bottlenecks.occupied,
}
_MODEL_OPERATORS: Final[Columns] = {
    "operator": lambda row: row["name"] or "unattributed",
    "type": lambda row: row["op_type"],
    "*time": lambda row: duration(row["total_ns"]),
    "*work": lambda row: work(row["flops"]),
    "*reads": lambda row: size(row["read_bytes"]),
    "*writes": lambda row: size(row["written_bytes"]),
}
_ENVIRONMENT: Final[Columns] = {
    "category": lambda row: row["category"],
    "fact": lambda row: row["key"],
    "value": lambda row: row["value"],
}
_CLOCKS: Final[Columns] = {
    "clock": lambda row: row["domain"],
    "*uncertainty": lambda row: duration(row["uncertainty_ns"]),
    "anchor": lambda row: row["anchor"],
}


def render_markdown(document: Document) -> str:
    """A long document in Markdown; names from the capture are escaped, so that they are text and nothing else."""
    judged = any(row["label"] or row["bound"] or row["nearest_bounds"] for row in document["limits"])
    missing = [*bottlenecks.without_repetition(document["missing"]), *bottlenecks.unpublished(document)]
    parts = [
        f"# {markdown_text(title(document))}",
        f"`{document['session_id']}` — {markdown_text(run_description(document))}",
        *([] if (lacking := half(document)) is None else [f"**{markdown_text(lacking)}**"]),
        f"**{markdown_text(answer(document))}**",
        *(markdown_text(sentence) for sentence in history(document)),
        *([] if (noise := spikes.quietness(document)) is None else [markdown_text(noise)]),
        *_table("Latency", view.LATENCIES, view.latencies(document)),
        *([markdown_text(spikes.spikes_answer(document))] if document["spikes"] else []),
        *_table("Spikes, the longest first", spikes.SPIKES, document["spikes"]),
        *_table("Phases, in the runs without a profiler", view.PHASES, document["phases"]),
        *_table("Where the time went", view.SHARES, view.shares(document)),
        *_table("By kind of work", view.KINDS, document["kinds_of_work"]),
        *_table("Kernel time by kernel", view.KERNELS, document["kernels"]),
        *_table("Kernels and what limits them", _LIMITS, document["limits"] if judged else []),
        *_table("Work and traffic of the model's operators", _MODEL_OPERATORS, _with_work(document["model_operators"])),
        *_table("What was missing, and why", view.MISSING, missing, most=len(missing)),
        *_table("Environment", _ENVIRONMENT, document["environment"], most=len(document["environment"])),
        *_table("Clocks", _CLOCKS, document["clock_domains"]),
        f"Written by {document['written_by']}; `aaco report {document['session_id']}` makes the page with the plots.",
    ]
    return "\n\n".join(parts) + "\n"


def _with_work(rows: Sequence[Row]) -> Sequence[Row]:
    """The model's operators where their work or traffic is known of any: names and times alone are the kernels'."""
    told = ("flops", "read_bytes", "written_bytes")
    return rows if any(row[name] is not None for row in rows for name in told) else ()


def render_difference(document: Document) -> str:
    """Two sessions beside each other in Markdown, in the order in which `aaco diff` prints them."""
    pair = (document[side]["session_id"] for side in ("candidate", "baseline"))
    parts = [
        "# " + " against ".join(f"`{one}`" for one in pair),
        *(f"**{markdown_text(line)}**" for line in difference.opening(document)),
        *(markdown_text(line) for line in difference.verdict(document)),
        *_table("Causes", difference.CAUSES, difference.waterfall(document)),
    ]
    if document["hardware_differs"]:
        parts += _table("The two sessions", difference.SIDES, difference.sides(document))
        parts += _table("Kinds of work, an iteration", difference.KINDS, document["kinds"])
    parts += _list("Environment that differs (no cause by itself)", difference.environment(document))
    return "\n\n".join([*parts, f"Next: {markdown_text(document['recommendation'])}."]) + "\n"


def render_verdict(document: Document) -> str:
    """A campaign's verdict in Markdown, in the order in which `aaco compare` prints it."""
    placebo, doubt, advice = verdict.placebo(document), verdict.certainty(document), verdict.next_step(document)
    told = (verdict.asked(document), placebo, *verdict.reasons(document), *verdict.kept(document))
    parts = [
        f"# {markdown_text(verdict.title(document))}",
        f"**{markdown_text(verdict.sentence(document))}**",
        *(markdown_text(line) for line in told if line),
        *_list("Selected differently", verdict.selected(document)),
        *_table("Metrics", verdict.METRICS, document["verdicts"]),
        *_table("What the change is made of", verdict.CAUSES, verdict.waterfall(document)),
        *([markdown_text(doubt)] if doubt else []),
        *_list("Environment that differs (no cause by itself)", verdict.environment(document)),
        *_list("History", verdict.changes(document)),
        *([markdown_text(advice)] if advice else []),
        f"`aaco report {document['campaign_id']}` makes the page with the plots.",
    ]
    return "\n\n".join(parts) + "\n"


def render_search(document: Document) -> str:
    """A search for a faster kernel or configuration in Markdown: the answer, every attempt, and the change."""
    text = document["evidence"]["patch_text"]
    parts = [
        f"# {markdown_text(evidence.title(document))}",
        markdown_text(evidence.asked(document)),
        f"**{markdown_text(search.sentence_optimization(document))}**",
        *(markdown_text(line) for line in search.remarks_optimization(document)),
        *_table("Attempts", search.ATTEMPTS, document["attempts"], most=len(document["attempts"])),
        *([] if text is None else ["## What was changed", fenced(text, "diff")]),
        f"`aaco report {document['optimization_id']}` makes the page with the plots.",
    ]
    return "\n\n".join(parts) + "\n"


def fenced(text: str, language: str) -> str:
    """Code as it is, in a fence that nothing in it ends."""
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{in_lines(text.expandtabs(8))}{fence}"


def render_stored_difference(document: Document) -> str:
    """A session beside a baseline file in Markdown."""
    parts = [
        f"# {markdown_text(difference.title_stored_difference(document))}",
        f"**{markdown_text(difference.sentence(document))}**",
        *(markdown_text(line) for line in difference.lines(document)),
        *_table("Latency", difference.METRICS, document["metrics"]),
        markdown_text(difference.next_step(document)),
    ]
    return "\n\n".join(parts) + "\n"


def _list(heading: str, lines: Sequence[str]) -> list[str]:
    """A heading and a list, or nothing without lines."""
    return [f"## {heading}", "\n".join(f"- {markdown_text(line)}" for line in lines)] if lines else []


def _table(heading: str, columns: Columns, rows: Sequence[Row], *, most: int = _LISTED_ROWS) -> Iterator[str]:
    """A heading and a table with the first `most` rows, or nothing without rows."""
    if not rows:
        return
    cells = [
        ["–" if (text := show(row)) is None else markdown_text(text) for show in columns.values()]
        for row in rows[:most]
    ]
    yield f"## {heading}"
    yield "\n".join(
        [
            "| " + " | ".join(name.lstrip("*") for name in columns) + " |",
            "|" + "|".join(" ---: " if name.startswith("*") else " --- " for name in columns) + "|",
            *("| " + " | ".join(row) + " |" for row in cells),
        ]
    )
    if len(rows) > most:
        yield f"{counted(len(rows) - most, 'further row')} in `aaco report --format json`."


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#~&$])", r"\\\1", " ".join(in_a_line(text).split()))
