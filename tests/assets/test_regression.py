"""A session is placed among earlier ones, changes are named, and no other session can stop it."""

from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.analysis.thresholds import MOST_DISTURBED
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract
from tests.conftest import CapturedLake
from tests.sessions import made_by, said

MODEL = "control_flow"
#: The tables of a session that are compared with others.
COPIED = ("sessions", "environment", "devices", "iterations")


@pytest.fixture
def own(captured: CapturedLake) -> str:
    return captured.sessions[MODEL]


@pytest.fixture
def copied(captured: CapturedLake, lake_path: Path) -> TraceLake:
    return captured.copy(lake_path)


def earlier(lake: TraceLake, own: str, number: int, ratio: float = 1.0, rocm: str | None = None) -> str:
    """A session of the same work a year before, with latencies `ratio` times as long and another ROCm."""
    name = f"2020{number:02}01{own[8:16]}-{number:08x}{own[25:]}"
    tables = {table: lake.read(table, own).drop("session_id") for table in COPIED}
    took = (pl.col("latency_ns") * ratio).round().cast(pl.Int64)
    tables["iterations"] = tables["iterations"].with_columns(took)
    if rocm is not None:
        is_rocm = (pl.col("category") == "rocm") & (pl.col("key") == "version")
        value = pl.when(is_rocm).then(pl.lit(rocm)).otherwise("value").alias("value")
        tables["environment"] = tables["environment"].with_columns(value)
        tables["sessions"] = tables["sessions"].with_columns(fingerprint=pl.lit(f"with {rocm}"))
    lake.publish(name, "capture", tables)
    return name


def test_alone_in_the_lake_it_has_no_place_and_says_why(captured: CapturedLake, own: str) -> None:
    outcome = made_by(captured.lake, own, "regression")
    row = outcome.tables["history_places"].row(0, named=True)
    assert row["value_ns"] > 0
    assert (row["earlier_sessions"], row["previous_session"]) == (0, None)
    why = "no earlier session of the same work on this host has a steady level"
    assert row["reason"] == why
    assert all(row[name] is None for name in ("rank", "median_ns", "median_ratio", "robust_z", "compared_within"))
    assert outcome.tables["session_changes"].is_empty()
    assert said(outcome)["place among earlier sessions"] == ("absent", why)
    assert outcome.headline["against_earlier"] is None


def test_it_is_placed_among_earlier_sessions_of_its_host_and_what_changed_is_named(copied: TraceLake, own: str) -> None:
    facts = copied.read("environment", own)
    republished = facts.drop("session_id").with_columns(
        value=pl.when((pl.col("category") == "rocm") & (pl.col("key") == "version"))
        .then(pl.lit("7.2"))
        .otherwise("value")
    )
    others = {one: copied.read(one, own).drop("session_id") for one in ("devices", "processes", "clock_domains")}
    copied.publish(own, "session_environment", {"environment": republished, **others})
    names = [earlier(copied, own, number, 0.9 + 0.02 * number, "7.1") for number in range(1, 10)]
    outcome = made_by(copied, own, "regression")
    row = outcome.tables["history_places"].row(0, named=True)
    assert (row["compared_within"], row["earlier_sessions"], row["previous_session"]) == ("host", 9, names[-1])
    assert row["median_ratio"] == pytest.approx(1, rel=0.01)
    assert (row["rank"], row["reason"]) == (5, None)
    assert row["robust_z"] == pytest.approx(0, abs=0.2)
    (change,) = outcome.tables["session_changes"].filter(pl.col("what") == "rocm").to_dicts()
    assert (change["kind"], change["subject"], change["from_value"], change["to_value"]) == (
        *("environment", "version"),
        *("7.1", "7.2"),
    )
    told = outcome.headline["against_earlier"]
    assert isinstance(told, str)
    assert "9 earlier sessions on this host" in told
    assert "within their spread; since the session before ROCm changed from 7.1 to 7.2" in told
    assert said(outcome)["place among earlier sessions"] == ("present", None)


def test_an_earlier_session_whose_files_are_torn_is_named_and_stops_nothing(copied: TraceLake, own: str) -> None:
    whole, torn = earlier(copied, own, 1), earlier(copied, own, 2)
    (entry,) = copied.manifest(torn).of_table("iterations")
    (copied.path / entry.file).write_bytes(b"torn")
    outcome = made_by(copied, own, "regression")
    row = outcome.tables["history_places"].row(0, named=True)
    assert row["earlier_sessions"] == 1
    status, reason = said(outcome)["earlier sessions"]
    assert status == "partial"
    assert reason is not None
    assert reason.startswith(f"1 earlier session cannot be read, {torn} first: ")
    assert whole


def disturbed(lake: TraceLake, session: str, ratio: float) -> None:
    """The session, as if the machine had disturbed this share of its iterations."""
    row = {"metric": "disturbed_ratio", "pass": "latency", "phase": "measure", "value": ratio, "unit": "ratio", "n": 9}
    lake.publish(session, "iteration_delays", {"session_metrics": to_contract("session_metrics", pl.DataFrame([row]))})


def test_sessions_that_the_machine_disturbed_too_often_have_no_level_and_are_counted(
    copied: TraceLake, own: str
) -> None:
    quiet, noisy = earlier(copied, own, 1), earlier(copied, own, 2, 3.0)
    disturbed(copied, quiet, MOST_DISTURBED)
    disturbed(copied, noisy, MOST_DISTURBED + 0.01)
    outcome = made_by(copied, own, "regression")
    row = outcome.tables["history_places"].row(0, named=True)
    assert (row["earlier_sessions"], row["median_ratio"]) == (1, pytest.approx(1, rel=0.01))
    told = said(outcome)["levels of earlier sessions"]
    assert told == ("partial", "1 earlier session left out: too noisy a machine, or times that cannot be right")
    disturbed(copied, own, 0.9)
    row = made_by(copied, own, "regression").tables["history_places"].row(0, named=True)
    assert (row["value_ns"], row["median_ratio"]) == (None, None)
    assert row["reason"] == "the machine disturbed 90.0 % of its iterations, more than 30 %"


def test_sessions_after_it_are_not_looked_at(copied: TraceLake, own: str) -> None:
    first = earlier(copied, own, 1)
    before = made_by(copied, first, "regression").tables["history_places"]
    earlier(copied, own, 2)
    assert made_by(copied, first, "regression").tables["history_places"].equals(before)
    assert before.item(0, "earlier_sessions") == 0
