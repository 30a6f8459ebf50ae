"""A session beside a baseline file in words: its sentences, and the columns of its table."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from aaco_pipeline.report.words.units import duration

Row = Mapping[str, Any]

#: Figures without a counterpart that are named.
_NAMED: Final = 5
METRICS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "metric": lambda row: row["metric"].replace("_", " "),
    "*baseline file": lambda row: duration(row["baseline_ns"]),
    "*session": lambda row: duration(row["candidate_ns"]),
    "*ratio": lambda row: None if row["ratio"] is None else f"{row['ratio']:.3f}",
}


def title(document: Row) -> str:
    """What stands beside what."""
    return f"{document['candidate']['session_id']} against the file {document['baseline']['name']}"


def sentence(document: Row) -> str:
    """That nothing is decided, and why."""
    return f"Inconclusive: {document['verdict_reason']}."


def lines(document: Row) -> list[str]:
    """What differs, what of the file is refused, and what has no counterpart."""
    told = [f"Not the same work or hardware: {'; '.join(document['differs'])}."] if document["differs"] else []
    told += [f"Refused: {one}." for one in document["refused"]]
    if more := document["not_compared"]:
        rest = f" and {len(more) - _NAMED} more in `--json`" if len(more) > _NAMED else ""
        told.append(f"Not compared: {', '.join(more[:_NAMED])}{rest}.")
    return told


def next_step(document: Row) -> str:
    """What to run to have a verdict."""
    return f"Next: {document['recommendation']}."
