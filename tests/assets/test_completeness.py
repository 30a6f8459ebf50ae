"""The stage `completeness`, and the effect of its findings on stages that read them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.assets.stage import FINDINGS, Session, materialize, stages
from aaco_pipeline.lake.store import TraceLake
from tests.places import CONFIGS, SHARED
from tests.sessions import made_by, replayed, republished, said, tables_of, taken_in

Events = list[dict[str, Any]]
TRACE = SHARED / "gpu_sessions/traces/transformer_b1.json.gz"
COUNTED = SHARED / "counters/vcopy/MI300X_A1_rocpd"
JUDGING = ("timeline", "critical_path", "roofline", "classification", "att_enrichment")


@pytest.fixture
def spoiled(empty_lake: TraceLake, tmp_path: Path) -> Callable[[Callable[[Events], Events]], tuple[TraceLake, str]]:
    """A session of a real trace whose events were changed, with its stages up to the classification."""

    def of(change: Callable[[Events], Events]) -> tuple[TraceLake, str]:
        if not TRACE.exists():
            pytest.skip(f"{TRACE} is not here: AACO_SHARED names the folder of real captures")
        document = json.loads(gzip.decompress(TRACE.read_bytes()))
        document["traceEvents"] = change(document["traceEvents"])
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(document))
        session = taken_in(empty_lake, path)
        replayed(empty_lake, session, "classification")
        return empty_lake, session

    return of


def without(kept: Callable[[int], bool]) -> Callable[[Events], Events]:
    """The events but for those kernels whose place in order of time is not kept."""

    def change(events: Events) -> Events:
        kernels = sorted((one["ts"], at) for at, one in enumerate(events) if one.get("cat") == "kernel")
        gone = {at for place, (_, at) in enumerate(kernels) if not kept(place)}
        return [one for at, one in enumerate(events) if at not in gone]

    return change


def test_a_whole_session_has_a_ledger_and_no_finding(lake: TraceLake, session: str) -> None:
    assert lake.read(FINDINGS, session).height == 0
    ledger = lake.read("completeness", session).filter(pl.col("record_kind") == "dispatches")
    assert ledger.item(0, "recorded") == lake.read("dispatches", session).height
    assert ledger.item(0, "launched") is None
    assert "no host calls" in ledger.item(0, "reason")
    assert said(made_by(lake, session, "completeness"))["completeness of the recording"][0] == "present"
    assert lake.read("timeline", session).get_column("busy_bound").null_count() == lake.read("timeline", session).height


@pytest.mark.parametrize("stage", JUDGING)
def test_what_judges_a_recording_waits_for_its_findings(stage: str) -> None:
    assert "completeness" in stages()[stage].dependencies


def test_lost_kernels_make_busy_time_a_lower_bound_and_gaps_doubtful(spoiled: Any) -> None:
    lake, session = spoiled(without(lambda place: place % 10 != 3))
    findings = lake.read(FINDINGS, session)
    assert findings.item(0, "finding") == "launches_unrecorded"
    first, last = findings.select("start_ns", "end_ns").row(0)
    assert set(lake.read("timeline", session).get_column("busy_bound")) == {"at_least"}
    gaps = lake.read("gaps", session)
    within = (pl.col("end_ns") > first) & (pl.col("start_ns") < last)
    assert set(gaps.filter(within).get_column("doubt")) == {"launches_unrecorded"}
    assert set(gaps.filter(within).get_column("cause")) == {"unknown"}
    assert gaps.filter(~within).get_column("doubt").null_count() == gaps.filter(~within).height
    status, reason = said(made_by(lake, session, "timeline"))["timeline.busy_ns (at least what it says)"]
    assert status == "partial"
    assert "left no record" in str(reason)


def test_without_any_device_event_there_is_no_busy_time_and_no_answer(spoiled: Any) -> None:
    lake, session = spoiled(
        lambda events: [one for one in events if one.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset")]
    )
    assert lake.read(FINDINGS, session).item(0, "finding") == "no_device_events"
    assert lake.read("timeline", session).height == 0
    judged = lake.read("bottlenecks", session).filter(pl.col("scope") == "session")
    assert judged.select("label", "score", "recommendation").row(0) == (None, None, None)
    assert said(made_by(lake, session, "classification"))["bottlenecks.label (void)"][0] == "invalid"


def test_clocks_apart_leave_no_cause_of_a_gap_and_no_cost_of_launching(spoiled: Any) -> None:
    def shifted(events: Events) -> Events:
        device = ("kernel", "gpu_memcpy", "gpu_memset")
        return [{**one, "ts": one["ts"] - 5_000_000} if one.get("cat") in device else one for one in events]

    lake, session = spoiled(shifted)
    assert lake.read(FINDINGS, session).item(0, "finding") == "clocks_apart"
    assert set(lake.read("gaps", session).get_column("cause")) == {"unknown"}
    metrics = {row["metric"]: row["value"] for row in lake.read("session_metrics", session).to_dicts()}
    assert (metrics["exposed_launch"], metrics["exposed_launch_ratio"]) == (None, None)
    assert metrics["active_ratio"] is not None
    assert lake.read("critical_path_summary", session).get_column("category_ratio").count() == 0


def test_counters_summed_over_replays_make_no_figure(empty_lake: TraceLake) -> None:
    session = taken_in(empty_lake, COUNTED)
    replayed(empty_lake, session, "roofline")
    before = empty_lake.read("counter_metrics", session)
    assert before.height
    counters = tables_of(empty_lake, session, "kernel_trace")["counters"]
    (of_waves,) = counters.filter(pl.col("counter") == "SQ_WAVES").get_column("pass").unique()
    tripled = pl.when(pl.col("pass") == of_waves).then(3 * pl.col("value")).otherwise("value")
    republished(empty_lake, session, "kernel_trace", counters=counters.with_columns(value=tripled))
    (outcome,) = materialize(Session(empty_lake, session, CONFIGS), ["completeness"]).values()
    assert outcome.headline["gravest"] == "counters_summed"
    after = made_by(empty_lake, session, "roofline").tables["counter_metrics"]
    assert after.get_column("value").count() < before.get_column("value").count()
    changed = before.drop_nulls("value").join(after.drop_nulls("value"), on=["kernel_id", "metric"], suffix="_after")
    # Rates are over the mean duration of the passes that are left, and a few counts are another pass's.
    difference = (pl.col("value_after") - pl.col("value")).abs()
    assert changed.filter(difference > 0.2 * pl.col("value").abs() + 10).height == 0
