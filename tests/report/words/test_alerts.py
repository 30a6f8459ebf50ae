"""An alert in words says what stands, on what it was seen, and what to do; nothing where nothing is known."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from aaco_pipeline.report.words.alerts import next_step, sentence, why


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
