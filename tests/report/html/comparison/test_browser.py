"""Pages of a verdict and a search in a browser: no wider than the screen, legible in both themes, no complaints."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.comparison.page import render_verdict
from aaco_pipeline.report.html.comparison.search import render_search
from aaco_pipeline.report.words.session import Document
from tests.pipeline.comparing.made_up import planned
from tests.report.html.browser import COMPLAINTS, Browser, browser_or_skip
from tests.report.html.comparison.test_page import full
from tests.report.html.test_browser import CONTRAST


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from browser_or_skip(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("verdict")
    lake = TraceLake(folder / "lake")
    file = folder / "verdict.html"
    file.write_text(render_verdict(full(lake, planned(lake))))
    return file.as_uri()


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_the_page_fits_and_reads_in_both_themes(browser: Browser, address: str, width: int, theme: str) -> None:
    browser.open(address, width=width, theme=theme)
    assert browser.told(*COMPLAINTS) == []
    assert [one["request"]["url"] for one in browser.told("Network.requestWillBeSent")] == [address]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.documentElement.dataset.theme") == theme
    worst = browser.run(CONTRAST)
    assert {kind: ratio for kind, ratio in worst.items() if ratio < 4.5} == {}


@pytest.mark.parametrize(("width", "theme"), [(1280, "dark"), (390, "light")])
def test_a_search_fits_and_its_diff_reads_in_both_themes(
    browser: Browser, search: Document, tmp_path: Path, width: int, theme: str
) -> None:
    file = tmp_path / "search.html"
    file.write_text(render_search(search))
    browser.open(file.as_uri(), width=width, theme=theme)
    assert browser.told(*COMPLAINTS) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    worst = browser.run(CONTRAST)
    assert {"SPAN.added", "SPAN.removed"} <= set(worst)
    assert {kind: ratio for kind, ratio in worst.items() if ratio < 4.5} == {}


def test_the_theme_is_switched_by_its_button(browser: Browser, address: str) -> None:
    browser.open(address)
    assert browser.run("document.getElementById('theme').click(); document.documentElement.dataset.theme") == "dark"
    browser.run("localStorage.clear()")
