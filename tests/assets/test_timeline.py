"""The stage `timeline`: busy time and gaps fill the window, statistics match, and launches have costs."""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.lake.store import TraceLake
from tests.conftest import CapturedLake
from tests.places import SHARED
from tests.sessions import made_by, replayed, republished, said, tables_of, taken_in

#: What the timeline tells of launching, with units.
OF_LAUNCHING = {
    "exposed_launch": "ns",
    "exposed_launch_ratio": "ratio",
    "launch_tax_score": "kHz",
    "micro_kernel_ratio": "ratio",
    "dispatch_rate": "dispatch/s",
}


def metrics(lake: TraceLake, session: str) -> dict[str, dict[str, Any]]:
    traced = lake.read("session_metrics", session).filter(pl.col("pass") == "trace")
    return {row["metric"]: row for row in traced.iter_rows(named=True)}


@pytest.fixture
def ingested(empty_lake: TraceLake) -> tuple[TraceLake, str]:
    """A real trace of a framework's operators, with its timeline."""
    session = taken_in(empty_lake, SHARED / "gpu_sessions/traces/tiny_kernels_500.json.gz")
    replayed(empty_lake, session, "timeline")
    return empty_lake, session


def test_kernel_statistics_count_measured_dispatches_only_and_shares_sum_to_one(lake: TraceLake, session: str) -> None:
    stats = lake.read("kernel_stats", session)
    measured = lake.read("dispatches", session).filter(pl.col("iteration") >= 2)
    assert stats.get_column("dispatch_count").sum() == measured.height
    assert stats.get_column("total_ns").sum() == measured.get_column("self_ns").sum()
    assert stats.get_column("share_ratio").sum() == pytest.approx(1)


# The cost of launching, on a real trace of a framework.


def test_launch_cost_is_among_the_figures_of_a_session(ingested: tuple[TraceLake, str]) -> None:
    lake, session = ingested
    told = metrics(lake, session)
    assert {name: told[name]["unit"] for name in OF_LAUNCHING} == OF_LAUNCHING
    timeline = lake.read("timeline", session).filter(pl.col("window_rule") == "first_to_last_activity")
    window = timeline.item(0, "window_end_ns") - timeline.item(0, "window_start_ns")
    assert 0.4 < told["exposed_launch_ratio"]["value"] == told["exposed_launch"]["value"] / window < 1
    assert told["exposed_launch"]["value"] <= window - timeline.item(0, "busy_ns")
    assert told["launch_tax_score"]["value"] == pytest.approx(
        told["micro_kernel_ratio"]["value"] * told["dispatch_rate"]["value"] / 1000
    )
    assert told["dispatch_rate"]["n"] == lake.read("dispatches", session).height
    assert said(made_by(lake, session, "timeline"))["launch cost"][0] == "present"


def test_figures_of_one_of_several_devices_and_lower_bounds_are_marked(ingested: tuple[TraceLake, str]) -> None:
    lake, session = ingested
    trace = tables_of(lake, session, "kernel_trace")
    first = pl.col("dispatch_id") == 0
    changed = trace["dispatches"].with_columns(
        correlation_id=pl.when(~first).then("correlation_id"),
        device_id=pl.when(pl.col("dispatch_id") == 1).then(pl.lit(7, pl.Int32)).otherwise("device_id"),
    )
    republished(lake, session, "kernel_trace", dispatches=changed)
    status, reason = said(made_by(lake, session, "timeline"))["launch cost"]
    assert status == "partial"
    for words in ("the busiest of 2", "1 activities have no known launch"):
        assert words in str(reason)


def test_where_no_launch_is_known_its_cost_is_unknown(captured: CapturedLake) -> None:
    lake, session = captured.lake, captured.sessions["squeezenet"]
    told = metrics(lake, session)
    assert [told[name]["value"] for name in ("exposed_launch", "exposed_launch_ratio", "launch_tax_score")] == [
        None
    ] * 3
    assert said(made_by(lake, session, "timeline"))["launch cost"][0] == "absent"
