"""Close a night's table after its last campaign is judged, and publish its alerts.

`aaco_pipeline.statistics.alerts` has the rules that raise, confirm and close an alert.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import polars as pl

from aaco_pipeline.capture.request import Arm
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline.comparing.campaigns import Tables, new_name, publish
from aaco_pipeline.pipeline.comparing.judging import STAGE as JUDGING
from aaco_pipeline.pipeline.comparing.judging import is_identical, shared_facts, timed_sessions
from aaco_pipeline.pipeline.comparing.measuring import finished_sessions
from aaco_pipeline.pipeline.comparing.plan import Plan, read_plan
from aaco_pipeline.report.comparing.causes import selection_in_words
from aaco_pipeline.statistics.alerts.events import (
    ACKNOWLEDGED,
    BETWEEN_SLOTS,
    CONFIRMING_BLOCKS,
    SUSPECTED,
    alerts,
    both_slots,
)
from aaco_pipeline.statistics.alerts.night import SIGHTINGS, missing_events, night_events, nights_over
from aaco_pipeline.statistics.verdicts import comparison
from aaco_pipeline.statistics.verdicts.decision import false_discoveries

_BASELINE: Final = "baseline"
CANDIDATE: Final[Arm] = "candidate"
_PLACEBO: Final = "placebo"
#: Request fields that are not part of the method: the subject, and the place in the campaign.
_NO_METHOD: Final = ("model", "artefact", "campaign_id", "arm", "block", "untraced")
#: Software that affects the measurement, by category and key of `environment`.
_HARNESS: Final = (("python", "version"), ("package", "aaco_pipeline"))
#: Stage that publishes the result of a night's table for a campaign, which closes the campaign.
STAGE: Final = "alerting"
_ACKNOWLEDGING: Final = "acknowledging"
_MISSING: Final = "missing"


def primary_verdicts(lake: TraceLake, campaigns: Iterable[str]) -> pl.DataFrame:
    """Read the primary rows of `verdicts` for the candidates of these campaigns."""
    rows = lake.read("verdicts", sorted(campaigns))
    return rows.filter((pl.col("role") == "primary") & (pl.col("candidate") == CANDIDATE))


def sightings(lake: TraceLake, verdicts: pl.DataFrame, both: pl.DataFrame | None = None) -> pl.DataFrame:
    """Build rows of `night.SIGHTINGS` for campaigns from their primary verdicts, in the same order.

    `both` has the combined figures of both time slots, by the campaign_id of the second slot.
    """
    rows = [_sighting(lake, verdict) for verdict in verdicts.iter_rows(named=True)]
    found = pl.DataFrame(rows, schema=SIGHTINGS)
    if both is None:
        return found
    figures = [name for name in both.columns if name != "campaign_id"]
    return found.drop(figures).join(both, on="campaign_id", how="left", maintain_order="left").select(*SIGHTINGS)


def of_both_slots(lake: TraceLake, first: str, verdict: dict[str, Any]) -> pl.DataFrame:
    """Compute the figures over the blocks of campaign `first` and of the campaign with this verdict."""
    second = verdict["campaign_id"]
    plan = comparison.Plan(_BASELINE, CANDIDATE, (1,), primary=verdict["metric"])
    before = timed_sessions(lake, first).with_columns(campaign_id=pl.lit(second))
    ledger = lake.read("aa_ledger").filter(~pl.col("campaign_id").is_in([first, second]))
    return both_slots(before, timed_sessions(lake, second), plan, verdict["threshold_ratio"], ledger)


def _sighting(lake: TraceLake, verdict: dict[str, Any]) -> dict[str, Any]:
    campaign = verdict["campaign_id"]
    planned, plan = lake.read("campaigns", campaign).row(0, named=True), read_plan(lake, campaign)
    # Sessions of an old campaign may have been removed.
    timed = finished_sessions(lake, campaign, "latency").filter(pl.col("session_id").is_in(lake.sessions()))
    named = timed.get_column("session_id").to_list()
    sessions, facts = lake.read("sessions", named), shared_facts(lake, named)
    hosts = _known(sessions.get_column("host"))
    began = sessions.get_column("started_at")
    placebo = lake.read("verdicts", campaign).filter((pl.col("candidate") == _PLACEBO) & (pl.col("role") == "primary"))
    return {
        **dict.fromkeys(SIGHTINGS),
        **{name: planned[name] for name in ("campaign_id", "workload", "backend", "night", "confirms", "metric")},
        **{name: verdict[name] for name in ("verdict", "q_value", "effect_ratio", "ci_low", "ci_high", "reasons")},
        "host": _class_of(lake, named) or (", ".join(hosts) if hosts else None),
        "first_at": began.min(),
        "last_at": began.max() or planned["planned_at"],
        "placebo_verdict": placebo.item(0, "verdict") if placebo.height else None,
        "hosts": hosts,
        "devices": _known(facts.get_column("device")),
        "boots": _known(facts.get_column("boot_id")),
        "slow_arms": _slow_arms(lake, timed, campaign),
        "is_identical": is_identical(plan, CANDIDATE),
        "baseline_sha256": plan.arms["baseline"].artefact_sha256,
        "method": _method(lake, plan, planned, timed),
        "selections": [selection_in_words(row) for row in _selections(lake, campaign).iter_rows(named=True)],
    }


def _known(values: pl.Series) -> list[str] | None:
    """Return the distinct values; None if one was not recorded."""
    return None if values.is_empty() or values.null_count() else values.unique().sort().to_list()


def _class_of(lake: TraceLake, sessions: list[str]) -> str | None:
    """Join the device names of these sessions; None if one has no name."""
    products = _known(lake.read("devices", sessions).get_column("product"))
    return ", ".join(products) if products else None


def _slow_arms(lake: TraceLake, timed: pl.DataFrame, campaign: str) -> list[str]:
    """List the arms with consistently slower sessions, from the campaign's verdicts."""
    slow = lake.read("verdicts", campaign).get_column("slow_sessions").explode().drop_nulls().unique()
    of_slow = timed.filter(pl.col("session_id").is_in(slow.implode()))
    return of_slow.get_column("arm").unique().sort().to_list()


def _selections(lake: TraceLake, campaign: str) -> pl.DataFrame:
    return lake.read("selections", campaign).filter(pl.col("candidate") == CANDIDATE).sort("rank")


def _method(lake: TraceLake, plan: Plan, planned: dict[str, Any], timed: pl.DataFrame) -> list[list[str]]:
    """Describe the method as key-value pairs: the plan's settings and the measuring software."""
    request = json.loads(plan.arms["baseline"].request.to_json())
    method = {name.replace("_", " "): value for name, value in request.items() if name not in _NO_METHOD}
    method |= {"metric": planned["metric"], "threshold": planned["threshold_ratio"], "design": planned["design"]}
    first = timed.filter(pl.col("arm") == _BASELINE).get_column("session_id").head(1)
    for category, key in _HARNESS:
        fact = lake.read("environment", first.to_list()).filter(
            (pl.col("category") == category) & (pl.col("key") == key) & pl.col("value").is_not_null()
        )
        if fact.height:
            method[f"{category} {key}"] = fact.item(0, "value")
    return [[key, str(value)] for key, value in sorted(method.items())]


@dataclass(frozen=True)
class Confirmation:
    """Campaign whose finding awaits a second time slot; `blocks` are those of the confirming campaign."""

    campaign: str
    workload: str
    backend: str
    night: date
    not_before: datetime
    blocks: int


def waits_for(lake: TraceLake, campaign: str) -> list[str]:
    """List planned, unjudged campaigns of the same time slot, for which the night's table waits."""
    return [one for one in _slot_of(lake, campaign) if not _has(lake, one, JUDGING)]


def judge_night(lake: TraceLake, campaign: str) -> Tables:
    """Publish and return `alerts` of `campaign`; empty if it belongs to no night or the night's table is still open.

    Judging the last campaign of a time slot closes its table: false discoveries are corrected over the complete table,
    and events are published for every campaign in it. Published events never change.
    """
    slot = _slot_of(lake, campaign)
    if slot and not waits_for(lake, campaign):
        _close(lake, slot)
    return {"alerts": lake.read("alerts", campaign)}


def acknowledge(lake: TraceLake, alert: str, who: str, why: str) -> str:
    """Acknowledge an open alert and return its full name; `alert` may be a part of the name.

    UsageError if the alert is unknown or closed, or if the name or reason is missing.
    """
    for what, given in (("who acknowledges it", who), ("why it may stay", why)):
        if not given.strip():
            raise UsageError(f"an alert is acknowledged by somebody for a reason; say {what}")
    row = _found(lake, alert)
    identifier, now = new_name("acknowledgement")
    event = {name: row[name] for name in ("alert", "workload", "backend", "host", "metric")}
    event |= {"event": ACKNOWLEDGED, "at": now, "reasons": [why.strip()], "who": who.strip()}
    publish(lake, identifier, _ACKNOWLEDGING, {"alerts": [event]})
    return str(row["alert"])


def missing_nights(
    lake: TraceLake, benchmarks: Iterable[tuple[str, str]], now: datetime, weekdays: Collection[int] = range(7)
) -> Tables:
    """Publish and return `missing` events for workloads and backends without a verdict for a past night.

    A night is over 24 hours after its day began (UTC); `weekdays` are the scheduled nights, Monday is 0. The tables are
    closed without campaigns that never finished.
    """
    nights = nights_over(now, weekdays)
    planned = lake.read("campaigns").filter(pl.col("night").is_not_null())
    over = planned.filter(pl.col("night").is_in(nights)).with_columns(is_second=_is_second())
    for of_slot in over.partition_by("night", "is_second", maintain_order=True):
        _close(lake, of_slot.get_column("campaign_id").to_list())
    judged = [one for one in planned.get_column("campaign_id") if _has(lake, one, JUDGING)]
    seen = planned.with_columns(is_judged=pl.col("campaign_id").is_in(judged))
    events = missing_events(benchmarks, seen, lake.read("alerts"), nights)
    for of_alert in events.partition_by("alert", "night", maintain_order=True):
        alert, night = of_alert.row(0, named=True)["alert"], of_alert.item(0, "night")
        identifier = f"{alert}-{night:%Y%m%d}"
        lake.publish(identifier, _MISSING, {"alerts": of_alert}, scope="campaign")
    return {"alerts": events}


def due_confirmations(lake: TraceLake) -> list[Confirmation]:
    """List findings that await a second time slot, earliest first.

    Findings that already have a planned confirming campaign are left out, as are those that a second slot left
    undecided: they wait for another night.
    """
    planned = lake.read("campaigns").filter(pl.col("confirms").is_not_null())
    seconds = {*planned.get_column("campaign_id"), *planned.get_column("confirms")}
    waiting = alerts(lake.read("alerts")).filter(
        ~pl.col("is_gap")
        & ((pl.col("state") == SUSPECTED) | pl.col("is_recovering"))
        & ~pl.col("last_campaign").is_in(seconds)
    )
    found = [
        Confirmation(
            campaign=row["last_campaign"],
            workload=row["workload"],
            backend=row["backend"],
            night=row["last_night"],
            not_before=row["last_at"] + BETWEEN_SLOTS,
            blocks=CONFIRMING_BLOCKS,
        )
        for row in waiting.iter_rows(named=True)
    ]
    return sorted(found, key=lambda one: one.not_before)


def _has(lake: TraceLake, campaign: str, stage: str) -> bool:
    return bool(lake.manifest(campaign, "campaign").of_stage(stage))


def _is_second() -> pl.Expr:
    return pl.col("confirms").is_not_null()


def _slot_of(lake: TraceLake, campaign: str) -> list[str]:
    """List all campaigns of the same time slot; empty if the campaign belongs to no night."""
    planned = lake.read("campaigns")
    own = planned.filter(pl.col("campaign_id") == campaign)
    if own.is_empty() or own.item(0, "night") is None:
        return []
    is_second = own.item(0, "confirms") is not None
    slot = planned.filter((pl.col("night") == own.item(0, "night")) & (_is_second() == is_second))
    return slot.get_column("campaign_id").sort().to_list()


def _found(lake: TraceLake, alert: str) -> dict[str, Any]:
    """Find the single open alert with this name or unique part of a name."""
    known = alerts(lake.read("alerts"))
    named = known.filter((pl.col("alert") == alert) | pl.col("alert").str.contains(alert, literal=True))
    exact = named.filter(pl.col("alert") == alert)
    named = exact if exact.height else named
    if named.height != 1:
        how_many = f"{named.height} alerts are named like it" if named.height else "there is no such alert"
        raise UsageError(f"alert {alert!r}: {how_many} in {lake.path}; `aaco alerts` lists them")
    row = named.row(0, named=True)
    if not row["is_open"]:
        raise UsageError(f"alert {row['alert']} is over: it was {row['state']}")
    return row


def _close(lake: TraceLake, slot: list[str]) -> None:
    """Publish events for a time slot's judged campaigns that have none yet."""
    judged = [one for one in slot if _has(lake, one, JUDGING)]
    left = [one for one in judged if not _has(lake, one, STAGE)]
    if not left:
        return
    verdicts = _after_the_table(primary_verdicts(lake, judged), lake)
    for campaign in left:
        of_campaign = verdicts.filter(pl.col("campaign_id") == campaign)
        events = _events(lake, of_campaign) if of_campaign.height else empty_table("alerts")
        lake.publish(campaign, STAGE, {"alerts": events}, scope="campaign")


def _after_the_table(verdicts: pl.DataFrame, lake: TraceLake) -> pl.DataFrame:
    """Correct verdicts for false discoveries; second slots of suspicions and of recoveries are separate families."""
    # Some events of this slot may already be published: only events known before it count.
    of_slot = pl.col("campaign").is_in(verdicts.get_column("campaign_id").implode()).fill_null(False)
    standing = alerts(lake.read("alerts").filter(~of_slot))
    suspected = standing.filter(pl.col("state") == SUSPECTED).get_column("last_campaign")
    planned = lake.read("campaigns").select("campaign_id", "confirms")
    families = verdicts.join(planned, on="campaign_id", how="left", maintain_order="left").with_columns(
        family=pl.col("confirms").is_in(suspected.implode())
    )
    kept = families.partition_by("family", maintain_order=True)
    return pl.concat([false_discoveries(one.drop("confirms", "family")) for one in kept]) if kept else verdicts


def _events(lake: TraceLake, verdict: pl.DataFrame) -> pl.DataFrame:
    """Derive a campaign's events from its verdict and its benchmark's earlier events."""
    events = lake.read("alerts").drop("campaign_id")
    row, now = verdict.row(0, named=True), sightings(lake, verdict)
    own = {name: now.item(0, name) for name in ("workload", "backend")}
    mine = [pl.col(name) == value for name, value in own.items()]
    standing = alerts(events).filter("is_open", ~pl.col("is_gap"), *mine)
    suspected = standing.filter(pl.col("state") == SUSPECTED).get_column("began_campaign")
    named = {*standing.get_column("began_campaign"), *standing.get_column("last_campaign")}
    before = lake.read("campaigns").filter(
        pl.col("night").is_not_null(), pl.col("planned_at") < read_plan(lake, row["campaign_id"]).planned_at, *mine
    )
    named |= {*before.sort("planned_at").get_column("campaign_id").tail(1)}
    earlier = sightings(lake, primary_verdicts(lake, named - {row["campaign_id"]}))
    if suspected.len():
        now = sightings(lake, verdict, of_both_slots(lake, suspected[0], row))
    return night_events(now, events, earlier)
