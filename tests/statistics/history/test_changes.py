"""Attribution of changes: to the code when the ratio changed too, to the host when it did not.

A night's level is the mean over its sessions; its ratio that of the blocks, to the best reference there is.
"""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.statistics.history.changes import night_levels, with_levels
from tests.statistics.history.made_up import night_rows, noise, step
from tests.statistics.verdicts.campaigns import arm

WANDER = noise(60, 0.01, 3)
OWN = noise(60, 0.005, 4)


def changes(level: np.ndarray, paired: np.ndarray | None, arm: str = "candidate") -> pl.DataFrame:
    return with_levels(night_rows(level, paired, arm))[1]


def test_a_slower_arm_is_the_codes() -> None:
    slower = step(60, 30, 0.05)
    rows = changes(WANDER + slower + OWN, slower + OWN).sort("of").to_dicts()
    assert [(row["of"], row["owed_to"], row["kind"]) for row in rows] == [
        ("paired", "code", "level"),
        ("raw", "code", "level"),
    ]
    paired = rows[0]
    assert paired["ci_low"] < np.exp(0.05) < paired["ci_high"]
    assert paired["first_location"] <= "nightly-030" <= paired["last_location"]
    assert paired["campaign"] == f"nightly-{paired['nights_before']:03}"
    assert paired["nights_before"] + paired["nights_after"] == 60
    assert 1 <= paired["delay_nights"] <= 4
    assert paired["series"] == "resnet50 · cpu · node1 · latency_p50 · candidate"


def test_a_slower_host_is_the_hosts() -> None:
    slower = step(60, 30, 0.1)
    (row,) = changes(WANDER + slower + OWN, OWN).to_dicts()
    assert (row["of"], row["owed_to"]) == ("raw", "host")


@pytest.mark.parametrize(("arm", "owed_to"), [("candidate", None), ("canary", "host")])
def test_without_a_pairing_only_a_canary_tells(arm: str, owed_to: str | None) -> None:
    (row,) = changes(WANDER + step(60, 30, 0.1), None, arm).to_dicts()
    assert row["owed_to"] == owed_to


def test_ratios_too_noisy_to_tell_leave_it_open() -> None:
    (row,) = changes(WANDER + step(60, 30, 0.06), noise(60, 0.5, 5)).filter(pl.col("of") == "raw").to_dicts()
    assert row["owed_to"] is None


def test_another_file_to_hold_against_is_no_change() -> None:
    files = ["ab" * 32] * 30 + ["cd" * 32] * 30
    ratio = OWN - step(60, 30, 0.2)
    nights, found = with_levels(night_rows(WANDER, ratio, files=files))
    assert found.is_empty()
    assert nights.get_column("paired_segment").to_list() == [0] * 30 + [1] * 30
    assert with_levels(night_rows(WANDER, ratio))[1].height == 1


def test_every_night_has_its_place_its_level_and_its_environment() -> None:
    level = WANDER + step(60, 30, 0.1)
    level[10] += 0.5
    level[-1] += 0.5
    rows = night_rows(level, OWN).with_columns(
        fingerprint=pl.when(pl.int_range(pl.len()) >= 30).then(pl.lit("g")).otherwise("fingerprint")
    )
    nights, found = with_levels(rows.sample(fraction=1, shuffle=True, seed=1))
    assert nights.get_column("night").to_list() == list(range(60))
    assert nights.row(10, named=True)["is_outlier"] is True
    assert nights.row(10, named=True)["segment"] is None
    assert nights.row(59, named=True)["is_outlier"] is None
    assert nights.get_column("paired_is_outlier").to_list() == [False] * 60
    assert nights.row(0, named=True)["is_new_fingerprint"] is None
    assert nights.filter("is_new_fingerprint").get_column("night").to_list() == [30]
    assert nights.get_column("segment").drop_nulls().unique().to_list() == [0, 1]
    assert found.get_column("campaign").to_list() == ["nightly-030"]


def test_a_second_time_slot_shows_a_step_the_same_night() -> None:
    level = noise(31, 0.005, 8) + step(31, 29, 0.1)
    same_night = night_rows(level, level).with_columns(
        started_at=pl.when(pl.int_range(pl.len()) == 30)
        .then(pl.col("started_at").shift(1).dt.offset_by("1h"))
        .otherwise("started_at")
    )
    (row,) = with_levels(same_night)[1].filter(pl.col("of") == "paired").to_dicts()
    assert (row["campaign"], row["delay_nights"], row["nights_after"]) == ("nightly-029", 0, 2)


def test_series_are_kept_apart() -> None:
    other = night_rows(WANDER).with_columns(host=pl.lit(None, pl.String))
    nights, found = with_levels(pl.concat([night_rows(WANDER + step(60, 30, 0.1)), other]))
    assert nights.height == 120
    assert found.get_column("host").to_list() == ["node1"]


def test_no_nights_give_no_rows() -> None:
    nights, found = with_levels(night_rows(np.empty(0)))
    assert nights.is_empty()
    assert found.is_empty()


NIGHT = datetime(2026, 3, 1, tzinfo=UTC)
HOST_NOISE = np.exp(np.random.default_rng(1).normal(0, 0.05, 10))


def sessions(*arms: pl.DataFrame) -> pl.DataFrame:
    rows = pl.concat(arms).rename({"campaign_id": "campaign"})
    facts = {"started_at": pl.lit(NIGHT), "backend": pl.lit("cpu"), "artefact_sha256": pl.col("arm") + " file"}
    return rows.with_columns(**facts)


def of_arm(nights: pl.DataFrame, name: str, metric: str = "latency_p50") -> dict[str, Any]:
    return nights.filter(pl.col("arm") == name, pl.col("metric") == metric).row(0, named=True)


def test_level_and_ratio_of_a_night() -> None:
    own = np.exp(np.random.default_rng(2).normal(0, 0.01, 10))
    found = night_levels(
        sessions(arm("baseline", HOST_NOISE.tolist()), arm("candidate", (1.05 * HOST_NOISE * own).tolist()))
    )
    row = of_arm(found, "candidate")
    logs = np.log(np.rint(1.05 * HOST_NOISE * own * 1e6))
    assert row["level_ns"] == pytest.approx(np.exp(logs.mean()), abs=1)
    assert row["error_ratio"] == pytest.approx(logs.std(ddof=1) / np.sqrt(10))
    assert row["ci_low_ns"] < row["level_ns"] < row["ci_high_ns"]
    assert (row["sessions"], row["paired_with"], row["paired_blocks"]) == (10, "baseline", 10)
    assert row["paired_ratio"] == pytest.approx(1.05 * np.exp(np.log(own).mean()), rel=1e-5)
    assert row["paired_error_ratio"] < row["error_ratio"] / 2
    assert row["paired_ci_low"] < row["paired_ratio"] < row["paired_ci_high"]
    assert row["paired_artefact_sha256"] == "baseline file"
    assert (row["fingerprint"], row["host"], row["campaign"], row["started_at"]) == ("f", "node1", "c", NIGHT)


def test_a_canary_goes_before_the_baseline_and_is_held_against_nothing() -> None:
    names = ("baseline", "candidate", "canary", "placebo")
    found = night_levels(sessions(*(arm(name, HOST_NOISE.tolist()) for name in names)))
    paired = {name: of_arm(found, name)["paired_with"] for name in names}
    assert paired == {"baseline": "canary", "candidate": "canary", "placebo": "canary", "canary": None}


def test_one_session_has_a_level_and_no_error() -> None:
    row = of_arm(night_levels(sessions(arm("baseline", [1.0]), arm("candidate", [1.1]))), "candidate")
    assert (row["level_ns"], row["error_ratio"], row["ci_low_ns"]) == (1_100_000, None, None)
    assert row["paired_ratio"] == pytest.approx(1.1)
    assert (row["paired_error_ratio"], row["paired_ci_low"]) == (None, None)


def test_sessions_that_mean_nothing_are_left_out_of_the_median_alone() -> None:
    both = sessions(arm("baseline", [1.0] * 5), arm("candidate", [1.0] * 5))
    unsteady = both.with_columns(
        state=pl.when(pl.col("session_id") == "candidate0").then(pl.lit("unsteady")).otherwise("state")
    )
    found = night_levels(unsteady)
    assert of_arm(found, "candidate")["sessions"] == 4
    assert of_arm(found, "candidate", "latency_p90")["sessions"] == 5
    assert found.filter(pl.col("metric") == "latency_p99").is_empty()
    assert night_levels(both.with_columns(state=pl.lit("unusable"))).is_empty()


def test_arms_of_different_hosts_are_not_paired() -> None:
    found = night_levels(sessions(arm("baseline", [1.0] * 5), arm("candidate", [1.0] * 5, host="node2")))
    assert of_arm(found, "candidate")["paired_ratio"] is None
    unnamed = night_levels(
        sessions(arm("baseline", [1.0] * 5), arm("candidate", [1.0] * 5)).with_columns(host=pl.lit(None, pl.String))
    )
    assert of_arm(unnamed, "candidate")["paired_ratio"] == 1


def test_sessions_of_several_environments_have_none() -> None:
    both = pl.concat([arm("candidate", [1.0] * 3), arm("candidate", [1.0] * 3, fingerprint="g")])
    assert of_arm(night_levels(sessions(both)), "candidate")["fingerprint"] is None
