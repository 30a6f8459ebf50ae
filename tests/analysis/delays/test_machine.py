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
    of = {"kind": "interrupt", "thread_id": MAIN}
    seen = (
        {"at": 105, "long": 5, "name": "local_timer", **of},
        {"at": 111, "long": 8, "name": "TIMER", **of, "kind": "softirq"},
        {"at": 113, "long": 2, "name": "irq 36 disk", **of},
        {"at": 480, "long": 5, "name": "reschedule", **of},
        {"at": 3_010, "long": 5, "name": "local_timer", **of},
    )
    gaps = probe((100, 130), (470, 910), (2_000, 2_300), (3_000, 3_040))
    found = machine_takes(gaps, known, events(*seen), threads(MAIN)).to_dicts()
    assert taken(found) == [
        ("thread", "hog", 1, 400),
        ("interrupt", "irq 36 disk", 1, 2),
        ("interrupt", "local_timer", 2, 10),
        ("interrupt", "reschedule", 1, 5),
        ("softirq", "TIMER", 1, 6),
        ("beside", None, 3, 30 - 13 + 440 - 400 - 5 + 40 - 5),
        ("unseen", None, 1, 300),
    ]
    assert sum(row["taken_ns"] for row in found) == (30 + 440 + 300 + 40) * 1000, "all of the gaps, and once"
    typical = {row["name"]: row["typical_gap_ns"] for row in found if row["kind"] == "interrupt"}
    assert typical == {"local_timer": 40_000, "irq 36 disk": None, "reschedule": None}, "of gaps with it alone"
    assert {(row["cpu"], row["of_ns"]) for row in found} == {(1, 10_000_000)}


def test_only_what_was_taken_while_the_probe_ran_counts() -> None:
    known = states(
        (MAIN, -500, 200, "preempted", {"by_name": "hog"}),
        (MAIN, 200, 9_900, "running"),
        (MAIN, 9_900, 60_000, "preempted", {"by_name": "hog"}),
    )
    found = machine_takes(probe(), known, events(), threads(MAIN)).to_dicts()
    assert taken(found) == [("thread", "hog", 2, 300), ("beside", None, 0, 0), ("unseen", None, 0, 0)]


def test_who_was_off_the_cpu_for_want_of_no_thread_names_none() -> None:
    known = states((MAIN, 0, 100, "running"), (MAIN, 100, 300, "throttled"), (MAIN, 300, 10_000, "running"))
    found = machine_takes(probe((95, 310)), known, events(), threads(MAIN)).to_dicts()
    assert taken(found) == [("state", "throttled", 1, 200), ("beside", None, 1, 15), ("unseen", None, 0, 0)]


def test_without_a_recording_only_gaps_are_known() -> None:
    found = machine_takes(probe((100, 130), (200, 250)), states(), events(), threads()).to_dicts()
    assert taken(found) == [("gap", None, 2, 80)]


def test_a_machine_that_takes_nothing_says_so() -> None:
    found = machine_takes(probe(), states((MAIN, 0, 10_000, "running")), events(), threads(MAIN)).to_dicts()
    assert taken(found) == [("beside", None, 0, 0), ("unseen", None, 0, 0)]
