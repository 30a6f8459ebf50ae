"""The time between iterations, by hand and for any pass: with the iterations it is the whole."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.sessions.invariants import passes_are_conserved
from aaco_pipeline.analysis.sessions.metrics import Usage, gap_metrics, iteration_gaps, usage
from aaco_pipeline.lake.contracts import contract, polars_types
from aaco_pipeline.lake.validation import conform


def iterations(*times: tuple[int, int], name: str = "latency", warmup: int = 0, cpu: int | None = None) -> pl.DataFrame:
    """Iterations of (start, end); each used `cpu` ns where the loop read it."""
    rows = [
        {"pass": name, "iteration": i, "phase": "warmup" if i < warmup else "measure", "start_ns": a, "end_ns": b}
        | {"latency_ns": b - a, "cpu_time_ns": cpu, "run_delay_ns": cpu}
        for i, (a, b) in enumerate(times)
    ]
    return pl.DataFrame(rows, schema=polars_types("iterations"))


def blocks(*rows: tuple[str, int, int, int, int, int | None], name: str = "latency") -> pl.DataFrame:
    """Blocks of (phase, iterations, start, end, CPU time, run-queue delay)."""
    made, first = [], 0
    for number, (phase, count, start, end, cpu, delay) in enumerate(rows):
        made.append(
            {"pass": name, "block": number, "phase": phase, "first_iteration": first, "iterations": count}
            | {"start_ns": start, "end_ns": end, "cpu_time_ns": cpu, "run_delay_ns": delay}
        )
        first += count
    return pl.DataFrame(made, schema=polars_types("iteration_blocks"))


NO_BLOCKS = blocks()
THREE = iterations((10, 20), (25, 45), (46, 60), warmup=1)
IN_BLOCKS = blocks(("warmup", 1, 7, 22, 12, 1), ("measure", 2, 22, 70, 30, 2))


def test_gaps_lie_before_between_and_after_the_iterations_of_a_pass() -> None:
    gaps = iteration_gaps(THREE, IN_BLOCKS)
    assert gaps.drop("pass").rows() == [
        (0, "warmup", 7, 10, 3, True),
        (1, "warmup", 20, 25, 5, True),
        (2, "measure", 45, 46, 1, False),
        (3, "measure", 60, 70, 10, True),
    ]
    assert conform(contract("iteration_gaps"), gaps, "session").height == 4


def test_a_loop_that_read_counters_around_each_iteration_has_the_gaps_between_them() -> None:
    rows = iteration_gaps(iterations((10, 20), (25, 45), cpu=9), NO_BLOCKS).rows()
    assert rows == [("latency", 1, "measure", 20, 25, 5, True)]


def test_iterations_without_times_have_no_gaps() -> None:
    untimed = THREE.with_columns(start_ns=pl.lit(None, pl.Int64), end_ns=pl.lit(None, pl.Int64))
    assert iteration_gaps(untimed, NO_BLOCKS).is_empty()
    assert iteration_gaps(THREE.clear(), NO_BLOCKS).is_empty()


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)), min_size=1, max_size=20), st.data())
def test_iterations_and_gaps_are_the_whole_of_any_pass(spans: list[tuple[int, int]], data: st.DataObject) -> None:
    times, clock = [], 5
    for wait, length in spans:
        times.append((clock + wait, clock + wait + length))
        clock = times[-1][1]
    cut = data.draw(st.integers(0, len(times) - 1))
    border = times[cut][0] - (0 if cut else spans[0][0])
    ends = [(cut, 5, border), (len(times) - cut, border, clock + 3)] if cut else [(len(times), 5, clock + 3)]
    read = blocks(*(("measure", count, start, end, 1, None) for count, start, end in ends))
    measured = iterations(*times)
    gaps = iteration_gaps(measured, read)
    assert passes_are_conserved(measured, gaps, read).holds
    assert gaps.get_column("reads_counters").sum() == len(ends) + 1


def test_the_share_between_iterations_is_of_the_measured_part_of_each_pass() -> None:
    both = pl.concat([THREE, iterations((0, 30), (40, 60), name="trace", cpu=1)])
    rows = gap_metrics(both, iteration_gaps(both, IN_BLOCKS))
    assert [(r["metric"], r["pass"], r["value"], r["n"]) for r in rows.iter_rows(named=True)] == [
        ("gap_ratio", "latency", pytest.approx(11 / 45), 2),
        ("gap_longest", "latency", 10.0, 2),
        ("gap_ratio", "trace", pytest.approx(10 / 60), 1),
        ("gap_longest", "trace", 10.0, 1),
    ]
    assert conform(contract("session_metrics"), rows, "session").height == 4


def test_usage_comes_from_blocks_or_else_from_iterations() -> None:
    assert usage(THREE, IN_BLOCKS, "latency") == Usage(2, 48, 30, 2)
    assert usage(iterations((10, 20), (25, 45), (46, 60), warmup=1, cpu=9), NO_BLOCKS, "latency") == Usage(
        2, 34, 18, 18
    )
    assert usage(THREE, IN_BLOCKS, "trace") == Usage(0, 0, None, None)


def test_a_counter_that_was_not_read_throughout_is_unknown() -> None:
    partly = blocks(("measure", 1, 7, 22, 12, None), ("measure", 2, 22, 70, 30, 2))
    assert usage(THREE, partly, "latency") == Usage(3, 63, 42, None)
    assert usage(THREE, NO_BLOCKS, "latency") == Usage(2, 34, None, None)
