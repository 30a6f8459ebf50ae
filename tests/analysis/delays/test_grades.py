"""Spikes and their causes, disturbed iterations, and the effect of causes on the session."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.analysis.delays.grades import delay_figures, iteration_grades
from aaco_pipeline.analysis.sessions.metrics import latency_metrics
from tests.analysis.delays.recorded import iterations, table


def delays(rows: list[dict[str, int]], by: dict[str, str] | None = None) -> pl.DataFrame:
    """Parts of iterations by cause, in microseconds."""
    made: list[dict[str, Any]] = [
        {
            **{"pass": "latency", "iteration": number, "cause": cause, "duration_ns": long * 1000, "grade": "observed"},
            "by_name": (by or {}).get(cause),
        }
        for number, row in enumerate(rows)
        for cause, long in row.items()
    ]
    return table("iteration_delays", made)


def spans(rows: list[dict[str, int]]) -> pl.DataFrame:
    at, found = 0, []
    for row in rows:
        found.append((at, at + sum(row.values())))
        at = found[-1][1] + 10
    return iterations(*found)


QUIET = [{"on_cpu": 1000 + number % 7} for number in range(60)]


def grade(rows: list[dict[str, int]], by: dict[str, str] | None = None) -> dict[str, Any]:
    """The grade of the last iteration."""
    return iteration_grades(spans(rows), delays(rows, by)).row(-1, named=True)


def test_a_spike_is_given_the_part_that_grew() -> None:
    found = grade([*QUIET, {"on_cpu": 1010, "preempted": 700}])
    assert (found["is_spike"], found["spike_cause"], found["explained_ns"]) == (True, "preempted", 700_000)
    assert (found["grade"], found["disturbed_by"], found["disturbed_ns"]) == ("disturbed", "preempted", 700_000)


def test_more_work_on_cpu_is_no_disturbance() -> None:
    found = grade([*QUIET, {"on_cpu": 1900}])
    assert (found["spike_cause"], found["grade"], found["disturbed_by"]) == ("on_cpu_longer", "clean", None)


def test_causes_of_which_none_explains_half_leave_it_unexplained() -> None:
    found = grade([*QUIET, {"on_cpu": 1300, "preempted": 300, "disk": 300}])
    assert (found["is_spike"], found["spike_cause"], found["explained_ns"]) == (True, None, None)


def test_a_cause_explains_no_more_than_the_whole_of_a_spike() -> None:
    found = grade([*QUIET, {"on_cpu": 800, "preempted": 700}])
    assert (found["spike_cause"], found["explained_ns"], found["excess_ns"]) == ("preempted", 497_000, 497_000)


def test_lost_events_are_no_cause_and_no_clean_bill() -> None:
    found = grade([*QUIET, {"on_cpu": 500, "unknown": 1500}])
    assert (found["is_spike"], found["spike_cause"], found["grade"], found["disturbed_ns"]) == (
        True,
        None,
        "unknown",
        None,
    )


@pytest.mark.parametrize(
    "part", [{"disk": 700}, {"lock": 700}, {"major_fault": 700}, {"minor_faults": 700}, {"sleep": 700}]
)
def test_waits_that_the_program_causes_itself_are_no_disturbance(part: dict[str, int]) -> None:
    found = grade([*QUIET, {"on_cpu": 1003, **part}])
    assert (found["grade"], found["is_spike"], found["spike_cause"]) == ("clean", True, next(iter(part)))


def test_packets_are_a_disturbance_and_timer_ticks_are_not() -> None:
    assert grade([*QUIET, {"on_cpu": 1003, "timer": 200}])["grade"] == "clean"
    both = grade([*QUIET, {"on_cpu": 1003, "timer": 200, "interrupts": 60}])
    assert (both["disturbed_by"], both["disturbed_ns"]) == ("interrupts", 60_000)


def test_a_grade_does_not_look_at_the_latency() -> None:
    """The same causes with other work beside them are graded the same."""
    short, long = ([*QUIET, {"on_cpu": work, "preempted": 300}] for work in (200, 5000))
    assert grade(short)["grade"] == grade(long)["grade"] == "disturbed"


def test_shares_of_variance_sum_to_one_and_p99_without_a_cause_is_that_of_the_rest() -> None:
    chance = np.random.default_rng(1)
    rows = [
        {"on_cpu": 1000 + int(work), "preempted": 2000 if number % 25 == 0 else 0}
        for number, work in enumerate(chance.integers(0, 50, 400))
    ]
    asked, parts = spans(rows), delays(rows)
    figures = delay_figures(asked, parts, iteration_grades(asked, parts))
    shares = dict(figures.select("cause", "variance_share_ratio").iter_rows())
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["preempted"] > 0.95
    without = figures.filter(pl.col("cause") == "preempted").row(0, named=True)
    assert without["p99_without_ns"] < 1_051_000
    assert without["ci_low_ns"] <= without["p99_without_ns"] <= without["ci_high_ns"]
    assert without["spikes"] == 16
    assert figures.get_column("tail_share_ratio").sum() == pytest.approx(1)


def test_a_spike_exceeds_the_median_that_is_shown() -> None:
    """For an even number of iterations one median is the lower middle value, another the mean of both."""
    rows = [{"on_cpu": 1000} for _ in range(10)] + [{"on_cpu": 1020} for _ in range(9)] + [{"on_cpu": 3000}]
    asked = spans(rows)
    metrics = latency_metrics(asked, table("iteration_blocks", []), None)
    shown = metrics.filter((pl.col("metric") == "latency_p50") & (pl.col("pass") == "latency")).item(0, "value")
    assert grade(rows)["excess_ns"] == 3_000_000 - shown


def test_a_cause_that_never_took_more_leaves_p99_as_it_is() -> None:
    rows = [{"on_cpu": 1000 + 37 * number % 1000, "queued": 5} for number in range(150)]
    asked, parts = spans(rows), delays(rows)
    figures = delay_figures(asked, parts, iteration_grades(asked, parts)).filter(pl.col("cause") == "queued")
    metrics = latency_metrics(asked, table("iteration_blocks", []), None)
    p99 = metrics.filter((pl.col("metric") == "latency_p99") & (pl.col("pass") == "latency")).item(0, "value")
    assert figures.item(0, "p99_without_ns") == p99


def test_causes_without_time_in_measured_iterations_have_no_figure() -> None:
    rows = [*QUIET, {"on_cpu": 1000, "queued": 700}]
    asked = spans(rows).with_columns(phase=pl.Series(["measure"] * len(QUIET) + ["warmup"]))
    figures = delay_figures(asked, delays(rows), iteration_grades(asked, delays(rows)))
    assert "queued" not in figures.get_column("cause")


def test_few_iterations_have_no_tail() -> None:
    asked, parts = spans(QUIET), delays(QUIET)
    figures = delay_figures(asked, parts, iteration_grades(asked, parts))
    assert figures.select("tail_share_ratio", "p99_without_ns", "ci_low_ns").null_count().row(0) == (1, 1, 1)
