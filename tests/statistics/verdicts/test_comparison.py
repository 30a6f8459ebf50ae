"""The verdict on campaigns whose effect is known, and what keeps it from being given.

Arms of different nights: the interval includes the nights' spread, and there is no verdict without a canary.
"""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.statistics.verdicts.comparison import METRICS, Plan, compare, compare_between_nights
from tests.statistics.verdicts.campaigns import EMPTY_LEDGER, arm, campaign, noise

PLAN = Plan("baseline", "candidate", (10,))


def p50(sessions: pl.DataFrame, plan: Plan = PLAN, ledger: pl.DataFrame = EMPTY_LEDGER) -> dict[str, object]:
    return compare(sessions, plan, ledger).filter(pl.col("metric") == "latency_p50").row(0, named=True)


def reasons(row: dict[str, object]) -> list[str]:
    found = row["reasons"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("ratio", "deviation", "verdict"),
    [
        (1.03, 0.005, "regressed"),
        (0.96, 0.005, "improved"),
        (1.001, 0.005, "equivalent"),
        # Within by the 90 % interval, which two one-sided tests take; by the 95 % one it would not be.
        (1.0065, 0.005, "equivalent"),
        (0.992, 0.005, "inconclusive"),
        (1.012, 0.005, "inconclusive"),
        (1.03, 0.05, "inconclusive"),
    ],
)
def test_the_verdict_is_where_the_interval_lies(ratio: float, deviation: float, verdict: str) -> None:
    assert p50(campaign(ratio, deviation=deviation))["verdict"] == verdict


def test_the_interval_is_that_of_the_t_test_of_block_log_ratios() -> None:
    sessions = campaign(1.02, deviation=0.01)
    row = p50(sessions)
    medians = [
        np.log(sessions.filter(pl.col("arm") == name)["p50_ns"].to_numpy()) for name in ("baseline", "candidate")
    ]
    tested = stats.ttest_1samp(medians[1] - medians[0], 0)
    interval = tested.confidence_interval(0.95)
    assert [row["ci_low"], row["ci_high"]] == pytest.approx(np.exp([interval.low, interval.high]).tolist())
    assert row["p_value"] == pytest.approx(float(tested.pvalue))
    assert row["effect_ratio"] == pytest.approx(1.02, rel=1e-4)
    assert (row["blocks"], row["sessions_baseline"], row["sessions_candidate"], row["level"]) == (10, 10, 10, 0.05)


def test_sessions_of_one_block_count_as_their_mean() -> None:
    base, other = noise(20, 0.05, 1).tolist(), (1.02 * noise(20, 0.05, 2)).tolist()
    two = pl.concat([arm("baseline", base, per_block=2), arm("candidate", other, per_block=2)])
    means = [np.sqrt(np.array(side)[::2] * np.array(side)[1::2]).tolist() for side in (base, other)]
    one = pl.concat([arm("baseline", means[0]), arm("candidate", means[1])])
    found, expected = p50(two), p50(one)
    assert found["ci_low"] == pytest.approx(expected["ci_low"], rel=1e-6)
    assert found["sessions_needed"] == 2 * int(str(expected["sessions_needed"]))


def test_rows_are_those_of_the_contract_and_one_metric_is_primary() -> None:
    rows = compare(campaign(1.03), Plan("baseline", "candidate", (10,), primary="latency_p90"), EMPTY_LEDGER)
    assert to_contract("verdicts", rows.drop("campaign_id")).columns == list(polars_types("verdicts"))
    assert dict(rows.select("metric", "role").iter_rows()) == {
        metric: "primary" if metric == "latency_p90" else "supporting" for metric in METRICS
    }
    p99 = rows.filter(pl.col("metric") == "latency_p99").row(0, named=True)
    assert (p99["verdict"], p99["ci_low"], p99["minimum_detectable_ratio"]) == ("withheld", None, None)
    assert p99["reasons"][1] == "20 sessions are left out of the P99: 20 with too few iterations"


def test_unsteady_and_bimodal_sessions_are_left_out_of_the_median_alone() -> None:
    state = pl.when(pl.col("session_id") == "baseline3").then(pl.lit("unsteady"))
    sessions = campaign(1.03).with_columns(
        state=state.when(pl.col("session_id") == "candidate5").then(pl.lit("bimodal")).otherwise("state")
    )
    rows = {row["metric"]: row for row in compare(sessions, PLAN, EMPTY_LEDGER).iter_rows(named=True)}
    median, tail = rows["latency_p50"], rows["latency_p90"]
    assert median["excluded_sessions"] == ["baseline3", "candidate5"]
    assert (median["blocks"], median["level"], tail["blocks"], tail["excluded_sessions"]) == (8, 0.05, 10, [])
    assert "2 sessions are left out of the P50: " in median["reasons"][1]


@pytest.mark.parametrize("fact", ["host", "device", "fingerprint"])
def test_unlike_hardware_has_no_verdict(fact: str) -> None:
    split = campaign(1.5).with_columns(
        pl.when(pl.col("arm") == "candidate").then(pl.lit("other")).otherwise(fact).alias(fact)
    )
    moved = campaign(1.5).with_columns(pl.when(pl.col("block") > 4).then(pl.lit("other")).otherwise(fact).alias(fact))
    for sessions in (split, moved):
        row = p50(sessions)
        assert (row["verdict"], row["ci_low"], row["ci_high"]) == ("hardware differs", None, None)
        assert (row["effect_ratio"], row["p_value"], row["minimum_detectable_ratio"]) == (None, None, None)
        assert reasons(row)[0].startswith("the sessions ran on 2 ")


def test_cold_and_warm_caches_are_never_mixed() -> None:
    sessions = campaign(1.5).with_columns(
        cache_state=pl.when(pl.col("block") == 2).then(pl.lit("cold")).otherwise("cache_state")
    )
    assert p50(sessions)["verdict"] == "withheld"


def test_below_three_sessions_an_arm_there_is_a_description_alone() -> None:
    row = p50(campaign(1.5, blocks=2), Plan("baseline", "candidate", (2,)))
    assert (row["verdict"], row["ci_low"]) == ("withheld", None)
    assert row["effect_ratio"] == pytest.approx(1.5, rel=1e-3)


def test_below_five_blocks_it_is_inconclusive() -> None:
    row = p50(campaign(1.5, blocks=4), Plan("baseline", "candidate", (4,)))
    assert (row["verdict"], row["ci_low"], row["p_value"]) == ("inconclusive", None, None)
    assert reasons(row)[0] == "4 blocks hold both arms, an interval needs 5"


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_without_a_baseline_in_the_same_blocks_it_stays_inconclusive(ratio: float) -> None:
    elsewhere = campaign(ratio).with_columns(
        block=pl.when(pl.col("arm") == "baseline").then(pl.col("block") + 100).otherwise("block")
    )
    stored = p50(campaign(ratio), Plan("baseline", "candidate", (10,), design="stored baseline"))
    for row in (p50(elsewhere), stored):
        assert row["verdict"] == "inconclusive"
        assert str(row["recommendation"]) == "run 10 blocks with both arms in random order on one device"
        assert row["effect_ratio"] == pytest.approx(ratio, rel=1e-3)
    # Equal numbers of blocks pair nothing when the baseline is a stored one.
    assert (stored["blocks"], stored["ci_low"], stored["p_value"], stored["sessions_needed"]) == (0, None, None, None)


@pytest.mark.parametrize(
    ("blocks", "advice"), [(7, "go on to 10 blocks"), (12, "go on to 15 blocks"), (16, "plan a new")]
)
def test_between_planned_looks_it_stays_inconclusive(blocks: int, advice: str) -> None:
    row = p50(campaign(1.5, blocks=blocks), Plan("baseline", "candidate", (10, 15)))
    assert (row["verdict"], row["level"]) == ("inconclusive", None)
    assert str(row["recommendation"]).startswith(advice)


def test_an_early_look_asks_for_more_than_the_last_one() -> None:
    early = p50(campaign(1.02, deviation=0.008), Plan("baseline", "candidate", (10, 20)))
    last = p50(campaign(1.02, deviation=0.008))
    assert (early["verdict"], last["verdict"]) == ("inconclusive", "regressed")
    assert early["recommendation"] == "go on to the plan's next look, at 20 blocks"
    assert float(str(early["minimum_detectable_ratio"])) > float(str(last["minimum_detectable_ratio"]))


def test_slow_sessions_in_both_arms_are_the_hosts() -> None:
    base, other = noise(10, 0.004, 1), 1.3 * noise(10, 0.004, 2)
    assert p50(pl.concat([arm("baseline", base.tolist()), arm("candidate", other.tolist())]))["verdict"] == "regressed"
    base[3] *= 1.5
    other[[2, 6]] *= 1.5
    row = p50(pl.concat([arm("baseline", base.tolist()), arm("candidate", other.tolist())]))
    assert row["verdict"] == "inconclusive"
    assert row["slow_sessions"] == ["baseline3", "candidate2", "candidate6"]
    assert reasons(row)[0].startswith(
        "a busy host: sessions of baseline and candidate ran slower throughout (baseline3 "
    )


def test_slow_sessions_of_a_third_arm_speak_for_the_host_too() -> None:
    other, third = 1.3 * noise(10, 0.004, 2), noise(10, 0.004, 3)
    other[2] *= 1.5
    third[4] *= 1.5
    two = pl.concat([arm("baseline", noise(10, 0.004).tolist()), arm("candidate", other.tolist())])
    assert reasons(p50(pl.concat([two, arm("placebo", third.tolist())])))[0].startswith("a busy host")


def test_a_difference_that_rests_on_slow_sessions_is_not_claimed() -> None:
    other = [1.02, 1.04, 1.05, 1.1, 1.15, 1.2, 1.27, 1.35]
    plan = Plan("baseline", "candidate", (8,), policy_ratio=0.045)
    row = p50(pl.concat([arm("baseline", [1.0] * 8), arm("candidate", other)]), plan)
    assert row["slow_sessions"] == ["candidate6", "candidate7"]
    assert float(str(row["ci_low"])) > 1.045
    assert row["verdict"] == "inconclusive"
    assert "lies beyond a difference of 4.5 %, but not without slow sessions: candidate6 1.21 times" in reasons(row)[0]


def test_sign_flips_take_back_what_one_skewed_block_makes() -> None:
    ratios = np.full(6, 1.02)
    ratios[0] = 1.0095
    sessions = pl.concat([arm("baseline", [1.0] * 6), arm("candidate", ratios.tolist())])
    row = p50(sessions, Plan("baseline", "candidate", (6,)))
    assert float(str(row["ci_low"])) > 1.01
    assert row["verdict"] == "inconclusive"
    assert "flipped signs reach as far by chance" in reasons(row)[0]


def test_the_floor_of_identical_code_takes_the_place_of_the_policy() -> None:
    row = p50(campaign(1.03), ledger=ledger(100, 0.05))
    assert row["floor_ratio"] == pytest.approx(0.05)
    assert (row["threshold_ratio"], row["verdict"]) == (row["floor_ratio"], "equivalent")
    assert "the threshold is the floor that 100 comparisons of identical code set" in reasons(row)


def test_fewer_than_a_hundred_comparisons_set_no_floor_but_trust() -> None:
    row = p50(campaign(1.03), ledger=ledger(99, 0.05))
    assert (row["floor_ratio"], row["threshold_ratio"], row["verdict"]) == (None, 0.01, "regressed")
    assert row["confidence"] == pytest.approx(1 - 1 / 100)
    assert str(row["confidence_source"]).startswith("0 of 99 comparisons of identical code")
    assert "the threshold is the policy alone: 99 of 100 comparisons of identical code are known" in reasons(row)


def test_a_ledger_of_another_design_says_nothing() -> None:
    for other in ({"blocks": 9}, {"workload": "bert"}, {"host": "node2"}, {"sessions_per_block": 2}):
        changed = ledger(200, 0.05).with_columns(**{name: pl.lit(value) for name, value in other.items()})
        row = p50(campaign(1.03), ledger=changed.cast(EMPTY_LEDGER.schema))
        assert (row["floor_ratio"], row["confidence"], row["verdict"]) == (None, None, "regressed")


def ledger(count: int, effect: float) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "campaign_id": [f"n{i}" for i in range(count)],
            "workload": "resnet50",
            "host": "node1",
            "metric": "latency_p50",
            "design": "interleaved",
            "blocks": 10,
            "sessions_per_block": 1,
            "effect_ratio": 1 + effect,
            "level": 0.05,
            "p_value": np.linspace(0.01, 1, count),
        },
        schema=EMPTY_LEDGER.schema,
    )


def test_a_regression_is_graded_by_its_boots() -> None:
    assert p50(campaign(1.03))["alert_grade"] == "one boot"
    two = campaign(1.03).with_columns(boot_id=pl.when(pl.col("block") > 4).then(pl.lit("b2")).otherwise("boot_id"))
    assert p50(two)["alert_grade"] == "two boots"
    assert p50(two.with_columns(boot_id=pl.lit(None, pl.String)))["alert_grade"] is None
    assert p50(campaign(1.0))["alert_grade"] is None


def test_many_campaigns_are_judged_as_each_alone() -> None:
    each = [campaign(ratio, campaign=f"n{i}", deviation=0.01) for i, ratio in enumerate((0.95, 1.0, 1.01, 1.05))]
    together = compare(pl.concat(each), PLAN, EMPTY_LEDGER)
    assert together.equals(pl.concat([compare(one, PLAN, EMPTY_LEDGER) for one in each]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arm": pl.lit("candidate")}, "no session is of arm baseline: there is candidate"),
        ({"workload": pl.col("arm")}, "campaign c compares baseline with candidate"),
    ],
)
def test_invalid_comparisons_are_refused(change: dict[str, pl.Expr], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare(campaign(1.0).with_columns(**change), PLAN, EMPTY_LEDGER)


@pytest.mark.parametrize("plan", [{"primary": "p50"}, {"policy_ratio": 0.0}, {"looks": ()}, {"looks": (10, 10)}])
def test_a_plan_that_cannot_be_kept_is_refused(plan: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Plan(**{"baseline": "baseline", "candidate": "candidate", "looks": (10,), **plan})  # type: ignore[arg-type]


@given(st.integers(0, 10**6), st.floats(0.9, 1.1), st.integers(5, 14), st.floats(0.002, 0.08))
def test_arms_change_places_and_the_verdict_turns_round(seed: int, ratio: float, blocks: int, deviation: float) -> None:
    base, other = noise(blocks, deviation, seed), ratio * noise(blocks, deviation, seed + 1)
    one = p50(
        pl.concat([arm("baseline", base.tolist()), arm("candidate", other.tolist())]),
        Plan("baseline", "candidate", (blocks,)),
    )
    turned = p50(
        pl.concat([arm("candidate", base.tolist()), arm("baseline", other.tolist())]),
        Plan("baseline", "candidate", (blocks,)),
    )
    assert one["effect_ratio"] == pytest.approx(1 / float(str(turned["effect_ratio"])))
    assert one["ci_low"] == pytest.approx(1 / float(str(turned["ci_high"])))
    assert float(str(one["ci_low"])) <= float(str(one["effect_ratio"])) <= float(str(one["ci_high"]))
    assert one["minimum_detectable_ratio"] == pytest.approx(turned["minimum_detectable_ratio"])
    # A threshold is not symmetric in logs: what is regressed may turn round to be inconclusive, never to be regressed.
    if one["verdict"] == "regressed":
        assert turned["verdict"] in ("improved", "inconclusive")


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


def test_slow_sessions_of_both_arms_on_different_nights_are_caused_by_the_host() -> None:
    slowed = pl.when(pl.col("session_id").is_in(["baseline1", "candidate3"])).then(1.5).otherwise(1.0)
    busy = sessions(1.5).with_columns(p50_ns=(pl.col("p50_ns") * slowed).cast(pl.Int64))
    row = compare_between_nights(busy, canary(), "baseline", "candidate").row(0, named=True)
    assert row["verdict"] == "inconclusive"
    assert row["slow_sessions"] == ["baseline1", "candidate3"]


def test_one_session_a_night_leaves_their_spread_unknown() -> None:
    single = sessions(1.5).with_columns(block=pl.int_range(pl.len(), dtype=pl.Int32))
    row = compare_between_nights(single, canary(), "baseline", "candidate").row(0, named=True)
    assert (row["verdict"], row["ci_low"]) == ("inconclusive", None)
