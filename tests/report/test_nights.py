"""An alert in words says what stands, on what it was seen, and what to do; nothing where nothing is known.

A night in words: its headline, its table on 80 columns, and what to do next.
"""

import io
from datetime import UTC, date, datetime
from typing import Any

import pytest

from aaco_pipeline.report.nights import headline, next_step, print_night, sentence, why
from aaco_pipeline.report.nights import next_step_night as next_step_nights


def alert(**changed: Any) -> dict[str, Any]:
    return {
        "alert": "alert-nightly-1",
        "workload": "resnet50",
        "backend": "migraphx",
        "host": None,
        "state": "suspected",
        "is_open": True,
        "is_recovering": False,
        "is_gap": False,
        "began_at": datetime(2026, 11, 2, 3, tzinfo=UTC),
        "began_night": date(2026, 11, 2),
        "last_campaign": "nightly-2",
        "sorted_as": "real",
        "alert_grade": None,
        "effect_ratio": 1.0451,
        "ci_low": 1.031,
        "ci_high": 1.059,
        "reasons": ["the interval speaks for itself"],
        "who": None,
    } | changed


GAP = {"is_gap": True, "state": "missing", "effect_ratio": None, "sorted_as": None, "reasons": ["nothing was measured"]}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "resnet50 on migraphx: suspected, 1.045 times (1.031 … 1.059) as long (since 2026-11-02)."),
        (
            {"state": "confirmed", "alert_grade": "two boots", "sorted_as": "selection changed", "host": "MI300X"},
            "resnet50 on migraphx, MI300X: confirmed on two boots, 1.045 times (1.031 … 1.059) as long; before code is "
            "blamed: selection changed (since 2026-11-02).",
        ),
        (GAP, "resnet50 on migraphx: missing, no verdict (since 2026-11-02)."),
        (
            {"state": "acknowledged", "who": "ada", "ci_low": None, "began_night": None},
            "resnet50 on migraphx: acknowledged, 1.045 times as long, known to ada (since 2026-11-02).",
        ),
    ],
)
def test_where_it_stands_is_one_sentence(changed: dict[str, Any], told: str) -> None:
    assert sentence(alert(**changed)) == told


@pytest.mark.parametrize(
    ("changed", "step"),
    [
        ({}, "Next: nothing is blamed yet"),
        ({"state": "confirmed", "alert_grade": "one boot"}, "Next: see the causes of nightly-2"),
        ({"state": "confirmed", "is_recovering": True}, "Next: its end was seen once"),
        (GAP, "Next: `aaco doctor`"),
        ({"state": "acknowledged"}, None),
        ({"state": "cleared", "is_open": False}, None),
    ],
)
def test_what_to_do_next_follows_from_its_state(changed: dict[str, Any], step: str | None) -> None:
    told = next_step(alert(**changed))
    assert told is None if step is None else (told or "").startswith(step)


def test_the_reason_is_a_sentence() -> None:
    assert why(alert()) == "The interval speaks for itself."
    assert why(alert(reasons=[])) == "No reason was given."


ALERT: dict[str, Any] = {
    **{"alert": "alert-1", "state": "suspected", "is_recovering": False, "alert_grade": None},
    "reasons": ["the second time slot ran on a busy host"],
}
ROW: dict[str, Any] = {
    **{"workload": "resnet50", "backend": "migraphx", "verdict": "equivalent", "effect_ratio": 1.001},
    **{"ci_low": 0.998, "ci_high": 1.004, "threshold_ratio": 0.01, "minimum_detectable_ratio": 0.02},
    **{"alert": None, "confirm_at": None, "recommendation": None, "service_levels": []},
    "against": {"kind": "rolling", "since": "2026-03-11T02:31:00+00:00", "is_the_same_file": False},
}


def document(*rows: dict[str, Any], regression: bool = False) -> dict[str, Any]:
    return {"night": "2026-03-12", "regression": regression, "benchmarks": list(rows)}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((), "Night of 2026-03-12: nothing was planned."),
        ((ROW,), "Night of 2026-03-12: 1 of 1 benchmark judged; no alert."),
        (
            (ROW, {**ROW, "verdict": None}, {**ROW, "alert": ALERT}, {**ROW, "alert": {**ALERT, "state": "confirmed"}}),
            "Night of 2026-03-12: 3 of 4 benchmarks judged; 1 suspected, 1 confirmed.",
        ),
    ],
)
def test_the_headline_counts_what_is_judged_and_what_alerts(rows: tuple[dict[str, Any], ...], said: str) -> None:
    assert headline(document(*rows)) == said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"verdict": None}, "not judged yet; `aaco nightly` goes on with it tonight"),
        (
            {"verdict": "regressed", "alert": ALERT, "confirm_at": "2026-03-12T03:32+00:00"},
            "suspected; `aaco nightly` after 03:32 UTC confirms it",
        ),
        (
            {"alert": {**ALERT, "state": "confirmed", "is_recovering": True}, "confirm_at": "2026-03-12T03:32+00:00"},
            "confirmed; `aaco nightly` after 03:32 UTC confirms its end",
        ),
        (
            {"alert": ALERT},
            "suspected, and a second look could not decide: the second time slot ran on a busy host; the next night "
            "looks again",
        ),
        (
            {"alert": {**ALERT, "state": "confirmed", "alert_grade": "two boots"}},
            "confirmed (two boots); mend it, or `aaco alerts acknowledge alert-1 --why TEXT` takes it as the new level",
        ),
        ({"alert": {**ALERT, "state": "cleared", "reasons": []}}, "cleared"),
        (
            {"verdict": "regressed"},
            "regressed, but among so many comparisons of one night that is no rarity: no alert",
        ),
        (
            {"verdict": "inconclusive", "recommendation": "run 40 sessions of each arm"},
            "run 40 sessions of each arm",
        ),
        (
            {"against": {"kind": "itself", "since": None, "is_the_same_file": True}},
            "there was no baseline: held against itself, and from the next night on that is the baseline",
        ),
    ],
)
def test_what_to_do_next(changed: dict[str, Any], said: str | None) -> None:
    assert next_step_nights({**ROW, **changed}) == said


def test_a_night_fits_a_terminal_and_says_what_is_next_beneath_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    levels = [{"in_words": "P99 of resnet50 keeps to 20 ms."}]
    suspected = {**ROW, "verdict": "regressed", "alert": ALERT, "confirm_at": "2026-03-12T03:32+00:00"}
    stream = io.StringIO()
    print_night(document({**suspected, "service_levels": levels}), stream)
    printed = stream.getvalue()
    assert "resnet50:migraphx" in printed
    assert "1.001 (0.998…1.004)" in printed
    assert max(map(len, printed.splitlines())) <= 80
    last = printed.rstrip().splitlines()[-2:]
    assert last == [
        "P99 of resnet50 keeps to 20 ms.",
        "resnet50 on migraphx: suspected; `aaco nightly` after 03:32 UTC confirms it.",
    ]
