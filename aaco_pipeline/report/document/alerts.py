"""Alerts as one document, from the lake's events: what `aaco alerts` prints.

What events add up to is `aaco_pipeline.statistics.alerts`; here they are only gathered.
"""

from typing import Any

import polars as pl

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.words.alerts import next_step, sentence, why
from aaco_pipeline.statistics.alerts.events import alerts

Document = dict[str, Any]


def alerts_document(lake: TraceLake) -> Document:
    """`open` and `over`: alerts with their events, each newest first."""
    events = lake.read("alerts").drop("campaign_id").sort("at", descending=True, maintain_order=True)
    told: dict[str, list[Document]] = {"open": [], "over": []}
    for row in alerts(events).sort("last_at", descending=True).iter_rows(named=True):
        own = events.filter(pl.col("alert") == row["alert"]).to_dicts()
        words = {"in_words": sentence(row), "why": why(row), "next": next_step(row)}
        told["open" if row["is_open"] else "over"].append({**row, **words, "events": own})
    return told
