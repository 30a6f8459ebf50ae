"""A session's document as text for a terminal: the answer first, then tables.

What is told comes from `document`; the command's other output is `aaco_pipeline.cli.output`.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from aaco_pipeline.report.document.session import Document, Row, answer, interval, metric, what
from aaco_pipeline.report.words import bottleneck_text as limits
from aaco_pipeline.report.words.units import counted, duration, printable, share, shortened

if TYPE_CHECKING:
    from rich.console import Console

_MISSING: Final = "–"
#: Lines stay whole at this width when the output is not a terminal.
_WIDTH_OF_A_FILE: Final = 160
_LIMITED_KERNELS: Final = 10
_LATENCIES: Final = ("latency_p50", "latency_p90", "latency_p99", "latency_mean")


def print_session(document: Document, stream: TextIO | None = None) -> None:
    """Print a short or a long document, on standard output unless told otherwise."""
    from rich.console import Console
    from rich.markup import escape

    out = stream or sys.stdout
    screen = Console(file=out, highlight=False, width=None if out.isatty() else _WIDTH_OF_A_FILE)
    screen.print(f"[bold]{escape(document['session_id'])}[/bold]  {escape(printable(what(document)))}")
    screen.print(escape(printable(answer(document))), style="bold green")
    rows = []
    for name in _LATENCIES:
        unprofiled, profiled = metric(document, name, "latency"), metric(document, name, "trace")
        if unprofiled is not None:
            rows.append(
                (
                    name.removeprefix("latency_"),
                    duration(unprofiled["value"]),
                    interval(unprofiled),
                    duration(profiled["value"]) if profiled else None,
                )
            )
    columns = ("latency", "unprofiled", "95 % interval", "profiled")
    print_rows(screen, columns, rows, numeric=columns[1:])
    print_rows(
        screen,
        ("operator", "kernels", "dispatches", "total", "mean", "share"),
        [
            (
                row["operator"],
                str(row["kernels"]),
                str(row["dispatch_count"]),
                duration(row["total_ns"]),
                duration(row["mean_ns"]),
                share(row["share_ratio"]),
            )
            for row in document.get("operators", [])
        ],
        title="By kind of operator",
        numeric=("kernels", "dispatches", "total", "mean", "share"),
    )
    print_rows(
        screen,
        ("kernel", "operator", "dispatches", "total", "mean", "share"),
        [
            (
                shortened(kernel["name"]),
                kernel["operator"],
                str(kernel["dispatch_count"]),
                duration(kernel["total_ns"]),
                duration(kernel["mean_ns"]),
                share(kernel["share_ratio"]),
            )
            for kernel in document["top_kernels"]
        ],
        title="Where the kernel time went (measured iterations of the profiled pass)",
        numeric=("dispatches", "total", "mean", "share"),
    )
    _print_limits(screen, document["optimization_priority"])
    absent = [(item["item"], item["status"], item["reason"]) for item in limits.without_repetition(document["missing"])]
    absent += [
        (item["gives"], "absent", f"the stage {item['stage']} has published nothing for this session")
        for item in document.get("unpublished_stages", [])
    ]
    print_rows(screen, ("evidence", "status", "why"), absent, title="What was missing")
    if "kernels" in document and len(document["kernels"]) > len(document["top_kernels"]):
        rest = len(document["kernels"]) - len(document["top_kernels"])
        screen.print(f"{counted(rest, 'further kernel')} in `aaco report --format markdown`", style="dim")


def _print_limits(screen: "Console", kernels: Sequence[Row]) -> None:
    """The kernels that are worth most to look at, with what limits each; nothing when nothing is known of any."""
    if not any(row["label"] or row["bound"] for row in kernels):
        return
    rows = [
        (
            shortened(row["name"], 60),
            share(row["share_ratio"]),
            None if row["label"] is None else limits.briefly(row["label"]),
            limits.resource(row["bound"]),
            share(row["efficiency_ratio"]),
            None if row["saved_ns"] is None else f"{duration(row['saved_ns'])} at {row['speedup_ratio']:g}×",
        )
        for row in kernels[:_LIMITED_KERNELS]
    ]
    print_rows(
        screen,
        ("kernel", "share", "limited by", "bound", "of that roof", "a faster one saves"),
        rows,
        title="What to look at first; more of one kernel with `aaco show --kernel NAME`",
        numeric=("share", "of that roof", "a faster one saves"),
    )


def print_critical_path(document: Document, stream: TextIO | None = None) -> None:
    """Print where the time went: the longest path by category, its kernels, and why the devices were idle."""
    from rich.console import Console
    from rich.markup import escape

    out = stream or sys.stdout
    screen = Console(file=out, highlight=False, width=None if out.isatty() else _WIDTH_OF_A_FILE)
    screen.print(f"[bold]{escape(document['session_id'])}[/bold]  {escape(printable(what(document)))}")
    categories = document["path_categories"]
    if not categories:
        screen.print("The session has no device activities with times, and so no critical path.")
        return
    window, path = categories[0]["window_ns"], categories[0]["path_ns"]
    screen.print(
        f"The critical path takes {duration(path)} of the window's {duration(window)}; "
        f"{duration(window - path)} of it nothing recorded explains.",
        style="bold green",
    )
    rest = ("unexplained", duration(window - path), share((window - path) / window))
    print_rows(
        screen,
        ("on the path", "time", "of the window"),
        [*((row["category"], duration(row["category_ns"]), share(row["window_ratio"])) for row in categories), rest],
        numeric=("time", "of the window"),
    )
    print_rows(
        screen,
        ("kernel", "family", "on the path", "dispatches", "of it critical"),
        [
            (
                shortened(row["name"]),
                row["family"],
                duration(row["critical_ns"]),
                f"{row['dispatch_count']:,}",
                share(row["criticality"]),
            )
            for row in document["path_kernels"]
        ],
        title="Kernels on the path",
        numeric=("on the path", "dispatches", "of it critical"),
    )
    print_rows(
        screen,
        ("kernel", "if so many times as fast", "the path is shorter by", "of the window"),
        [
            (
                shortened(row["name"]),
                f"{row['speedup_ratio']:g}",
                duration(row["saved_ns"]),
                share(row["saved_ratio"]),
            )
            for row in document["savings"]
        ],
        title="What a faster kernel would save (the path computed anew)",
        numeric=("if so many times as fast", "the path is shorter by", "of the window"),
    )
    print_rows(
        screen,
        ("device", "cause", "idle", "gaps", "longest"),
        [
            (
                str(row["device_id"]),
                row["cause"],
                duration(row["idle_ns"]),
                f"{row['gaps']:,}",
                duration(row["longest_ns"]),
            )
            for row in document["gap_causes"]
        ],
        title="Why the devices were idle",
        numeric=("idle", "gaps", "longest"),
    )


def print_rows(
    screen: "Console",
    columns: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    *,
    title: str | None = None,
    numeric: Sequence[str] = (),
) -> None:
    """A table, columns named in `numeric` flush right and missing values as a dash; nothing when it has no rows.

    Text of a capture may stand in every cell: what could move the cursor is replaced.
    """
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    listed = list(rows)
    if not listed:
        return
    if title is not None:
        screen.print(title, style="bold", markup=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*(_MISSING if cell is None else escape(printable(cell)) for cell in row))
    screen.print(table)
