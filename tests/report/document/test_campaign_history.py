"""The nights of a campaign's benchmark as a page draws them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.campaign_history import history_of
from aaco_pipeline.report.words import verdicts as words
from tests.report.made_up import rows_of

CAMPAIGN = "nightly-1"
METRIC = "latency_p50"


def night(number: int, level: int, host: str = "a", **more: Any) -> dict[str, Any]:
    series = {"workload": "net", "backend": "cpu", "host": host, "metric": METRIC, "arm": "candidate"}
    when = {"campaign": f"night{number}", "started_at": datetime(2026, 3, 1, tzinfo=UTC) + timedelta(days=number)}
    return {**series, **when, "night": number, "level_ns": level, "segment": 0, **more}


def change(number: int, of: str = "raw", **more: Any) -> dict[str, Any]:
    found = {"series": "s", "of": of, "kind": "level", "effect_ratio": 2.0, "first_location": "x", "last_location": "x"}
    return {**night(number, 0), **found, **more}


def published(lake: TraceLake, nights: list[dict[str, Any]], changes: list[dict[str, Any]]) -> None:
    frames = {"nights": rows_of("nights", nights), "change_points": rows_of("change_points", changes)}
    tables = {name: frame.drop("campaign_id", strict=False) for name, frame in frames.items()}
    lake.publish(CAMPAIGN, "history", tables, scope="campaign")


def test_levels_leave_outliers_out_and_changes_know_their_night(empty_lake: TraceLake) -> None:
    nights = [
        night(0, 100, paired_ratio=1.0, paired_segment=0),
        night(1, 400, paired_ratio=4.0, paired_segment=0),
        night(2, 10_000, is_outlier=True, paired_ratio=9.0, paired_segment=0, paired_is_outlier=True),
        night(3, 800, segment=1),
    ]
    published(empty_lake, nights, [change(3), change(3, "paired"), change(77)])
    history = history_of(empty_lake, CAMPAIGN, "candidate", METRIC)
    assert history is not None
    assert [(one["of"], one["first"], one["last"], one["value"]) for one in history["levels"]] == [
        ("raw", 0, 1, pytest.approx(200)),
        ("raw", 3, 3, pytest.approx(800)),
        ("paired", 0, 1, pytest.approx(2)),
    ]
    assert [(row["of"], row["night"]) for row in history["changes"]] == [("paired", 3), ("raw", 3)]


def test_of_several_hosts_it_is_the_latest(empty_lake: TraceLake) -> None:
    published(
        empty_lake, [night(0, 100), night(1, 100), night(0, 100, "b", started_at=datetime(2027, 1, 1, tzinfo=UTC))], []
    )
    history = history_of(empty_lake, CAMPAIGN, "candidate", METRIC)
    assert history is not None
    assert (history["host"], len(history["nights"])) == ("b", 1)
    assert history_of(empty_lake, CAMPAIGN, "placebo", METRIC) is None


def test_changes_and_the_forecast_are_told_in_the_historys_own_words(empty_lake: TraceLake) -> None:
    found = change(3, workload="net", owed_to="code", effect_ratio=1.05)
    foretold = {**night(0, 0), "nights": 9, "state": "no trend", "reason": "the slope may be 0"}
    published(empty_lake, [night(0, 100), night(3, 105, segment=1)], [found])
    frame = rows_of("forecasts", [foretold]).drop("campaign_id", strict=False)
    empty_lake.publish(CAMPAIGN, "forecast", {"forecasts": frame}, scope="campaign")
    history = history_of(empty_lake, CAMPAIGN, "candidate", METRIC)
    assert history is not None
    first, second = words.changes({"history": history})
    assert first.startswith("Since the night of 4 March 2026 net (candidate, median) takes 5.0 % longer")
    assert second == "Nothing is foretold of the median of net (candidate): no trend, the slope may be 0."
    assert words.changes({"history": None}) == []
