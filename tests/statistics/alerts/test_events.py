"""Both time slots together are one verdict over all of their blocks."""

import polars as pl
import pytest

from aaco_pipeline.statistics.alerts.events import both_slots
from aaco_pipeline.statistics.verdicts.comparison import Plan, compare
from tests.statistics.verdicts.campaigns import EMPTY_LEDGER, campaign

FIGURES = ("verdict", "effect_ratio", "ci_low", "ci_high")
PLAN = Plan("baseline", "candidate", (1,))


def primary(sessions: pl.DataFrame, blocks: int) -> dict[str, object]:
    rows = compare(sessions, Plan("baseline", "candidate", (blocks,)), EMPTY_LEDGER)
    return rows.filter(pl.col("role") == "primary").row(0, named=True)


def test_blocks_of_both_slots_count_each_and_none_of_them_is_paired_across() -> None:
    first, second = campaign(1.05, 10, campaign="s"), campaign(1.03, 20, campaign="s")
    row = both_slots(first, second, PLAN, 0.01, EMPTY_LEDGER).row(0, named=True)
    by_hand = pl.concat([first, second.with_columns(pl.col("block") + 10)])
    expected = primary(by_hand, 30)
    assert row == {"campaign_id": "s", **{f"both_{name}": expected[name] for name in FIGURES}}
    assert row["both_effect_ratio"] == pytest.approx(1.05 ** (1 / 3) * 1.03 ** (2 / 3), rel=1e-6)


def test_slots_of_unlike_sizes_are_judged_beside_each_other() -> None:
    first, second = (
        pl.concat([campaign(1.05, blocks, campaign=name) for blocks, name in zip(sizes, ("one", "other"), strict=True)])
        for sizes in ((10, 10), (20, 10))
    )
    found = both_slots(first, second, PLAN, 0.01, EMPTY_LEDGER)
    assert found.sort("campaign_id").get_column("campaign_id").to_list() == ["one", "other"]
    assert found.get_column("both_verdict").to_list() == ["regressed", "regressed"]


def test_on_two_devices_both_slots_compare_nothing() -> None:
    first, second = campaign(1.05, 10, campaign="s"), campaign(1.05, 20, campaign="s", device="GPU-1")
    row = both_slots(first, second, PLAN, 0.01, EMPTY_LEDGER).row(0, named=True)
    assert (row["both_verdict"], row["both_ci_low"]) == ("hardware differs", None)
