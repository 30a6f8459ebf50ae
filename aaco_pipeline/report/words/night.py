"""A night in words: its sentence, the columns of its table, and what to do next for each benchmark."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from aaco_pipeline.report.words.units import counted

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Any], str | None]]


def headline(document: Row) -> str:
    """How much of the night is done, and what of it alerts."""
    rows = document["benchmarks"]
    if not rows:
        return f"Night of {document['night']}: nothing was planned."
    judged = sum(row["verdict"] is not None for row in rows)
    states = [row["alert"]["state"] for row in rows if row["alert"] is not None]
    named = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    alerting = f"; {', '.join(named)}" if named else "; no alert"
    return f"Night of {document['night']}: {judged} of {counted(len(rows), 'benchmark')} judged{alerting}."


def name(row: Row) -> str:
    """What a benchmark is called."""
    return f"{row['workload']} on {row['backend']}"


def next_step(row: Row) -> str | None:
    """What to do about a benchmark; None when nothing follows."""
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
        return "there was no baseline: held against itself, and from the next night on that is the baseline"
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
    """How many times as long it takes, with the interval where there is one."""
    if row["effect_ratio"] is None:
        return None
    interval = "" if row["ci_low"] is None else f" ({row['ci_low']:.3f}…{row['ci_high']:.3f})"
    return f"{row['effect_ratio']:.3f}{interval}"


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else "> 100 %" if ratio > 1 else f"{100 * ratio:.2g} %"


#: What alerts is said beneath the table, with what to do about it.
COLUMNS: Final[Columns] = {
    "benchmark": lambda row: f"{row['workload']}:{row['backend']}",
    "verdict": lambda row: row["verdict"],
    "*ratio (95 %)": _effect,
    "*matters": lambda row: _percent(row["threshold_ratio"]),
    "*detectable": lambda row: _percent(row["minimum_detectable_ratio"]),
}
