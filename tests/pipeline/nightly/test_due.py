"""What is due at any time: tonight's benchmarks once, second slots when they have come, and what was killed tonight."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.pipeline.comparing.alerting import Confirmation
from aaco_pipeline.pipeline.nightly.benchmarks import Benchmark
from aaco_pipeline.pipeline.nightly.due import due, night_of

NOW = datetime(2026, 3, 12, 2, 0, tzinfo=UTC)
TONIGHT = date(2026, 3, 12)
BENCHMARKS = [Benchmark(MeasurementRequest(model=model)) for model in ("resnet50", "squeezenet")]
SCHEMA = {
    **dict.fromkeys(("campaign_id", "workload", "backend"), pl.String()),
    **{"night": pl.Date(), "confirms": pl.String(), "planned_at": pl.Datetime("us", "UTC"), "is_judged": pl.Boolean()},
}


def campaigns(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"workload": "resnet50", "backend": "cpu", "night": TONIGHT, "planned_at": NOW, "is_judged": True}
    named = [{"campaign_id": f"nightly-{place}", **usual, **row} for place, row in enumerate(rows)]
    return pl.DataFrame(named, schema=SCHEMA)


def finding(campaign: str = "nightly-0", at: datetime = NOW, workload: str = "resnet50") -> Confirmation:
    return Confirmation("alert-1", "suspected", campaign, workload, "cpu", TONIGHT, at, 20, at <= NOW)


def test_a_night_begins_with_every_benchmark_and_each_only_once() -> None:
    assert due(BENCHMARKS, campaigns(), [], NOW).begin == BENCHMARKS
    assert due(BENCHMARKS, campaigns({}), [], NOW).begin == BENCHMARKS[1:]
    both = campaigns({}, {"workload": "squeezenet", "is_judged": False})
    found = due(BENCHMARKS, both, [], NOW)
    assert (found.begin, found.go_on) == ([], ["nightly-1"])
    assert not found.is_nothing
    assert due(BENCHMARKS, campaigns({}, {"workload": "squeezenet"}), [], NOW).is_nothing


def test_another_backend_or_another_night_is_not_tonight_s() -> None:
    others = campaigns({"backend": "cuda"}, {"night": date(2026, 3, 11)}, {"confirms": "nightly-9"})
    assert due(BENCHMARKS, others, [], NOW).begin == BENCHMARKS


def test_a_killed_campaign_goes_on_tonight_and_not_in_another_night_unless_it_confirms() -> None:
    half = {"is_judged": False}
    rows = campaigns(half, {**half, "night": date(2026, 3, 11)}, {**half, "night": date(2026, 3, 11), "confirms": "x"})
    assert due([], rows, [], NOW).go_on == ["nightly-0", "nightly-2"]


def test_a_finding_waits_for_its_time_and_for_no_second_confirmation() -> None:
    later = NOW + timedelta(minutes=30)
    found = due([], campaigns({}), [finding(at=later)], NOW)
    assert (found.confirm, found.later, found.is_nothing) == ([], [finding(at=later)], True)
    assert due([], campaigns({}), [finding(at=later)], later).confirm == [finding(at=later)]
    assert due([], campaigns({}, {"confirms": "nightly-0"}), [finding()], NOW).confirm == []


def test_only_some_benchmarks_leave_the_others_alone() -> None:
    rows = campaigns({"is_judged": False}, {"workload": "squeezenet", "is_judged": False})
    found = due([], rows, [finding(), finding("nightly-1", workload="squeezenet")], NOW, {("squeezenet", "cpu")})
    assert (found.go_on, [one.campaign for one in found.confirm]) == (["nightly-1"], ["nightly-1"])


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), st.integers(-12, 14))
def test_a_night_is_the_day_in_utc_wherever_it_is_asked(moment: datetime, hours: int) -> None:
    from datetime import timezone

    there = moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=hours)))
    assert night_of(there) == moment.date()
