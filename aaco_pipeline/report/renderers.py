"""The one table of forms in which a verdict and a difference are written, each from its document.

A table for people is `aaco_pipeline.report.terminal`'s, which knows how wide the screen is.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from aaco_pipeline.report.exchange.junit import render_junit
from aaco_pipeline.report.exchange.outcome import of_difference, of_stored_difference, of_verdict
from aaco_pipeline.report.exchange.series import render_bencher, render_github_action_benchmark
from aaco_pipeline.report.markdown import render_difference, render_stored_difference, render_verdict

Render = Callable[[dict[str, Any]], str]


def _verdict_page(document: dict[str, Any]) -> str:
    from aaco_pipeline.report.html.comparison import page  # templates are only loaded for a page

    return page.render_verdict(document)


def _difference_page(document: dict[str, Any]) -> str:
    from aaco_pipeline.report.html.comparison import page

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
