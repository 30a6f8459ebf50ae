"""Like is compared with like: the traced repetitions are those that runs without a profiler mark."""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.answer.savings import Unprofiled
from aaco_pipeline.analysis.answer.unprofiled import unprofiled
from aaco_pipeline.analysis.answer.window import Window
from aaco_pipeline.analysis.steady.parts import CUT_OFF
from tests.analysis.answer.made_up import pieces, rows


def run(number: int | None, name: str, step: int, count: int = 5, **more: Any) -> list[dict[str, Any]]:
    """Iterations of one run, one every `step` ns, of which each takes half."""
    return [
        {"pass": name, "run": number, "phase": "measure", "start_ns": i * step, "end_ns": i * step + step // 2, **more}
        for i in range(count)
    ]


def found(*runs: list[dict[str, Any]], rule: str = "5 marked iterations of 2 activities") -> Unprofiled | None:
    listed = [one for each in runs for one in each]
    return unprofiled(rows("iterations", listed), Window(0, pieces((0, 500)), rule, 0, 5, 100))


def test_it_is_the_median_of_runs_from_one_beginning_to_the_next() -> None:
    plain = [run(number, "latency", step) for number, step in enumerate((60, 50, 90))]
    assert found(*plain, run(3, "trace", 100)) == Unprofiled(5, 60.0, 100.0)


def test_runs_that_mark_something_else_do_not_compare() -> None:
    traced = run(3, "trace", 100)
    assert found(run(0, "latency", 60, count=4), traced) is None
    assert found(run(0, "latency", 60, count=1), run(1, "latency", 60, count=1), traced) is None
    assert found(run(0, "latency", 60, count=4), run(1, "latency", 70), traced) == Unprofiled(5, 70.0, 100.0)
    assert found(run(0, "latency", 60, count=1), run(1, "trace", 100, count=1)) is None
    assert found(run(0, "latency", 60)) is None
    assert found(traced) is None


def test_warm_up_is_no_iteration() -> None:
    warm = run(0, "latency", 1000, count=1, phase="warmup")
    assert found(warm, run(0, "latency", 60), run(1, "trace", 100)) == Unprofiled(5, 60.0, 100.0)


def test_a_models_passes_are_of_one_loop_however_many_iterations_each_has() -> None:
    assert found(run(None, "latency", 60, count=50), run(None, "trace", 100)) == Unprofiled(5, 60.0, 100.0)


@pytest.mark.parametrize(
    "rule", ["5 repetitions of 2 activities", f"5 marked iterations of 2 activities, {CUT_OFF}", "all"]
)
def test_a_window_of_something_else_does_not_compare(rule: str) -> None:
    assert found(run(0, "latency", 60), run(1, "trace", 100), rule=rule) is None


def test_iterations_without_times_say_nothing() -> None:
    bare = rows("iterations", [*run(0, "latency", 60), *run(1, "trace", 100)])
    window = Window(0, pieces((0, 500)), "5 marked iterations of 2 activities", 0, 5, 100)
    assert unprofiled(bare.with_columns(start_ns=pl.lit(None, pl.Int64)), window) is None
