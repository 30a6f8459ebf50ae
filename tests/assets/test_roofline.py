"""The stage `roofline`: ceilings from data, capture and calibration; work from counters, or from the model without."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.assets.stage import Outcome
from aaco_pipeline.lake.calibrations import Calibration, Ceiling, machine_of, write_calibration
from aaco_pipeline.lake.store import TraceLake
from tests.places import SHARED
from tests.sessions import made_by, replayed, said, taken_in


def outcome_of(lake: TraceLake, place: str) -> Outcome:
    """The stage's outcome for a real capture, or a skip where that is not here."""
    return replayed(lake, taken_in(lake, SHARED / place), "roofline")["roofline"]


def test_counters_place_kernels_under_published_and_measured_ceilings(empty_lake: TraceLake) -> None:
    outcome = outcome_of(empty_lake, "counters/mixbench/MI200")
    ceilings = outcome.tables["ceilings"]
    assert set(ceilings["source"]) == {"spec", "reported", "measured", "fitted"}
    # The benchmark of the capture itself found 20,439 GFLOP/s; float and half are packed, so that they give none.
    fitted = ceilings.filter((pl.col("source") == "fitted") & (pl.col("resource") == "vector"))
    assert fitted["dtype"].to_list() == ["fp64"]
    assert fitted["value"][0] == pytest.approx(20.439e12, rel=0.02)
    placed = outcome.tables["roofline"]
    kernels = placed.filter(pl.col("dispatch_id").is_null())
    assert {"dram", "vector_issue", "vector", "vector_integer"} <= set(kernels["bound"].drop_nulls())
    assert placed.height > kernels.height
    assert outcome.tables["counter_metrics"].height > 0
    assert outcome.headline["kernels_placed"] == kernels.height
    assert said(outcome)["work by counters"][0] == "present"


def test_a_capture_without_work_says_so_and_still_knows_its_device(empty_lake: TraceLake) -> None:
    outcome = outcome_of(empty_lake, "gpu_sessions/traces/two_streams_overlap.json.gz")
    assert outcome.tables["ceilings"].filter(pl.col("resource") == "dram")["value"].to_list() == [4.8e12]
    assert outcome.tables["occupancy"].is_empty()
    told = said(outcome)
    assert told["work by counters"] == ("absent", "the session has no counters")
    assert told["occupancy"][0] == "absent"


def test_occupancy_of_real_launches_is_the_captures_own(empty_lake: TraceLake) -> None:
    outcome = outcome_of(empty_lake, "counters/vcopy/MI300X_A1")
    whole = outcome.tables["occupancy"].filter(pl.col("dispatch_id").is_null())
    # 4,096 work-groups of 256 on 304 units that hold 8 each; vcopy needs few registers.
    assert whole.select("theoretical_ratio", "workgroups_per_cu", "grid_waves_ratio").rows() == [
        (1.0, 8, 4096 / (304 * 8))
    ]
    # Its times were destroyed by a spreadsheet: nothing may be bound by anything.
    assert outcome.tables["roofline"]["bound"].null_count() == outcome.tables["roofline"].height


def calibrated(lake: TraceLake, session: str, threads: int) -> None:
    """Ceilings that no measurement gave: the test asks only whether they reach the kernels."""
    facts = lake.read("environment", session).select("category", "key", "value").iter_rows()
    machine = machine_of({(category, key): value for category, key, value in facts})
    made = (
        Ceiling("vector", "fp32", 1e9, "flop/s", "made up for a test"),
        Ceiling("dram", None, 1e12, "byte/s", "made up for a test"),
    )
    write_calibration(lake.path, Calibration(machine, threads, "2026-01-02T03:04:05Z", made))


def test_the_models_work_meets_the_machines_calibration(captured: Any, lake_path: Path) -> None:
    lake, session = captured.copy(lake_path), captured.sessions["squeezenet"]
    without = made_by(lake, session, "roofline")
    assert said(without)["measured ceilings"][0] == "absent"
    assert "aaco calibrate" in str(said(without)["measured ceilings"][1])
    calibrated(lake, session, int(lake.read("sessions", session)["threads"][0]))
    outcome = made_by(lake, session, "roofline")
    placed = outcome.tables["roofline"]
    convolutions = lake.read("kernels", session).filter(pl.col("short_name") == "Conv")["kernel_id"].implode()
    bound = placed.filter(pl.col("kernel_id").is_in(convolutions))
    assert bound.height > 20
    assert set(bound["bound"]) == {"vector"}
    assert bound["quality_flags"].list.contains("model_based").all()
    work = outcome.tables["resource_bounds"].filter(pl.col("resource") == "vector")
    assert set(work["work_source"]) == {"model"}
    # One thousand million operations a second: a floating-point operation needs a nanosecond.
    assert work.filter((pl.col("lower_bound_ns") - pl.col("work")).abs() > 1).is_empty()
    assert outcome.headline["bound_of_longest_kernel"] == "vector"
