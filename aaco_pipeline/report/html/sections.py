"""Define the sections of the report's page: which exist, what each needs, and values that its template cannot compute.

A section is an entry of `SECTIONS` and a template of the same name in `templates/sections`, which contains its text.
`page` is the frame around them; `plots` prepares the data for the page's script.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from markupsafe import Markup

from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report import labels, scaling
from aaco_pipeline.report.formatting import capital
from aaco_pipeline.report.html.plots import PASSES, cause_colour, rank_values
from aaco_pipeline.report.html.roofline_plot import DRAWN_KERNELS, NARROW, placed_kernels, roofline_plot
from aaco_pipeline.report.labels import CAUSES
from aaco_pipeline.report.scaling import placed_curve
from aaco_pipeline.report.session import bottlenecks, spikes, view
from aaco_pipeline.report.session.answer import class_in_words
from aaco_pipeline.report.session.sentences import CHANGES, Document, Row, history, value
from aaco_pipeline.report.session.statements import KERNEL_PAGES

#: Minimum number of iterations for which a profiled pass alone gets a latency plot.
_PLOTTED_ITERATIONS: Final = 10
#: Maximum number of rows in a table, and number of rows initially shown in a folded one.
LISTED_ROWS: Final = 200
SHOWN_ROWS: Final = 12


@dataclass(frozen=True)
class Section:
    """A section with a template of the same name; `values` computes additional values for it.

    `statements` name the parts of the document that it uses; those in `beside` are only listed if they have rows. The
    section is left out if none of the parts in `needs` has rows; the evidence explains why.
    """

    name: str
    label: str
    heading: str
    statements: Sequence[str]
    needs: Sequence[str]
    beside: Sequence[str] = ()
    values: Callable[[Document], dict[str, Any]] = lambda document: {}

    def filled(self, document: Document) -> bool:
        """Return whether there is anything to show."""
        return not self.needs or any(_holds(document, part) for part in self.needs)

    def snippets(self, document: Document) -> list[str]:
        """Return the SQL behind the section."""
        parts = (*self.statements, *(part for part in self.beside if document[part]))
        return [document["statements"][part] for part in parts if part in document["statements"]]


def sections_of(document: Document) -> list[Section]:
    """List the sections with content, in page order."""
    return [section for section in SECTIONS if section.filled(document)]


def _holds(document: Document, part: str) -> bool:
    """Return whether a part of the document has rows.

    `latencies` are the iterations of a pass with enough points for a plot, `history` the sentences on earlier sessions.
    """
    if part == "latencies":
        passes = Counter(row["pass"] for row in document["iterations"] if row["latency_ns"] is not None)
        return passes["latency"] > 1 or passes["trace"] >= _PLOTTED_ITERATIONS
    if part == "history":
        return bool(history(document))
    if part == "limits":
        return any(row["label"] or row["bound"] or row["theoretical_ratio"] for row in document["limits"])
    return bool(document.get(part))


def why_empty(document: Document, stage: str, otherwise: str) -> str:
    """Explain why a section is empty; `otherwise` is the reason if the stage ran and nothing was missing."""
    if any(row["stage"] == stage for row in document["unpublished_stages"]):
        return f"the stage {stage} has published nothing for this session."
    reasons = [
        f"{row['item']}: {row['reason']}"
        for row in document["evidence"]
        if row["stage"] == stage and row["status"] != "present"
    ]
    return ("; ".join(reasons) or f"the stage {stage} ran, and {otherwise}").rstrip(".") + "."


def tables_read(statements: Sequence[str]) -> list[str]:
    """List the lake's tables named in the statements."""
    return [table for table in all_tables() if any(re.search(rf"\b{table}\b", text) for text in statements)]


def shell_command(statement: str) -> str:
    """Return the statement as a shell command."""
    return 'aaco sql "' + re.sub(r'(["\\$`])', r"\\\1", statement) + '"'


def folds(rows: Sequence[Row]) -> bool:
    """Return whether to fold a table's tail; two or three more rows are not worth a click."""
    return len(rows) > SHOWN_ROWS + 3


def ratio_of_all(rows: Sequence[Row]) -> float | None:
    """Sum the rows' shares; None if none has a share."""
    ratios = [row["share_ratio"] for row in rows if row["share_ratio"] is not None]
    return math.fsum(ratios) if ratios else None


def longest_share(rows: Sequence[Row]) -> float:
    """Return the largest share among the rows, which sets the scale of their bars."""
    return max((row["share_ratio"] or 0 for row in rows), default=0)


def missing_evidence(document: Document) -> list[Row]:
    """List missing evidence with status, reason and stage: absent evidence, then stages without tables."""
    missing = bottlenecks.without_repetition([row for row in document["evidence"] if row["status"] != "present"])
    return [*missing, *bottlenecks.unpublished(document)]


# ---- what the templates do not compute -------------------------------------------------------------------------------


def _where(document: Document) -> dict[str, Any]:
    """Return shares, kinds and kernels, with the common scale of their bars: the judged window."""
    row = document["answers"][0]
    return {
        "row": row,
        "shares": view.shares(document),
        "kinds": document["kinds_of_work"],
        "whole": row["window_ns"] or sum(one["time_ns"] for one in document["time_shares"] if one["reason"] is None),
        "told": labels,
        "named": class_in_words,
    }


def _kernels(document: Document) -> dict[str, Any]:
    # On the CPU provider, the window and the kernels come from different passes: scale by the longest kernel.
    window = [row["window_ns"] for row in document["answers"] if document.get("provider") != CPU_PROVIDER]
    return {
        "distortion": value(document, "profiler_distortion"),
        "window": window[0] if window else None,
        "kernel_time": sum(row["total_ns"] for row in document["kernels"]),
    }


def _latency(document: Document) -> dict[str, Any]:
    marked = {spikes.marking_cause(row) for row in document["grades"]}
    by_colour: dict[str, list[str]] = {}
    for cause in sorted(marked, key=lambda one: (cause_colour(one), one or "")):
        by_colour.setdefault(cause_colour(cause), []).append(spikes.CAUSES.get(cause or "", spikes.NO_SINGLE_CAUSE))
    return {
        "causes": [(colour, ", ".join(dict.fromkeys(names))) for colour, names in by_colour.items()],
        "passes": [name for name in PASSES if any(row["pass"] == name for row in document["iterations"])],
        "samples": len(document["system_samples"]) + len(document["gpu_samples"]),
    }


def _spikes(document: Document) -> dict[str, Any]:
    def headed(columns: Iterable[str]) -> list[str]:
        return [f"*{capital(column[1:])}" if column.startswith("*") else capital(column) for column in columns]

    heads = {name: headed(getattr(spikes, name)) for name in ("SPIKES", "CAUSE_FIGURES", "FIGURES")}
    return {"told": spikes, "both": spikes.both_figures(document), "heads": heads}


def _warmup(document: Document) -> dict[str, Any]:
    """Return the warm-up iterations of all passes, the medians of the measured iterations, and the longest time."""
    warm = [
        [row["latency_ns"] for row in document["iterations"] if (row["pass"], row["phase"]) == (name, "warmup")]
        for name in PASSES
    ]
    medians = [value(document, "latency_p50", name) for name in PASSES]
    longest = max((latency or 0 for latencies in (*warm, medians) for latency in latencies), default=0)
    return {"warmup": list(enumerate(zip_longest(*warm))), "medians": medians, "longest": longest}


def _scaling(document: Document) -> dict[str, Any]:
    curve = document["scaling"]
    filled = scaling.filled(curve)
    rows = [
        {
            "cells": [
                (column.shown(row), row[column.order] if column.order else None, column.numeric) for column in filled
            ],
            "session": "this session" if row["session_id"] == document["session_id"] else row["session_id"],
        }
        for row in curve
    ]
    columns = [("*" if column.numeric else "") + capital(column.name) for column in filled]
    return {"sentences": scaling.sentences(curve), **placed_curve(curve), "columns": columns, "rows": rows}


def _limits(document: Document) -> dict[str, Any]:
    kernels, ceilings = document["limits"], document["ceilings"]
    wide, slim = roofline_plot(kernels, ceilings), roofline_plot(kernels, ceilings, width=NARROW)
    return {
        "wide": wide and Markup(wide),
        "slim": slim and Markup(slim),
        "left_out": len(kernels) - min(placed_kernels(kernels), DRAWN_KERNELS),
    }


def _instructions(document: Document) -> dict[str, Any]:
    # Polars and the listing are only loaded for a session with instructions.
    from aaco_pipeline.report.kernel.instructions import listings_of_rows

    kernels = (*document["limits"], *document["kernels"])
    return {"listings": listings_of_rows(document["instructions"], document["stall_reasons"], kernels)}


SECTIONS: Final = (
    Section(
        *("where", "Where", "Where the time went", ("answers", "time_shares", "kinds_of_work"), ("time_shares",)),
        beside=("session_parts",),
        values=_where,
    ),
    Section(
        *("history", "History", "Against earlier sessions", ("place", "changes"), ("history",)),
        beside=("campaign_verdicts",),
        values=lambda document: {"sentences": history(document), "columns": list(CHANGES.items())},
    ),
    Section(
        *("latency", "Latency", "Latency over the run", ("iterations",), ("latencies",)),
        beside=("system_samples", "gpu_samples"),
        values=_latency,
    ),
    Section(
        *("spikes", "Spikes", "Why iterations took longer"),
        ("quietness", "spikes", "delay_causes"),
        ("delay_causes",),
        values=_spikes,
    ),
    Section("distribution", "Distribution", "Distribution", ("iterations", "metrics"), ("latencies",)),
    Section("warmup", "Warm-up", "Warm-up and steady state", ("iterations",), ("latencies",), values=_warmup),
    Section("phases", "Phases", "Phases", ("phases",), ("phases",)),
    Section("scaling", "Scaling", "How it scales", ("scaling",), ("scaling",), values=_scaling),
    Section(
        *("kernels", "Kernels", "Kernels", ("operators", "kernels"), ("kernels",)),
        beside=tuple(KERNEL_PAGES),
        values=_kernels,
    ),
    Section(*("limits", "Limits", "What limits the kernels", ("limits", "ceilings"), ("limits",)), values=_limits),
    Section(
        *("timeline", "Timeline", "Timeline"), ("dispatches", "memory_copies", "gaps", "api_calls"), ("drawn_timeline",)
    ),
    Section(
        *("path", "Path", "The critical path"),
        ("path_categories", "path_kernels", "savings", "gap_causes"),
        ("path_categories",),
        values=lambda document: {"causes": CAUSES},
    ),
    Section(
        *("shapes", "Shapes", "What the operators had to do", ("operator_shapes",), ("operator_shapes",)),
        values=lambda document: {"words": view},
    ),
    Section(
        *("operators", "Operators", "Work and traffic of the model's operators"),
        ("model_operators",),
        ("model_operators",),
    ),
    Section(
        *("ranks", "Ranks", "Ranks and collectives", ("rank_waits",), ("rank_waits",)),
        beside=("rank_times", "ranks_missing", "collective_rates"),
        values=rank_values,
    ),
    Section(
        *("instructions", "Instructions", "Where wavefronts waited", ("instructions", "stall_reasons")),
        ("instructions",),
        values=_instructions,
    ),
    Section("environment", "Environment", "Environment", ("environment", "devices"), ("environment", "devices")),
    Section("clocks", "Clocks", "Clocks", ("clock_domains",), ("clock_domains",)),
    Section(
        *("evidence", "Evidence", "What the answer rests on, and what was missing", ("bottleneck", "evidence"), ()),
        values=lambda document: {"missing": missing_evidence(document)},
    ),
)
