"""The page of a search: what there is and nothing else, every layout, and no text of others that runs.

Where layouts lie: on the paper, the faster the further right, and the least gain that counts between them.
"""

import re
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.report.optimization.page import placed_layouts, render_search
from aaco_pipeline.report.session.sentences import Document
from tests.report.html.pages import Page
from tests.report.made_up import EVIL
from tests.report.searched import changed

SECTIONS = ["attempts", "change", "layouts", "static", "circumstances", "next"]
NOTHING: dict[str, Any] = {"timings": [], "static": [], "not_applicable": [], "builds": [], "environment": None}


def sections(page: str) -> list[str | None]:
    return [attributes["id"] for tag, attributes in Page(page).elements if tag == "section"]


def test_the_answer_comes_first_then_attempts_change_layouts_and_figures(search: Document) -> None:
    page = render_search(search)
    assert sections(page) == SECTIONS
    assert page.index("twice is 1.25 [1.25, 1.25] times as fast on cpu-emulation; on gfx942 it takes 40") < page.index(
        "<section"
    )
    assert render_search(search) == page


def test_every_layout_is_a_mark_and_the_threshold_is_drawn_in_every_row(search: Document) -> None:
    page = render_search(search)
    timings = search["evidence"]["timings"]
    assert [(row["attempt"], row["step"]) for row in timings] == [
        (None, "aa"), (1, "search"), (2, "search"), (2, "confirmation")
    ]  # fmt: skip
    assert page.count('<circle class="dot"') == sum(len(row["layouts"]) for row in timings) > 30
    assert page.count('<line class="change"') == len(timings)


def test_the_accepted_row_stands_out_and_lines_of_the_diff_say_what_they_are(search: Document) -> None:
    parsed = Page(render_search(search))
    assert [tag for tag, attributes in parsed.elements if attributes.get("class") == "strong"] == ["tr"]
    assert '<span class="removed">-    int cost = 10000;\n' in render_search(search)
    assert '<span class="added">+    int cost = 8000;\n' in render_search(search)


def test_figures_that_changed_are_before_and_after_and_others_once(search: Document) -> None:
    page = render_search(search)
    figures = page[page.index('id="static"') : page.index('id="circumstances"')]
    assert figures.count("28 → 40") == 2 and figures.count(">16<") == 2
    assert "machine code is the same" not in figures


def test_code_is_text_as_it_was_and_names_of_others_do_nothing(search: Document) -> None:
    text = f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a = 7 % 3;\n+\t{EVIL}\n"
    page = render_search(changed({**search, "kernel": EVIL, "source_name": EVIL}, patch_text=text))
    assert '<span class="removed">-a = 7 % 3;\n' in page
    parsed = Page(page)
    assert not any(
        tag == "img" or "onerror" in attributes or "style" in attributes for tag, attributes in parsed.elements
    )
    assert re.findall(r"https?://", page) == []


def test_without_its_journal_the_tables_are_shown_and_why_no_more_is(search: Document) -> None:
    page = render_search(changed(search, **NOTHING, lacking="artefacts/x is not in the lake any more"))
    assert sections(page) == ["attempts", "change", "circumstances", "next"]
    assert "artefacts/x is not in the lake any more: what it was decided from is not shown." in page


def test_a_search_that_was_killed_or_found_nothing_has_its_page(search: Document) -> None:
    static = [{**one, "after": None} for one in search["evidence"]["static"]]
    bare = changed(
        {**search, "gain": None, "resources": None, "patch": None}, patch_text=None, launched_in=None, static=static
    )
    page = render_search({**bare, "attempts": bare["attempts"][:2]})
    assert sections(page) == ["attempts", "layouts", "static", "circumstances", "next"]
    assert "patch -p1" not in page and "None" not in page
    killed = changed({**bare, "ended_by": None, "reason": None, "spent_ns": None, "attempts": []}, **NOTHING)
    page = render_search(killed)
    assert "was broken off" in page and "None" not in page.replace("None: the search ended", "")
    assert sections(page) == ["static", "circumstances", "next"]


def test_what_did_not_hold_as_a_whole_is_timed_on_the_page_and_not_to_be_applied(search: Document) -> None:
    whole = {**search["evidence"]["timings"][-1], "attempt": None, "step": "whole"}
    fell = {**search, "gain": None, "whole_decision": "rejected", "whole_reason": "1.001 times as fast"}
    page = render_search(changed(fell, timings=[*search["evidence"]["timings"], whole]))
    assert "all that was accepted" in page and "patch -p1" not in page
    assert "nothing was accepted" not in page and sections(page) == SECTIONS


RATIOS = st.lists(st.floats(0.01, 100), min_size=1, max_size=30)


def timing(ratios: list[float], **more: Any) -> dict[str, Any]:
    known = {"attempt": 0, "step": "search", "speedup_ratio": None, "ci_low": None, "ci_high": None}
    return {**known, "layouts": ratios, **more}


@given(first=RATIOS, second=RATIOS, threshold=st.floats(0, 1))
def test_every_layout_lies_on_one_axis_in_the_order_of_its_ratio(
    first: list[float], second: list[float], threshold: float
) -> None:
    drawn = placed_layouts([timing(first), timing(second)], threshold)
    assert drawn is not None
    dots = [dot for row in drawn["rows"] for dot in row["dots"]]
    assert [ratio for _, ratio in dots] == [*first, *second]
    places = [(ratio, place) for place, ratio in dots] + [(1.0, drawn["one"]), (1 + threshold, drawn["threshold"])]
    assert all(0 < place < 100 for _, place in places)
    assert [place for _, place in sorted(places)] == sorted(place for _, place in places)


@given(ratios=RATIOS)
def test_ticks_are_apart_and_one_is_always_among_them(ratios: list[float]) -> None:
    drawn = placed_layouts([timing(ratios)], 0.02)
    assert drawn is not None
    places = [place for place, _ in drawn["ticks"]]
    assert 1 in [tick for _, tick in drawn["ticks"]]
    assert all(after - before >= 10 for before, after in pairwise(places))


def test_too_few_layouts_have_no_interval_and_nothing_timed_has_no_plot() -> None:
    drawn = placed_layouts([timing([1.1], speedup_ratio=1.1), timing([1.2], ci_low=1.1, ci_high=1.3)], 0.02)
    assert drawn is not None
    assert [row["span"] is None for row in drawn["rows"]] == [True, False]
    assert drawn["rows"][1]["span"][0] < drawn["rows"][1]["dots"][0][0] < drawn["rows"][1]["span"][1]
    assert placed_layouts([], 0.02) is None
