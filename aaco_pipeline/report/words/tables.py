"""What a session's tables show, column by column, in every form but the page: for a terminal and for Markdown.

A column has a name, with `*` in front where it holds figures, and says how a row is shown in it. Tables are drawn by
`terminal.screen` and `markdown`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aaco_pipeline.report.words.session import Document, Row, interval, metric
from aaco_pipeline.report.words.units import duration, grouped, share

Columns = Mapping[str, Callable[[Row], str | None]]

_TIMES: Final[Columns] = {
    "*dispatches": lambda row: grouped(row["dispatch_count"]),
    "*total": lambda row: duration(row["total_ns"]),
    "*mean": lambda row: duration(row["mean_ns"]),
    "*share": lambda row: share(row["share_ratio"]),
}
LATENCIES: Final[Columns] = {
    "latency": lambda row: row["name"],
    "*unprofiled": lambda row: duration(row["unprofiled"]["value"]),
    "*95 % interval": lambda row: interval(row["unprofiled"]),
    "*profiled": lambda row: row["profiled"] and duration(row["profiled"]["value"]),
}
OPERATORS: Final[Columns] = {
    "operator": lambda row: row["operator"],
    "*kernels": lambda row: grouped(row["kernels"]),
    **_TIMES,
}
KERNELS: Final[Columns] = {"kernel": lambda row: row["name"], "operator": lambda row: row["operator"], **_TIMES}
STALLS: Final[Columns] = {
    "kernel": lambda row: row["name"] or "matched to no kernel",
    "*dispatch": lambda row: grouped(row["dispatch_id"]),
    "thread trace": lambda row: row["capture"],
    "stalled for": lambda row: row["reason"],
    "*cycles": lambda row: grouped(row["stall_cycles"]),
    "*samples": lambda row: grouped(row["samples"]),
    "*share": lambda row: share(row["share_ratio"]),
}
MISSING: Final[Columns] = {
    "evidence": lambda row: row["item"],
    "status": lambda row: row["status"],
    "why": lambda row: row["reason"],
}


def latencies(document: Document) -> Sequence[Row]:
    """The quantiles and the mean of both passes, as far as the unprofiled one has them."""
    rows = [
        {"name": name} | {key: metric(document, f"latency_{name}", of) for key, of in _PASSES.items()}
        for name in ("p50", "p90", "p99", "mean")
    ]
    return [row for row in rows if row["unprofiled"] is not None]


_PASSES: Final = {"unprofiled": "latency", "profiled": "trace"}
