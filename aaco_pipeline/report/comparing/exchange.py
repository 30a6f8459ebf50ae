"""Write a verdict or a difference for other programs: JUnit, Bencher and github-action-benchmark.

The table of all output formats is here, too; tables on a terminal are `report.terminal`'s.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from xml.etree import ElementTree

from aaco_pipeline.report.comparing import difference, verdict
from aaco_pipeline.report.formatting import in_lines, printable
from aaco_pipeline.report.markdown import render_difference, render_stored_difference, render_verdict

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
        verdict.placebo(document),
        *verdict.reasons(document),
        *verdict.kept(document),
        *verdict.selected(document),
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
        verdict.sentence(document),
        tuple(line for line in (*more, verdict.next_step(document)) if line),
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
        difference.sentence(document),
        (*difference.lines(document), difference.next_step(document)),
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


def render_junit(outcome: Outcome) -> str:
    """One suite with one case: the metric that decides."""
    name = printable(outcome.name)
    counts = {"tests": "1", "errors": "0"}
    counts |= {"failures": str(int(outcome.state == "failed")), "skipped": str(int(outcome.state == "skipped"))}
    root = ElementTree.Element("testsuites", {"name": "aaco", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, **counts})
    case = ElementTree.SubElement(suite, "testcase", classname=name, name=outcome.case)
    message = printable(outcome.sentence)
    lines = in_lines("\n".join(outcome.lines))
    if outcome.state == "failed":
        ElementTree.SubElement(case, "failure", message=message, type="regression").text = lines
    elif outcome.state == "skipped":
        ElementTree.SubElement(case, "skipped", message=message).text = lines
    else:
        ElementTree.SubElement(case, "system-out").text = f"{message}\n{lines}"
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def render_bencher(outcome: Outcome) -> str:
    """One benchmark with a measure for each figure; ends of intervals only where they are known."""
    measures = {figure.name: _metric(figure) for figure in outcome.figures}
    return json.dumps({outcome.name: measures} if measures else {}, indent=2) + "\n"


def render_github_action_benchmark(outcome: Outcome) -> str:
    """One entry a figure, the smaller the better."""
    return json.dumps([_entry(outcome, figure) for figure in outcome.figures], indent=2, ensure_ascii=False) + "\n"


# ---- inside ----------------------------------------------------------------------------------------------------------


def _metric(figure: Figure) -> dict[str, float]:
    ends = {"lower_value": figure.low, "upper_value": figure.high}
    return {"value": figure.value, **{name: end for name, end in ends.items() if end is not None}}


def _entry(outcome: Outcome, figure: Figure) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": f"{outcome.name}: {figure.name}", "unit": figure.unit, "value": figure.value}
    if figure.low is not None and figure.high is not None:
        entry["range"] = f"{figure.low:.4f} … {figure.high:.4f}"
    return {**entry, "extra": "\n".join((outcome.sentence, *outcome.lines))}


Render = Callable[[dict[str, Any]], str]


def _verdict_page(document: dict[str, Any]) -> str:
    from aaco_pipeline.report.comparing import page  # templates are only loaded for a page

    return page.render_verdict(document)


def _difference_page(document: dict[str, Any]) -> str:
    from aaco_pipeline.report.comparing import page

    return page.render_difference(document)


VERDICT: Final[Mapping[str, Render]] = {
    "markdown": render_verdict,
    "html": _verdict_page,
    "junit": lambda document: render_junit(of_verdict(document)),
    "bencher": lambda document: render_bencher(of_verdict(document)),
    "github-action-benchmark": lambda document: render_github_action_benchmark(of_verdict(document)),
}
#: Without sessions there is nothing to draw, and so no page.
STORED_DIFFERENCE: Final[Mapping[str, Render]] = {
    "markdown": render_stored_difference,
    "junit": lambda document: render_junit(of_stored_difference(document)),
    "bencher": lambda document: render_bencher(of_stored_difference(document)),
    "github-action-benchmark": lambda document: render_github_action_benchmark(of_stored_difference(document)),
}
DIFFERENCE: Final[Mapping[str, Render]] = {
    "markdown": render_difference,
    "html": _difference_page,
    "junit": lambda document: render_junit(of_difference(document)),
    "bencher": lambda document: render_bencher(of_difference(document)),
    "github-action-benchmark": lambda document: render_github_action_benchmark(of_difference(document)),
}
