"""Every stage after the capture, called without Dagster on really measured sessions: its tables and its promises."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.assets import (
    att_enrichment,
    classification,
    critical_path,
    inference_run,
    kernel_trace,
    model_graph,
    perfetto_trace,
    report,
    roofline,
    session_environment,
    telemetry,
    timeline,
)
from aaco_pipeline.assets.checks import STAGE_ASSETS
from aaco_pipeline.assets.stage import Outcome
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import conform
from aaco_pipeline.resources.bottleneck_rules import RULES_FILE, load_bottleneck_rules
from tests.places import CONFIGS


def classified(lake: TraceLake, session: str) -> Outcome:
    rules = load_bottleneck_rules(CONFIGS / RULES_FILE)
    return classification.read_classification(lake, session, rules)


STAGES: dict[str, tuple[Callable[[TraceLake, str], Outcome], tuple[str, ...]]] = {
    "session_environment": (session_environment.read_environment, session_environment.TABLES),
    "inference_run": (inference_run.read_inference_run, inference_run.TABLES),
    "kernel_trace": (kernel_trace.read_kernel_trace, kernel_trace.TABLES),
    "telemetry": (telemetry.read_telemetry, telemetry.TABLES),
    "timeline": (timeline.read_timeline, timeline.TABLES),
    "critical_path": (critical_path.read_critical_path, critical_path.TABLES),
    "model_graph": (model_graph.read_model_graph, model_graph.TABLES),
    "att_enrichment": (att_enrichment.read_att_enrichment, att_enrichment.TABLES),
    "roofline": (roofline.read_roofline, roofline.TABLES),
    "classification": (classified, classification.TABLES),
    "perfetto_trace": (perfetto_trace.write_perfetto_trace, perfetto_trace.TABLES),
    "report": (report.write_report, report.TABLES),
}
MODELS = ("control_flow", "squeezenet")


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lake(captured: Any) -> TraceLake:
    assert isinstance(captured.lake, TraceLake)
    return captured.lake


@pytest.fixture
def session(captured: Any, model: str) -> str:
    return str(captured.sessions[model])


def rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.rows(named=True)


def test_every_stage_is_tried_here() -> None:
    assert {*STAGES, "capture"} == set(STAGE_ASSETS)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_gives_exactly_its_tables_and_each_fulfils_its_contract(
    stage: str, lake: TraceLake, session: str
) -> None:
    function, declared = STAGES[stage]
    outcome = function(lake, session)
    assert set(outcome.tables) == set(declared)
    for name, frame in outcome.tables.items():
        conform(contract(name), frame, session)
    assert all(value is None or isinstance(value, int | float | str) for value in outcome.headline.values())


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_computed_again_is_published_as_the_same_bytes(
    stage: str, captured: Any, session: str, lake_path: Path
) -> None:
    copied = captured.copy(lake_path)
    manifest = copied.path / "manifests" / f"{session}.json"
    before = manifest.read_bytes()
    copied.publish(session, stage, STAGES[stage][0](copied, session).tables)
    assert manifest.read_bytes() == before


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in ("perfetto_trace", "report")])
def test_a_stage_looks_at_the_lake_and_changes_nothing(
    stage: str, captured: Any, session: str, lake_path: Path
) -> None:
    copied = captured.copy(lake_path)
    before = {path: path.read_bytes() for path in copied.path.rglob("*") if path.is_file()}
    STAGES[stage][0](copied, session)
    assert {path: path.read_bytes() for path in copied.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_says_what_it_had_and_why_something_is_missing(stage: str, lake: TraceLake, session: str) -> None:
    evidence = STAGES[stage][0](lake, session).tables["evidence"]
    assert evidence.height
    assert set(evidence.get_column("stage")) == {stage}
    assert evidence.filter(pl.col("status") != "present").get_column("reason").null_count() == 0


# What the sessions hold: the promises of the axis, the passes and the kernels.


def test_all_times_are_on_the_sessions_axis(lake: TraceLake, session: str) -> None:
    iterations = lake.read("iterations", session)
    first, last = iterations.get_column("start_ns").min(), iterations.get_column("end_ns").max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    assert 0 < first < last < 600_000_000_000
    for row in rows(lake.read("dispatches", session)):
        assert first <= row["start_ns"] <= row["end_ns"] <= last + 1_000


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
    headline = inference_run.read_inference_run(lake, session).headline
    assert headline["latency_p50_ns"] == measured.get_column("latency_ns").median()
    metrics = lake.read("session_metrics", session).filter(pl.col("metric") == "latency_p50")
    value = metrics.filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure")).item(0, "value")
    assert value == headline["latency_p50_ns"]


def test_every_traced_iteration_has_the_same_kernels(lake: TraceLake, session: str) -> None:
    per_iteration = lake.read("dispatches", session).drop_nulls("iteration").group_by("iteration").len()
    assert sorted(per_iteration.get_column("iteration")) == list(range(7))
    assert per_iteration.get_column("len").n_unique() == 1


def test_every_kernel_event_of_the_profile_is_a_dispatch(lake: TraceLake, session: str) -> None:
    profile = json.loads(gzip.decompress((lake.raw(session) / "onnxruntime_profile.json.gz").read_bytes()))
    events = [event for event in profile if event["cat"] == "Node" and event["name"].endswith("_kernel_time")]
    assert lake.read("dispatches", session).height == len(events) > 0
    headline = kernel_trace.read_kernel_trace(lake, session).headline
    assert headline["dispatches"] == len(events)
    assert headline["kernels"] == lake.read("kernels", session).height


def test_self_times_are_durations_less_those_of_children(lake: TraceLake, session: str, model: str) -> None:
    dispatches = rows(lake.read("dispatches", session))
    within: dict[int, int] = {}
    for row in dispatches:
        if row["parent_dispatch_id"] is not None:
            parent = row["parent_dispatch_id"]
            within[parent] = within.get(parent, 0) + row["end_ns"] - row["start_ns"]
    assert bool(within) == (model == "control_flow")
    for row in dispatches:
        assert row["self_ns"] == max(0, row["end_ns"] - row["start_ns"] - within.get(row["dispatch_id"], 0))


def test_kernel_self_times_fit_into_every_iteration(lake: TraceLake, session: str) -> None:
    dispatches = lake.read("dispatches", session)
    traced = lake.read("iterations", session).filter(pl.col("pass") == "trace")
    for row in rows(traced):
        own = dispatches.filter(pl.col("iteration") == row["iteration"]).get_column("self_ns")
        assert own.sum() <= row["latency_ns"] + 1_000 * own.len()


def test_busy_time_and_gaps_are_the_window_on_every_device(lake: TraceLake, session: str) -> None:
    gaps = lake.read("gaps", session)
    whole = lake.read("timeline", session).filter(pl.col("iteration").is_null())
    assert whole.height == 1
    for row in rows(whole):
        idle = gaps.filter(pl.col("device_id") == row["device_id"])
        assert (
            row["busy_ns"] + (idle["end_ns"] - idle["start_ns"]).sum() == row["window_end_ns"] - row["window_start_ns"]
        )
        assert 0 < row["active_ratio"] <= 1


def test_kernel_statistics_count_measured_dispatches_only_and_shares_sum_to_one(lake: TraceLake, session: str) -> None:
    stats = lake.read("kernel_stats", session)
    measured = lake.read("dispatches", session).filter(pl.col("iteration") >= 2)
    assert stats.get_column("dispatch_count").sum() == measured.height
    assert stats.get_column("total_ns").sum() == measured.get_column("self_ns").sum()
    assert stats.get_column("share_ratio").sum() == pytest.approx(1)


def test_every_id_that_is_named_exists(lake: TraceLake, session: str) -> None:
    def ids(table: str, column: str) -> set[Any]:
        return set(lake.read(table, session).get_column(column).drop_nulls())

    assert ids("dispatches", "kernel_id") == ids("kernels", "kernel_id")
    assert ids("dispatches", "parent_dispatch_id") <= ids("dispatches", "dispatch_id")
    assert ids("dispatches", "process_id") <= ids("processes", "process_id")
    assert ids("dispatches", "device_id") <= ids("devices", "device_id")
    assert ids("kernel_stats", "kernel_id") <= ids("kernels", "kernel_id")
    assert ids("gaps", "device_id") <= ids("timeline", "device_id") <= ids("devices", "device_id")


def test_the_fingerprint_of_the_session_is_that_of_its_environment(lake: TraceLake, session: str) -> None:
    outcome = session_environment.read_environment(lake, session)
    assert outcome.headline["fingerprint"] == lake.read("sessions", session).item(0, "fingerprint")


def test_sessions_of_one_host_are_comparable(lake: TraceLake) -> None:
    assert lake.read("sessions").get_column("fingerprint").n_unique() == 1


def test_every_clock_has_its_place_on_the_axis(lake: TraceLake, session: str) -> None:
    clocks = {row["domain"]: row for row in rows(lake.read("clock_domains", session))}
    assert set(clocks) == {"monotonic", "realtime", "onnxruntime_profile"}
    assert all(clock["uncertainty_ns"] >= 0 for clock in clocks.values())


# A stage with nothing to work on.


@pytest.fixture
def without_profile(captured: Any, session: str, lake_path: Path) -> TraceLake:
    """The session as it would be from a runtime that leaves no profile."""
    copied = captured.copy(lake_path)
    assert isinstance(copied, TraceLake)
    document = copied.raw(session) / "trace.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "profile": None}))
    (copied.raw(session) / "onnxruntime_profile.json.gz").unlink()
    return copied


def test_without_a_profile_the_trace_is_empty_and_says_so(without_profile: TraceLake, session: str) -> None:
    outcome = kernel_trace.read_kernel_trace(without_profile, session)
    assert {name: frame.height for name, frame in outcome.tables.items() if name != "evidence"} == dict.fromkeys(
        set(kernel_trace.TABLES) - {"evidence"}, 0
    )
    (said,) = rows(outcome.tables["evidence"])
    assert (said["status"], said["reason"]) == ("absent", "the profiled pass left no profile")


def test_what_is_missing_stays_missing_downstream_and_never_becomes_zero(
    without_profile: TraceLake, session: str
) -> None:
    environment = session_environment.read_environment(without_profile, session)
    assert "onnxruntime_profile" not in set(environment.tables["clock_domains"].get_column("domain"))
    trace = kernel_trace.read_kernel_trace(without_profile, session)
    without_profile.publish(session, "kernel_trace", trace.tables)
    outcome = timeline.read_timeline(without_profile, session)
    assert outcome.tables["timeline"].is_empty()
    assert outcome.tables["gaps"].is_empty()
    assert outcome.tables["kernel_stats"].is_empty()
    assert outcome.headline["active_ratio"] is None
    assert set(outcome.tables["session_metrics"].get_column("value")) <= {None}
    (activities,) = outcome.tables["evidence"].filter(pl.col("item") == "device activities").rows(named=True)
    assert activities["status"] == "absent"


def test_latency_does_not_need_the_profile(without_profile: TraceLake, session: str) -> None:
    outcome = inference_run.read_inference_run(without_profile, session)
    assert outcome.headline["latency_p50_ns"] is not None


def test_a_device_provider_says_that_its_kernels_are_not_in_the_profile(
    captured: Any, session: str, lake_path: Path
) -> None:
    copied = captured.copy(lake_path)
    document = copied.raw(session) / "capture.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "provider": "MIGraphXExecutionProvider"}))
    evidence = kernel_trace.read_kernel_trace(copied, session).tables["evidence"]
    (said,) = rows(evidence.filter(pl.col("item") == "device kernels"))
    assert said["status"] == "absent"
    assert "MIGraphXExecutionProvider" in said["reason"]
    on_cpu = kernel_trace.read_kernel_trace(captured.lake, session).tables["evidence"]
    assert on_cpu.filter(pl.col("item") == "device kernels").is_empty()
