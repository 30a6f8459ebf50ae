"""Lay out one kernel for the terminal.

The sentences and figures come from `document`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TextIO

from aaco_pipeline.report.formatting import counted, duration, grouped, in_a_line, number, prefixed, share, shortened
from aaco_pipeline.report.kernel.document import kernel_answer
from aaco_pipeline.report.optimization.search import search_in_a_line
from aaco_pipeline.report.session import bottlenecks, view
from aaco_pipeline.report.session.sentences import Document, Row
from aaco_pipeline.report.session.view import print_head
from aaco_pipeline.report.terminal import open_screen, print_table

if TYPE_CHECKING:
    from rich.console import Console


_BAR: Final = 24
_NAME: Final = 120
_FULL_NAME: Final = 600
_OPERATORS: Final = 10
_COSTS: Final = 20
_METRICS_SHOWN: Final = 12
_SEARCHES: Final = 3
#: Figures from counters, the most telling first: is it at work, does it wait, and does data come from near.
_METRICS: Final = (
    *("cu_busy_ratio", "valu_busy_ratio", "matrix_busy_ratio", "ipc", "dependency_wait_ratio", "issue_wait_ratio"),
    *("active_threads", "vl1d_hit_ratio", "l2_hit_ratio", "fabric_bandwidth", "coalescing_ratio"),
    *("lds_bank_conflict_ratio", "lds_busy_ratio", "fabric_read_latency", "vmem_latency", "l1i_hit_ratio", "clock"),
    *("instructions_per_wavefront", "wavefronts"),
)
_COST_COLUMNS: Final = {
    "*hits": "hits",
    "*latency": "latency_cycles",
    "*stalled": "stall_cycles",
    "*idle before": "idle_cycles",
    "*waited for": "charged_stall_cycles",
    "*samples": "samples",
}


def print_kernel(document: Document, stream: TextIO | None = None) -> None:
    """Print what is known of one kernel, on standard output unless told otherwise."""
    screen = open_screen(stream)
    kernel = document["kernel"]
    called = view.kernel_in_words({"name": kernel["name"], "operator": kernel["short_name"]})
    print_head(screen, document, shortened(in_a_line(called), _NAME), kernel_answer(kernel, document["bottleneck"][:1]))
    facts = [(name, in_a_line(text)) for name, text in _facts(document) if text]
    print_table(screen, {"what": lambda fact: fact[0], "is": lambda fact: fact[1]}, facts, title="What it is")
    _print_bounds(screen, document)
    _print_evidence(screen, document)
    _print_metrics(screen, document)
    _print_operators(screen, document)
    _print_costs(screen, document, "instruction_classes", "instruction_class", "By class of instruction")
    _print_costs(screen, document, "source_lines", "source", "By line of the source")
    _print_instructions(screen, document, stream)


def _facts(document: Document) -> Iterable[tuple[str, str | None]]:
    kernel = document["kernel"]
    source = {"op": " (by its operator)", "name": " (by its name)"}.get(kernel["family_source"], "")
    registers = (("arch_vgprs", "vector"), ("accum_vgprs", "accumulation"), ("sgprs", "scalar"))
    scratch, lds, mean = (kernel[key] for key in ("static_scratch_bytes", "static_lds_bytes", "mean_ns"))
    ends = f"{duration(kernel['min_ns'])} to {duration(kernel['max_ns'])}"
    return (
        ("name", shortened(kernel["name"], _FULL_NAME)),
        ("family", kernel["family"] and kernel["family"] + source),
        *(
            (label, kernel[key])
            for label, key in (("number format", "dtype"), ("tile", "tile"), ("library", "library"))
        ),
        ("registers", ", ".join(f"{kernel[key]} {name}" for key, name in registers if kernel[key] is not None)),
        ("scratch", None if scratch is None else f"{scratch:,} bytes per work-item"),
        ("LDS", None if lds is None else f"{lds:,} bytes per workgroup"),
        ("per dispatch", None if mean is None else f"{duration(mean)} on average, {ends}"),
        *(_roof(document["roofline"]) if document["roofline"] is not None else ()),
        *(_occupancy(document["occupancy"]) if document["occupancy"] is not None else ()),
        *(_path(document["critical_path"]) if document["critical_path"] is not None else ()),
        *(
            (
                f"{row['speedup_ratio']:g} times as fast",
                f"the path is {duration(row['saved_ns'])} shorter ({share(row['saved_ratio']) or '–'} of the window)",
            )
            for row in document["what_if"]
        ),
        *(("made faster", search_in_a_line(row)) for row in document["searches"][:_SEARCHES]),
    )


def _roof(row: Row) -> Iterable[tuple[str, str | None]]:
    roof = bottlenecks.resource(row["bound"])
    return (
        ("nearest roof", roof and f"{roof}, {share(row['efficiency_ratio'])} of it reached"),
        ("caveats", bottlenecks.flags(row["quality_flags"])),
    )


def _occupancy(row: Row) -> Iterable[tuple[str, str | None]]:
    after, waves, tail = share(row["next_ratio"]), number(row["grid_waves_ratio"]), share(row["tail_ratio"])
    idle = f", {tail} of the slots idle in the last round" if tail else ""
    return (
        ("occupancy", bottlenecks.occupied(row)),
        ("next step", after and f"{row['next_step']} allows {after}"),
        ("grid", waves and f"{waves} times what the device holds at once{idle}"),
    )


def _path(row: Row) -> Iterable[tuple[str, str]]:
    taken = f", {duration(row['critical_ns'])}" if row["critical_ns"] is not None else ""
    return (("critical path", f"{row['critical_count']:,} of {row['dispatch_count']:,} dispatches are on it{taken}"),)


#: Sources of lower bounds, the best first, and their columns.
_BOUND_SOURCES: Final = {
    "busy": "*busy by its own count",
    "measured": "*at least (measured ceiling)",
    "reported": "*at least (reported of such devices)",
    "spec": "*at least (published)",
}


def _print_bounds(screen: "Console", document: Document) -> None:
    """The shortest time of each resource by its own count and by each kind of ceiling, with a bar for its share."""
    by_resource: dict[tuple[str, str | None], dict[str, Row]] = {}
    for row in document["resource_bounds"]:
        by_resource.setdefault((row["resource"], row["dtype"]), {})[row["ceiling_source"]] = row
    rows = [
        {**next(sources[kind] for kind in _BOUND_SOURCES if kind in sources), "sources": sources}
        for sources in by_resource.values()
    ]
    kinds = {kind: name for kind, name in _BOUND_SOURCES.items() if any(kind in row["sources"] for row in rows)}

    def least(source: str, row: Row) -> str | None:
        return duration(row["sources"][source]["lower_bound_ns"]) if source in row["sources"] else None

    print_table(
        screen,
        {
            "resource": lambda row: bottlenecks.resource(row["resource"], row["dtype"]),
            "*work": lambda row: _work(row["work"], row["unit"]),
            **{name: lambda row, kind=kind: least(kind, row) for kind, name in kinds.items()},  # type: ignore[misc]
            "*of its time": lambda row: share(row["share_ratio"]),
            "": lambda row: "█" * round(_BAR * min(1.0, row["share_ratio"] or 0.0)),
            "work is": lambda row: {"counters": "counted", "model": "by the model"}.get(
                row["work_source"], row["work_source"]
            ),
        },
        rows,
        title="The shortest time each resource needs for the kernel's work",
        spare=("", "work is"),
    )


def _work(amount: float, unit: str) -> str:
    if unit == "byte":
        return bottlenecks.measure(amount, unit)
    prefix, least = prefixed(amount, {"T ": 1e12, "G ": 1e9, "M ": 1e6}, "")
    return f"{number(amount / least)} {prefix}{unit}"


def _ends(row: Row) -> str | None:
    """The smallest and the largest figure of a dispatch, the unit once; None for a single dispatch."""
    if row["n"] < 2:
        return None
    low, high = (bottlenecks.measure(row[end], row["unit"]) for end in ("min", "max"))
    return f"{low.split()[0] if low.split()[1:] == high.split()[1:] else low} … {high}"


def _print_evidence(screen: "Console", document: Document) -> None:
    print_table(
        screen,
        {
            "signal": lambda row: bottlenecks.signal(row["signal"]),
            "*value": bottlenecks.amount,
            "*threshold": lambda row: (
                None if row["threshold"] is None else bottlenecks.measure(row["threshold"], row["unit"])
            ),
            "*weight": lambda row: number(row["weight"]),
            "from": lambda row: row["source"],
        },
        document["top_evidence"],
        title="Evidence for the label",
    )
    if document["missing_signals"]:
        names = ", ".join(bottlenecks.unmeasured(document["missing_signals"]))
        screen.print(f"Not measured: {names}", style="dim", markup=False)


def _print_metrics(screen: "Console", document: Document) -> None:
    known = {row["metric"]: row for row in document["counter_metrics"] if row["value"] is not None}
    shown = [known[name] for name in _METRICS if name in known][:_METRICS_SHOWN]
    more = f", {len(shown)} of {len(known)}; all with --json" if len(known) > len(shown) else ""
    print_table(
        screen,
        {
            "figure": lambda row: row["metric"].removesuffix("_ratio").replace("_", " "),
            "*value": lambda row: bottlenecks.measure(row["value"], row["unit"]),
            "*smallest … largest": _ends,
            "*dispatches": lambda row: grouped(row["n"]),
            "caveats": lambda row: bottlenecks.flags(row["quality_flags"]),
        },
        shown,
        title=f"From hardware counters{more}",
        spare=("*dispatches", "*smallest … largest", "caveats"),
    )


def _print_operators(screen: "Console", document: Document) -> None:
    operators = document["operators"]
    more = f", the longest {_OPERATORS} of {len(operators)}" if len(operators) > _OPERATORS else ""
    print_table(
        screen,
        {
            "operator": lambda row: row["name"] or "unattributed",
            "type": lambda row: row["op_type"],
            "*time": lambda row: duration(row["total_ns"]),
            "*dispatches": lambda row: grouped(row["dispatch_count"]),
            "matched by": lambda row: row["match"],
        },
        operators[:_OPERATORS],
        title=f"Operators it ran for{more}",
        names=("operator",),
        spare=("matched by", "type"),
    )


def _print_costs(screen: "Console", document: Document, part: str, column: str, title: str) -> None:
    """Cycles and samples by class or by line, the most stalled first; stalled cycles are part of the latency."""
    rows = document[part]
    shown = {label: key for label, key in _COST_COLUMNS.items() if any(row[key] is not None for row in rows)}
    print_table(
        screen,
        {
            "*dispatch": lambda row: grouped(row["dispatch_id"]),
            "thread trace": lambda row: row["capture"],
            column.replace("_", " "): lambda row: row[column],
            **{label: lambda row, key=key: grouped(row[key]) for label, key in shown.items()},  # type: ignore[misc]
        },
        rows[:_COSTS],
        title=f"{title}, cycles of the traced wavefronts",
        names=("source",),
        spare=("*idle before", "*hits", "*dispatch", "thread trace"),
    )


def _print_instructions(screen: "Console", document: Document, stream: TextIO | None) -> None:
    if not document["instructions"]:
        return
    # Polars is only needed by a kernel that has a listing.
    from aaco_pipeline.report.kernel.instructions import listings_of_rows, print_listing

    found = listings_of_rows(document["instructions"], document["stall_reasons"], [document["kernel"]])
    print_listing(found[0], stream)
    if len(found) > 1:
        screen.print(f"{counted(len(found) - 1, 'further listing')} of this kernel in --json")
