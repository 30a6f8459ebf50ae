"""The promises of every stage, called without Dagster on measured sessions, and those of some stages alone."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.assets.stage import Session, failure_recorded, materialize, publish, stages, views
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import conform
from tests.conftest import CapturedLake
from tests.places import CONFIGS, SHARED
from tests.sessions import made_by, replayed, said, taken_in

#: The one that ends a request to measure.
WRITING = ("capture",)


def files_of(lake: TraceLake) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in lake.path.rglob("*") if path.is_file() and ".locks" not in path.parts}


@pytest.mark.parametrize("stage", stages())
def test_a_stage_gives_exactly_its_tables_and_each_fulfils_its_contract(
    stage: str, lake: TraceLake, session: str
) -> None:
    outcome = made_by(lake, session, stage)
    assert set(outcome.tables) == set(stages()[stage].publishes)
    for name, frame in outcome.tables.items():
        conform(contract(name), frame, session)
    assert all(value is None or isinstance(value, int | float | str) for value in outcome.headline.values())


@pytest.mark.parametrize("stage", stages())
def test_a_stage_computed_again_is_published_as_the_same_bytes(
    stage: str, captured: CapturedLake, session: str, lake_path: Path
) -> None:
    copied = captured.copy(lake_path)
    before = files_of(copied)
    materialize(Session(copied, session, CONFIGS), [stage])
    assert files_of(copied) == before


@pytest.mark.parametrize("stage", [stage for stage in stages() if stage not in WRITING])
def test_a_stage_looks_at_the_lake_and_changes_nothing(
    stage: str, captured: CapturedLake, session: str, lake_path: Path
) -> None:
    copied = captured.copy(lake_path)
    before = {path: path.stat().st_mtime_ns for path in copied.path.rglob("*")}
    made_by(copied, session, stage)
    assert {path: path.stat().st_mtime_ns for path in copied.path.rglob("*")} == before


@pytest.mark.parametrize("stage", stages())
def test_every_stage_says_what_it_had_and_why_something_is_missing(stage: str, lake: TraceLake, session: str) -> None:
    evidence = made_by(lake, session, stage).evidence
    assert evidence
    conform(contract("evidence"), evidence_frame(stage, evidence), session)
    assert [one.item for one in evidence if one.status != "present" and not one.reason] == []


@pytest.mark.parametrize("stage", [name for name, one in stages().items() if one.checks])
def test_every_check_of_a_stage_holds_on_measured_sessions(stage: str, lake: TraceLake, session: str) -> None:
    opened = Session(lake, session, CONFIGS)
    findings = [check.finding(opened) for check in stages()[stage].checks]
    assert [finding.statement for finding in findings if not finding.holds] == []


@pytest.mark.parametrize("view", views())
def test_a_view_makes_its_file_and_publishes_nothing(
    view: str, captured: CapturedLake, session: str, lake_path: Path
) -> None:
    copied, one = captured.copy(lake_path), views()[view]
    before = copied.manifest(session)
    opened = Session(copied, session, CONFIGS)
    outcome = one(opened)
    assert publish(opened, one, outcome) == ()
    assert outcome.tables == {}
    assert None not in outcome.headline.values()
    after = copied.manifest(session)
    assert (after.entries, after.stages, after.expected) == (before.entries, before.stages, before.expected)
    assert one.file is not None
    assert one.file[1](copied, session).is_file()
    assert copied.progress(session).is_whole


@pytest.mark.parametrize("view", views())
def test_a_view_that_fails_is_no_failure_of_its_session(
    view: str, captured: CapturedLake, session: str, lake_path: Path
) -> None:
    copied = captured.copy(lake_path)
    manifest = copied.manifest_path(session, "session")
    before = manifest.read_bytes()
    with pytest.raises(OSError, match="full"), failure_recorded(Session(copied, session, CONFIGS), views()[view]):
        raise OSError("full")
    assert manifest.read_bytes() == before


def test_all_times_are_on_the_sessions_axis(lake: TraceLake, session: str) -> None:
    iterations = lake.read("iterations", session)
    first, last = iterations.get_column("start_ns").min(), iterations.get_column("end_ns").max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    assert 0 < first < last < 600_000_000_000
    for row in lake.read("dispatches", session).rows(named=True):
        assert first <= row["start_ns"] <= row["end_ns"] <= last + 1_000


def test_every_id_that_is_named_exists(lake: TraceLake, session: str) -> None:
    def ids(table: str, column: str) -> set[Any]:
        return set(lake.read(table, session).get_column(column).drop_nulls())

    assert ids("dispatches", "kernel_id") == ids("kernels", "kernel_id")
    assert ids("dispatches", "parent_dispatch_id") <= ids("dispatches", "dispatch_id")
    assert ids("dispatches", "process_id") <= ids("processes", "process_id")
    assert ids("dispatches", "device_id") <= ids("devices", "device_id")
    assert ids("kernel_stats", "kernel_id") <= ids("kernels", "kernel_id")
    assert ids("gaps", "device_id") <= ids("timeline", "device_id") <= ids("devices", "device_id")


def test_iterations_are_those_asked_for_with_warm_up_kept_apart(lake: TraceLake, session: str) -> None:
    counted = lake.read("iterations", session).group_by("pass", "phase").len().sort("pass", "phase").rows()
    assert counted == [
        ("latency", "measure", 5),
        ("latency", "warmup", 2),
        ("trace", "measure", 5),
        ("trace", "warmup", 2),
    ]


def test_latency_is_the_unprofiled_pass_without_its_warm_up(lake: TraceLake, session: str) -> None:
    iterations = lake.read("iterations", session)
    measured = iterations.filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure"))
    headline = made_by(lake, session, "inference_run").headline
    assert headline["latency_p50_ns"] == measured.get_column("latency_ns").median()
    metrics = lake.read("session_metrics", session).filter(pl.col("metric") == "latency_p50")
    value = metrics.filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure")).item(0, "value")
    assert value == headline["latency_p50_ns"]


MODEL = "control_flow"


def test_kernels_come_in_the_order_of_what_they_could_save(captured: CapturedLake) -> None:
    session = captured.sessions[MODEL]
    outcome = made_by(captured.lake, session, "optimization_loop")
    found = outcome.tables["kernels_to_fix"]
    stats = captured.lake.read("kernel_stats", session)
    assert found.height == min(20, stats.height)
    could = found.select(pl.coalesce("saves_at_most_ns", "critical_ns", "total_ns")).to_series()
    assert could.to_list() == sorted(could.to_list(), reverse=True)
    assert (found.get_column("critical_ns") <= found.get_column("total_ns")).all()
    assert outcome.headline["first_kernel"]
    assert said(outcome)["kernels to fix"][0] in ("present", "partial", "absent")


def test_the_fingerprint_of_the_session_is_that_of_its_environment(lake: TraceLake, session: str) -> None:
    outcome = made_by(lake, session, "session_environment")
    assert outcome.headline["fingerprint"] == lake.read("sessions", session).item(0, "fingerprint")


def test_sessions_of_one_host_are_comparable(lake: TraceLake) -> None:
    assert lake.read("sessions").get_column("fingerprint").n_unique() == 1


def test_every_clock_has_its_place_on_the_axis(lake: TraceLake, session: str) -> None:
    clocks = {row["domain"]: row for row in lake.read("clock_domains", session).rows(named=True)}
    assert set(clocks) == {"monotonic", "realtime", "onnxruntime_profile"}
    assert all(clock["uncertainty_ns"] >= 0 for clock in clocks.values())


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
