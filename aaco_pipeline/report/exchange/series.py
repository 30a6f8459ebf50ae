"""The figures of a comparison for services that keep a series of them: Bencher and github-action-benchmark.

Bencher Metric Format: https://bencher.dev/docs/reference/bencher-metric-format; github-action-benchmark's
`customSmallerIsBetter`: https://github.com/benchmark-action/github-action-benchmark. Ratios to the baseline that ran in
the same blocks are what compares from one run to the next; a latency alone is that of one host on one day.
"""

import json
from typing import Any

from aaco_pipeline.report.exchange.outcome import Figure, Outcome


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
