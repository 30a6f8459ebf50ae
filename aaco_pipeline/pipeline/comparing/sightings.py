"""What the lake knows of a campaign of a night, as one row for the alerts.

Whether it alerts is `aaco_pipeline.statistics.alerts`.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

import polars as pl

from aaco_pipeline.capture.request import Arm
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import is_identical, shared_facts, timed_sessions
from aaco_pipeline.pipeline.comparing.measuring import members
from aaco_pipeline.pipeline.comparing.plan import Plan, read_plan
from aaco_pipeline.report.words.causes import selection_in_words
from aaco_pipeline.statistics.alerts.night import SIGHTINGS
from aaco_pipeline.statistics.alerts.slots import both_slots
from aaco_pipeline.statistics.verdicts import comparison

_BASELINE: Final = "baseline"
CANDIDATE: Final[Arm] = "candidate"
_PLACEBO: Final = "placebo"
#: What a request says of what is measured and not of how, or of its place in the campaign.
_NO_METHOD: Final = ("model", "artefact", "campaign_id", "arm", "block", "untraced")
#: Software that measures, by category and key of `environment`.
_HARNESS: Final = (("python", "version"), ("package", "aaco_pipeline"))


def primary_verdicts(lake: TraceLake, campaigns: Iterable[str]) -> pl.DataFrame:
    """The primary rows of `verdicts` on the candidates of these campaigns; none for one without."""
    rows = lake.read("verdicts", sorted(campaigns))
    return rows.filter((pl.col("role") == "primary") & (pl.col("candidate") == CANDIDATE))


def sightings(lake: TraceLake, verdicts: pl.DataFrame, both: pl.DataFrame | None = None) -> pl.DataFrame:
    """Rows of `night.SIGHTINGS` of the campaigns whose primary verdicts these are, in their order.

    `both` are the figures of both time slots by campaign_id, where a campaign is a second one.
    """
    rows = [_sighting(lake, verdict) for verdict in verdicts.iter_rows(named=True)]
    found = pl.DataFrame(rows, schema=SIGHTINGS)
    if both is None:
        return found
    figures = [name for name in both.columns if name != "campaign_id"]
    return found.drop(figures).join(both, on="campaign_id", how="left", maintain_order="left").select(*SIGHTINGS)


def of_both_slots(lake: TraceLake, first: str, verdict: dict[str, Any]) -> pl.DataFrame:
    """The figures over the blocks of campaign `first` and of the one that has this verdict."""
    second = verdict["campaign_id"]
    plan = comparison.Plan(_BASELINE, CANDIDATE, (1,), primary=verdict["metric"])
    before = timed_sessions(lake, first).with_columns(campaign_id=pl.lit(second))
    ledger = lake.read("aa_ledger").filter(~pl.col("campaign_id").is_in([first, second]))
    return both_slots(before, timed_sessions(lake, second), plan, verdict["threshold_ratio"], ledger)


def _sighting(lake: TraceLake, verdict: dict[str, Any]) -> dict[str, Any]:
    campaign = verdict["campaign_id"]
    planned, plan = lake.read("campaigns", campaign).row(0, named=True), read_plan(lake, campaign)
    timed = members(lake, campaign).filter((pl.col("state") == "finished") & (pl.col("purpose") == "latency"))
    # Sessions of an old campaign may have been removed since.
    timed = timed.filter(pl.col("session_id").is_in(lake.sessions()))
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
    """The different values; None where one was not recorded."""
    return None if values.is_empty() or values.null_count() else values.unique().sort().to_list()


def _class_of(lake: TraceLake, sessions: list[str]) -> str | None:
    """The names of the devices that these sessions saw; None where one has none."""
    products = _known(lake.read("devices", sessions).get_column("product"))
    return ", ".join(products) if products else None


def _slow_arms(lake: TraceLake, timed: pl.DataFrame, campaign: str) -> list[str]:
    """Arms with sessions that ran slower throughout, by the campaign's verdicts."""
    slow = lake.read("verdicts", campaign).get_column("slow_sessions").explode().drop_nulls().unique()
    of_slow = timed.filter(pl.col("session_id").is_in(slow.implode()))
    return of_slow.get_column("arm").unique().sort().to_list()


def _selections(lake: TraceLake, campaign: str) -> pl.DataFrame:
    return lake.read("selections", campaign).filter(pl.col("candidate") == CANDIDATE).sort("rank")


def _method(lake: TraceLake, plan: Plan, planned: dict[str, Any], timed: pl.DataFrame) -> list[list[str]]:
    """How it was measured, as pairs of a key and its value: what the plan says, and what measured the baseline."""
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
