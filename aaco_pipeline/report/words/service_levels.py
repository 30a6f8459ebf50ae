"""Whether an arm keeps to a limit, in a sentence: from rows of `service_levels`."""

from collections.abc import Mapping
from typing import Any

from aaco_pipeline.report.words.units import counted, duration, number

Row = Mapping[str, Any]


def service_level(row: Row) -> str:
    """One row in one sentence: what the quantile is at most or at least, and how much of the budget is spent."""
    quantile, limit = row["metric"].removeprefix("latency_").upper(), duration(row["limit_ns"])
    whose = row["workload"] if row["arm"] == "candidate" else f"{row['workload']} ({row['arm']})"
    sessions = counted(row["sessions"], "session")
    low, high = duration(row["ci_low_ns"]), duration(row["ci_high_ns"])
    said = {
        "ok": f"{quantile} of {whose} keeps to {limit}: at most {high} (95 %, {sessions})",
        "at_risk": f"{quantile} of {whose} may not keep to {limit}: {low} to {high} (95 %, {sessions})",
        "breached": f"{quantile} of {whose} does not keep to {limit}: {low} to {high} (95 %, {sessions})",
        "not_enough_data": f"It is not known whether {quantile} of {whose} keeps to {limit}: {_lacking(row)}",
    }[row["state"]]
    return f"{said}{_budget(row)}."


def short(row: Row) -> str:
    """One row for a cell of a table: `P99 at most 18.7 ms of 20 ms: ok`."""
    quantile, state = row["metric"].removeprefix("latency_").upper(), row["state"].replace("_", " ")
    if row["ci_high_ns"] is None:
        return f"{quantile} of {duration(row['limit_ns'])}: {state}"
    return f"{quantile} at most {duration(row['ci_high_ns'])} of {duration(row['limit_ns'])}: {state}"


def _lacking(row: Row) -> str:
    """What a state would take that is not there."""
    quantile = row["metric"].removeprefix("latency_").upper()
    if row["ci_high_ns"] is None:
        return f"{counted(row['sessions'], 'session')} had iterations enough for a {quantile}, and it takes five"
    return f"{counted(row['iterations'], 'iteration')} cannot show so small a share"


def _budget(row: Row) -> str:
    if row["over_limit_ratio"] is None:
        return ""
    over, may = (f"{number(100 * row[name])} %" for name in ("over_limit_ratio", "budget_ratio"))
    low, high = (number(100 * row[f"over_limit_{end}_ratio"]) for end in ("low", "high"))
    return f"; {over} of the iterations took longer ({low} … {high} %), and {may} may"
