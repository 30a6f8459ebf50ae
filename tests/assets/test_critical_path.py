"""The stage `critical_path` on a real capture: what a faster kernel would save, and the path cut by iterations."""

from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.lake.store import TraceLake
from tests.places import SHARED
from tests.sessions import replayed, taken_in


@pytest.fixture
def tables(empty_lake: TraceLake) -> dict[str, pl.DataFrame]:
    session = taken_in(empty_lake, SHARED / "gpu_sessions/traces/two_streams_overlap.json.gz")
    outcome = replayed(empty_lake, session, "critical_path")["critical_path"]
    return {**outcome.tables, "iterations": empty_lake.read("iterations", session)}


def test_the_kernels_that_hold_the_path_say_what_they_would_save(tables: dict[str, pl.DataFrame]) -> None:
    savings = tables["what_if"]
    assert savings.height > 0
    assert (savings["speedup_ratio"] == 2.0).all()
    # Halving a kernel saves at most half of what it has on the path, and less where the other stream is then longest.
    assert (savings["saved_ns"] <= (savings["critical_ns"] + 1) // 2 + savings.height).all()
    assert (savings["saved_ns"] > 0).any()


def test_every_traced_iteration_is_a_scope_of_its_own(tables: dict[str, pl.DataFrame]) -> None:
    summary, traced = tables["critical_path_summary"], tables["iterations"].filter(pl.col("pass") == "trace")
    scopes = {f"iteration {number}" for number in traced["iteration"]}
    assert scopes
    assert set(summary["scope"]) == {"session", *scopes}
    whole = summary.group_by("scope").agg(
        pl.col("window_ns", "path_ns", "unexplained_ns").first(), pl.col("category_ns").sum()
    )
    assert (whole["category_ns"] == whole["path_ns"]).all()
    assert (whole["path_ns"] + whole["unexplained_ns"] == whole["window_ns"]).all()


def test_kernels_without_any_length_have_a_path_without_time(empty_lake: TraceLake, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1_kernel_trace.csv").write_text(
        "Kind,Agent_Id,Queue_Id,Dispatch_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp\n"
        'KERNEL_DISPATCH,"Agent 2",1,1,"k",1,100,100\n'
    )
    outcome = replayed(empty_lake, taken_in(empty_lake, tmp_path / "in"), "critical_path")["critical_path"]
    assert (outcome.headline["window_ns"], outcome.headline["path_ns"]) == (0, 0)
    assert outcome.tables["critical_path"].height == 1
    assert outcome.tables["critical_path_summary"].is_empty()
