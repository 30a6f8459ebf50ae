"""Lay out the page of one kernel, with its chart of memory levels.

The page is a view within the session's page; its template is `html/templates/kernel/view.html.jinja`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report.formatting import duration, number, share, size
from aaco_pipeline.report.html.roofline_plot import NARROW, roofline_plot
from aaco_pipeline.report.kernel.document import (
    SOURCES,
    against_roof,
    kernel_answer,
    lacking_evidence,
    launch_facts,
    launch_in_words,
    rate_text,
)
from aaco_pipeline.report.session import bottlenecks, view
from aaco_pipeline.report.session.sentences import Document, Row
from aaco_pipeline.report.session.view import kernel_in_words

#: Arrow widths: for the most bytes, the minimum, and for an unknown number of bytes.
_WIDEST: Final = 40.0
_LEAST: Final = 2.0
_HOLLOW: Final = 14.0
#: Flags of a row whose bytes are derived from operator shapes, or whose DRAM bytes may have come from a cache.
_MODEL_BASED: Final = "model_based"
_ASSUMED: Final = "infinity_cache_not_excluded"


@dataclass(frozen=True)
class Level:
    """Bytes transferred above one memory level, per dispatch if the number of dispatches is known.

    `width` is the arrow's, None if nothing was counted; `said` are the lines next to the arrow, `inside` those in the
    level's box below its name.
    """

    key: str
    name: str
    bytes_: int | None
    width: float
    said: tuple[str, ...]
    inside: tuple[str, ...]


def memory_levels(kernel: Row, bounds: Sequence[Row], metrics: Mapping[str, float]) -> list[Level]:
    """Return the levels from LDS to DRAM; empty if nothing was counted.

    `kernel` is a row of `roofline` with counted_ns (its duration) and counted (its dispatches), `bounds` its rows of
    `resource_bounds`, `metrics` figures of `counter_metrics` by name.
    """
    flags = kernel["quality_flags"] or ()
    if _MODEL_BASED in flags:
        return []
    by_source = sorted(bounds, key=lambda row: [*SOURCES].index(row["ceiling_source"]))
    counted = [row for row in by_source if row["unit"] == "byte" and row["work_source"] == "counters"]
    best = {row["resource"]: row for row in reversed(counted)}
    read, written = kernel["fabric_read_bytes"], kernel["fabric_write_bytes"]
    fabric = None if read is None and written is None else (read or 0) + (written or 0)
    dram = round(best["dram"]["work"]) if "dram" in best else None
    found = {
        "lds": kernel["lds_traffic_bytes"],
        "vl1d": kernel["vl1d_traffic_bytes"],
        "l2": kernel["l2_traffic_bytes"],
        "fabric": fabric,
        "dram": dram,
    }
    if all(amount is None for amount in found.values()):
        return []
    most = max((amount for amount in found.values() if amount), default=0)
    behind = next((best[name] for name in ("fabric", "infinity_cache") if name in best), None)
    each = kernel["counted"] or 0
    directions = tuple(
        f"{size(round(amount / max(each, 1)))} {way}"
        for amount, way in ((read, "read"), (written, "written"))
        if amount is not None
    )
    inside = {
        "vl1d": _hits(metrics.get("vl1d_hit_ratio")),
        "l2": _hits(metrics.get("l2_hit_ratio")),
        "fabric": (", ".join(directions),) if directions else (),
        "dram": ("if the Infinity Cache served none",) if _ASSUMED in flags else (),
    }
    names = {"lds": "LDS", "vl1d": "vL1D", "l2": "L2", "fabric": "Fabric", "dram": "DRAM"}
    if "infinity_cache" in best:
        names["fabric"] = "Fabric and Infinity Cache"
    return [
        Level(
            key,
            name,
            found[key],
            _HOLLOW if found[key] is None else max(_LEAST, _WIDEST * (found[key] or 0) / most) if most else _LEAST,
            _said(found[key], each, kernel["counted_ns"], behind if key == "fabric" else best.get(key)),
            inside.get(key, ()),
        )
        for key, name in names.items()
    ]


def _said(amount: int | None, dispatches: int, time_ns: int | None, bound: Row | None) -> tuple[str, ...]:
    if amount is None:
        return ("not counted",)
    if not amount:
        return ("nothing passed",)
    lines = [f"{size(round(amount / dispatches))} a dispatch" if dispatches > 1 else str(size(amount))]
    rate = rate_text(amount, "byte", time_ns)
    lines += [rate] if rate else []
    if bound is not None and bound["share_ratio"] is not None:
        lines.append(f"{share(bound['share_ratio'])} of {SOURCES[bound['ceiling_source']]}")
    return tuple(lines)


def _hits(ratio: float | None) -> tuple[str, ...]:
    return () if ratio is None else (f"{share(ratio)} hits",)


#: Units with busy-cycle counters, with their labels; for each, the first available figure is used.
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
#: Fractions of wavefront cycles.
_WAVES: Final = {
    "issuing_ratio": "Issuing",
    "issue_wait_ratio": "Waiting to issue",
    "dependency_wait_ratio": "Waiting for something",
}
_ROOFS: Final = 8
_STALLS: Final = 8
#: The plot of durations is logarithmic if the longest dispatch takes at least this many times as long as the shortest.
_LOGARITHMIC_FROM: Final = 8
_PLOT: Final = (600, 100)


def kernel_views(document: Document) -> list[dict[str, Any]]:
    """Return the values of each kernel's view, heaviest first; values without evidence are empty or None."""
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
    """List the kernels that have a page."""
    return {row["kernel_id"] for row in document["shown_kernels"]}


def first_kernel(document: Document) -> Row | None:
    """Return the heaviest kernel of the kind of work to fix first; None if there is no such kind."""
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
        # DRAM bytes are derived from the fabric's, so no counter would provide them.
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
        "caveats": bottlenecks.flags(kernel["quality_flags"]),
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
    """Return name, share of cycles and caveats of each unit with busy-cycle counts."""
    for label, names in _UNITS.items():
        row = next((metrics[name] for name in names if name in metrics), None)
        if row is not None:
            yield label, row["value"], bottlenecks.flags(row["quality_flags"])


def _roofs(bounds: Sequence[Row]) -> Iterator[tuple[str, float, str]]:
    """Return each resource's name, fraction of the kernel's time and ceiling source: the most trusted, then the
    longest.
    """
    order = [*SOURCES]
    best: dict[str, Row] = {}
    for row in sorted(bounds, key=lambda one: (order.index(one["ceiling_source"]), -one["lower_bound_ns"])):
        best.setdefault(row["resource"], row)
    known = [row for row in best.values() if row["share_ratio"] is not None]
    for row in sorted(known, key=lambda one: -one["share_ratio"]):
        name = bottlenecks.resource(row["resource"], row["dtype"]) or row["resource"]
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
    """Return facts and plot of the durations; None for a kernel without timed dispatches."""
    if not found:
        return None
    row, sections = found[0], found[0]["stretches"]
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
    plot = _duration_plot(sections) if len(sections) > 1 else None
    return {
        "facts": [fact for fact in facts if fact[1]],
        "outliers": told,
        "plot": plot,
        "count": row["dispatch_count"],
    }


def _duration_plot(sections: Sequence[Row]) -> dict[str, Any]:
    """Draw each section's range from shortest to longest dispatch, on a linear axis from zero or a logarithmic one."""
    least = min(one["least_ns"] for one in sections)
    most = max(one["most_ns"] for one in sections)
    logarithmic = 0 < least * _LOGARITHMIC_FROM < most
    width, height = _PLOT

    def up(value: int) -> float:
        part = math.log(value / least) / math.log(most / least) if logarithmic else value / (most or 1)
        return height - 4 - part * (height - 8)

    marks = "".join(
        f"M{(at + 0.5) * width / len(sections):.0f} {up(one['least_ns']):.0f}V{up(one['most_ns']) - 0.01:.1f}"
        for at, one in enumerate(sections)
    )
    return {
        "width": width,
        "height": height,
        "marks": marks,
        "top": duration(most),
        "foot": f"{duration(least)} (logarithmic)" if logarithmic else "0",
        "together": max(one["dispatches"] for one in sections),
    }


def _stalls(reasons: Sequence[Row], instructions: Sequence[Row], lines: Sequence[Row]) -> dict[str, Any]:
    """Return reasons, hottest instructions and lines of the dispatch or thread trace with the largest loss, with
    shares.
    """
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
    """Return the heaviest inputs of the operator, and the number of other inputs."""
    if row["shapes"] is None:
        return None
    text = view.shapes_text(row)
    return f"{text}, of {row['shape_count']:,} different" if row["shape_count"] > 1 else text
