"""Events of nights: none without a finding, and never a confirmation from one time slot.

Nights without a verdict alert once each, from a benchmark's first night on, as the calendar says.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.statistics.alerts.events import alerts, may_enter_rolling
from aaco_pipeline.statistics.alerts.night import SIGHTINGS, missing_events, night_events, nights_over
from tests.statistics.alerts.nights import FIRST, events_of, kinds, second, sighting

LATER = (pl.col("at") + pl.duration(hours=6)).alias("at")


def test_a_night_without_a_finding_says_nothing() -> None:
    for verdict in ("equivalent", "inconclusive", "improved"):
        assert events_of(sighting(verdict)).is_empty()


def test_a_regression_is_suspected_and_confirmed_by_a_second_time_slot() -> None:
    both: dict[str, Any] = {"both_effect_ratio": 1.045, "both_ci_low": 1.035, "both_ci_high": 1.055}
    events = events_of(sighting("regressed"), second("regressed", **both))
    assert kinds(events) == ["suspected", "confirmed"]
    standing = alerts(events).row(0, named=True)
    assert (standing["state"], standing["alert_grade"], standing["sorted_as"]) == ("confirmed", "one boot", "real")
    assert (standing["ci_low"], standing["ci_high"]) == (1.035, 1.055)
    assert standing["began_campaign"] == "nightly-0-0"
    assert standing["last_campaign"] == "nightly-0-45"
    assert to_contract("alerts", events).height == 2


def test_the_next_night_is_a_second_time_slot_too() -> None:
    assert kinds(events_of(sighting("regressed"), sighting("regressed", 1))) == ["suspected", "confirmed"]


@pytest.mark.parametrize(
    "changed",
    [
        {"verdict": "equivalent", "ci_low": 0.995, "ci_high": 1.005, "q_value": 0.5, "both_verdict": "inconclusive"},
        {"q_value": 0.02},
        {"both_verdict": "inconclusive"},
        {"ci_low": 0.999},
    ],
    ids=["shows none", "could be chance", "too small with the first", "holds no difference"],
)
def test_a_second_slot_that_decides_otherwise_clears(changed: dict[str, Any]) -> None:
    events = events_of(sighting("regressed"), second("regressed", **changed))
    assert kinds(events) == ["suspected", "cleared"]
    assert not alerts(events).item(0, "is_open")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"minute": 39}, "30 minutes"),
        ({"is_identical": True}, "there is no change to blame"),
        ({"hosts": None}, "recorded its host"),
        ({"devices": None, "boots": None}, "recorded its device, boot"),
        ({"placebo_verdict": None}, "placebo is to show what identical code did in the same blocks, and there is none"),
        ({"placebo_verdict": "withheld"}, "and it is withheld"),
        ({"placebo_verdict": "regressed"}, "its placebo, identical code in the same blocks, regressed as well"),
        ({"placebo_verdict": "improved"}, "improved as well"),
        ({"slow_arms": ["baseline", "candidate"]}, "a busy host"),
        ({"ci_low": None, "verdict": "withheld"}, "no interval: withheld"),
    ],
)
def test_a_second_slot_that_cannot_decide_leaves_it_suspected(changed: dict[str, Any], reason: str) -> None:
    events = events_of(sighting("regressed"), second("regressed", **changed))
    assert kinds(events) == ["suspected", "unconfirmed"]
    assert reason in events.item(1, "reasons")[0]
    assert alerts(events).item(0, "state") == "suspected"
    again = events_of(sighting("regressed"), second("regressed", **changed), sighting("regressed", 1))
    assert kinds(again)[-1] == "confirmed"


@pytest.mark.parametrize(
    ("changed", "grade"),
    [
        ({}, "one boot"),
        ({"boots": ["boot2"]}, "two boots"),
        ({"devices": ["GPU-1"], "boots": ["boot2"]}, "two devices"),
        ({"devices": ["GPU-1"], "both_verdict": "hardware differs"}, "two devices"),
    ],
)
def test_a_second_boot_or_device_raises_the_grade(changed: dict[str, Any], grade: str) -> None:
    events = events_of(sighting("regressed"), second("regressed", **changed))
    assert events.item(1, "alert_grade") == grade
    assert alerts(events).item(0, "ci_low") == 1.03


def test_on_another_device_a_second_slot_must_regress_by_itself() -> None:
    changed: dict[str, Any] = {"verdict": "inconclusive", "both_verdict": "hardware differs"}
    assert kinds(events_of(sighting("regressed"), second("regressed", **changed)))[-1] == "cleared"


@pytest.mark.parametrize(
    ("changed", "kind", "reason"),
    [
        ({}, "real", None),
        ({"method": [["metric", "latency_p90"], ["iterations", "100"]]}, "method changed", "latency_p50 → latency_p90"),
        ({"placebo_verdict": "regressed"}, "noise", "placebo"),
        ({"is_identical": True}, "noise", "same file"),
        ({"selections": ["GEMM backend: A → B"]}, "selection changed", "GEMM backend: A → B"),
    ],
)
def test_a_suspicion_is_sorted_before_code_is_blamed(changed: dict[str, Any], kind: str, reason: str | None) -> None:
    events = events_of(sighting("equivalent"), sighting("regressed", 1, **changed))
    assert events.item(0, "sorted_as") == kind
    assert reason is None or reason in events.item(0, "reasons")[0]


def test_it_is_resolved_when_two_time_slots_lie_below_it() -> None:
    confirmed = (sighting("regressed"), second("regressed"))
    below: dict[str, Any] = {"ci_high": 1.029, "verdict": "inconclusive"}
    once = events_of(*confirmed, sighting("inconclusive", 1, **below))
    assert kinds(once)[2:] == ["recovering"]
    assert alerts(once).row(0, named=True)["state"] == "confirmed"
    twice = events_of(*confirmed, sighting("inconclusive", 1, **below), sighting("inconclusive", 2, **below))
    assert kinds(twice)[2:] == ["recovering", "resolved"]
    same_night = events_of(*confirmed, sighting("inconclusive", 1, **below), second("inconclusive", 1, **below))
    assert kinds(same_night)[2:] == ["recovering", "resolved"]
    soon = events_of(*confirmed, sighting("inconclusive", 1, **below), second("inconclusive", 1, 30, **below))
    assert kinds(soon)[2:] == ["recovering"]
    not_again = events_of(*confirmed, sighting("inconclusive", 1, **below), second("inconclusive", 1, ci_high=1.03))
    assert kinds(not_again)[2:] == ["recovering", "unconfirmed"]
    assert not alerts(not_again).item(0, "is_recovering")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"baseline_sha256": "cd" * 32}, "the baseline was replaced"),
        ({"method": [["metric", "latency_p50"], ["iterations", "50"]]}, "iterations: 100 → 50"),
    ],
)
def test_a_change_of_method_or_baseline_is_a_new_finding(changed: dict[str, Any], reason: str) -> None:
    events = events_of(sighting("regressed"), sighting("regressed", 1, **changed))
    assert kinds(events) == ["suspected", "cleared", "suspected"]
    assert reason in events.item(1, "reasons")[0]
    assert alerts(events).get_column("state").to_list() == ["cleared", "suspected"]
    assert kinds(events_of(sighting("regressed"), second("regressed", **changed))) == ["suspected", "cleared"]


@pytest.mark.parametrize("facts", [{"hosts": None}, {"devices": None}, {"placebo_verdict": None}])
def test_missing_records_do_not_prevent_clearing(facts: dict[str, Any]) -> None:
    assert kinds(events_of(sighting("regressed", **facts), second("equivalent", **facts)))[-1] == "cleared"


@pytest.mark.parametrize("changed", [{"placebo_verdict": "improved"}, {"slow_arms": ["baseline", "placebo"]}])
def test_a_night_in_doubt_does_not_resolve(changed: dict[str, Any]) -> None:
    events = events_of(sighting("regressed"), second("regressed"), sighting("equivalent", 1, **changed))
    assert kinds(events) == ["suspected", "confirmed"]


def test_an_open_alert_is_not_repeated_but_a_further_slowdown_is_reported() -> None:
    confirmed = (sighting("regressed"), second("regressed"))
    assert kinds(events_of(*confirmed, sighting("regressed", 1))) == ["suspected", "confirmed"]
    more: dict[str, Any] = {"effect_ratio": 1.15, "ci_low": 1.1, "ci_high": 1.2}
    both: dict[str, Any] = {f"both_{name}": value for name, value in more.items()}
    events = events_of(*confirmed, sighting("regressed", 1, **more, **both), second("regressed", 1, **more, **both))
    assert kinds(events) == ["suspected", "confirmed", "suspected", "confirmed"]
    assert alerts(events).get_column("is_open").to_list() == [True, True]
    only_the_first = events_of(*confirmed, sighting("regressed", 1, **more), second("regressed", 1, ci_low=1.06))
    assert kinds(only_the_first)[-1] == "cleared"


def test_an_acknowledged_alert_ends_with_its_baseline() -> None:
    confirmed = events_of(sighting("regressed"), second("regressed"))
    acknowledged = confirmed.tail(1).with_columns(LATER, event=pl.lit("acknowledged"), campaign=pl.lit(None, pl.String))
    replaced = pl.DataFrame([sighting("equivalent", 1, baseline_sha256="cd" * 32)], schema=SIGHTINGS)
    earlier = pl.DataFrame([sighting("regressed"), second("regressed")], schema=SIGHTINGS)
    assert kinds(night_events(replaced, pl.concat([confirmed, acknowledged]), earlier)) == ["resolved"]
    assert kinds(night_events(replaced, confirmed, earlier)) == []  # a confirmed alert must be acknowledged


@pytest.mark.parametrize(("verdict", "kind"), [("hardware differs", "hardware differs"), ("withheld", None)])
def test_a_campaign_that_came_to_nothing_is_a_missing_night(verdict: str, kind: str | None) -> None:
    events = events_of(sighting(verdict), sighting(verdict, 1))
    assert kinds(events) == ["missing", "missing"]
    assert events.get_column("sorted_as").to_list() == [kind, kind]
    assert events.get_column("alert").n_unique() == 1
    after = events_of(sighting(verdict), sighting("equivalent", 1))
    assert kinds(after) == ["missing", "resolved"]


def test_an_alerting_night_does_not_enter_the_rolling_baseline() -> None:
    suspected = events_of(sighting("regressed"))
    cleared = events_of(sighting("regressed"), second("equivalent"))
    confirmed = events_of(sighting("regressed"), second("regressed"))
    assert not may_enter_rolling(suspected, FIRST)
    assert may_enter_rolling(suspected, FIRST - timedelta(days=1))
    assert may_enter_rolling(cleared, FIRST)
    assert not may_enter_rolling(confirmed, FIRST)
    assert not may_enter_rolling(confirmed, FIRST + timedelta(days=3))
    acknowledged = confirmed.tail(1).with_columns(LATER, event=pl.lit("acknowledged"))
    assert may_enter_rolling(pl.concat([confirmed, acknowledged]), FIRST)
    assert not may_enter_rolling(events_of(sighting("withheld")), FIRST)
    assert may_enter_rolling(confirmed.clear(), FIRST)


VERDICTS = st.sampled_from(["regressed", "improved", "equivalent", "inconclusive", "withheld", "hardware differs"])


@given(st.lists(st.tuples(VERDICTS, VERDICTS), min_size=1, max_size=4))
def test_whatever_nights_bring_every_confirmation_follows_a_suspicion(nights: list[tuple[str, str]]) -> None:
    slots = [slot for n, (one, other) in enumerate(nights) for slot in (sighting(one, n), second(other, n))]
    events = events_of(*slots)
    for of_alert in events.partition_by("alert"):
        order = kinds(of_alert)
        assert order[0] in ("suspected", "missing")
        assert order.count("confirmed") <= 1
        assert "resolved" not in order[:-1]
        assert "cleared" not in order[:-1]
    standing = alerts(events)
    assert standing.filter(pl.col("state") == "suspected").height <= 1
    # Only an alert that was confirmed can come to an end by being resolved; only a suspicion can be cleared.
    for of_alert in events.filter(~pl.col("alert").str.starts_with("missing")).partition_by("alert"):
        order = kinds(of_alert)
        assert "resolved" not in order or "confirmed" in order
        assert "cleared" not in order or "confirmed" not in order


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


def test_consecutive_nights_without_a_verdict_are_one_alert_with_one_event_each() -> None:
    seen = planned((0, True), (1, False))
    events = missing_events([BENCHMARK], seen, empty_table("alerts"), week(3))
    assert events.get_column("night").to_list() == week(3)[1:]
    assert events.get_column("reasons").to_list() == [["its campaign came to no verdict"], ["nothing was measured"]]
    assert events.get_column("alert").n_unique() == 1
    assert missing_events([BENCHMARK], seen, events, week(3)).is_empty()
    more = missing_events([BENCHMARK], seen, events, week(4))
    assert more.get_column("night").to_list() == [week(4)[3]]
    assert alerts(pl.concat([events, more])).height == 1


def test_nights_before_the_first_are_not_missing_and_without_any_only_the_last_one_is() -> None:
    assert missing_events([BENCHMARK], planned((2, True)), empty_table("alerts"), week(3)).is_empty()
    never = missing_events([("new", "cpu"), BENCHMARK], planned((0, True)), empty_table("alerts"), week(3))
    assert never.select("workload", "night").rows() == [
        ("new", week(3)[2]),
        ("resnet50", week(3)[1]),
        ("resnet50", week(3)[2]),
    ]
    assert missing_events([BENCHMARK], planned(), empty_table("alerts"), []).is_empty()
