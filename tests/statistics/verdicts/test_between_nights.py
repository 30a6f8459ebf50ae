"""Arms of different nights: the interval holds the nights' spread, and without a canary nothing is said."""

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.statistics.verdicts.between_nights import compare_between_nights
from tests.statistics.verdicts.campaigns import arm, noise


def canary(nights: int = 20, deviation: float = 0.01, host: str = "node1") -> pl.DataFrame:
    return pl.DataFrame({"host": [host] * nights, "level_ns": 1e6 * noise(nights, deviation)})


def sessions(ratio: float, **facts: object) -> pl.DataFrame:
    """Five sessions of each arm on one night each; the candidate has another driver, so another environment."""
    before = arm("baseline", noise(5, 0.004, 1).tolist(), per_block=5)
    after = arm("candidate", (ratio * noise(5, 0.004, 2)).tolist(), per_block=5, fingerprint="other", boot_id="b2")
    after = after.with_columns(block=pl.lit(1, pl.Int32))
    return pl.concat([before, after]).with_columns(**{name: pl.lit(value) for name, value in facts.items()})


def verdict(ratio: float, nights: pl.DataFrame, **facts: object) -> dict[str, object]:
    found = compare_between_nights(sessions(ratio, **facts), nights, "baseline", "candidate")
    assert to_contract("verdicts", found.drop("campaign_id")).height == 1
    return found.row(0, named=True)


def test_a_change_beyond_the_nights_spread_is_regressed_between_nights_and_graded() -> None:
    row = verdict(1.08, canary())
    assert (row["verdict"], row["alert_grade"], row["design"]) == (
        "regressed between nights",
        "two boots",
        "between nights",
    )


def test_the_interval_is_that_of_both_variances() -> None:
    row = verdict(1.0, canary(deviation=0.01))
    night, within = 0.01**2 * 2, 0.004**2 / 5
    variance = night + 2 * within
    freedom = variance**2 / (night**2 / 19 + 2 * within**2 / 4)
    from scipy import stats

    reach = stats.t.ppf(0.975, freedom) * np.sqrt(variance)
    assert [row["ci_low"], row["ci_high"]] == pytest.approx(np.exp([-reach, reach]).tolist(), rel=1e-4)


@pytest.mark.parametrize("ratio", [0.9, 1.0, 1.02])
def test_nothing_else_is_ever_claimed(ratio: float) -> None:
    assert verdict(ratio, canary())["verdict"] == "inconclusive"


def test_below_twenty_nights_of_that_host_it_is_withheld() -> None:
    for nights in (canary(19), canary(30, host="node2")):
        row = verdict(1.5, nights)
        assert (row["verdict"], row["ci_low"], row["effect_ratio"]) == ("withheld", None, pytest.approx(1.5, rel=1e-3))


def test_another_device_is_other_hardware_and_another_environment_is_not() -> None:
    moved = sessions(1.5).with_columns(device=pl.col("arm"))
    row = compare_between_nights(moved, canary(), "baseline", "candidate").row(0, named=True)
    assert (row["verdict"], row["effect_ratio"], row["ci_low"]) == ("hardware differs", None, None)


def test_slow_sessions_in_both_arms_are_the_hosts() -> None:
    slowed = pl.when(pl.col("session_id").is_in(["baseline1", "candidate3"])).then(1.5).otherwise(1.0)
    busy = sessions(1.5).with_columns(p50_ns=(pl.col("p50_ns") * slowed).cast(pl.Int64))
    row = compare_between_nights(busy, canary(), "baseline", "candidate").row(0, named=True)
    assert row["verdict"] == "inconclusive"
    assert row["slow_sessions"] == ["baseline1", "candidate3"]


def test_one_session_a_night_leaves_their_spread_unknown() -> None:
    single = sessions(1.5).with_columns(block=pl.int_range(pl.len(), dtype=pl.Int32))
    row = compare_between_nights(single, canary(), "baseline", "candidate").row(0, named=True)
    assert (row["verdict"], row["ci_low"]) == ("inconclusive", None)
