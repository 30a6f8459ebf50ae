"""The stage `critical_path` on a real capture: what a faster kernel would save, and the path cut by iterations."""

from pathlib import Path
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.assets import critical_path, inference_run, kernel_trace, session_environment, timeline
from aaco_pipeline.assets.capture import describe_capture
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.ingestion import copy_capture
from tests.places import SHARED

TRACE: Final = SHARED / "gpu_sessions/traces/two_streams_overlap.json.gz"
pytestmark = pytest.mark.skipif(not TRACE.exists(), reason=f"{TRACE} is not here: AACO_SHARED names the folder")


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, pl.DataFrame]:
    lake, session = TraceLake(tmp_path / "lake"), new_session_id()
    with lake.receive_raw(session) as folder:
        copy_capture(discover_runs(TRACE).runs[0], folder, None)
    for stage, read in (
        ("capture", describe_capture),
        ("session_environment", session_environment.read_environment),
        ("inference_run", inference_run.read_inference_run),
        ("kernel_trace", kernel_trace.read_kernel_trace),
        ("timeline", timeline.read_timeline),
    ):
        lake.publish(session, stage, read(lake, session).tables)
    return {**critical_path.read_critical_path(lake, session).tables, "iterations": lake.read("iterations", session)}


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
