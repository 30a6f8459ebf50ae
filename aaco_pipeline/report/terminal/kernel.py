"""One kernel's document as text for a terminal: the answer first, then the evidence.

What is told comes from `kernel_document`.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from aaco_pipeline.report.document.session import Document, Row
from aaco_pipeline.report.terminal.session import print_rows
from aaco_pipeline.report.words import bottleneck_text as limits
from aaco_pipeline.report.words.units import counted, duration, number, printable, share, shortened

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_OF_A_FILE: Final = 160
_BAR: Final = 24
_NAME: Final = 120
_OPERATORS: Final = 10
_COSTS: Final = 20
_METRICS_SHOWN: Final = 12
#: Figures from counters, the most telling first: is it at work, does it wait, and does data come from near.
_METRICS: Final = (
    *("cu_busy_ratio", "valu_busy_ratio", "matrix_busy_ratio", "ipc", "dependency_wait_ratio", "issue_wait_ratio"),
    *("active_threads", "vl1d_hit_ratio", "l2_hit_ratio", "fabric_bandwidth", "coalescing_ratio"),
    *("lds_bank_conflict_ratio", "lds_busy_ratio", "fabric_read_latency", "vmem_latency", "l1i_hit_ratio", "clock"),
    *("instructions_per_wavefront", "wavefronts"),
)


def print_kernel(document: Document, stream: TextIO | None = None) -> None:
    """Print what is known of one kernel, on standard output unless told otherwise."""
    from rich.console import Console
    from rich.markup import escape

    out = stream or sys.stdout
    screen = Console(file=out, highlight=False, width=None if out.isatty() else _WIDTH_OF_A_FILE)
    kernel = document["kernel"]
    name = shortened(printable(kernel["name"]), _NAME)
    screen.print(f"[bold]{escape(document['session_id'])}[/bold]  {escape(name)}")
    screen.print(escape(kernel_answer(document)), style="bold green")
    _print_facts(screen, document)
    _print_bounds(screen, document)
    _print_evidence(screen, document)
    _print_metrics(screen, document["counter_metrics"])
    _print_operators(screen, document["operators"])
    _print_costs(screen, document, "instruction_classes", "instruction_class", "By class of instruction")
    _print_costs(screen, document, "source_lines", "source", "By line of the source")
    _print_instructions(document, out)


def _print_costs(screen: "Console", document: Document, part: str, column: str, title: str) -> None:
    """Cycles and samples by class or by line, the most stalled first; stalled cycles are part of the latency."""
    named = {"hits": "hits", "latency": "latency_cycles", "stalled": "stall_cycles", "idle before": "idle_cycles"}
    named |= {"waited for": "charged_stall_cycles", "samples": "samples"}
    rows = document[part]
    shown = {label: key for label, key in named.items() if any(row[key] is not None for row in rows)}
    print_rows(
        screen,
        ("dispatch", column.replace("_", " "), *shown),
        [
            (
                None if row["dispatch_id"] is None else str(row["dispatch_id"]),
                row[column],
                *(None if row[key] is None else f"{row[key]:,}" for key in shown.values()),
            )
            for row in rows[:_COSTS]
        ],
        title=f"{title}, cycles of the traced wavefronts",
        numeric=("dispatch", *shown),
    )


def kernel_answer(document: Document) -> str:
    """What limits the kernel, and how long it takes; what was not judged is said."""
    kernel = document["kernel"]
    sentences = []
    if kernel["total_ns"] is not None:
        part = f", {share(kernel['share_ratio'])} of the kernel time" if kernel["share_ratio"] is not None else ""
        count = kernel["dispatch_count"]
        times = f"{count:,} dispatch{'' if count == 1 else 'es'}"
        sentences.append(f"It takes {duration(kernel['total_ns'])} in {times}{part}")
    judged = document["bottleneck"]
    sentences.append(
        limits.verdict(judged[0], "kernel") if judged else "What limits it was not judged: no stage has a row for it"
    )
    return ". ".join(sentences) + "."


def _print_facts(screen: "Console", document: Document) -> None:
    rows = [(name, text) for name, text in _facts(document) if text is not None]
    print_rows(screen, ("what", "is"), rows, title="What it is")


def _facts(document: Document) -> Iterable[tuple[str, str | None]]:
    kernel, placed, occupied = document["kernel"], document["roofline"], document["occupancy"]
    source = {"op": " (by its operator)", "name": " (by its name)"}.get(kernel["family_source"], "")
    yield "family", kernel["family"] and printable(kernel["family"]) + source
    for key in ("dtype", "tile", "library"):
        yield {"dtype": "number format"}.get(key, key), kernel[key] and printable(kernel[key])
    yield "registers", _registers(kernel)
    yield "scratch", _size(kernel["static_scratch_bytes"], "a work-item")
    yield "LDS", _size(kernel["static_lds_bytes"], "a workgroup")
    if kernel["mean_ns"] is not None:
        ends = f"{duration(kernel['min_ns'])} to {duration(kernel['max_ns'])}"
        yield "a dispatch", f"{duration(kernel['mean_ns'])} in the mean, {ends}"
    if placed is not None and placed["bound"] is not None:
        yield "nearest roof", f"{limits.resource(placed['bound'])}, {share(placed['efficiency_ratio'])} of it reached"
    if placed is not None and placed["quality_flags"]:
        yield "with the reservation", limits.flags(placed["quality_flags"])
    if occupied is not None:
        yield "occupancy", limits.occupied(occupied)
        yield "next step", _next_step(occupied)
        yield "grid", _grid(occupied)
    yield "critical path", _path(document["critical_path"])
    for row in document["what_if"]:
        yield (
            f"{row['speedup_ratio']:g} times as fast",
            f"the path is {duration(row['saved_ns'])} shorter ({share(row['saved_ratio']) or '–'} of the window)",
        )


def _registers(kernel: Row) -> str | None:
    parts = (("arch_vgprs", "vector"), ("accum_vgprs", "accumulation"), ("sgprs", "scalar"))
    return ", ".join(f"{kernel[key]} {name}" for key, name in parts if kernel[key] is not None) or None


def _size(amount: int | None, of: str) -> str | None:
    return None if amount is None else f"{amount:,} bytes {of}"


def _next_step(row: Row) -> str | None:
    return None if row["next_ratio"] is None else f"{row['next_step']} admits {share(row['next_ratio'])}"


def _grid(row: Row) -> str | None:
    if row["grid_waves_ratio"] is None:
        return None
    tail = f", {share(row['tail_ratio'])} of the room empty in the last round" if row["tail_ratio"] is not None else ""
    return f"{number(row['grid_waves_ratio'])} times what the device holds at once{tail}"


def _path(row: Row | None) -> str | None:
    if row is None:
        return None
    told = f"{row['critical_count']:,} of {row['dispatch_count']:,} dispatches are on it"
    return told + (f", {duration(row['critical_ns'])}" if row["critical_ns"] is not None else "")


def _print_bounds(screen: "Console", document: Document) -> None:
    """The shortest time of each resource by measured and by published ceilings, with a bar as long as its share."""
    by_resource: dict[tuple[str, str | None], dict[str, Row]] = {}
    for row in document["resource_bounds"]:
        by_resource.setdefault((row["resource"], row["dtype"]), {})[row["ceiling_source"]] = row
    rows = []
    for (resource, dtype), sources in by_resource.items():
        measured, published = sources.get("measured"), sources.get("spec")
        shown = measured or published
        assert shown is not None
        part = shown["share_ratio"]
        rows.append(
            (
                limits.resource(resource, dtype),
                _work(shown["work"], shown["unit"]),
                None if measured is None else duration(measured["lower_bound_ns"]),
                None if published is None else duration(published["lower_bound_ns"]),
                share(part),
                "█" * round(_BAR * min(1.0, part)) if part is not None else None,
                {"counters": "counted", "model": "by the model"}.get(shown["work_source"], shown["work_source"]),
            )
        )
    print_rows(
        screen,
        ("resource", "work", "at least (measured ceiling)", "at least (published)", "of its time", "", "work is"),
        rows,
        title="The shortest time each resource needs for the kernel's work",
        numeric=("work", "at least (measured ceiling)", "at least (published)", "of its time"),
    )


def _work(amount: float, unit: str) -> str:
    if unit == "byte":
        return limits.measure(amount, unit)
    for prefix, factor in (("T ", 1e12), ("G ", 1e9), ("M ", 1e6)):
        if amount >= factor:
            return f"{number(amount / factor)} {prefix}{unit}"
    return f"{number(amount)} {unit}"


def _ends(row: Row) -> str | None:
    """The smallest and the largest figure of a dispatch, the unit once; None for a single dispatch."""
    if row["n"] < 2:
        return None
    low, high = (limits.measure(row[end], row["unit"]) for end in ("min", "max"))
    return f"{low.split()[0] if low.split()[1:] == high.split()[1:] else low} … {high}"


def _print_evidence(screen: "Console", document: Document) -> None:
    rows = [
        (
            limits.signal(row["signal"]),
            limits.amount(row),
            None if row["threshold"] is None else limits.measure(row["threshold"], row["unit"]),
            number(row["weight"]),
            row["source"],
        )
        for row in document["top_evidence"]
    ]
    columns = ("signal", "value", "held against", "weight", "from")
    print_rows(screen, columns, rows, title="What the label rests on", numeric=columns[1:4])
    if document["missing_signals"]:
        names = ", ".join(limits.unmeasured(document["missing_signals"]))
        screen.print(f"Not measured: {names}", style="dim", markup=False)


def _print_metrics(screen: "Console", metrics: Sequence[Row]) -> None:
    known = {row["metric"]: row for row in metrics if row["value"] is not None}
    shown = [known[name] for name in _METRICS if name in known][:_METRICS_SHOWN]
    rows = [
        (
            row["metric"].removesuffix("_ratio").replace("_", " "),
            limits.measure(row["value"], row["unit"]),
            _ends(row),
            f"{row['n']:,}",
            limits.flags(row["quality_flags"]),
        )
        for row in shown
    ]
    more = f", {len(shown)} of {len(known)}; all with --json" if len(known) > len(shown) else ""
    columns = ("figure", "value", "smallest … largest", "dispatches", "reservations")
    print_rows(screen, columns, rows, title=f"From hardware counters{more}", numeric=columns[1:4])


def _print_operators(screen: "Console", operators: Sequence[Row]) -> None:
    rows = [
        (
            shortened(printable(row["name"] or "unattributed"), 60),
            row["op_type"] and printable(row["op_type"]),
            duration(row["total_ns"]),
            f"{row['dispatch_count']:,}",
            row["match"],
        )
        for row in operators[:_OPERATORS]
    ]
    more = f", the longest {_OPERATORS} of {len(operators)}" if len(operators) > _OPERATORS else ""
    columns = ("operator", "type", "time", "dispatches", "matched by")
    print_rows(screen, columns, rows, title=f"Operators it ran for{more}", numeric=("time", "dispatches"))


def _print_instructions(document: Document, out: TextIO) -> None:
    if not document["instructions"]:
        return
    # Polars is only needed by a kernel that has a listing.
    from aaco_pipeline.report.terminal.instruction_listing import listings_of_rows, print_listing

    found = listings_of_rows(document["instructions"], document["stall_reasons"], [document["kernel"]])
    print_listing(found[0], out)
    if len(found) > 1:
        out.write(f"{counted(len(found) - 1, 'further listing')} of this kernel in --json\n")
