"""Campaigns of nights made for tests: rows of `night.SIGHTINGS` that a quiet host would give."""

from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.statistics.alerts.night import SIGHTINGS, night_events

FIRST: Final = date(2026, 11, 2)
FIGURES: Final = {
    "regressed": (1.05, 1.03, 1.07),
    "improved": (0.95, 0.93, 0.97),
    "equivalent": (1.0, 0.995, 1.005),
    "inconclusive": (1.01, 0.99, 1.03),
}


def sighting(verdict: str, /, night: int = 0, minute: int = 0, **changed: Any) -> dict[str, Any]:
    """The row of a campaign of that night; its first session began at `minute`."""
    day = FIRST + timedelta(days=night)
    began = datetime(day.year, day.month, day.day, 2, tzinfo=UTC) + timedelta(minutes=minute)
    effect, low, high = FIGURES.get(verdict, (None, None, None))
    return {
        "campaign_id": f"nightly-{night}-{minute}",
        "workload": "resnet50",
        "backend": "migraphx",
        "host": "MI300X",
        "night": day,
        "confirms": None,
        "metric": "latency_p50",
        "first_at": began,
        "last_at": began + timedelta(minutes=10),
        "verdict": verdict,
        "q_value": None if effect is None else 0.4 if verdict in ("equivalent", "inconclusive") else 0.001,
        "effect_ratio": effect,
        "ci_low": low,
        "ci_high": high,
        "placebo_verdict": "equivalent",
        "hosts": ["node1"],
        "devices": ["GPU-0"],
        "boots": ["boot1"],
        "slow_arms": [],
        "is_identical": False,
        "baseline_sha256": "ab" * 32,
        "method": [["metric", "latency_p50"], ["iterations", "100"]],
        "selections": [],
        "reasons": ["the interval speaks for itself"],
        "both_verdict": verdict,
        "both_effect_ratio": effect,
        "both_ci_low": low,
        "both_ci_high": high,
        **changed,
    }


def second(verdict: str, /, night: int = 0, minute: int = 45, **changed: Any) -> dict[str, Any]:
    """The same night's second time slot."""
    return sighting(verdict, night, minute, **{"confirms": f"nightly-{night}-0", **changed})


def events_of(*slots: dict[str, Any], events: pl.DataFrame | None = None) -> pl.DataFrame:
    """All events of these campaigns, each a time slot of its own, one after another."""
    known = empty_table("alerts") if events is None else events
    seen = pl.DataFrame(schema=SIGHTINGS)
    for slot in slots:
        now = pl.DataFrame([slot], schema=SIGHTINGS)
        known = pl.concat([known, night_events(now, known, seen)])
        seen = pl.concat([seen, now])
    return known


def kinds(events: pl.DataFrame) -> list[str]:
    return events.get_column("event").to_list()
