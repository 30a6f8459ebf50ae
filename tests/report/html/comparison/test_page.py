"""The page of a verdict: what there is and nothing else, nothing from elsewhere, and no text of others that runs."""

import base64
import hashlib
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import Plan
from aaco_pipeline.report.document.verdict import verdict_document
from aaco_pipeline.report.html.comparison.page import render_verdict
from tests.pipeline.comparing.made_up import judged, measured, planned, verdict_row
from tests.report.document.test_verdict import CAUSES, SELECTION
from tests.report.html.pages import Page
from tests.report.made_up import EVIL, rows_of

SECTIONS = ["intervals", "blocks", "selections", "causes", "environment", "history", "next"]


@pytest.fixture
def plan(empty_lake: TraceLake) -> Plan:
    return planned(empty_lake)


def night(plan: Plan, number: int, level: int, **more: Any) -> dict[str, Any]:
    series = {
        "workload": "control_flow",
        "backend": "cpu",
        "host": "node1",
        "metric": "latency_p50",
        "arm": "candidate",
    }
    when = {"campaign": f"night{number}", "started_at": datetime(2026, 3, 1 + number, tzinfo=UTC)}
    return {**series, **when, "night": number, "level_ns": level, "segment": number // 2, **more}


def full(lake: TraceLake, plan: Plan) -> dict[str, Any]:
    """A regression with everything that a page can show."""
    measured(lake, plan, ratio=1.05)
    first = lake.read("campaign_sessions", plan.campaign).item(0, "session_id")
    row = verdict_row("regressed", recommendation=EVIL, excluded_sessions=[first], design="interleaved")
    judged(lake, plan, row, verdict_row("regressed", metric="latency_p90", role="supporting"), attributions=CAUSES,
           selections=[{**SELECTION, "to_value": EVIL}])  # fmt: skip
    nights = [
        night(plan, at, 1_000_000 + 50_000 * (at // 2), paired_ratio=1.0, is_new_fingerprint=at == 2) for at in range(4)
    ]
    change = {**nights[2], "series": "s", "of": "raw", "kind": "level", "owed_to": "code", "effect_ratio": 1.05}
    tables = {
        "nights": rows_of("nights", nights),
        "change_points": rows_of("change_points", [{**change, "first_location": "night2", "last_location": "night2"}]),
    }
    lake.publish(
        plan.campaign,
        "history",
        {name: frame.drop("campaign_id", strict=False) for name, frame in tables.items()},
        scope="campaign",
    )
    return verdict_document(lake, plan.campaign)


def sections(page: str) -> list[str | None]:
    return [attributes["id"] for tag, attributes in Page(page).elements if tag == "section"]


def test_a_page_has_the_sections_that_have_something_to_show(empty_lake: TraceLake, plan: Plan) -> None:
    document = full(empty_lake, plan)
    page = render_verdict(document)
    assert sections(page) == SECTIONS
    assert [found[1:] for found in Page(page).having("href") if found.startswith("#")] == ["answer", *SECTIONS]
    assert (
        "Since the night of 3 March 2026 control_flow (candidate, median) takes 5.0\N{NO-BREAK SPACE}% longer" in page
    )
    bare = {**document, "ratios": [], "causes": [], "environment": [], "history": None, "selections": [], "traced": {}}
    assert sections(render_verdict({**bare, "recommendation": None})) == ["intervals"]
    assert render_verdict(document) == page


def test_the_answer_comes_first_and_every_block_is_a_dot(empty_lake: TraceLake, plan: Plan) -> None:
    page = render_verdict(full(empty_lake, plan))
    assert page.index("Regressed: the median of candidate is 1.050 times") < page.index("<section")
    blocks = page[page.index('id="blocks"') : page.index('id="selections"')]
    assert blocks.count("<circle") == 4
    assert blocks.count("✕<title>block 0: left out") == 1


def test_names_of_others_are_text_and_only_the_pages_own_script_runs(empty_lake: TraceLake, plan: Plan) -> None:
    page = render_verdict(full(empty_lake, plan))
    parsed = Page(page)
    assert not any(
        tag == "img" or "onerror" in attributes or "style" in attributes for tag, attributes in parsed.elements
    )
    policy = next(found for found in parsed.having("content") if found.startswith("default-src"))
    assert policy.startswith("default-src 'none'")
    for text in (parsed.texts["script"][-1], parsed.texts["style"][0]):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    assert re.findall(r"https?://", page) == []


@pytest.mark.parametrize("verdict", ["withheld", "hardware differs", "inconclusive"])
def test_a_verdict_without_figures_still_has_its_page(verdict: str, empty_lake: TraceLake, plan: Plan) -> None:
    judged(empty_lake, plan, verdict_row(verdict, ci_low=None, ci_high=None))
    page = render_verdict(verdict_document(empty_lake, plan.campaign))
    assert sections(page) == (["intervals"] if verdict == "inconclusive" else [])
    assert "None" not in page
