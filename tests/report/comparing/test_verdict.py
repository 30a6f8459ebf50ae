"""A change is told with its night, its size and whose it is; a forecast with its limit, or why there is none.

Whether a limit is kept, in a sentence and in a cell: every state, and what is lacking.
"""

from datetime import UTC, datetime
from typing import Any

import pytest

from aaco_pipeline.report.comparing.verdict import (
    change_in_words,
    changes_in_words,
    forecast_in_words,
    service_level,
    short,
)

CHANGE: dict[str, Any] = {
    "workload": "resnet50",
    "backend": "cpu",
    "host": "node1",
    "arm": "candidate",
    "metric": "latency_p50",
    "kind": "level",
    "of": "raw",
    "owed_to": "code",
    "effect_ratio": 1.048,
    "ci_low": 1.039,
    "ci_high": 1.057,
    "started_at": datetime(2026, 3, 12, 22, tzinfo=UTC),
    "nights_after": 10,
}
SINCE = "Since the night of 12 March 2026 resnet50 (candidate, median)"
FORECAST: dict[str, Any] = {
    "workload": "resnet50",
    "arm": "candidate",
    "metric": "latency_p99",
    "state": "foretold",
    "limit_ns": 8_000_000,
    "level_ns": 7_000_000,
    "nights_to_limit": 20,
    "nights_to_limit_low": 15,
    "nights_to_limit_high": 31,
    "reason": "+0.3 % a night [0.2, 0.4]",
}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {},
            f"{SINCE} takes 4.8 % [3.9, 5.7] longer; what ran beside "
            "it unchanged in the same nights did not move with it: the code did.",
        ),
        (
            {"owed_to": "host"},
            f"{SINCE} takes 4.8 % [3.9, 5.7] longer; what ran beside "
            "it unchanged in the same nights moved as much: the host did.",
        ),
        (
            {"of": "paired"},
            f"{SINCE} takes 4.8 % [3.9, 5.7] longer than unchanged code of the same nights: the code did.",
        ),
        (
            {"kind": "drift", "of": "paired"},
            "From the night of 12 March 2026 on, within 11 nights, resnet50 (candidate, median) drifted to 4.8 % "
            "[3.9, 5.7] longer than unchanged code of the same nights: the code did.",
        ),
        (
            {"effect_ratio": 0.9, "ci_low": 0.88, "ci_high": 0.93, "owed_to": None},
            f"{SINCE} takes 10.0 % [7.0, 12.0] shorter; whether code "
            "or host did it cannot be told: nothing unchanged ran beside it, or too few nights of it.",
        ),
    ],
)
def test_a_change_is_told_in_one_sentence(changed: dict[str, Any], told: str) -> None:
    assert change_in_words({**CHANGE, **changed}) == told


def test_what_both_series_show_is_told_once_and_the_latest_first() -> None:
    later = {**CHANGE, "started_at": datetime(2026, 5, 2, tzinfo=UTC), "of": "paired"}
    improved = {**CHANGE, "of": "paired", "effect_ratio": 0.9, "ci_low": 0.88, "ci_high": 0.92}
    told = changes_in_words([CHANGE, {**CHANGE, "of": "paired"}, later, improved])
    assert len(told) == 3
    assert told[0].startswith("Since the night of 2 May 2026")
    assert sum("shorter" in one for one in told) == 1
    assert len(changes_in_words([{**CHANGE, "owed_to": "host"}, {**CHANGE, "of": "paired"}])) == 2


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {},
            "The p99 of resnet50 (candidate) reaches its limit of 8 ms in about 20 nights [15 to 31] if it goes on",
        ),
        ({"nights_to_limit_high": None}, "in about 20 nights [15 or more] if"),
        ({"state": "no trend"}, "Nothing is foretold of the p99 of resnet50 (candidate): no trend, +0.3 %"),
        ({"state": "reached", "level_ns": 9_000_000}, "is at 9 ms, its limit of 8 ms or beyond."),
    ],
)
def test_a_forecast_is_told_with_its_limit(changed: dict[str, Any], told: str) -> None:
    assert told in forecast_in_words({**FORECAST, **changed})


KNOWN: dict[str, Any] = {
    **{"workload": "resnet50", "metric": "latency_p99", "arm": "candidate", "limit_ns": 20_000_000, "sessions": 10},
    **{"ci_low_ns": 18_100_000, "ci_high_ns": 18_700_000, "over_limit_ratio": 0.002, "budget_ratio": 0.01},
    "iterations": 10_000,
    "over_limit_low_ratio": 0.001,
    "over_limit_high_ratio": 0.004,
}
SPENT = "; 0.2 % of the iterations took longer (0.1 … 0.4 %), and 1 % may."


@pytest.mark.parametrize(
    ("changed", "sentence", "cell"),
    [
        (
            {"state": "ok"},
            f"P99 of resnet50 keeps to 20 ms: at most 18.7 ms (95 %, 10 sessions){SPENT}",
            "P99 at most 18.7 ms of 20 ms: ok",
        ),
        (
            {"state": "at_risk", "ci_high_ns": 21_000_000},
            f"P99 of resnet50 may not keep to 20 ms: 18.1 ms to 21 ms (95 %, 10 sessions){SPENT}",
            "P99 at most 21 ms of 20 ms: at risk",
        ),
        (
            {"state": "breached", "arm": "baseline", "over_limit_ratio": None},
            "P99 of resnet50 (baseline) does not keep to 20 ms: 18.1 ms to 18.7 ms (95 %, 10 sessions).",
            "P99 at most 18.7 ms of 20 ms: breached",
        ),
        (
            {
                "state": "not_enough_data",
                "ci_low_ns": None,
                "ci_high_ns": None,
                "sessions": 3,
                "over_limit_ratio": None,
            },
            "It is not known whether P99 of resnet50 keeps to 20 ms: 3 sessions had iterations enough for a P99, "
            "and it takes five.",
            "P99 of 20 ms: not enough data",
        ),
        (
            {"state": "not_enough_data", "iterations": 90, "over_limit_ratio": 0.0, "over_limit_low_ratio": 0.0},
            "It is not known whether P99 of resnet50 keeps to 20 ms: 90 iterations cannot show so small a share; 0 % "
            "of the iterations took longer (0 … 0.4 %), and 1 % may.",
            "P99 at most 18.7 ms of 20 ms: not enough data",
        ),
    ],
)
def test_a_row_in_words(changed: dict[str, Any], sentence: str, cell: str) -> None:
    row = {**KNOWN, **changed}
    assert (service_level(row), short(row)) == (sentence, cell)
