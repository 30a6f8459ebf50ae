"""A benchmark's history in sentences: what changed since when and whose it is, where the level is going."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from aaco_pipeline.report.words.units import counted, duration

Row = Mapping[str, Any]

_UNCHANGED: Final = "unchanged code of the same nights"
#: Days that a raw and a paired change may lie apart to be told as one.
_SAME_DAYS: Final = 7


def changes_in_words(changes: list[Row]) -> list[str]:
    """A sentence for each change of an arm, the latest first.

    `changes` are rows of `change_points` of one benchmark. A change of the paired series that the raw one shows too is
    told once, as the raw one.
    """
    told = [row for row in changes if row["of"] == "raw" or not _shown_raw(row, changes)]
    return [change_in_words(row) for row in sorted(told, key=lambda row: row["started_at"], reverse=True)]


def change_in_words(row: Row) -> str:
    """One row of `change_points` in a sentence: since when, by how much, and whose it is."""
    when = night(row["started_at"])
    whom = f"{row['workload']} ({row['arm']}, {_metric(row['metric'])})"
    many = _difference(row)
    if row["kind"] == "drift":
        began = f"From the night of {when} on, within {counted(row['nights_after'] + 1, 'night')}, {whom}"
        what = f"{began} drifted to {many}"
    else:
        what = f"Since the night of {when} {whom} takes {many}"
    against = f" than {_UNCHANGED}" if row["of"] == "paired" else ""
    return f"{what}{against}{_owed(row)}."


def forecast_in_words(row: Row) -> str:
    """One row of `forecasts` in a sentence."""
    whom = f"{_metric(row['metric'])} of {row['workload']} ({row['arm']})"
    if row["state"] == "foretold":
        latest = row["nights_to_limit_high"]
        until = f"{row['nights_to_limit_low']} {'or more' if latest is None else f'to {latest}'}"
        return (
            f"The {whom} reaches its limit of {duration(row['limit_ns'])} in about "
            f"{counted(row['nights_to_limit'], 'night')} [{until}] if it goes on as it does: {row['reason']}."
        )
    if row["state"] == "reached":
        return f"The {whom} is at {duration(row['level_ns'])}, its limit of {duration(row['limit_ns'])} or beyond."
    return f"Nothing is foretold of the {whom}: {row['state']}, {row['reason']}."


def night(at: datetime) -> str:
    """A night's date as it is said: `12 March 2026`."""
    return f"{at.day} {at:%B %Y}"


# ---- inside ----------------------------------------------------------------------------------------------------------


def _difference(row: Row) -> str:
    """How much longer or shorter, with its interval: `4.8 % [3.9, 5.7] longer`."""
    effect = row["effect_ratio"]
    if effect is None:
        return "another time"
    shares = [100 * (part - 1) for part in (effect, row["ci_low"], row["ci_high"]) if part is not None]
    longer = effect > 1
    signed = [share if longer else -share for share in shares]
    interval = f" [{min(signed[1:]):.1f}, {max(signed[1:]):.1f}]" if len(signed) == 3 else ""
    return f"{signed[0]:.1f} %{interval} {'longer' if longer else 'shorter'}"


def _owed(row: Row) -> str:
    if row["of"] == "paired":
        return ": the code did"
    if row["owed_to"] == "code":
        return "; what ran beside it unchanged in the same nights did not move with it: the code did"
    if row["owed_to"] == "host":
        return "; what ran beside it unchanged in the same nights moved as much: the host did"
    return "; whether code or host did it cannot be told: nothing unchanged ran beside it, or too few nights of it"


def _metric(metric: str) -> str:
    return metric.replace("latency_p50", "median").replace("latency_", "").replace("_", " ")


def _shown_raw(row: Row, changes: list[Row]) -> bool:
    """Whether a paired change is told by a raw one of the same arm that is the code's."""
    series = ("workload", "backend", "host", "metric", "arm")
    return any(
        other["of"] == "raw"
        and other["owed_to"] == "code"
        and all(other[name] == row[name] for name in series)
        and (other["effect_ratio"] > 1) == (row["effect_ratio"] > 1)
        and abs((other["started_at"] - row["started_at"]).days) <= _SAME_DAYS
        for other in changes
    )
