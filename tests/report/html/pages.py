"""A page taken apart: what the tests of the page look into."""

import html.parser
import json
from typing import Any, Final

#: The sections of the full session's page: those that have something to show, the answer's first.
SECTIONS: Final = (
    *("where", "history", "latency", "distribution", "warmup", "kernels", "limits", "timeline", "path"),
    *("operators", "instructions", "environment", "clocks", "evidence"),
)


class Page(html.parser.HTMLParser):
    """The elements of a page, and the text of those that a test looks into."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._within: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        self._within.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._within:
            self.texts[self._within[-1]][-1] += data

    def having(self, attribute: str) -> list[str]:
        return [found for _, attributes in self.elements if (found := attributes.get(attribute)) is not None]


def plotted(page: str) -> Any:
    return json.loads(Page(page).texts["script"][0])
