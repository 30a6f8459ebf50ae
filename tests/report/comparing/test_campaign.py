"""A campaign's verdict and nights: the document, its sentences, and the view on 80 columns."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject
from aaco_pipeline.report.comparing import verdict as words
from aaco_pipeline.report.comparing.campaign import history_of, verdict_document
from aaco_pipeline.report.comparing.verdict import verdict_view
from aaco_pipeline.statistics.verdicts import comparison, effects
from tests.pipeline.comparing.made_up import BASELINE, OTHER, judged, measured, planned, verdict_row
from tests.report.made_up import printed, rows_of

#: Each verdict that the statistics give, and the sentence for it.
SENTENCES = {
    "regressed": "Regressed: the median of candidate is 1.050 times that of baseline (95 % interval 1.030 … 1.070, 10 "
    "blocks). A difference of 2 % would be found four times in five.",
    "regressed between nights": "Regressed between nights: the median of candidate is 1.050 times that of baseline "
    "(95 % interval 1.030 … 1.070, 10 nights). A difference of 2 % would be found four times in five.",
    "improved": "Improved: the median of candidate is 0.900 times that of baseline (95 % interval 0.880 … 0.920, 10 "
    "blocks). A difference of 2 % would be found four times in five.",
    "equivalent": "Equivalent: the median of candidate is 1.001 times that of baseline (95 % interval 0.998 … 1.004, "
    "10 blocks). A difference of 2 % would be found four times in five.",
    "inconclusive": "Inconclusive: the median of candidate is 1.010 times that of baseline (95 % interval 0.980 … "
    "1.040, 10 blocks). A difference of 2 % would be found four times in five.",
    "hardware differs": "Hardware differs: there is no median of both arms to compare.",
    "withheld": "Withheld: there is no median of both arms to compare.",
}
SUPPORTING = {"role": "supporting", "metric": "latency_p90"}


def cause(kind: str, subject: str, delta_ns: int | None, **more: Any) -> dict[str, Any]:
    arms = {"baseline": "baseline", "candidate": "candidate", "evidence_grade": "observed", "in_sum": True}
    return {**arms, "kind": kind, "subject": subject, "delta_ns": delta_ns, **more}


CAUSES = (
    cause("launches", "gemm", 5_000, baseline_count=2.0, candidate_count=5.0, count_part_ns=5_000, duration_part_ns=0),
    cause(
        "duration", "conv", -20_000, baseline_count=1.0, candidate_count=1.0, baseline_ns=60_000, candidate_ns=40_000,
        count_part_ns=0, duration_part_ns=-20_000, ci_low_ns=-21_000, ci_high_ns=-19_000,
    ),
    cause("gaps", "sync", 700, baseline_count=1.0, candidate_count=1.0),
    cause("unexplained", "unexplained", 90_000),
    cause("environment", "package numpy", None, in_sum=False),
)  # fmt: skip
SELECTION = {
    **dict.fromkeys(("baseline", "candidate"), "candidate"),
    **{"rank": 0, "what": "kernel", "from_value": "a", "to_value": "b", "evidence": "kernels.name"},
}


@pytest.fixture
def plan(empty_lake: TraceLake) -> Plan:
    return planned(empty_lake)


def document(lake: TraceLake, plan: Plan) -> dict[str, Any]:
    return verdict_document(lake, plan.campaign)


def lines(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    return printed(verdict_view(told)).splitlines()


@pytest.mark.parametrize("verdict", SENTENCES)
def test_every_verdict_has_its_sentence_and_fits_80_columns(
    verdict: str, empty_lake: TraceLake, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    design = "between nights" if "nights" in verdict else "interleaved"
    row = verdict_row(verdict, recommendation="run 5 blocks with both arms", confidence=0.9, design=design)
    judged(empty_lake, plan, row, verdict_row(verdict, **SUPPORTING), attributions=CAUSES, selections=[SELECTION])
    told = document(empty_lake, plan)
    assert words.sentence(told) == SENTENCES[verdict]
    assert (told["verdict"], told["confidence"]) == (verdict, 0.9)
    is_worse = verdict in ("regressed", "regressed between nights")
    assert told["regression"] == is_worse
    assert (told["severity"] is not None) == is_worse
    effect = row["effect_ratio"]
    assert told["latency_delta_pct"] == (None if effect is None else pytest.approx(100 * (effect - 1)))
    printed = lines(told, monkeypatch)
    assert max(map(len, printed)) <= 80
    assert " ".join(printed).replace("  ", " ").find(SENTENCES[verdict]) > 0
    assert "Next: run 5 blocks with both arms." in printed


def test_severity_is_how_many_thresholds_the_interval_lies_beyond(empty_lake: TraceLake, plan: Plan) -> None:
    judged(empty_lake, plan, verdict_row("regressed"))
    assert document(empty_lake, plan)["severity"] == pytest.approx(3.0)


def test_the_primary_metric_decides_whatever_the_others_say(empty_lake: TraceLake, plan: Plan) -> None:
    others = [verdict_row("regressed", role="supporting", metric=name) for name in ("latency_mean", "zz")]
    judged(empty_lake, plan, *others, verdict_row("equivalent"))
    told = document(empty_lake, plan)
    assert (told["verdict"], told["regression"]) == ("equivalent", False)
    assert [row["metric"] for row in told["verdicts"]] == ["latency_p50", "latency_mean", "zz"]


def test_without_an_interval_none_is_shown(empty_lake: TraceLake, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    row = verdict_row("inconclusive", ci_low=None, ci_high=None, minimum_detectable_ratio=None, reasons=None)
    judged(empty_lake, plan, row)
    told = document(empty_lake, plan)
    assert words.sentence(told) == "Inconclusive: the median of candidate is 1.010 times that of baseline."
    assert (words.reasons(told), words.next_step(told), words.waterfall(told)) == ([], None, [])
    printed = "\n".join(lines(told, monkeypatch))
    assert "None" not in printed
    assert "Next:" not in printed
    assert "Breakdown of the change" not in printed


def test_causes_stand_by_size_with_the_unexplained_last(
    empty_lake: TraceLake, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(empty_lake, plan, verdict_row("regressed"), attributions=CAUSES, selections=[SELECTION])
    told = document(empty_lake, plan)
    shown = words.waterfall(told)
    assert [row["kind"] for row in shown] == ["duration", "launches", "gaps", "unexplained"]
    assert [row["is_certain"] for row in shown] == [True, None, None, None]
    assert (shown[0]["from_ns"], shown[-1]["then_ns"]) == (0, 75_700)
    assert told["environment"] == [{"subject": "package numpy", "evidence_grade": "observed"}]
    assert "package numpy (observed)" in lines(told, monkeypatch)
    assert told["evidence"] == {
        "kernel_launch_count_delta": 3.0,
        "avg_kernel_duration_delta": None,  # of gemm no time is known
        "cpu_overhead_delta": None,
        "kernel_count_delta_ns": 5_000,
        "kernel_duration_delta_ns": -20_000,
        "gaps_delta_ns": 700,
    }
    assert words.selected(told) == ["Kernel: a → b."]
    printed = lines(told, monkeypatch)
    (row,) = (line for line in printed if "conv takes" in line)
    assert row.split("instead of 60 µs")[1].split() == ["−20", "µs", "−21", "µs", "…", "−19", "µs"]


def test_what_is_unknown_is_null_and_never_zero(empty_lake: TraceLake, plan: Plan) -> None:
    judged(empty_lake, plan, verdict_row("withheld"))
    told = document(empty_lake, plan)
    assert set(told["evidence"].values()) == {None}
    assert [told[key] for key in ("severity", "confidence", "latency_delta_pct", "suspected_cause")] == [None] * 4
    assert (told["causes"], told["selections"], told["environment"], told["blocks"]) == ([], [], [], {})


@pytest.mark.parametrize(
    ("candidate", "sentence"),
    [
        (BASELINE, "Both arms are the same request of the same file."),
        (OTHER, "The arms differ in the model: old.onnx → new.onnx."),
        (replace(BASELINE, artefact_sha256="ef" * 32), "The arms differ in the model's file."),
        (replace(BASELINE, artefact=OTHER.artefact), "Both arms are the same request of the same file."),
        (
            Subject(MeasurementRequest(model="control_flow", threads=2), Path("/x"), BASELINE.artefact_sha256),
            "The arms differ in threads: as registered → 2.",
        ),
    ],
    ids=["nothing", "other file", "same name", "same content", "threads"],
)
def test_in_what_the_arms_differ(candidate: Subject, sentence: str, empty_lake: TraceLake) -> None:
    plan = planned(empty_lake, candidate)
    judged(empty_lake, plan, verdict_row("equivalent"))
    assert words.asked(document(empty_lake, plan)) == sentence


def test_a_placebo_that_differs_takes_the_trust_away(empty_lake: TraceLake, plan: Plan) -> None:
    judged(empty_lake, plan, verdict_row("regressed"), verdict_row("equivalent", candidate="placebo"))
    told = document(empty_lake, plan)
    assert told["verdict"] == "regressed"
    assert words.placebo(told) == (
        "The placebo, the baseline once more, does not differ (equivalent): the median of placebo is 1.001 times that "
        "of baseline (95 % interval 0.998 … 1.004, 10 blocks)."
    )
    told["placebo"] |= {"verdict": "regressed"}
    assert str(words.placebo(told)).startswith("Do not trust this verdict: the placebo, the baseline once more, regr")
    told["placebo"] |= {"verdict": "withheld", "effect_ratio": None}
    assert words.placebo(told) == "Of the placebo, the baseline once more, the verdict is withheld."


def test_the_interval_is_reported_at_its_own_level(empty_lake: TraceLake, plan: Plan) -> None:
    judged(empty_lake, plan, verdict_row("regressed", level=0.005))
    assert "(99.5 % interval 1.030 … 1.070, 10 blocks)" in words.sentence(document(empty_lake, plan))
    assert (words.BETWEEN_NIGHTS, words.LEVEL) == (comparison.BETWEEN_NIGHTS, effects.LEVEL)


@pytest.mark.parametrize(("nights", "grade"), [(10, "one boot"), (22, "two boots")])
def test_a_regression_between_nights_is_graded_and_counted_in_nights(
    nights: int, grade: str, empty_lake: TraceLake, plan: Plan
) -> None:
    row = verdict_row("regressed between nights", design="between nights", blocks=nights, alert_grade=grade)
    judged(empty_lake, plan, row)
    told = document(empty_lake, plan)
    assert (told["regression"], told["design"], told["alert_grade"]) == (True, "between nights", grade)
    assert f"(95 % interval 1.030 … 1.070, {nights} nights)" in words.sentence(told)
    assert words.reasons(told)[-1] == (
        f"The arms are nights before and after the host's stack changed, seen on {grade}: what else changed with it "
        "counts."
    )


def test_host_time_and_mean_kernel_time_are_reported_from_the_causes(empty_lake: TraceLake, plan: Plan) -> None:
    gemm = {"baseline_count": 2.0, "candidate_count": 4.0, "baseline_ns": 20_000, "candidate_ns": 60_000}
    causes = [
        cause("duration", "gemm", 40_000, **gemm),
        cause("gaps", "host_wait", 700),
        cause("gaps", "sync", 9_000),
        cause("hidden_host", "host", 300, in_sum=False),
    ]
    judged(empty_lake, plan, verdict_row("regressed"), attributions=causes)
    evidence = document(empty_lake, plan)["evidence"]
    assert (evidence["avg_kernel_duration_delta"], evidence["cpu_overhead_delta"]) == (5_000, 1_000)


def test_a_regression_leads_on_to_its_traced_sessions(empty_lake: TraceLake, plan: Plan) -> None:
    traced = {"baseline": ["20250101T000000Z-0000000a"], "candidate": ["20250101T000000Z-0000000b"]}
    measured(empty_lake, plan, traced=traced)
    judged(empty_lake, plan, verdict_row("regressed"))
    told = document(empty_lake, plan)
    assert told["traced"] == traced
    assert words.next_step(told) == (
        "Next: look at two of the traced sessions, `aaco diff 20250101T000000Z-0000000a 20250101T000000Z-0000000b`."
    )


def test_ratios_of_blocks_leave_out_what_the_verdict_left_out(empty_lake: TraceLake, plan: Plan) -> None:
    measured(empty_lake, plan, ratio=1.25)
    rows = empty_lake.read("campaign_sessions", plan.campaign).sort("block", "position")
    first, *_, last = rows.get_column("session_id")
    judged(empty_lake, plan, verdict_row("regressed", excluded_sessions=[first], slow_sessions=[last]))
    told = document(empty_lake, plan)
    assert [one["session_id"] for one in told["sessions"]] == rows.get_column("session_id").to_list()
    assert [one["ratio"] for one in told["ratios"]] == [None, *[pytest.approx(1.25, rel=0.02)] * 4]
    assert [(one["excluded"], one["is_slow"]) for one in told["ratios"]] == [(1, False), *[(0, False)] * 3, (0, True)]


def test_blocks_are_counted_by_purpose_and_state(empty_lake: TraceLake, plan: Plan) -> None:
    measured(empty_lake, plan, traced={"baseline": ["20250101T000000Z-0000000a"]})
    judged(empty_lake, plan, verdict_row("equivalent"))
    assert document(empty_lake, plan)["blocks"] == {"latency_finished": 5, "trace_finished": 1}


def test_a_campaign_that_was_not_judged_is_refused_by_name(empty_lake: TraceLake, plan: Plan) -> None:
    with pytest.raises(UsageError, match=f"{plan.campaign} has no verdict on candidate; `aaco compare --resume"):
        document(empty_lake, plan)


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


def test_changes_and_the_forecast_are_reported_in_the_historys_own_words(empty_lake: TraceLake) -> None:
    found = change(3, workload="net", owed_to="code", effect_ratio=1.05)
    forecast = {**night(0, 0), "nights": 9, "state": "no trend", "reason": "the slope may be 0"}
    published(empty_lake, [night(0, 100), night(3, 105, segment=1)], [found])
    frame = rows_of("forecasts", [forecast]).drop("campaign_id", strict=False)
    empty_lake.publish(CAMPAIGN, "forecast", {"forecasts": frame}, scope="campaign")
    history = history_of(empty_lake, CAMPAIGN, "candidate", METRIC)
    assert history is not None
    first, second = words.changes({"history": history})
    assert first.startswith("Since the night of 4 March 2026 net (candidate, median) takes 5.0 % longer")
    assert second == "No forecast for the median of net (candidate): no trend, the slope may be 0."
    assert words.changes({"history": None}) == []
