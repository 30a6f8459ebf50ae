"""Export a verdict or a difference for other programs: JUnit, Bencher and github-action-benchmark.

Also lists all output formats. `report.terminal` prints tables on a terminal.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from xml.etree import ElementTree

from aaco_pipeline.report.comparing import difference, verdict
from aaco_pipeline.report.formatting import in_lines, printable
from aaco_pipeline.report.markdown import render_view
from aaco_pipeline.report.view import View

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A measured figure with its unit, and its interval if known."""

    name: str
    unit: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Outcome:
    """Result of a comparison. `state` is `failed` only for a regression, and `skipped` if undecided; `lines` explain
    it.

    `name` is the same for every comparison of a benchmark, so that services can track it over time.
    """

    name: str
    case: str
    state: Literal["passed", "failed", "skipped"]
    sentence: str
    lines: tuple[str, ...]
    figures: tuple[Figure, ...]


def of_verdict(document: Document) -> Outcome:
    """Convert a campaign's verdict: the primary metric determines the state; all metrics provide figures."""
    primary = document["verdicts"][0]
    decided = document["verdict"] in ("improved", "equivalent")
    more = (verdict.placebo(document), *verdict.reasons(document), *verdict.kept(document), *verdict.selected(document))
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
    """Convert a difference between two sessions: never judged, with the candidate's latency."""
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
    """Convert a difference between a session and a baseline file: never judged."""
    candidate = document["candidate"]
    return Outcome(
        str(candidate["model_name"] or candidate["session_id"]),
        "latency_p50",
        "skipped",
        difference.stored_sentence(document),
        (*difference.stored_lines(document), difference.stored_next_step(document)),
        tuple(
            Figure(row["metric"], "ns", row["candidate_ns"])
            for row in document["metrics"]
            if row["candidate_ns"] is not None
        ),
    )


def _level(document: Document, arm: str) -> float | None:
    """Return the geometric mean over the arm's valid sessions; None if there are none."""
    own = [one for one in document["sessions"] if one["arm"] == arm and not one["is_excluded"]]
    logs = [math.log(one["value_ns"]) for one in own if one["value_ns"] is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def render_junit(outcome: Outcome) -> str:
    """Render one suite with one case, for the primary metric."""
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
    """Render one benchmark with a measure per figure; interval limits only if known."""
    measures = {figure.name: _metric(figure) for figure in outcome.figures}
    return json.dumps({outcome.name: measures} if measures else {}, indent=2) + "\n"


def render_github_action_benchmark(outcome: Outcome) -> str:
    """Render one entry per figure; smaller is better."""
    return json.dumps([_entry(outcome, figure) for figure in outcome.figures], indent=2, ensure_ascii=False) + "\n"


def _metric(figure: Figure) -> dict[str, float]:
    ends = {"lower_value": figure.low, "upper_value": figure.high}
    return {"value": figure.value, **{name: end for name, end in ends.items() if end is not None}}


def _entry(outcome: Outcome, figure: Figure) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": f"{outcome.name}: {figure.name}", "unit": figure.unit, "value": figure.value}
    if figure.low is not None and figure.high is not None:
        entry["range"] = f"{figure.low:.4f} … {figure.high:.4f}"
    return {**entry, "extra": "\n".join((outcome.sentence, *outcome.lines))}


Kind = Literal["verdict", "difference", "stored difference"]
VIEWS: Final[Mapping[Kind, Callable[[Document], View]]] = {
    "verdict": verdict.verdict_view,
    "difference": difference.difference_view,
    "stored difference": difference.stored_difference_view,
}
_OUTCOMES: Final[Mapping[Kind, Callable[[Document], Outcome]]] = {
    "verdict": of_verdict,
    "difference": of_difference,
    "stored difference": of_stored_difference,
}
_FOR_PROGRAMS: Final[Mapping[str, Callable[[Outcome], str]]] = {
    "junit": render_junit,
    "bencher": render_bencher,
    "github-action-benchmark": render_github_action_benchmark,
}


def forms(kind: Kind) -> list[str]:
    """Return the formats for this kind of document; a page requires sessions."""
    return ["markdown", *([] if kind == "stored difference" else ["html"]), *_FOR_PROGRAMS]


def rendered(document: Document, kind: Kind, form: str) -> str:
    """Render the document in one of the `forms` of its kind."""
    if form == "markdown":
        return render_view(VIEWS[kind](document))
    if form == "html":
        from aaco_pipeline.report.comparing import page  # templates are only loaded for a page

        return page.render_verdict(document) if kind == "verdict" else page.render_difference(document)
    return _FOR_PROGRAMS[form](_OUTCOMES[kind](document))
