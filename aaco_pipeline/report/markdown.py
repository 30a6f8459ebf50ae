"""A session's document as Markdown, for a pull request or a note.

What is told comes from `document`; plots are the page's (`html`) alone.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from aaco_pipeline.report.document.session import Document, answer, interval, metric, title, what
from aaco_pipeline.report.words import bottleneck_text as limits
from aaco_pipeline.report.words.units import counted, duration, share, size, work

_LISTED_ROWS: Final = 20
_LATENCIES: Final = ("latency_p50", "latency_p90", "latency_p99", "latency_mean")


def render_markdown(document: Document) -> str:
    """A long document in Markdown; names from the capture are escaped, so that they are text and nothing else."""
    parts = [
        f"# {_plain(title(document))}",
        f"`{document['session_id']}` — {_plain(what(document))}",
        f"**{_plain(answer(document))}**",
        *_table("Latency", ("", "unprofiled >", "95 % interval >", "profiled >"), _latencies(document)),
        *_table(
            "Kernel time by kind of operator",
            ("operator", "kernels >", "share >", "total >", "dispatches >", "mean >"),
            (
                (
                    row["operator"],
                    str(row["kernels"]),
                    share(row["share_ratio"]),
                    duration(row["total_ns"]),
                    f"{row['dispatch_count']:,}",
                    duration(row["mean_ns"]),
                )
                for row in document["operators"]
            ),
        ),
        *_table(
            "Kernel time by kernel",
            ("kernel", "operator", "share >", "total >", "dispatches >", "mean >"),
            (
                (
                    row["name"],
                    row["operator"],
                    share(row["share_ratio"]),
                    duration(row["total_ns"]),
                    f"{row['dispatch_count']:,}",
                    duration(row["mean_ns"]),
                )
                for row in document["kernels"]
            ),
        ),
        *_table(
            "Kernels and what limits them",
            ("kernel", "share >", "limited by", "bound", "of that roof >", "nearest lower bounds", "occupancy"),
            _limited(document),
        ),
        *_table(
            "Work and traffic of the model's operators",
            ("operator", "type", "time >", "work >", "reads >", "writes >"),
            (
                (
                    row["name"] or "unattributed",
                    row["op_type"],
                    duration(row["total_ns"]),
                    work(row["flops"]),
                    size(row["read_bytes"]),
                    size(row["written_bytes"]),
                )
                for row in document["model_operators"]
            ),
        ),
        *_table("What was missing, and why", ("what", "status", "why"), _missing(document), every=True),
        *_table(
            "Environment",
            ("category", "fact", "value"),
            ((row["category"], row["key"], row["value"]) for row in document["environment"]),
            every=True,
        ),
        *_table(
            "Clocks",
            ("clock", "uncertainty >", "tied by"),
            ((row["domain"], duration(row["uncertainty_ns"]), row["anchor"]) for row in document["clock_domains"]),
            every=True,
        ),
        f"Written by {document['written_by']}; `aaco report {document['session_id']}` makes the page with the plots.",
    ]
    return "\n\n".join(parts) + "\n"


def _latencies(document: Document) -> Iterable[Sequence[str | None]]:
    for name in _LATENCIES:
        unprofiled, profiled = metric(document, name, "latency"), metric(document, name, "trace")
        if unprofiled is not None:
            profiled_value = duration(profiled["value"]) if profiled is not None else None
            yield name.removeprefix("latency_"), duration(unprofiled["value"]), interval(unprofiled), profiled_value


def _limited(document: Document) -> Iterable[Sequence[str | None]]:
    """Kernels of which something is known; a session of which nothing is has no such table."""
    if not any(row["label"] or row["bound"] or row["nearest_bounds"] for row in document["limits"]):
        return
    for row in document["limits"]:
        yield (
            row["name"],
            share(row["share_ratio"]),
            limits.of_kernel(row),
            limits.resource(row["bound"]),
            share(row["efficiency_ratio"]),
            ", ".join(limits.nearest(row)) or None,
            limits.occupied(row),
        )


def _missing(document: Document) -> Iterable[Sequence[str | None]]:
    for row in limits.without_repetition(document["missing"]):
        yield row["item"], row["status"], row["reason"]
    for row in document["unpublished_stages"]:
        yield row["gives"], "absent", f"the stage {row['stage']} has published nothing for this session"


def _table(
    heading: str, columns: Sequence[str], rows: Iterable[Sequence[str | None]], *, every: bool = False
) -> Iterable[str]:
    """A heading and a table, or nothing without rows; a column whose name ends with `>` is set flush right."""
    listed = list(rows)
    if not listed:
        return
    shown = listed if every else listed[:_LISTED_ROWS]
    lines = [
        "| " + " | ".join(name.removesuffix(" >") for name in columns) + " |",
        "|" + "|".join(" ---: " if name.endswith(" >") else " --- " for name in columns) + "|",
        *("| " + " | ".join("–" if cell is None else _plain(cell) for cell in row) + " |" for row in shown),
    ]
    yield f"## {heading}"
    yield "\n".join(lines)
    if len(listed) > len(shown):
        yield f"{counted(len(listed) - len(shown), 'further row')} in `aaco report --format json`."


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#~&$])", r"\\\1", " ".join(text.split()))
