"""What there is to tell of the lake's campaigns: verdicts that found a regression, and alerts that are confirmed.

A night's own verdict is only suspected until a second time slot has confirmed it, and is told as an alert then.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.verdict import REGRESSIONS, verdict_document
from aaco_pipeline.report.words.verdicts import sentence

#: Campaigns whose verdicts wait for a second time slot.
_OF_NIGHTS: Final = "nightly"
_ALERTS: Final = "alerts"
_CONFIRMED: Final = "confirmed"
_TIME: Final = re.compile(r"-(\d{8}T\d{6}Z)-")


@dataclass(frozen=True)
class Finding:
    """One thing to tell once: a key that names it for ever, a sentence, and the document for programs."""

    key: str
    sentence: str
    document: dict[str, Any]


def findings(lake: TraceLake, since: datetime) -> list[Finding]:
    """What the campaigns that were planned at `since` or later have found, in the order of their names."""
    recent = [one for one in lake.manifests("campaign") if _planned(one.id) >= since]
    return [finding for manifest in recent for finding in (*_verdicts(lake, manifest), *_alerts(lake, manifest))]


def _planned(campaign: str) -> datetime:
    """The second that a campaign's name states; now and for ever where it states none."""
    found = _TIME.search(campaign)
    if found is None:
        return datetime.max.replace(tzinfo=UTC)
    return datetime.strptime(found[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def _verdicts(lake: TraceLake, manifest: Manifest) -> Iterator[Finding]:
    if not any(entry.rows for entry in manifest.of_table("verdicts")):
        return
    if lake.read("campaigns", manifest.id).get_column("kind").cast(pl.String).to_list() == [_OF_NIGHTS]:
        return
    rows = lake.read("verdicts", manifest.id).filter(
        pl.col("verdict").is_in(REGRESSIONS) & (pl.col("role").cast(pl.String) == "primary")
    )
    for candidate in rows.get_column("candidate").cast(pl.String).sort():
        document = verdict_document(lake, manifest.id, candidate)
        told = {"kind": "verdict", "sentence": sentence(document), **document}
        yield Finding(f"{manifest.id}.{candidate}", told["sentence"], told)


def _alerts(lake: TraceLake, manifest: Manifest) -> Iterator[Finding]:
    if _ALERTS not in all_tables() or not any(entry.rows for entry in manifest.of_table(_ALERTS)):
        return
    rows = lake.read(_ALERTS, manifest.id).filter(pl.col("event").cast(pl.String) == _CONFIRMED)
    for row in rows.iter_rows(named=True):
        effect = "" if row["effect_ratio"] is None else f", {row['effect_ratio']:.3f} times as long"
        told = f"Confirmed: {row['workload']} on {row['backend']} regressed{effect}; {'; '.join(row['reasons'])}."
        plain = {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
        yield Finding(f"{row['alert']}.{_CONFIRMED}", told, {"kind": "alert", "sentence": told, **plain})
