"""A night in words: its headline, its table on 80 columns, and what to do next."""

import io
from typing import Any

import pytest

from aaco_pipeline.report.terminal.night import print_night
from aaco_pipeline.report.words.night import headline, next_step

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
    assert next_step({**ROW, **changed}) == said


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
