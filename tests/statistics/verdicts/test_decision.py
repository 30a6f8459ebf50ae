"""Floors and confidences from the ledger of identical code, by its size.

What a night's table takes back, against the adjustment counted by hand.
"""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.statistics.verdicts.comparison import Plan, compare
from aaco_pipeline.statistics.verdicts.decision import DESIGN, confidence, false_discoveries, floors, ledger_rows
from tests.statistics.verdicts.campaigns import EMPTY_LEDGER, campaign


def designs(count: int) -> pl.DataFrame:
    return pl.DataFrame(
        {"campaign_id": [f"n{i}" for i in range(count)], "workload": "resnet50", "host": "node1", "blocks": 10}
    ).with_columns(sessions_per_block=1)


def test_verdicts_on_identical_code_become_rows_of_the_ledger() -> None:
    verdicts = compare(
        pl.concat([campaign(1.0 + i / 1e4, campaign=f"n{i}") for i in range(3)]),
        Plan("baseline", "candidate", (10,)),
        EMPTY_LEDGER,
    )
    rows = ledger_rows(verdicts, designs(3))
    assert to_contract("aa_ledger", rows.drop("campaign_id")).height == rows.height == 9
    assert rows.filter(pl.col("metric") == "latency_p50").get_column("effect_ratio").to_list() == pytest.approx(
        [1.0, 1.0001, 1.0002], abs=1e-5
    )
    assert floors(rows).get_column("comparisons").to_list() == [3, 3, 3]


def rows(effects: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({"effect_ratio": effects}).with_columns(
        **{name: pl.lit(1) for name in DESIGN}, p_value=pl.lit(0.5)
    )


def test_the_floor_is_the_quantile_of_the_size_in_either_direction_from_a_hundred_on() -> None:
    effects = np.exp(np.linspace(0.001, 0.1, 100) * np.tile([1, -1], 50))
    assert floors(rows(effects)).item(0, "floor_ratio") == pytest.approx(np.expm1(0.096), rel=0.02)
    assert floors(rows(effects[:99])).item(0, "floor_ratio") is None


def test_confidence_is_the_rate_at_which_identical_code_looks_as_different() -> None:
    known = [0.001, 0.01, *np.linspace(0.1, 1, 98)]
    assert confidence(0.005, known)[0] == pytest.approx(0.99)
    assert confidence(0.02, known)[0] == pytest.approx(0.98)
    source = confidence(0.02, known)[1]
    upper = stats.beta.ppf(0.975, 3, 98)
    assert source == f"2 of 100 comparisons of identical code differ as clearly (at most {upper:.1%} of such)"


def test_confidence_is_never_more_than_the_ledgers_size_can_show() -> None:
    assert confidence(0.0, [0.5] * 39)[0] == pytest.approx(1 - 1 / 40)
    assert confidence(0.0, [0.5] * 18) == (None, None)
    assert confidence(1.0, [0.5] * 39)[0] == 0.0


def night(*ratios: float) -> pl.DataFrame:
    each = [campaign(ratio, campaign=f"n{i:02d}", deviation=0.012) for i, ratio in enumerate(ratios)]
    return compare(pl.concat(each), Plan("baseline", "candidate", (10,), policy_ratio=0.0001), EMPTY_LEDGER)


def test_a_difference_that_so_many_comparisons_show_by_chance_is_taken_back() -> None:
    alone, among = night(1.011), night(1.011, *[1.0] * 19)
    assert alone.filter(pl.col("role") == "primary").item(0, "verdict") == "regressed"
    kept = false_discoveries(alone).filter(pl.col("role") == "primary").row(0, named=True)
    assert (kept["verdict"], kept["q_value"]) == ("regressed", pytest.approx(kept["p_value"]))
    row = false_discoveries(among).filter(pl.col("role") == "primary").row(0, named=True)
    assert row["q_value"] == pytest.approx(20 * row["p_value"])
    assert (row["verdict"], row["alert_grade"]) == ("inconclusive", None)
    assert row["reasons"][0] == "among the night's 20 comparisons a difference as clear as this is no rarity"


def test_a_clear_difference_stays_and_supporting_metrics_cost_it_nothing() -> None:
    table = false_discoveries(night(1.1, *[1.0] * 19))
    row = table.filter((pl.col("role") == "primary") & (pl.col("campaign_id") == "n00")).row(0, named=True)
    assert row["verdict"] == "regressed"
    assert row["q_value"] == pytest.approx(20 * row["p_value"])
    untested = table.filter(pl.col("metric") == "latency_p99")
    assert untested.get_column("q_value").null_count() == 20


def test_a_night_without_comparisons_is_an_empty_table() -> None:
    empty = night(1.0).clear()
    assert false_discoveries(empty).equals(empty)
