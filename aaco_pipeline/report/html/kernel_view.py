"""What the page of each kernel shows, from the parts of a document that `document.kernel_pages` reads.

A kernel's page is a view within the session's page: one file travels as a whole, and `#kernel-7` leads to it. Its
template is `templates/kernel/view.html.jinja`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report.html.memory_chart import memory_levels
from aaco_pipeline.report.html.roofline_plot import NARROW, roofline_plot
from aaco_pipeline.report.words import bottleneck_text, shapes
from aaco_pipeline.report.words.kernel import (
    SOURCES,
    against_roof,
    kernel_answer,
    lacking_evidence,
    launch_facts,
    launch_in_words,
)
from aaco_pipeline.report.words.session import Document, Row
from aaco_pipeline.report.words.tables import kernel_in_words
from aaco_pipeline.report.words.units import duration, number, share

#: Units whose busy cycles are counted, with what they are called; of each the first figure that is there.
_UNITS: Final[Mapping[str, Sequence[str]]] = {
    "Compute units": ("cu_busy_ratio",),
    "Vector units": ("valu_busy_ratio", "valu_busy_ratio_derived"),
    "Matrix units": ("matrix_busy_ratio", "matrix_busy_ratio_derived"),
    "Scalar units": ("salu_busy_ratio", "salu_busy_ratio_derived"),
    "LDS": ("lds_busy_ratio",),
    "Vector memory issue": ("vmem_busy_ratio",),
    "Address units": ("address_unit_busy_ratio", "memory_unit_busy_ratio_derived"),
    "Data return": ("data_return_busy_ratio",),
    "L2": ("l2_busy_ratio",),
}
#: What wavefronts did with their cycles.
_WAVES: Final = {
    "issuing_ratio": "Issuing",
    "issue_wait_ratio": "Waiting to issue",
    "dependency_wait_ratio": "Waiting for something",
}
_ROOFS: Final = 8
_STALLS: Final = 8
#: The plot of durations is logarithmic when the longest dispatch is at least this many times the shortest.
_LOGARITHMIC_FROM: Final = 8
_PLOT: Final = (600, 100)


def kernel_views(document: Document) -> list[dict[str, Any]]:
    """The values of a view for each kernel that has one, the heaviest first; what has no evidence is empty or None."""
    parts = {
        name: _by_kernel(document[name])
        for name in ("kernel_launches", "kernel_durations", "kernel_outliers", "kernel_bounds", "kernel_metrics")
    }
    parts |= {
        name: _by_kernel(document[name])
        for name in ("kernel_operators", "kernel_instructions", "kernel_lines", "stall_reasons")
    }
    return [
        _view(document, kernel, {name: rows.get(kernel["kernel_id"], []) for name, rows in parts.items()})
        for kernel in document["shown_kernels"]
    ]


def paged_kernels(document: Document) -> set[int]:
    """The kernels that a link can lead to."""
    return {row["kernel_id"] for row in document["shown_kernels"]}


def first_kernel(document: Document) -> Row | None:
    """The heaviest kernel of the kind of work that the answer would fix first; None where that is none."""
    return next((row for row in document["shown_kernels"] if row["is_first"]), None)


def _view(document: Document, kernel: Row, parts: Mapping[str, list[Row]]) -> dict[str, Any]:
    metrics = {row["metric"]: row for row in parts["kernel_metrics"]}
    values = {name: row["value"] for name, row in metrics.items()}
    on_cpu = document.get("provider") == CPU_PROVIDER
    ceilings = [row for row in document["ceilings"] if row["unit"] in ("byte/s", "flop/s")]
    roofline = roofline_plot([kernel], ceilings, width=NARROW)
    judged = [kernel] if kernel["missing_signals"] is not None else []
    units = [*_busy(metrics)]
    levels = [] if on_cpu else memory_levels(kernel, parts["kernel_bounds"], values)
    stalls = _stalls(parts["stall_reasons"], parts["kernel_instructions"], parts["kernel_lines"])
    lacks = {
        "utilization": not units,
        "occupancy": kernel["achieved_ratio"] is None,
        # What DRAM carried is concluded from the fabric's bytes: no counter would add it.
        "levels": not levels or any(level.bytes_ is None for level in levels if level.key != "dram"),
        "durations": not parts["kernel_durations"],
        "stalls": not (stalls["stalls"] or stalls["instructions"]),
        "operators": not parts["kernel_operators"],
        "ceilings": all(row["source"] != "measured" for row in document["ceilings"]),
    }
    return {
        "kernel": kernel,
        "heading": kernel_in_words(kernel),
        "sentence": kernel_answer(kernel, judged),
        "against_roof": against_roof(kernel, parts["kernel_bounds"]),
        "caveats": bottleneck_text.flags(kernel["quality_flags"]),
        "facts": launch_facts(kernel),
        "launches": [(launch_in_words(row, kernel), row) for row in parts["kernel_launches"]],
        "durations": _durations(kernel, parts["kernel_durations"], parts["kernel_outliers"]),
        "units": units,
        "waves": [(label, values[name]) for name, label in _WAVES.items() if name in values],
        "roofs": [*_roofs(parts["kernel_bounds"])][:_ROOFS],
        "by_shapes": any(row["work_source"] == "model" for row in parts["kernel_bounds"]),
        "roofline": roofline and Markup(roofline),
        "occupancy": _occupancy(kernel),
        "levels": levels,
        **stalls,
        "operators": [(row, _inputs(row)) for row in parts["kernel_operators"]],
        "lacking": lacking_evidence(document, [name for name, absent in lacks.items() if absent]),
    }


def _by_kernel(rows: Sequence[Row]) -> dict[int, list[Row]]:
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["kernel_id"]].append(row)
    return found


def _busy(metrics: Mapping[str, Row]) -> Iterator[tuple[str, float, str]]:
    """Name, share of cycles and caveats of each unit that counted its busy cycles."""
    for label, names in _UNITS.items():
        row = next((metrics[name] for name in names if name in metrics), None)
        if row is not None:
            yield label, row["value"], bottleneck_text.flags(row["quality_flags"])


def _roofs(bounds: Sequence[Row]) -> Iterator[tuple[str, float, str]]:
    """Name, share of the kernel's time and whose ceiling it is, of each resource the most trusted and longest."""
    order = [*SOURCES]
    best: dict[str, Row] = {}
    for row in sorted(bounds, key=lambda one: (order.index(one["ceiling_source"]), -one["lower_bound_ns"])):
        best.setdefault(row["resource"], row)
    known = [row for row in best.values() if row["share_ratio"] is not None]
    for row in sorted(known, key=lambda one: -one["share_ratio"]):
        name = bottleneck_text.resource(row["resource"], row["dtype"]) or row["resource"]
        yield name, row["share_ratio"], SOURCES[row["ceiling_source"]]


def _occupancy(kernel: Row) -> dict[str, Any] | None:
    if kernel["theoretical_ratio"] is None and kernel["achieved_ratio"] is None:
        return None
    bars = [("Resources allow", kernel["theoretical_ratio"]), ("Achieved", kernel["achieved_ratio"])]
    told = []
    if kernel["limiter"]:
        told.append(f"limited by {kernel['limiter']}")
    if kernel["next_ratio"] is not None:
        told.append(f"{kernel['next_step']} would allow {share(kernel['next_ratio'])}")
    if kernel["grid_waves_ratio"] is not None:
        tail = f", {share(kernel['tail_ratio'])} of the slots idle in the last round" if kernel["tail_ratio"] else ""
        told.append(f"the grid is {number(kernel['grid_waves_ratio'])} times what the device holds at once{tail}")
    return {"bars": [(label, ratio) for label, ratio in bars if ratio is not None], "told": "; ".join(told)}


def _durations(kernel: Row, found: Sequence[Row], outliers: Sequence[Row]) -> dict[str, Any] | None:
    """Marks of the plot of durations in order, and what is said of them; None of a kernel without timed dispatches."""
    if not found:
        return None
    row, stretches = found[0], found[0]["stretches"]
    facts = [("Total", duration(kernel["total_ns"]))]
    if row["dispatch_count"] > 1:
        facts += [("Median", duration(kernel["p50_ns"])), ("Mean", duration(kernel["mean_ns"]))]
        ends = (row["quartile_1_ns"], row["quartile_3_ns"])
        facts += [("Middle half", f"{duration(ends[0])} … {duration(ends[1])}")]
        facts += [("Shortest", duration(kernel["min_ns"])), ("Longest", duration(kernel["max_ns"]))]
    told = None
    for one in outliers:
        causes = f"; possible causes: {', '.join(one['possible_causes'])}" if one["possible_causes"] else ""
        many = f"{one['dispatch_count']:,} of {row['dispatch_count']:,} dispatches took"
        told = (
            f"{many} far longer than the warm ones, whose median is {duration(one['warm_median_ns'])}: "
            f"up to {duration(one['longest_ns'])}{causes}."
        )
    plot = _duration_plot(stretches) if len(stretches) > 1 else None
    return {
        "facts": [fact for fact in facts if fact[1]],
        "outliers": told,
        "plot": plot,
        "count": row["dispatch_count"],
    }


def _duration_plot(stretches: Sequence[Row]) -> dict[str, Any]:
    """A mark from the shortest to the longest dispatch of each stretch, on an axis from zero or a logarithmic one."""
    least = min(one["least_ns"] for one in stretches)
    most = max(one["most_ns"] for one in stretches)
    logarithmic = 0 < least * _LOGARITHMIC_FROM < most
    width, height = _PLOT

    def up(value: int) -> float:
        part = math.log(value / least) / math.log(most / least) if logarithmic else value / (most or 1)
        return height - 4 - part * (height - 8)

    marks = "".join(
        f"M{(at + 0.5) * width / len(stretches):.0f} {up(one['least_ns']):.0f}V{up(one['most_ns']) - 0.01:.1f}"
        for at, one in enumerate(stretches)
    )
    return {
        "width": width,
        "height": height,
        "marks": marks,
        "top": duration(most),
        "foot": f"{duration(least)} (logarithmic)" if logarithmic else "0",
        "together": max(one["dispatches"] for one in stretches),
    }


def _stalls(reasons: Sequence[Row], instructions: Sequence[Row], lines: Sequence[Row]) -> dict[str, Any]:
    """Reasons, hottest instructions and lines of the dispatch or thread trace that lost most, each with its share."""
    first = instructions[0] if instructions else max(reasons, key=_lost, default=None)
    if first is None:
        return {"stalls": [], "stall_unit": None, "instructions": [], "lines": [], "trace": None}
    same = [row for row in reasons if (row["dispatch_id"], row["capture"]) == (first["dispatch_id"], first["capture"])]
    traced = first["stall_cycles"] is not None
    shown = sorted((row for row in same if row["share_ratio"]), key=lambda row: -row["share_ratio"])[:_STALLS]
    whole = instructions[0]["lost"] if instructions else None
    dispatch = None if first["dispatch_id"] is None else f"dispatch {first['dispatch_id']}"
    return {
        "stalls": [(row["reason"], row["share_ratio"], _lost(row)) for row in shown],
        "stall_unit": "stalled cycles" if traced else "samples",
        "instructions": [(row, _lost(row), _lost(row) / whole if whole else None) for row in instructions],
        "lines": [(row["source"], _lost(row), _lost(row) / whole if whole else None) for row in lines],
        "trace": ", ".join(part for part in (dispatch, first["capture"]) if part) or None,
    }


def _lost(row: Row) -> int:
    return int(row["samples"] or 0 if row["stall_cycles"] is None else row["stall_cycles"])


def _inputs(row: Row) -> str | None:
    """The heaviest inputs of the operator, and how many others it was called with."""
    if row["shapes"] is None:
        return None
    text = shapes.shapes_text(row)
    return f"{text}, of {row['shape_count']:,} different" if row["shape_count"] > 1 else text
