"""What every form for other programs says of a verdict or a difference: passed or not, why, and the figures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aaco_pipeline.report.words import difference, stored_difference, verdicts

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """One measured figure with its unit, and the interval where one is known."""

    name: str
    unit: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Outcome:
    """`state` is `failed` for a regression alone, and `skipped` where nothing was decided; `lines` say why.

    `name` stays the same from one comparison of a benchmark to the next, so that services can keep a series of it.
    """

    name: str
    case: str
    state: Literal["passed", "failed", "skipped"]
    sentence: str
    lines: tuple[str, ...]
    figures: tuple[Figure, ...]


def of_verdict(document: Document) -> Outcome:
    """The outcome of a campaign: the metric that decides says whether it failed; figures are of all metrics."""
    primary = document["verdicts"][0]
    decided = document["verdict"] in ("improved", "equivalent")
    more = (
        verdicts.placebo(document),
        *verdicts.reasons(document),
        *verdicts.kept(document),
        *verdicts.selected(document),
    )
    figures = [
        Figure(f"{row['metric']}_ratio", "x baseline", row["effect_ratio"], row["ci_low"], row["ci_high"])
        for row in document["verdicts"]
        if row["effect_ratio"] is not None and row["verdict"] != "withheld"
    ]
    if (level := _level(document, primary["candidate"])) is not None:
        figures.append(Figure(primary["metric"], "ns", level))
    return Outcome(
        f"{document['workload']} on {document['backend']}",
        primary["metric"],
        "failed" if document["regression"] else "passed" if decided else "skipped",
        verdicts.sentence(document),
        tuple(line for line in (*more, verdicts.next_step(document)) if line),
        tuple(figures),
    )


def of_difference(document: Document) -> Outcome:
    """The outcome of two sessions beside each other: described and never judged, with the candidate's latency."""
    latency = document["candidate"]["latency_ns"]
    sentence, *rest = difference.verdict(document)
    return Outcome(
        difference.title(document),
        "latency_p50",
        "skipped",
        sentence,
        (*difference.opening(document), *rest, f"Next: {document['recommendation']}."),
        () if latency is None else (Figure("latency_p50", "ns", latency),),
    )


def of_stored_difference(document: Document) -> Outcome:
    """The outcome of a session beside a baseline file: never judged."""
    candidate = document["candidate"]
    return Outcome(
        str(candidate["model_name"] or candidate["session_id"]),
        "latency_p50",
        "skipped",
        stored_difference.sentence(document),
        (*stored_difference.lines(document), stored_difference.next_step(document)),
        tuple(
            Figure(row["metric"], "ns", row["candidate_ns"])
            for row in document["metrics"]
            if row["candidate_ns"] is not None
        ),
    )


# ---- inside ----------------------------------------------------------------------------------------------------------


def _level(document: Document, arm: str) -> float | None:
    """Geometric mean over the arm's sessions that count; None without one."""
    own = [one for one in document["sessions"] if one["arm"] == arm and not one["is_excluded"]]
    logs = [math.log(one["value_ns"]) for one in own if one["value_ns"] is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None
