"""Alerts in words: where one stands in a sentence, why, and what to do next."""

from collections.abc import Mapping
from typing import Any

from aaco_pipeline.report.words.units import capital

Row = Mapping[str, Any]


def sentence(alert: Row) -> str:
    """Where an alert stands: `resnet50 on migraphx: confirmed on two boots, 1.045 times (1.031 … 1.059) as long …`.

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
    return f"{told} (since {_day(alert)})."


def why(alert: Row) -> str:
    """The reason for its state."""
    return f"{capital(alert['reasons'][0])}." if alert["reasons"] else "No reason was given."


def next_step(alert: Row) -> str | None:
    """What to do next; None for an alert that is over, or that a person knows of."""
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
    """What alerts: `resnet50 on migraphx`, with the class of hosts where it is known."""
    host = f", {alert['host']}" if alert["host"] else ""
    return f"{alert['workload']} on {alert['backend']}{host}"


def effect(alert: Row) -> str | None:
    """`1.045 times (1.031 … 1.059)`; None without an effect."""
    if alert["effect_ratio"] is None:
        return None
    limits = "" if alert["ci_low"] is None else f" ({alert['ci_low']:.3f} … {alert['ci_high']:.3f})"
    return f"{alert['effect_ratio']:.3f} times{limits}"


def _day(alert: Row) -> str:
    return f"{alert['began_night'] or alert['began_at'].date()}"
