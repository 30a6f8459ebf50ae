"""Nights without a verdict alert once each, from a benchmark's first night on, as the calendar says."""

from datetime import UTC, date, datetime, timedelta

import polars as pl

from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.statistics.alerts.events import alerts
from aaco_pipeline.statistics.alerts.missing import missing_events, nights_over

MONDAY = date(2026, 11, 2)
BENCHMARK = ("resnet50", "migraphx")


def planned(*nights: tuple[int, bool]) -> pl.DataFrame:
    rows = [(*BENCHMARK, MONDAY + timedelta(days=day), is_judged) for day, is_judged in nights]
    types = {"workload": pl.String, "backend": pl.String, "night": pl.Date, "is_judged": pl.Boolean}
    return pl.DataFrame(rows, schema=types, orient="row")


def week(days: int) -> list[date]:
    return [MONDAY + timedelta(days=day) for day in range(days)]


def test_a_night_is_over_when_its_day_is_and_only_those_of_the_calendar_count() -> None:
    midnight = datetime(2026, 11, 9, tzinfo=UTC)
    assert nights_over(midnight, range(7)) == week(7)
    assert nights_over(midnight - timedelta(microseconds=1), range(7))[-1] == date(2026, 11, 7)
    assert nights_over(midnight, [0, 6]) == [MONDAY, date(2026, 11, 8)]


def test_nights_on_end_without_a_verdict_are_one_alert_and_each_is_told_once() -> None:
    seen = planned((0, True), (1, False))
    events = missing_events([BENCHMARK], seen, empty_table("alerts"), week(3))
    assert events.get_column("night").to_list() == week(3)[1:]
    assert events.get_column("reasons").to_list() == [["its campaign came to no verdict"], ["nothing was measured"]]
    assert events.get_column("alert").n_unique() == 1
    assert missing_events([BENCHMARK], seen, events, week(3)).is_empty()
    more = missing_events([BENCHMARK], seen, events, week(4))
    assert more.get_column("night").to_list() == [week(4)[3]]
    assert alerts(pl.concat([events, more])).height == 1


def test_before_its_first_night_a_benchmark_misses_none_and_of_one_never_measured_the_last_one_is_told() -> None:
    assert missing_events([BENCHMARK], planned((2, True)), empty_table("alerts"), week(3)).is_empty()
    never = missing_events([("new", "cpu"), BENCHMARK], planned((0, True)), empty_table("alerts"), week(3))
    assert never.select("workload", "night").rows() == [
        ("new", week(3)[2]),
        ("resnet50", week(3)[1]),
        ("resnet50", week(3)[2]),
    ]
    assert missing_events([BENCHMARK], planned(), empty_table("alerts"), []).is_empty()
