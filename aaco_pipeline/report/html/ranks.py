"""What the section about ranks shows: sentences, and each rank's time as bars on one scale."""

from collections.abc import Iterator
from typing import Any, Final

from aaco_pipeline.report.words import ranks, shapes
from aaco_pipeline.report.words.session import Document, Row

#: Parts of a rank's window as its bar shows them, with the columns of `timeline` that hold them.
PARTS: Final = {
    "compute": "compute_ns",
    "communication": "exposed_communication_ns",
    "copy": "exposed_copy_ns",
}


def rank_values(document: Document) -> dict[str, Any]:
    """The values of the section's template; bars only of several ranks, for one has nothing to be held against."""
    times, waits = document["rank_times"], document["rank_waits"]
    several = len({row["process_id"] for row in times}) > 1
    by_process = {row["process_id"]: row for row in waits}
    longest = max((row["window_ns"] for row in times), default=0)
    rows = [(row, [*_segments(row, longest)], by_process.get(row["process_id"])) for row in times] if several else []
    return {
        "words": shapes,
        "ranks": ranks,
        "sentences": ranks.told_of_ranks(document),
        "rows": rows,
        "scope": ranks.scope(document, waits),
        "waited": any(row["compared_count"] for row in waits),
        "shown": [part for part in (*PARTS, "idle") if any(one == part for _, drawn, _ in rows for one, *_ in drawn)],
    }


def _segments(row: Row, longest: int) -> Iterator[tuple[str, float, float, int]]:
    """Part, where it begins and how wide it is in per cent of the longest window, and its time; known ones alone."""
    if not longest:
        return
    known = {part: row[column] for part, column in PARTS.items() if row[column]}
    if row["busy_ns"] is not None:
        known["idle"] = row["window_ns"] - row["busy_ns"]
    begin = 0.0
    for part, time in known.items():
        width = 100 * time / longest
        yield part, begin, width, time
        begin += width
