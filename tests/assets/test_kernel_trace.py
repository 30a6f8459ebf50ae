"""The stage `kernel_trace` on measured sessions counts every kernel of the profile once."""

import gzip
import json
from pathlib import Path

import pytest

from aaco_pipeline.lake.store import TraceLake
from tests.conftest import CapturedLake
from tests.sessions import made_by, replayed, said, unlisted


def test_every_traced_iteration_has_the_same_kernels(lake: TraceLake, session: str) -> None:
    per_iteration = lake.read("dispatches", session).drop_nulls("iteration").group_by("iteration").len()
    assert sorted(per_iteration.get_column("iteration")) == list(range(7))
    assert per_iteration.get_column("len").n_unique() == 1


def test_every_kernel_event_of_the_profile_is_a_dispatch(lake: TraceLake, session: str) -> None:
    profile = json.loads(gzip.decompress((lake.raw(session) / "onnxruntime_profile.json.gz").read_bytes()))
    events = [event for event in profile if event["cat"] == "Node" and event["name"].endswith("_kernel_time")]
    assert lake.read("dispatches", session).height == len(events) > 0
    headline = made_by(lake, session, "kernel_trace").headline
    assert headline["dispatches"] == len(events)
    assert headline["kernels"] == lake.read("kernels", session).height


def test_self_times_are_durations_less_those_of_children(lake: TraceLake, session: str, model: str) -> None:
    dispatches = lake.read("dispatches", session).rows(named=True)
    within: dict[int, int] = {}
    for row in dispatches:
        if row["parent_dispatch_id"] is not None:
            parent = row["parent_dispatch_id"]
            within[parent] = within.get(parent, 0) + row["end_ns"] - row["start_ns"]
    assert bool(within) == (model == "control_flow")
    for row in dispatches:
        assert row["self_ns"] == max(0, row["end_ns"] - row["start_ns"] - within.get(row["dispatch_id"], 0))


# A session whose runtime leaves no profile, and one of a device.


@pytest.fixture
def without_profile(captured: CapturedLake, session: str, lake_path: Path) -> TraceLake:
    """The session as it would be from a runtime that leaves no profile."""
    copied = captured.copy(lake_path)
    document = unlisted(copied.raw(session)) / "trace.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "profile": None}))
    (copied.raw(session) / "onnxruntime_profile.json.gz").unlink()
    return copied


def test_without_a_profile_the_trace_is_empty_and_says_so(without_profile: TraceLake, session: str) -> None:
    outcome = made_by(without_profile, session, "kernel_trace")
    assert {frame.height for frame in outcome.tables.values()} == {0}
    assert list(said(outcome).values()) == [("absent", "the profiled pass left no profile")]


def test_what_is_missing_stays_missing_downstream_and_never_becomes_zero(
    without_profile: TraceLake, session: str
) -> None:
    made = replayed(without_profile, session, "session_environment", "timeline")
    domains = made["session_environment"].tables["clock_domains"].get_column("domain")
    assert "onnxruntime_profile" not in set(domains)
    outcome = made["timeline"]
    assert outcome.tables["timeline"].is_empty()
    assert outcome.tables["gaps"].is_empty()
    assert outcome.tables["kernel_stats"].is_empty()
    assert outcome.headline["active_ratio"] is None
    assert set(outcome.tables["session_metrics"].get_column("value")) <= {None}
    assert said(outcome)["device activities"][0] == "absent"


def test_latency_does_not_need_the_profile(without_profile: TraceLake, session: str) -> None:
    assert made_by(without_profile, session, "inference_run").headline["latency_p50_ns"] is not None


def test_a_device_provider_says_that_its_kernels_are_not_in_the_profile(
    captured: CapturedLake, session: str, lake_path: Path
) -> None:
    copied = captured.copy(lake_path)
    document = unlisted(copied.raw(session)) / "capture.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "provider": "MIGraphXExecutionProvider"}))
    status, reason = said(made_by(copied, session, "kernel_trace"))["device kernels"]
    assert status == "absent"
    assert "MIGraphXExecutionProvider" in str(reason)
    assert "device kernels" not in said(made_by(captured.lake, session, "kernel_trace"))
