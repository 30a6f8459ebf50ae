"""Show nights and their alerts: each benchmark's verdict, open alerts, and next steps.

`aaco_pipeline.statistics.alerts` decides which events raise an alert.
"""

from collections.abc import Collection, Mapping
from datetime import date, datetime
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.comparing.verdict import service_level
from aaco_pipeline.report.formatting import capital, counted
from aaco_pipeline.report.view import Columns, Part, Sentence, Table, View, sentences
from aaco_pipeline.statistics.alerts.events import ACKNOWLEDGED, CONFIRMED, alerts

Row = Mapping[str, Any]


def sentence(alert: Row) -> str:
    """State an alert: `resnet50 on migraphx: confirmed on two boots, 1.045 times (1.031 … 1.059) as long …`.

    `alert` is a row of `statistics.alerts.events.alerts`.
    """
    state = f"{alert['state']} on {alert['alert_grade']}" if alert["state"] == "confirmed" else alert["state"]
    told = f"{benchmark(alert)}: {state}"
    if alert["is_gap"]:
        told += ", no verdict"
    elif alert["effect_ratio"] is not None:
        told += f", {effect(alert)} as long"
    if alert["who"] is not None:
        told += f", known to {alert['who']}"
    if alert["sorted_as"] not in (None, "real"):
        told += f"; before code is blamed: {alert['sorted_as']}"
    return f"{told} (since {alert['began_night'] or alert['began_at'].date()})."


def why(alert: Row) -> str:
    """Give the reason for its state."""
    return f"{capital(alert['reasons'][0])}." if alert["reasons"] else "No reason was given."


def next_step(alert: Row) -> str | None:
    """Suggest the next step; None for an alert that is closed or acknowledged."""
    if not alert["is_open"]:
        return None
    if alert["is_recovering"]:
        return "Next: its end was seen once; another time slot decides."
    if alert["state"] == "acknowledged":
        return None
    if alert["is_gap"]:
        return "Next: `aaco doctor` says what was left half done; it ends with the next verdict."
    if alert["state"] == "suspected":
        return "Next: nothing is blamed yet; a second time slot decides, half an hour later or the next night."
    campaign = alert["last_campaign"]
    return f"Next: see the causes of {campaign}, then mend it or `aaco alerts acknowledge {alert['alert']} --why TEXT`."


def benchmark(alert: Row) -> str:
    """Name the benchmark: `resnet50 on migraphx`, with the class of hosts if known."""
    host = f", {alert['host']}" if alert["host"] else ""
    return f"{alert['workload']} on {alert['backend']}{host}"


def effect(alert: Row) -> str | None:
    """Format `1.045 times (1.031 … 1.059)`; None without an effect."""
    if alert["effect_ratio"] is None:
        return None
    limits = "" if alert["ci_low"] is None else f" ({alert['ci_low']:.3f} … {alert['ci_high']:.3f})"
    return f"{alert['effect_ratio']:.3f} times{limits}"


Document = dict[str, Any]


def alerts_document(lake: TraceLake) -> Document:
    """Collect `open` and `over` (closed) alerts with their events, each newest first."""
    events = lake.read("alerts").drop("campaign_id").sort("at", descending=True, maintain_order=True)
    told: dict[str, list[Document]] = {"open": [], "over": []}
    for row in alerts(events).sort("last_at", descending=True).iter_rows(named=True):
        own = events.filter(pl.col("alert") == row["alert"]).to_dicts()
        words = {"in_words": sentence(row), "why": why(row), "next": next_step(row)}
        told["open" if row["is_open"] else "over"].append({**row, **words, "events": own})
    return told


def headline(document: Row) -> str:
    """State the progress of the night, and the number of benchmarks with alerts."""
    rows = document["benchmarks"]
    if not rows:
        return f"Night of {document['night']}: nothing was planned."
    judged = sum(row["verdict"] is not None for row in rows)
    states = [row["alert"]["state"] for row in rows if row["alert"] is not None]
    named = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    alerting = f"; {', '.join(named)}" if named else "; no alert"
    return f"Night of {document['night']}: {judged} of {counted(len(rows), 'benchmark')} judged{alerting}."


def name(row: Row) -> str:
    """Return a benchmark's name."""
    return f"{row['workload']} on {row['backend']}"


def advice_on(row: Row) -> str | None:
    """Suggest the next step for a benchmark; None if there is none."""
    alert, confirm_at = row["alert"], row["confirm_at"]
    if row["verdict"] is None:
        return "not judged yet; `aaco nightly` goes on with it tonight"
    if alert is not None and confirm_at is not None:
        what = "its end" if alert["is_recovering"] else "it"
        return f"{alert['state']}; `aaco nightly` after {confirm_at[11:16]} UTC confirms {what}"
    if alert is not None:
        return _of_alert(alert)
    if row["verdict"] == "regressed":
        return "regressed, but among so many comparisons of one night that is no rarity: no alert"
    if row["against"]["kind"] == "itself":
        return "there was no baseline: compared with itself, and from the next night on that is the baseline"
    return None if row["verdict"] != "inconclusive" or row["recommendation"] is None else row["recommendation"]


def _of_alert(alert: Row) -> str:
    reason = f": {alert['reasons'][0]}" if alert["reasons"] else ""
    if alert["state"] == "confirmed":
        return (
            f"confirmed ({alert['alert_grade']}); mend it, or `aaco alerts acknowledge {alert['alert']} --why TEXT` "
            "takes it as the new level"
        )
    if alert["state"] == "suspected":
        return f"suspected, and a second look could not decide{reason}; the next night looks again"
    return f"{alert['state']}{reason}"


def _effect(row: Row) -> str | None:
    """Return the ratio to the baseline, with its interval if known."""
    if row["effect_ratio"] is None:
        return None
    interval = "" if row["ci_low"] is None else f" ({row['ci_low']:.3f}…{row['ci_high']:.3f})"
    return f"{row['effect_ratio']:.3f}{interval}"


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else "> 100 %" if ratio > 1 else f"{100 * ratio:.2g} %"


#: Alerts are listed below the table, with next steps.
COLUMNS: Final[Columns] = {
    "benchmark": lambda row: f"{row['workload']}:{row['backend']}",
    "verdict": lambda row: row["verdict"],
    "*ratio (95 %)": _effect,
    "*matters": lambda row: _percent(row["threshold_ratio"]),
    "*detectable": lambda row: _percent(row["minimum_detectable_ratio"]),
}


#: Columns of a verdict that are shown.
_FIGURES = ("effect_ratio", "ci_low", "ci_high", "threshold_ratio", "minimum_detectable_ratio", "blocks")
_OF_AN_ALERT = (
    *("alert", "state", "is_recovering", "sorted_as", "alert_grade"),
    *("effect_ratio", "ci_low", "ci_high", "reasons"),
)


def night_document(
    lake: TraceLake, night: date, confirm_at: Mapping[str, datetime], only: Collection[tuple[str, str]] | None = None
) -> Document:
    """Collect the night's results so far, one entry per benchmark, sorted by name.

    `confirm_at` is the earliest time at which a campaign's finding can be confirmed; `only` names workloads and
    backends.
    """
    planned = lake.read("campaigns").filter(pl.col("night") == night).sort("workload", "backend", "planned_at")
    firsts = [row for row in planned.filter(pl.col("confirms").is_null()).to_dicts() if _is_wanted(row, only)]
    seconds = {row["confirms"]: row["campaign_id"] for row in planned.drop_nulls("confirms").to_dicts()}
    events = lake.read("alerts").drop("campaign_id")
    standing = alerts(events).to_dicts()
    told = [_benchmark(lake, row, seconds.get(row["campaign_id"]), standing) for row in firsts]
    for one in told:
        at = confirm_at.get(one["campaign_id"])
        one["confirm_at"] = None if at is None else at.isoformat(timespec="minutes")
    return {
        "night": night.isoformat(),
        "regression": any(one["alert"] is not None and one["alert"]["state"] == CONFIRMED for one in told),
        "benchmarks": told,
    }


def _is_wanted(row: Document, only: Collection[tuple[str, str]] | None) -> bool:
    return only is None or (row["workload"], row["backend"]) in only


def _benchmark(lake: TraceLake, planned: Document, second: str | None, standing: list[Document]) -> Document:
    campaign = planned["campaign_id"]
    primary = (pl.col("role") == "primary") & (pl.col("candidate") == "candidate")
    rows = lake.read("verdicts", campaign).filter(primary).to_dicts()
    row = rows[0] if rows else {}
    return {
        "workload": planned["workload"],
        "backend": planned["backend"],
        "campaign_id": campaign,
        "confirmed_by": second,
        "against": _against(lake, campaign),
        "metric": planned["metric"],
        "verdict": row.get("verdict"),
        **{name: row.get(name) for name in _FIGURES},
        "recommendation": row.get("recommendation"),
        "suspected_cause": row.get("suspected_cause"),
        "alert": _alert(planned, standing),
        "service_levels": _service_levels(lake, campaign),
    }


def _against(lake: TraceLake, campaign: str) -> Document:
    """Return the candidate's baseline: one from the lake, or the candidate itself if there is none yet."""
    arms = {row["arm"]: row for row in lake.read("campaign_arms", campaign).to_dicts()}
    identifier = arms["baseline"]["baseline"]
    rows = [] if identifier is None else lake.read("baselines", identifier).to_dicts()
    is_the_same = arms["baseline"]["artefact_sha256"] == arms["candidate"]["artefact_sha256"]
    since = rows[0]["since"].isoformat(timespec="seconds") if rows else None
    kind = rows[0]["kind"] if rows else "itself"
    return {"kind": kind, "baseline": identifier, "since": since, "is_the_same_file": is_the_same}


def _alert(planned: Document, standing: list[Document]) -> Document | None:
    """Return the benchmark's alert for that night: an open one, else the last one closed that night."""
    own = [
        row
        for row in standing
        if (row["workload"], row["backend"]) == (planned["workload"], planned["backend"])
        and (row["is_open"] or row["last_night"] == planned["night"])
    ]
    if not own:
        return None
    order = (CONFIRMED, "suspected", ACKNOWLEDGED)
    first = min(own, key=lambda row: order.index(row["state"]) if row["state"] in order else len(order))
    return {name: first[name] for name in _OF_AN_ALERT}


def _service_levels(lake: TraceLake, campaign: str) -> list[Document]:
    rows = lake.read("service_levels", campaign).drop("campaign_id").filter(pl.col("arm") == "candidate")
    return [{**row, "in_words": service_level(row)} for row in rows.sort("metric").to_dicts()]


def night_view(document: Document) -> View:
    """Lay out the night: a row per benchmark, then service levels and next steps, one per line."""
    rows = document["benchmarks"]
    parts: list[Part] = [Table(COLUMNS, rows, names=("benchmark",))]
    for row in rows:
        parts += sentences(level["in_words"] for level in row["service_levels"])
        if (advice := advice_on(row)) is not None:
            parts.append(Sentence(f"{name(row)}: {advice}.", "strong"))
    return View("", [Sentence(headline(document), "bad" if document["regression"] else "strong"), *parts])
