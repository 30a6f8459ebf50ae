"""The page of a verdict: what there is and nothing else, nothing from elsewhere, and no text of others that runs.

Where verdicts, blocks, causes and nights lie: inside the paper, in order, and what is beyond an edge is said so.
"""

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import Plan
from aaco_pipeline.report.comparing.campaign import verdict_document
from aaco_pipeline.report.comparing.causes import steps
from aaco_pipeline.report.comparing.page import (
    HEIGHT,
    Scale,
    placed_blocks,
    placed_intervals,
    placed_nights,
    placed_steps,
    render_verdict,
)
from tests.pipeline.comparing.made_up import judged, measured, planned, verdict_row
from tests.report.comparing.test_campaign import CAUSES, SELECTION
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


RATIOS = st.floats(0.2, 5)


def cause(kind: str, delta: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    interval = {"ci_low_ns": low, "ci_high_ns": high}
    return {"kind": kind, "in_words": f"{kind}: {delta}", "delta_ns": delta, "in_sum": True, **interval}


@given(low=st.floats(-1e12, 1e12), width=st.floats(0, 1e12), value=st.floats(-1e13, 1e13))
def test_every_place_lies_on_the_paper_and_ticks_lie_within(low: float, width: float, value: float) -> None:
    scale = Scale(low, low + width)
    assert 0 <= scale.at(value) <= 100
    assert 0 <= scale.down(value) <= HEIGHT
    rounding = 1e-6 * (scale.high - scale.low)
    assert all(scale.low - rounding <= tick <= scale.high + rounding for tick in scale.ticks())
    assert len(scale.ticks()) <= 6


@given(effect=RATIOS, below=st.floats(0, 0.5), above=st.floats(0, 0.5), other=RATIOS)
def test_the_primary_interval_is_seen_whole_and_others_say_where_they_go_on(
    effect: float, below: float, above: float, other: float
) -> None:
    primary = verdict_row("regressed", effect_ratio=effect, ci_low=effect - below * effect, ci_high=effect + above)
    second = verdict_row("regressed", effect_ratio=other, ci_low=other / 2, ci_high=2 * other, role="supporting")
    drawn = placed_intervals([primary, second])
    assert drawn is not None
    first, wide = drawn["rows"]
    assert first["span"]["goes_on"] == (False, False)
    assert 0 < first["span"]["low"] <= first["point"] <= first["span"]["high"] < 100
    assert 0 < drawn["one"] < 100
    for place, edge, goes_on in zip(("low", "high"), (0, 100), wide["span"]["goes_on"], strict=True):
        assert not goes_on or wide["span"][place] == pytest.approx(edge)


def test_an_interval_beyond_the_paper_goes_on_to_that_side() -> None:
    primary = verdict_row("regressed")
    sides = {(0.5, 1.05): (True, False), (1.04, 9.0): (False, True), (0.5, 9.0): (True, True)}
    others = [verdict_row("regressed", ci_low=low, ci_high=high, role="supporting") for low, high in sides]
    drawn = placed_intervals([primary, *others])
    assert drawn is not None
    assert [row["span"]["goes_on"] for row in drawn["rows"]] == [(False, False), *sides.values()]


def test_without_an_effect_there_is_nothing_to_draw() -> None:
    assert placed_intervals([verdict_row("withheld")]) is None
    assert (
        placed_blocks([{"block": 0, "ratio": None, "is_slow": False, "excluded": 1}], verdict_row("withheld")) is None
    )
    assert (placed_steps([]), placed_nights(None)) == ([], [])


@given(st.lists(st.none() | RATIOS, min_size=1, max_size=60).filter(any))
def test_blocks_lie_in_their_order_the_slower_the_higher(ratios: list[float | None]) -> None:
    rows = [{"block": 3 * at, "ratio": ratio, "is_slow": False, "excluded": 0} for at, ratio in enumerate(ratios)]
    drawn = placed_blocks(rows, verdict_row("inconclusive"))
    assert drawn is not None
    assert [dot["x"] for dot in drawn["dots"]] == sorted(dot["x"] for dot in drawn["dots"])
    known = sorted((dot["ratio"], -dot["y"]) for dot in drawn["dots"] if dot["y"] is not None)
    assert [height for _, height in known] == sorted(height for _, height in known)
    assert [dot["y"] is None for dot in drawn["dots"]] == [ratio is None for ratio in ratios]
    assert len(drawn["labels"]) <= 12


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=40), st.integers(0, 10**9))
def test_steps_go_from_one_end_to_the_other_without_a_hole(deltas: list[int], begin: int) -> None:
    shown = steps([cause("duration", delta) for delta in deltas] + [cause("unexplained", 7)], begin)
    assert shown[0]["from_ns"] == begin
    assert shown[-1]["then_ns"] == pytest.approx(begin + sum(deltas) + 7)
    assert shown[-1]["kind"] == "unexplained"
    for before, after in pairwise(shown):
        assert before["then_ns"] == after["from_ns"]
    placed = placed_steps(shown)
    assert all(0 <= row[end] <= 100 for row in placed for end in ("begin", "end"))


def test_uncertain_causes_are_put_together_but_the_largest() -> None:
    noise = [cause("duration", 100 + at, -1_000.0, 1_200.0) for at in range(6)]
    shown = steps([cause("launches", 50, 45.0, 55.0), *noise])
    assert [row["is_certain"] for row in shown] == [True, False, False, False, None]
    assert shown[-1]["in_words"] == "3 smaller or uncertain causes together"
    assert shown[-1]["delta_ns"] == 100 + 101 + 102


def night_places(number: int, level: int | None, **more: Any) -> dict[str, Any]:
    started = datetime(2026, 3, 1) + timedelta(days=number)
    known = {"is_outlier": False, "paired_ratio": None, "paired_is_outlier": None, "is_new_fingerprint": None}
    return {"night": number, "level_ns": level, "started_at": started, **known, **more}


def test_nights_show_outliers_levels_changes_and_a_new_environment() -> None:
    nights = [
        night_places(4, 1_000_000, is_new_fingerprint=False),
        night_places(5, None),
        night_places(6, 1_500_000, is_outlier=True),
        night_places(7, 1_050_000, is_new_fingerprint=True, paired_ratio=1.05),
    ]
    levels = [
        {"of": "raw", "segment": 0, "first": 4, "last": 4, "value": 1e6},
        {"of": "raw", "segment": 1, "first": 7, "last": 7, "value": 1.05e6},
    ]
    changes = [{"night": 7, "of": "raw", "kind": "level", "effect_ratio": 1.05}]
    raw, paired = placed_nights({"nights": nights, "levels": levels, "changes": changes})
    assert [dot["x"] for dot in raw["dots"]] == [12.5, 62.5, 87.5]
    assert [dot["is_outlier"] for dot in raw["dots"]] == [False, True, False]
    assert [(one["from"], one["to"]) for one in raw["levels"]] == [(0, 25), (75, 100)]
    assert ([one["x"] for one in raw["changes"]], raw["marks"]) == ([75], [75])
    assert (len(paired["dots"]), paired["levels"], paired["changes"], paired["marks"]) == (1, [], [], [75])
