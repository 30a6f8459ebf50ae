"""A session in sentences: its measurement, what it lacks, its program, and its place among earlier ones."""

import re
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.markdown import render_view
from aaco_pipeline.report.session.document import session_document
from aaco_pipeline.report.session.sentences import (
    Document,
    advice,
    against_earlier,
    answer,
    facts,
    half,
    of_its_campaign,
    of_program,
    whole_runs,
)
from aaco_pipeline.report.session.view import report_view, session_view
from tests.conftest import CapturedLake
from tests.report.made_up import SESSION, printed
from tests.report.session.test_answer import document


def test_what_was_measured_is_reported_and_nothing_else(document: Document, hollow: TraceLake) -> None:
    said = facts(document)
    assert said.startswith("The median inference takes 4.")
    assert "(95 % interval 4." in said
    assert "Profiling increases the median by a factor of 1.25." in said
    unjudged = "Whether it ran steadily was not checked"
    assert said.endswith(f"{unjudged}; other work took its CPUs 10.0 % of the time.")
    assert facts({**document, "time_shares": []}).endswith(f"{unjudged}.")
    assert answer(session_document(hollow, SESSION)) == "Nothing was measured yet."
    judged = {"metric": "steady_state", "pass": "latency", "phase": "measure", "value": 1.0}
    level = {**document, "metrics": [*document["metrics"], judged]}
    assert facts({**level, "time_shares": []}).endswith(" It ran steadily.")
    assert facts(level).endswith(" Its level held, but other work took its CPUs 10.0 % of the time.")


def test_time_between_iterations_is_reported_where_it_is_noticeable(document: Document) -> None:
    def said(ratio: float) -> str:
        gaps = {"pass": "latency", "phase": "measure"}
        figures = [{**gaps, "metric": "gap_ratio", "value": ratio}, {**gaps, "metric": "gap_longest", "value": 4.1e7}]
        return facts({**document, "metrics": [*document["metrics"], *figures]})

    told = "2.0 % of the measured time lies between iterations, in no latency (at most 41 ms at once). "
    assert told in said(0.02)
    assert said(0.0199) == facts(document)


def test_what_failed_and_why_stands_before_the_answer_in_every_form(captured: CapturedLake, tmp_path: Path) -> None:
    lake, session = captured.copy(tmp_path / "lake"), captured.sessions["control_flow"]
    whole = session_document(lake, session)
    assert half(whole) is None
    assert "Not whole" not in render_html(whole, None) + render_view(report_view(whole))
    lake.record_failure(session, "roofline", "code", "no ceilings")
    document = session_document(lake, session)
    said = half(document)
    assert said == (
        "Not whole: 15 of 16 stages; roofline failed: no ceilings. Put that right, then `aaco doctor --mend` runs what "
        "is missing."
    )
    first = answer(document).split()[:3]
    for text in (
        printed(session_view(document)),
        render_view(report_view(document)),
        render_html(document, None).replace("&#34;", '"'),
    ):
        words = text.split("</head>")[-1].replace("\xa0", " ")
        plain = " ".join(words.split())
        assert plain.index("Not whole: 15 of 16 stages") < plain.index(" ".join(first))


def test_without_stated_stages_nothing_is_said() -> None:
    assert half({}) is None
    assert half({"progress": None}) is None
    missing = {"published": 3, "expected": 13, "failed": [], "missing": ["report"]}
    assert half({"progress": missing}) == "Not whole: 3 of 13 stages. `aaco doctor --mend` runs what is missing."


_RUN: Final[dict[str, Any]] = {"failure": None, "phase": "measure", "user_ns": None, "system_ns": None}
_TIMELINE: Final[dict[str, Any]] = {"device_id": 0, "busy_bound": None, "active_ratio": 0.046}


def recorded(*walls_ms: int, latency_ms: float | None = None, n: int | None = None) -> dict[str, Any]:
    """A program of so many unprofiled runs and a traced one of 4.4 s; its iterations are the runs unless given."""
    timed = sorted(walls_ms)
    runs = [{**_RUN, "pass": "latency", "profiler": None, "wall_ns": ms * 10**6} for ms in walls_ms]
    runs.append({**_RUN, "pass": "trace", "profiler": "cupti", "wall_ns": 4_400 * 10**6})
    median = {"metric": "latency_p50", "pass": "latency", "phase": "measure", "ci_low": None, "ci_high": None}
    level = {"metric": "steady_state", "pass": "latency", "phase": "measure", "value": None}
    value = (timed[len(timed) // 2] if latency_ms is None else latency_ms) * 10**6
    metrics = [{**median, "value": value, "n": len(walls_ms) if n is None else n}, level]
    runs = [{**one, "max_rss_bytes": None} for one in runs]
    more = {"program_runs": runs, "metrics": metrics, "workload": "train.py", "top_kernels": [], "missing": []}
    return {**document(), **more, "timeline": [_TIMELINE]}


def test_how_long_a_run_takes_is_no_iterations_time() -> None:
    whole = recorded(4_000, 4_200, 4_100)
    assert len(whole_runs(whole)) == 3
    assert "A run of train.py takes 4.1 s (median of 3, 4 s … 4.2 s)." in of_program(whole)
    assert "median" not in facts(whole)
    assert "3 runs cannot tell whether it is steady" in facts(whole)
    marked = recorded(4_000, 4_200, 4_100, latency_ms=20, n=150)
    assert whole_runs(marked) == []
    assert "The median iteration takes 20 ms." in facts(marked)
    assert whole_runs(recorded(4_000, 4_200, 4_100, latency_ms=4_050, n=6)) == []
    # As many iterations as runs, a short one in each.
    assert whole_runs(recorded(4_000, 4_200, latency_ms=20)) == []
    assert whole_runs({"metrics": [], "program_runs": []}) == []


def test_the_answer_is_of_a_part_of_the_traced_run_and_slower_is_the_run() -> None:
    told = facts(recorded(4_000, 4_200, 4_100))
    assert "The answer is of 1 µs of the traced run's 4.4 s, the rest of which is start, set-up and end" in told
    assert "from its first activity to its last the device is busy 4.6 %" in told
    assert "Under cupti a run took 1.073 times as long." in of_program(recorded(4_000, 4_200, 4_100))


PLACE: dict[str, Any] = {
    "value_ns": 1_018_000,
    "compared_within": "host",
    "earlier_sessions": 12,
    "low_ns": 990_000,
    "median_ns": 1_000_000,
    "high_ns": 1_030_000,
    "median_ratio": 1.018,
    "previous_session": "before",
}
ROCM = {"kind": "environment", "what": "rocm", "subject": "version", "from_value": "7.1", "to_value": "7.2"}


def change(what: str, subject: str | None, kind: str = "environment") -> dict[str, Any]:
    return {"kind": kind, "what": what, "subject": subject, "from_value": "a", "to_value": "b"}


def test_a_session_within_the_spread_of_earlier_ones_after_a_new_rocm() -> None:
    assert against_earlier(PLACE, [ROCM]) == (
        "It is 1.8 % slower than the median of 12 earlier sessions on this host (1 ms), within their spread; since the "
        "session before ROCm changed from 7.1 to 7.2."
    )
    assert advice("this", PLACE, [ROCM]) == (
        "One session is no verdict: `aaco diff before this` describes the two, and "
        "`aaco compare --baseline SPEC --candidate SPEC` judges fresh ones."
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"median_ratio": 0.9, "value_ns": 900_000}, "10.0 % faster than the median of 12 .*, beyond all of them"),
        ({"median_ratio": 1.1, "value_ns": 1_100_000}, "10.0 % slower than the median of 12 .*, beyond all of them"),
        (
            {"median_ratio": 12.04, "value_ns": 12_040_000},
            "It takes 12.04 times as long as the median of 12 .*, beyond all",
        ),
        ({"median_ratio": 0.25, "value_ns": 250_000}, "It is 4 times as fast as the median of 12 .*, beyond all"),
        ({"median_ratio": 1.0001, "compared_within": "environment"}, "as fast as the median .* in this environment"),
        ({"earlier_sessions": 1}, r"1.8 % slower than the one earlier session on this host \(1 ms\)\.$"),
    ],
)
def test_it_is_put_as_it_is(changed: dict[str, Any], words: str) -> None:
    place = {**PLACE, **changed}
    told = against_earlier(place, [])
    assert told is not None
    assert re.search(words, told), told
    assert (advice("this", place, []) is not None) == ("beyond" in words)


def test_alone_in_the_lake_there_is_nothing_to_say() -> None:
    alone = {"value_ns": 5, "earlier_sessions": 0, "median_ratio": None, "previous_session": None}
    assert against_earlier(alone, []) is None
    assert advice("this", alone, []) is None


def test_what_matters_most_is_reported_first_and_the_rest_counted() -> None:
    rows = [change("boot", "time"), change("cpu", "microcode"), change("package", "onnxruntime"), ROCM]
    told = against_earlier(PLACE, [*rows, change("gemm_backend", "aten::mm", "selection")])
    assert told is not None
    assert told.endswith(
        "since the session before gemm backend at aten::mm changed from a to b, ROCm changed from 7.1 to 7.2, "
        "onnxruntime changed from a to b, and 2 facts more."
    )
    booted = against_earlier(PLACE, [change("boot", "time")])
    assert booted is not None
    assert booted.endswith("the host was booted again.")


def test_a_campaigns_verdict_is_said_with_the_sessions_part_in_it() -> None:
    row: dict[str, Any] = {
        "campaign_id": "compare-1",
        "candidate": "candidate",
        "baseline": "baseline",
        "verdict": "regressed",
    }
    row |= {"effect_ratio": 1.05, "ci_low": 1.03, "ci_high": 1.07}
    assert of_its_campaign("candidate", [row]) == [
        "Its campaign compare-1, of which it is a session of the candidate, compares candidate with baseline: "
        "regressed, 1.050 times as long (95 % interval 1.030 … 1.070)."
    ]
    bare = {**row, "verdict": "withheld", "effect_ratio": None, "ci_low": None, "ci_high": None}
    assert of_its_campaign(None, [bare]) == ["Its campaign compare-1 compares candidate with baseline: withheld."]
