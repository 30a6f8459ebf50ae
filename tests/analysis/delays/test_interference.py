"""Interference with a thread that only reads the clock: other threads, interrupts, and gaps without a record.

What a probe saw of the machine: gaps that events explain and gaps that nothing does, and what an interrupt costs.
"""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.delays.grades import quietness_metrics
from aaco_pipeline.analysis.delays.interference import fixed_work_probes, interrupt_cost, machine_takes
from aaco_pipeline.analysis.sessions.metrics import latency_metrics
from tests.analysis.delays.recorded import MAIN, events, iterations, states, table, threads


def probe(*gaps: tuple[int, int]) -> dict[int, dict[str, Any]]:
    """A probe of ten milliseconds on CPU 1 with gaps in microseconds."""
    return {1: {"start_ns": 0, "end_ns": 10_000_000, "gaps": [[start * 1000, end * 1000] for start, end in gaps]}}


def taken(rows: list[dict[str, Any]]) -> list[tuple[str, str | None, int, int]]:
    return [(row["kind"], row["name"], row["occurrences"], row["taken_ns"] // 1000) for row in rows]


def test_each_gap_gets_the_cause_that_was_recorded_in_it() -> None:
    known = states(
        (MAIN, 0, 500, "running"), (MAIN, 500, 900, "preempted", {"by_name": "hog"}), (MAIN, 900, 10_000, "running")
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


def test_no_thread_is_named_when_none_took_the_cpu() -> None:
    known = states((MAIN, 0, 100, "running"), (MAIN, 100, 300, "throttled"), (MAIN, 300, 10_000, "running"))
    found = machine_takes(probe((95, 310)), known, events(), threads(MAIN)).to_dicts()
    assert taken(found) == [("state", "throttled", 1, 200), ("beside", None, 1, 15), ("unseen", None, 0, 0)]


def test_without_a_recording_only_gaps_are_known() -> None:
    found = machine_takes(probe((100, 130), (200, 250)), states(), events(), threads()).to_dicts()
    assert taken(found) == [("gap", None, 2, 80)]


def test_a_machine_that_takes_nothing_says_so() -> None:
    found = machine_takes(probe(), states((MAIN, 0, 10_000, "running")), events(), threads(MAIN)).to_dicts()
    assert taken(found) == [("beside", None, 0, 0), ("unseen", None, 0, 0)]


RUNNING = states((MAIN, 0, 100_000, "running"))


def probes(*gaps: tuple[int, int]) -> pl.DataFrame:
    """One probe of ten milliseconds with these gaps, in microseconds."""
    one = {
        **{"pass": "latency", "before_iteration": 0, "cpu": 1, "start_ns": 0, "end_ns": 10_000_000},
        **{"gap_start_ns": [start * 1000 for start, _ in gaps], "gap_end_ns": [end * 1000 for _, end in gaps]},
    }
    return pl.DataFrame([one], schema_overrides={"gap_start_ns": pl.List(pl.Int64), "gap_end_ns": pl.List(pl.Int64)})


def tick(at: int, long: int = 5) -> dict[str, Any]:
    return {"at": at, "long": long, "kind": "interrupt", "name": "local_timer", "thread_id": MAIN}


def test_gaps_without_events_are_unseen() -> None:
    known = states((MAIN, 0, 300, "running"), (MAIN, 300, 340, "preempted"), (MAIN, 340, 10_000, "running"))
    found = fixed_work_probes(
        probes((100, 130), (300, 340), (500, 900)), known, threads(MAIN), events(tick(105, 10)), {"latency": 0}
    ).row(0, named=True)
    assert (found["gaps"], found["gap_ns"], found["unseen_ns"]) == (3, 470_000, 20_000 + 400_000)


def test_the_cost_of_an_interrupt_beyond_its_handler_is_seen() -> None:
    """Six ticks of 25 us with handlers of 5; and a pause of 3 ms that a tick ends, as a hypervisor's does."""
    ticks = [tick(at) for at in (*range(1_000, 7_000, 1_000), 9_000)]
    gaps = [(at - 2, at + 23) for at in range(1_000, 7_000, 1_000)]
    found = fixed_work_probes(
        probes(*gaps, (6_020, 9_020)), RUNNING, threads(MAIN), events(*ticks), {"latency": 0}
    ).row(0, named=True)
    assert found["gap_ns"] == (6 * 25 + 3_000) * 1_000
    assert found["unseen_ns"] == (3_000 - 25) * 1_000


def test_without_states_nothing_is_known_to_be_unseen() -> None:
    found = fixed_work_probes(probes((100, 130)), states(), threads(), events(), {"latency": 0})
    assert found.item(0, "unseen_ns") is None


def test_an_interrupt_costs_its_gap_less_its_handler() -> None:
    seen = [tick(at) for at in range(1_000, 6_000, 1_000)]
    gaps = [(at - 2, at + 23) for at in range(1_000, 6_000, 1_000)]
    assert interrupt_cost(probes(*gaps), RUNNING, events(*seen), threads(MAIN), "latency") == 20_000
    assert interrupt_cost(probes(*gaps[:4]), RUNNING, events(*seen), threads(MAIN), "latency") is None
    assert interrupt_cost(probes(*gaps), RUNNING, events(*seen), threads(MAIN), "trace") is None


def test_a_gap_in_which_the_thread_was_away_says_nothing_of_interrupts() -> None:
    seen = [tick(at) for at in range(1_000, 7_000, 1_000)]
    gaps = [(at - 2, at + 23) for at in range(1_000, 6_000, 1_000)] + [(5_998, 9_000)]
    away = states((MAIN, 0, 6_010, "running"), (MAIN, 6_010, 8_990, "preempted"), (MAIN, 8_990, 10_000, "running"))
    assert interrupt_cost(probes(*gaps), away, events(*seen), threads(MAIN), "latency") == 20_000


def test_figures_without_disturbed_iterations_stand_beside_those_with_them() -> None:
    asked = iterations((0, 100), (100, 200), (200, 300), (300, 900))
    grades = ["clean", "clean", "unknown", "disturbed"]
    rows = [
        {"pass": "latency", "iteration": n, "grade": grade, "is_spike": False, "excess_ns": 0}
        for n, grade in enumerate(grades)
    ]
    probed = table("fixed_work_probes", [{"start_ns": 0, "end_ns": 1_000, "gaps": 1, "gap_ns": 50, "unseen_ns": 20}])
    found = quietness_metrics(asked, table("iteration_grades", rows), probed)
    values = dict(found.select("metric", "value").iter_rows())
    assert values == {
        "disturbed_ratio": pytest.approx(1 / 3),
        "latency_p50_undisturbed": 100_000,
        "latency_p99_undisturbed": 100_000,
        "latency_mean_undisturbed": 100_000,
        "unseen_pause_ratio": pytest.approx(0.02),
    }
    assert quietness_metrics(asked, table("iteration_grades", []), table("fixed_work_probes", [])).height == 0


def judged(*grades: str) -> pl.DataFrame:
    return table(
        "iteration_grades",
        [
            {"pass": "latency", "iteration": n, "grade": grade, "is_spike": False, "excess_ns": 0}
            for n, grade in enumerate(grades)
        ],
    )


def test_without_disturbances_both_figures_are_the_same() -> None:
    """Observed values of nearest rank, as all quantiles of a session are."""
    asked = iterations(*((n * 100, n * 100 + 10 + n) for n in range(20)))
    found = quietness_metrics(asked, judged(*20 * ["clean"]), table("fixed_work_probes", []))
    values = dict(found.select("metric", "value").iter_rows())
    of_all = latency_metrics(asked, table("iteration_blocks", []), None)
    every = dict(of_all.filter(pl.col("pass") == "latency").select("metric", "value").iter_rows())
    for name in ("latency_p50", "latency_p99", "latency_mean"):
        assert values[f"{name}_undisturbed"] == every[name], name


def test_iterations_of_which_nothing_is_known_are_not_called_undisturbed() -> None:
    asked = iterations((0, 100), (100, 200))
    found = quietness_metrics(asked, judged("unknown", "unknown"), table("fixed_work_probes", []))
    assert found.select("metric", "value", "n").rows() == [("disturbed_ratio", None, 0)]
