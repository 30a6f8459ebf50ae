"""What takes a CPU from a thread that only reads the clock: other threads, interrupts with all they cost, nothing."""

from typing import Any

from aaco_pipeline.analysis.delays.machine import machine_takes
from tests.analysis.delays.recorded import MAIN, events, states, threads


def probe(*gaps: tuple[int, int]) -> dict[int, dict[str, Any]]:
    """A probe of ten milliseconds on CPU 1 with gaps in microseconds."""
    return {1: {"start_ns": 0, "end_ns": 10_000_000, "gaps": [[start * 1000, end * 1000] for start, end in gaps]}}


def taken(rows: list[dict[str, Any]]) -> list[tuple[str, str | None, int, int]]:
    return [(row["kind"], row["name"], row["occurrences"], row["taken_ns"] // 1000) for row in rows]


def test_each_gap_is_told_by_what_was_recorded_in_it() -> None:
    known = states(
        (MAIN, 0, 500, "running"),
        (MAIN, 500, 900, "preempted", {"by_name": "hog"}),
        (MAIN, 900, 10_000, "running"),
    )
    tick = {"at": 105, "long": 5, "kind": "interrupt", "name": "local_timer", "thread_id": MAIN}
    both = {"at": 480, "long": 5, "kind": "interrupt", "name": "reschedule", "thread_id": MAIN}
    found = machine_takes(
        probe((100, 130), (470, 910), (2_000, 2_300)), known, events(tick, both), threads(MAIN)
    ).to_dicts()
    assert taken(found) == [
        ("thread", "hog", 1, 400),
        ("interrupt", "local_timer", 1, 30),
        ("interrupt", "reschedule", 1, 40),
        ("unseen", None, 1, 300),
    ]
    assert {(row["cpu"], row["of_ns"]) for row in found} == {(1, 10_000_000)}


def test_only_what_was_taken_while_the_probe_ran_counts() -> None:
    known = states(
        (MAIN, -500, 200, "preempted", {"by_name": "hog"}),
        (MAIN, 200, 9_900, "running"),
        (MAIN, 9_900, 60_000, "preempted", {"by_name": "hog"}),
    )
    found = machine_takes(probe(), known, events(), threads(MAIN)).to_dicts()
    assert taken(found) == [("thread", "hog", 2, 300), ("unseen", None, 0, 0)]


def test_without_a_recording_only_gaps_are_known() -> None:
    found = machine_takes(probe((100, 130), (200, 250)), states(), events(), threads()).to_dicts()
    assert taken(found) == [("gap", None, 2, 80)]


def test_a_machine_that_takes_nothing_says_so() -> None:
    found = machine_takes(probe(), states((MAIN, 0, 10_000, "running")), events(), threads(MAIN)).to_dicts()
    assert taken(found) == [("unseen", None, 0, 0)]
