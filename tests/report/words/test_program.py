"""A recorded program in sentences: its runs and its iterations are told apart."""

from typing import Any, Final

from aaco_pipeline.report.words.program import of_program, whole_runs
from aaco_pipeline.report.words.session import facts
from tests.report.words.test_answer_fields import document

_RUN: Final[dict[str, Any]] = {"failure": None, "phase": "measure", "user_ns": None, "system_ns": None}
_TIMELINE: Final[dict[str, Any]] = {"device_id": 0, "busy_bound": None, "active_ratio": 0.046}


def recorded(*walls_ms: int, latency_ms: float | None = None, n: int | None = None) -> dict[str, Any]:
    """A program of so many unprofiled runs and a traced one of 4.4 s; its iterations are the runs unless given."""
    timed = sorted(walls_ms)
    runs = [{**_RUN, "pass": "latency", "profiler": None, "wall_ns": ms * 10**6} for ms in walls_ms]
    runs.append({**_RUN, "pass": "trace", "profiler": "cupti", "wall_ns": 4_400 * 10**6})
    median = {"metric": "latency_p50", "pass": "latency", "phase": "measure", "ci_low": None, "ci_high": None}
    level = {"metric": "steady_state", "pass": "latency", "phase": "measure", "value": None}
    value = (timed[len(timed) // 2] if latency_ms is None else latency_ms) * 10**6
    metrics = [{**median, "value": value, "n": len(walls_ms) if n is None else n}, level]
    runs = [{**one, "max_rss_bytes": None} for one in runs]
    more = {"program_runs": runs, "metrics": metrics, "workload": "train.py", "top_kernels": [], "missing": []}
    return {**document(), **more, "timeline": [_TIMELINE]}


def test_how_long_a_run_takes_is_no_iterations_time() -> None:
    whole = recorded(4_000, 4_200, 4_100)
    assert len(whole_runs(whole)) == 3
    assert "A run of train.py takes 4.1 s (median of 3, 4 s … 4.2 s)." in of_program(whole)
    assert "median" not in facts(whole)
    assert "3 runs cannot tell whether it is steady" in facts(whole)
    marked = recorded(4_000, 4_200, 4_100, latency_ms=20, n=150)
    assert whole_runs(marked) == []
    assert "The median iteration takes 20 ms." in facts(marked)
    assert whole_runs(recorded(4_000, 4_200, 4_100, latency_ms=4_050, n=6)) == []
    # As many iterations as runs, a short one in each.
    assert whole_runs(recorded(4_000, 4_200, latency_ms=20)) == []
    assert whole_runs({"metrics": [], "program_runs": []}) == []


def test_the_answer_is_of_a_part_of_the_traced_run_and_slower_is_the_run() -> None:
    told = facts(recorded(4_000, 4_200, 4_100))
    assert "The answer is of 1 µs of the traced run's 4.4 s, the rest of which is start, set-up and end" in told
    assert "from its first activity to its last the device is busy 4.6 %" in told
    assert "Under cupti a run took 1.073 times as long." in of_program(recorded(4_000, 4_200, 4_100))
