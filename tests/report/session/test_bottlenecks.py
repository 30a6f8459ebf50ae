"""The limits of kernels in words, in the short and the long document, and in every form of them."""

import re
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.analysis.bottlenecks.classification import RULES_FILE
from aaco_pipeline.assets.classification import load_bottleneck_rules
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.page import render_html, render_section
from aaco_pipeline.report.html.sections import SECTIONS
from aaco_pipeline.report.labels import LABELS
from aaco_pipeline.report.markdown import render_view
from aaco_pipeline.report.session import bottlenecks as limits
from aaco_pipeline.report.session.document import session_document, session_summary
from aaco_pipeline.report.session.sentences import Document, answer
from aaco_pipeline.report.session.statements import LISTED_KERNELS
from aaco_pipeline.report.session.view import report_view, session_view
from tests.places import CONFIGS
from tests.report.made_up import BOTTLENECKS, EVIL, SESSION, printed, publish_limits, rows_of


def limits_section(document: Document) -> str:
    """The page's section about limits."""
    return next(render_section(document, section) for section in SECTIONS if section.name == "limits")


STATS: Final = [
    {"kernel_id": 0, "dispatch_count": 4, "total_ns": 1000, "mean_ns": 250, "share_ratio": 0.5},
    {"kernel_id": 1, "dispatch_count": 4, "total_ns": 600, "mean_ns": 150, "share_ratio": 0.3},
    {"kernel_id": 2, "dispatch_count": 4, "total_ns": 400, "mean_ns": 100, "share_ratio": 0.2},
]


def publish_kernels(lake: TraceLake, *, savings: bool = True) -> None:
    """Three kernels with their times, and for the second one what a faster one would save."""
    lake.publish(SESSION, "capture", {"sessions": rows_of("sessions", [{"source_kind": "capture"}])})
    named = [(0, "loop"), (1, EVIL), (2, "relu")]
    kernels = [{"kernel_id": i, "name": n, "short_name": n, "role": "main", "family_source": "none"} for i, n in named]
    lake.publish(SESSION, "kernel_trace", {"kernels": rows_of("kernels", kernels)})
    lake.publish(SESSION, "timeline", {"kernel_stats": rows_of("kernel_stats", STATS)})
    saved = [{"kernel_id": 1, "speedup_ratio": float(n), "saved_ns": 100 * n, "critical_ns": 600} for n in (2, 4)]
    lake.publish(SESSION, "critical_path", {"what_if": rows_of("what_if", saved if savings else [])})


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> TraceLake:
    lake = TraceLake(tmp_path_factory.mktemp("judged") / "lake")
    publish_kernels(lake)
    publish_limits(lake)
    return lake


@pytest.fixture(scope="module")
def document(judged: TraceLake) -> Document:
    return session_document(judged, SESSION)


def test_the_verdict_is_in_the_documents_own_fields_what_weighs_most_first(judged: TraceLake) -> None:
    summary = session_summary(judged, SESSION)
    assert [summary[name] for name in ("bottleneck_class", "score", "runner_up")] == ["device", 0.5, "launch"]
    assert summary["missing_signals"] == ["the steady state"]
    assert [(row["signal"], row["value"], row["weight"]) for row in summary["top_evidence"]] == [
        ("share_device", 0.5, 1.0),
        ("duration", 20_000.0, 0.0),
    ]
    assert summary["recommendation"].endswith("saves at most 30.0 % of the time.")


def test_kernels_are_ordered_by_what_they_could_save_else_by_their_share(judged: TraceLake, tmp_path: Path) -> None:
    first = session_summary(judged, SESSION)["optimization_priority"]
    assert [row["kernel_id"] for row in first] == [1, 0, 2]
    assert [(row["label"], row["saved_ns"], row["speedup_ratio"]) for row in first[:2]] == [
        ("compute_vector", 400, 4.0),
        ("memory_dram", None, None),
    ]
    assert first[1]["recommendation"] == "Move fewer bytes."
    without = TraceLake(tmp_path / "lake")
    publish_kernels(without, savings=False)
    assert [row["kernel_id"] for row in session_summary(without, SESSION)["optimization_priority"]] == [0, 1, 2]


def test_evidence_that_is_no_share_is_named() -> None:
    row = {**BOTTLENECKS[1], "runner_up": None}
    assert "the largest evidence is nearness to the roof of DRAM traffic: 80.0 %" in limits.verdict(row, "kernel")


def test_without_a_label_the_verdict_says_what_was_missing() -> None:
    unexplained = {"signal": "share_busy_unexplained", "value": 0.9, "unit": "ratio", "weight": 0.0, "source": "x"}
    unknown = {"label": None, "score": None, "runner_up": None, "recommendation": None, "evidence": [unexplained]}
    row = {**unknown, "missing_signals": ["steady_state", "share_latency", "a", "b", "c"]}
    assert limits.verdict(row, "session") == (
        "What limits this session is not known: time in kernels that nothing explains is 90.0 %; not measured: "
        "steady state, a, b and 1 more signal"
    )


def test_a_session_that_was_not_judged_has_nulls_and_no_sentence(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    publish_kernels(lake)
    document = session_document(lake, SESSION)
    assert [document[name] for name in ("bottleneck_class", "score", "runner_up", "recommendation")] == [None] * 4
    assert [document["top_evidence"], document["missing_signals"]] == [[], []]
    assert "limited" not in answer(document)
    page = render_html(document, None)
    assert "the stage classification has published nothing" in page
    assert 'id="where"' not in page
    assert "<svg" not in limits_section(document).replace('<svg class="bar"', "")


def test_signals_that_only_follow_from_a_missing_one_are_not_named_beside_it() -> None:
    assert limits.unmeasured(["nearest_roof", "at_memory_dram", "cost_of_latency", "scratch", "share_latency"]) == [
        "nearness to the nearest roof",
        "scratch",
    ]
    assert limits.unmeasured(["at_memory_dram"]) == ["nearness to the roof of DRAM traffic"]


def test_missing_signals_are_reported_once_for_each_reason_after_the_rest() -> None:
    items = [("signal nearest_roof", "no work"), ("signal at_memory_l2", "another is nearer"), ("counters", "none")]
    items += [("signal waiting", "not taken"), ("signal lds_busy", "not taken"), ("signal share_host", "no clock")]
    rows = [{"item": item, "status": "absent", "reason": reason} for item, reason in items]
    assert [(row["item"], row["reason"]) for row in limits.without_repetition(rows)] == [
        ("counters", "none"),
        ("nearness to the nearest roof", "no work"),
        ("waiting, LDS busy", "not taken"),
    ]


def test_a_kernel_too_short_to_judge_says_so_and_nothing_else() -> None:
    short = {"signal": "too_short_to_judge", "value": 1.0, "unit": "flag", "weight": 0.0}
    row = {"label": None, "evidence": [short], "missing_signals": ["nearest_roof", "scratch"]}
    said = "too short to judge: a dispatch takes about as long as a launch"
    assert limits.of_kernel(row) == f"no label; {said}"
    assert limits.verdict(row, "kernel") == f"What limits this kernel is not known: {said}"


def test_every_label_of_the_rules_is_known_in_words() -> None:
    rules = load_bottleneck_rules(CONFIGS / RULES_FILE)
    assert {rule.label for rule in rules.rules} - LABELS.keys() == set()
    assert limits.label("of_their_own") == "of their own"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, "ratio", "50.0 %"),
        (1500.0, "ns", "1.5 µs"),
        (2048.0, "bytes", "2.0 KiB"),
        (1.0, "flag", "yes"),
        (0.0, "flag", "no"),
        (2e12, "byte/s", "2,000 GB/s"),
        (3.0, "request", "3 request"),
        (7.0, "count", "7"),
        (None, "ns", "–"),
    ],
)
def test_a_value_is_reported_in_the_unit_that_reads_best(value: float | None, unit: str, text: str) -> None:
    assert limits.measure(value, unit) == text


# ---- kernels ---------------------------------------------------------------------------------------------------------


def test_the_nearest_bounds_are_one_for_each_resource_measured_before_published(document: Document) -> None:
    by_kernel = {row["kernel_id"]: row for row in document["limits"]}
    found = [(b["resource"], b["lower_bound_ns"], b["ceiling_source"]) for b in by_kernel[0]["nearest_bounds"]]
    assert found == [("dram", 800, "measured"), ("l2", 300, "spec")]
    assert limits.nearest(by_kernel[0]) == ["DRAM 80.0 %", "L2 30.0 %"]
    assert limits.nearest(by_kernel[2]) == []


def test_a_kernel_without_evidence_says_why(document: Document) -> None:
    row = next(row for row in document["limits"] if row["kernel_id"] == 2)
    assert limits.of_kernel(row) == "no label; not measured: nearness to the nearest roof, scratch"
    assert limits.of_kernel({**row, "missing_signals": None}).startswith("not judged")
    assert limits.of_kernel({**row, "missing_signals": []}) == "no label; no rule fits what was measured"
    assert "no label: 2 signals not measured" in limits_section(document)


def test_occupancy_is_what_was_achieved_of_what_is_admitted_and_by_what(document: Document) -> None:
    by_kernel = {row["kernel_id"]: row for row in document["limits"]}
    assert limits.occupied(by_kernel[0]) == "25.0 % of 50.0 % by vector registers"
    assert limits.occupied({**by_kernel[0], "achieved_ratio": None}) == "at most 50.0 % by vector registers"
    assert limits.occupied(by_kernel[1]) is None


def test_only_roofs_that_a_kernel_used_and_the_longest_kernels_are_in_the_document(
    document: Document, tmp_path: Path
) -> None:
    assert {(row["resource"], row["dtype"]) for row in document["ceilings"]} == {
        ("dram", None),
        ("l2", None),
        ("vector", "fp32"),
    }
    lake = TraceLake(tmp_path / "lake")
    publish_kernels(lake)
    many = [{"kernel_id": i, "name": f"k{i}", "short_name": "k", "role": "main"} for i in range(300)]
    lake.publish(SESSION, "kernel_trace", {"kernels": rows_of("kernels", many)})
    assert len(session_document(lake, SESSION)["limits"]) == LISTED_KERNELS


# ---- the forms -------------------------------------------------------------------------------------------------------


def test_the_page_shows_evidence_plot_and_kernels(document: Document) -> None:
    section = limits_section(document)
    rests = next(render_section(document, one) for one in SECTIONS if one.name == "evidence")
    for part in ("time that goes to the device", "50.0 %", "time_shares"):
        assert part in rests
    assert section.count('role="img" aria-label="Roofline plot"') == 2
    assert "1 listed kernel without counted floating-point work" in section
    row = next(row for row in section.split("<tr>") if ">loop<" in row)
    for part in ("DRAM traffic", "score 0.80", "few samples: l2", "80.0 %", "L2 30.0 %", "by vector"):
        assert part in row


def test_the_page_shows_the_hottest_region_of_the_kernel_that_stalled_most(document: Document) -> None:
    page = render_html(document, None)
    section = page[page.index('<section id="instructions"') :]
    section = section[: section.index("</section>")]
    assert section.count("<details open>") == 1
    assert "15,000 stalled cycles" in section
    assert "waiting for loads" in section
    assert 'href="#instructions"' in page


def test_names_and_instructions_of_a_capture_are_text_and_nothing_has_a_style_of_its_own(document: Document) -> None:
    page = render_html(document, None)
    assert "<img" not in page
    assert page.count("&lt;img src=x") > 3
    assert re.search(r"<[a-z]+[^>]* style=", page) is None


def test_terminal_and_markdown_carry_the_answer_and_the_kernels(document: Document) -> None:
    told = " ".join(printed(session_view(document)).split())
    assert answer(document) in told
    assert re.search(r"launching 480 ns 48\.0 % other work on the CPUs 10\.0 %", told)
    assert "To sharpen it, record the steady state: warm up" in told
    assert re.search(r"loop 50\.0 % DRAM traffic DRAM 80\.0 % –", told)
    assert "400 ns at 4×" in told
    text = render_view(report_view(document))
    assert answer(document) in text.replace("\\", "")
    row = next(line for line in text.splitlines() if line.startswith("| loop | 50.0 % | DRAM"))
    assert row.endswith(
        "DRAM traffic | DRAM | 80.0 % | DRAM 80.0 %, L2 30.0 % | 25.0 % of 50.0 % by vector registers |"
    )


def test_no_name_moves_the_cursor_of_a_terminal(document: Document) -> None:
    hostile = {**document["optimization_priority"][0], "name": "a\x1b[2Jb"}
    told = printed(session_view({**document, "optimization_priority": [hostile], "workload": "\x1b]0;title\x07"}))
    assert "\x1b" not in told
    assert "\x07" not in told


def test_without_any_limit_terminal_and_markdown_have_no_such_table(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    publish_kernels(lake)
    document = session_document(lake, SESSION)
    assert "Kernels that could save most" not in printed(session_view(document))
    assert "what limits them" not in render_view(report_view(document))
