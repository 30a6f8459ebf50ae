"""A night's level is the mean over its sessions; its ratio that of the blocks, to the best reference there is."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.statistics.history.nights import night_levels
from tests.statistics.verdicts.campaigns import arm

NIGHT = datetime(2026, 3, 1, tzinfo=UTC)
WANDER = np.exp(np.random.default_rng(1).normal(0, 0.05, 10))


def sessions(*arms: pl.DataFrame) -> pl.DataFrame:
    rows = pl.concat(arms).rename({"campaign_id": "campaign"})
    facts = {"started_at": pl.lit(NIGHT), "backend": pl.lit("cpu"), "artefact_sha256": pl.col("arm") + " file"}
    return rows.with_columns(**facts)


def of_arm(nights: pl.DataFrame, name: str, metric: str = "latency_p50") -> dict[str, Any]:
    return nights.filter(pl.col("arm") == name, pl.col("metric") == metric).row(0, named=True)


def test_level_and_ratio_of_a_night() -> None:
    own = np.exp(np.random.default_rng(2).normal(0, 0.01, 10))
    found = night_levels(sessions(arm("baseline", WANDER.tolist()), arm("candidate", (1.05 * WANDER * own).tolist())))
    row = of_arm(found, "candidate")
    logs = np.log(np.rint(1.05 * WANDER * own * 1e6))
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
    found = night_levels(sessions(*(arm(name, WANDER.tolist()) for name in names)))
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
