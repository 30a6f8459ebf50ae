"""Whether a limit is kept, in a sentence and in a cell: every state, and what is lacking."""

from typing import Any

import pytest

from aaco_pipeline.report.words.service_levels import service_level, short

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
