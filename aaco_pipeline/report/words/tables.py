"""What a session's tables show, column by column, in every form but the page: for a terminal and for Markdown.

A column has a name, with `*` in front where it holds figures, and says how a row is shown in it. Tables are drawn by
`terminal.screen` and `markdown`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aaco_pipeline.report.words import bottleneck_text
from aaco_pipeline.report.words.answer import class_in_words
from aaco_pipeline.report.words.kinds import kind_in_words, rate_alone, roof_counts
from aaco_pipeline.report.words.session import Document, Row, interval, metric
from aaco_pipeline.report.words.units import duration, grouped, share

Columns = Mapping[str, Callable[[Row], str | None]]
#: Up to here a kernel is called by its own name; a longer one by its short form.
_LONGEST_NAME: Final = 48


def kernel_in_words(row: Row) -> str:
    """A kernel as a line has room for it: what it does with its own name, or of a long name the short form.

    A short form keeps its template arguments where there is room: they tell kernels apart that are called the same.
    """
    name, short = str(row["name"]), row["operator"]
    if short is None or (len(name) <= _LONGEST_NAME and name.startswith(str(short))):
        return name
    if len(name) <= _LONGEST_NAME and " " not in name and "<" not in name:
        return f"{short} {name}"
    return _without_parameters(name, str(short))


def _without_parameters(name: str, short: str) -> str:
    """The short form with the template arguments that follow it in the name, if both together are short."""
    before, found, after = name.partition(short)
    if not found or after[:1] not in ("<", "("):
        return name if found and not before else short
    depth = 0
    for at, one in enumerate(after[: _LONGEST_NAME - len(short)]):
        depth += (one == "<") - (one == ">" and after[at - 1] != "-")
        if depth == 0:
            return short + after[: at + 1] if one == ">" else short
    return short


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
PHASES: Final[Columns] = {
    "phase": lambda row: row["name"] or "without a name",
    "*times": lambda row: grouped(row["times"]),
    "*median": lambda row: duration(row["median_ns"]),
    "*longest": lambda row: duration(row["longest_ns"]),
    "*in a run": lambda row: duration(row["run_ns"]),
    "*of the iterations": lambda row: share(row["iterations_ratio"]),
}
KERNELS: Final[Columns] = {
    "kernel": kernel_in_words,
    "library": lambda row: row["library"],
    **_TIMES,
}
SHARES: Final[Columns] = {
    "the time went to": lambda row: class_in_words(row["share"]),
    "*time": lambda row: duration(row["time_ns"]),
    "*share": lambda row: share(row["share_ratio"]),
    "of it": lambda row: row["explained"],
}
KINDS: Final[Columns] = {
    "kind of work": lambda row: kind_in_words(row["kind"]),
    "*time": lambda row: duration(row["time_ns"]),
    "*of all": lambda row: share(row["whole_ratio"]),
    "*dispatches": lambda row: grouped(row["dispatch_count"]),
    "heaviest": lambda row: row["operator"] or row["kernel"],
    "*achieved": rate_alone,
    "*of the best": lambda row: share(row["roof_ratio"]) if roof_counts(row) else None,
    "*of the peak": lambda row: share(row["peak_ratio"]) if roof_counts(row) else None,
}
STALLS: Final[Columns] = {
    "kernel": lambda row: kernel_in_words(row) if row["name"] else "matched to no kernel",
    "*dispatch": lambda row: grouped(row["dispatch_id"]),
    "thread trace": lambda row: row["capture"],
    "stalled for": lambda row: row["reason"],
    "*cycles": lambda row: grouped(row["stall_cycles"]),
    "*samples": lambda row: grouped(row["samples"]),
    "*share": lambda row: share(row["share_ratio"]),
}
SIGNALS: Final[Columns] = {
    "signal": lambda row: bottleneck_text.signal(row["signal"]),
    "*value": bottleneck_text.amount,
    "table": lambda row: row["source"],
}
MISSING: Final[Columns] = {
    "evidence": lambda row: row["item"],
    "status": lambda row: row["status"],
    "why": lambda row: row["reason"],
}


def shares(document: Document) -> Sequence[Row]:
    """The shares of the window that took any time, with what explains a part of each."""
    rows = document.get("time_shares", [])
    explained: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"] is not None:
            explained.setdefault(row["share"], []).append(
                f"{class_in_words(row['reason'])} {share(row['share_ratio'])}"
            )
    return [
        {**row, "explained": ", ".join(explained.get(row["share"], [])) or None}
        for row in rows
        if row["reason"] is None and row["time_ns"]
    ]


def latencies(document: Document) -> Sequence[Row]:
    """The quantiles and the mean of both passes, as far as the unprofiled one has them."""
    rows = [
        {"name": name} | {key: metric(document, f"latency_{name}", of) for key, of in _PASSES.items()}
        for name in ("p50", "p90", "p99", "mean")
    ]
    return [row for row in rows if row["unprofiled"] is not None]


_PASSES: Final = {"unprofiled": "latency", "profiled": "trace"}
