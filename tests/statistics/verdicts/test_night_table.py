"""What a night's table takes back, against the adjustment counted by hand."""

import polars as pl
import pytest

from aaco_pipeline.statistics.verdicts.comparison import Plan, compare
from aaco_pipeline.statistics.verdicts.night_table import false_discoveries
from tests.statistics.verdicts.campaigns import EMPTY_LEDGER, campaign


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
