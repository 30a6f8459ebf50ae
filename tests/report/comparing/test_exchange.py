"""The files for CI systems and services: every verdict's outcome, well-formed, with its reason and its figures."""

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from aaco_pipeline.cli.output import WRITTEN
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.comparing.campaign import verdict_document
from aaco_pipeline.report.comparing.exchange import forms, of_verdict, render_bencher, rendered
from tests.pipeline.comparing.made_up import judged, measured, planned, verdict_row
from tests.report.made_up import EVIL

STATES = {
    "regressed": "failed",
    "regressed between nights": "failed",
    "improved": "passed",
    "equivalent": "passed",
    "inconclusive": "skipped",
    "hardware differs": "skipped",
    "withheld": "skipped",
}


def document(lake: TraceLake, verdict: str, **changed: Any) -> dict[str, Any]:
    plan = planned(lake)
    measured(lake, plan, ratio=1.05)
    supporting = verdict_row("regressed", metric="latency_p90", role="supporting")
    judged(lake, plan, verdict_row(verdict, **changed), supporting)
    return verdict_document(lake, plan.campaign)


def suite_of(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    (suite,) = root.findall("testsuite")
    return suite


@pytest.mark.parametrize("verdict", STATES)
def test_junit_fails_for_a_regression_alone_and_skips_what_is_not_decided(verdict: str, empty_lake: TraceLake) -> None:
    suite = suite_of(rendered(document(empty_lake, verdict), "verdict", "junit"))
    (case,) = suite.findall("testcase")
    found = {"failure": "failed", "skipped": "skipped", "system-out": "passed"}[case[0].tag]
    assert (found, case.get("name")) == (STATES[verdict], "latency_p50")
    counts = {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")}
    assert counts == {
        "tests": "1",
        "errors": "0",
        "failures": str(int(found == "failed")),
        "skipped": str(int(found == "skipped")),
    }
    told = case[0].get("message") or str(case[0].text)
    assert told.startswith(verdict[0].upper() + verdict[1:])
    assert "The whole interval speaks for itself." in str(case[0].text)


def test_junit_is_well_formed_whatever_names_hold(empty_lake: TraceLake) -> None:
    text = rendered(document(empty_lake, "inconclusive", reasons=[f"{EVIL}\x1b[2J\x00"]), "verdict", "junit")
    assert EVIL in str(suite_of(text)[0][0].text)
    assert "\x1b" not in text


def test_bencher_has_the_interval_and_the_level_of_the_candidate(empty_lake: TraceLake) -> None:
    told = json.loads(rendered(document(empty_lake, "regressed"), "verdict", "bencher"))
    (measures,) = told.values()
    assert list(told) == ["control_flow on cpu"]
    assert measures["latency_p50_ratio"] == {"value": 1.05, "lower_value": 1.03, "upper_value": 1.07}
    assert measures["latency_p50"] == {"value": pytest.approx(1.05e6, rel=0.02)}
    assert all(len(name) <= 64 for name in measures)


def test_an_end_that_is_not_known_is_left_out(empty_lake: TraceLake) -> None:
    told = document(empty_lake, "inconclusive", ci_low=None, ci_high=None)
    (measures,) = json.loads(rendered(told, "verdict", "bencher")).values()
    assert measures["latency_p50_ratio"] == {"value": 1.01}
    (first, *_) = json.loads(rendered(told, "verdict", "github-action-benchmark"))
    assert "range" not in first


def test_without_figures_a_series_gets_nothing(empty_lake: TraceLake) -> None:
    plan = planned(empty_lake)
    judged(empty_lake, plan, verdict_row("withheld"))
    outcome = of_verdict(verdict_document(empty_lake, plan.campaign))
    assert json.loads(render_bencher(outcome)) == {}


def test_github_action_benchmark_names_unit_and_range(empty_lake: TraceLake) -> None:
    entries = json.loads(rendered(document(empty_lake, "regressed"), "verdict", "github-action-benchmark"))
    assert [(one["name"], one["unit"]) for one in entries] == [
        ("control_flow on cpu: latency_p50_ratio", "x baseline"),
        ("control_flow on cpu: latency_p90_ratio", "x baseline"),
        ("control_flow on cpu: latency_p50", "ns"),
    ]
    assert entries[0]["range"] == "1.0300 … 1.0700"
    assert entries[0]["extra"].startswith("Regressed: ")


def test_the_command_offers_every_form_that_there_is() -> None:
    assert set(WRITTEN) == {*forms("verdict")} == {*forms("difference")}


def test_markdown_says_what_the_terminal_says(empty_lake: TraceLake) -> None:
    text = rendered(document(empty_lake, "regressed", recommendation=EVIL), "verdict", "markdown")
    assert text.startswith("# new.onnx against old.onnx on cpu\n\n**Regressed: the median of candidate")
    assert "| p50 | regressed | 1.050 | 1.030 … 1.070 | 1 % | 2 % | 10 |" in text
    assert "<img" not in text.replace(r"\<", "")
