"""What the page does in a browser: by keyboard and pointer, in both themes, from a file and served.

Pages of a verdict and a search in a browser: no wider than the screen, legible in both themes, no complaints.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.comparing.page import render_verdict
from aaco_pipeline.report.html.page import EMBEDDED_TRACE_BYTES, render_html
from aaco_pipeline.report.optimization.page import render_search
from aaco_pipeline.report.session.sentences import Document
from aaco_pipeline.web.serving import contents_app
from tests.pipeline.comparing.made_up import planned
from tests.report.comparing.test_page import full
from tests.report.full_session import MODEL
from tests.report.html.browser import COMPLAINTS, Browser, browser_or_skip
from tests.report.html.pages import SECTIONS
from tests.report.made_up import SESSION
from tests.served import served


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from browser_or_skip(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def address(page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The full session's page as a file."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page)
    return file.as_uri()


#: Every text's colour against what lies behind it, as WCAG measures it; the lowest ratio of each kind of element.
CONTRAST: Final = """(() => {
  const parts = colour => colour.match(/[0-9.]+/g).map(Number);
  const luminance = ([red, green, blue]) => [red, green, blue].map(value => value / 255)
    .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const found = parts(getComputedStyle(element).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const worst = {};
  for (const element of document.querySelectorAll('body *')) {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    if (!element.checkVisibility() || element.closest('script, noscript, .skip, :disabled')) continue;
    const style = getComputedStyle(element), own = element.ownerSVGElement ? style.fill : style.color;
    const [one, two] = [luminance(parts(own)), luminance(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05), kind = element.tagName + '.' + (element.getAttribute('class') ?? '');
    worst[kind] = Math.min(worst[kind] ?? 99, ratio);
  }
  return worst;
})()"""


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (360, "light")])
def test_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, address: str, width: int, theme: str) -> None:
    browser.open(address, width=width, theme=theme)
    assert [event["request"]["url"] for event in browser.told("Network.requestWillBeSent")] == [address]
    assert browser.told(*COMPLAINTS) == []
    assert browser.run("[...document.querySelectorAll('section')].map(one => one.id)") == list(SECTIONS)
    assert browser.run("document.querySelectorAll('.plot svg').length") == 3
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.images.length") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_is_readable_on_its_background(browser: Browser, address: str, theme: str) -> None:
    browser.open(address, theme=theme)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    worst = browser.run(CONTRAST)
    assert len(worst) > 15
    assert {kind: ratio for kind, ratio in worst.items() if ratio < 4.5} == {}


def test_marks_of_an_axis_have_labels_of_their_own_where_a_value_hardly_moves(
    browser: Browser, document: Document, tmp_path: Path
) -> None:
    samples = [
        {**row, "rss_bytes": 80_361_000 + 4_096 * (place % 2)} for place, row in enumerate(document["system_samples"])
    ]
    page = tmp_path / "report.html"
    page.write_text(render_html({**document, "system_samples": samples}, None))
    browser.open(page.as_uri())
    drawings = browser.run(
        "[...document.querySelectorAll('.plot svg')].map(drawing => [...drawing.querySelectorAll('text')]"
        ".map(one => one.textContent).filter(text => / MiB$/.test(text)))"
    )
    marked = [labels for labels in drawings if labels]
    assert marked
    assert all(len(set(labels)) == len(labels) for labels in marked)


SHOWN: Final = (
    "[...document.querySelectorAll('main > *')].filter(one => one.checkVisibility()).map(one => one.id || one.tagName)"
)


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (360, "dark")])
def test_a_kernels_page_stands_alone_and_leads_back(browser: Browser, address: str, width: int, theme: str) -> None:
    """Opened by its address, too: what was hidden until then is drawn when it is shown."""
    browser.open("about:blank")
    browser.open(f"{address}#kernel-0", width=width, height=240, theme=theme)  # with a scroll bar in either view
    assert browser.run(SHOWN) == ["kernel-0"]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    worst = browser.run(CONTRAST)
    assert {kind: ratio for kind, ratio in worst.items() if ratio < 4.5} == {}
    browser.run("document.querySelector('#kernel-0 .back a').click()")
    browser.settle()
    assert browser.run("location.hash") == "#kernels"
    assert browser.run(SHOWN) == ["HEADER", *SECTIONS]
    assert browser.run("document.querySelectorAll('.plot svg').length") == 3
    assert browser.run(
        "[...document.querySelectorAll('.plot svg')].every(one => one.getBoundingClientRect().width > 99)"
    )
    browser.run("document.querySelector('#kernels a[href=\"#kernel-1\"]').click()")
    browser.settle()
    assert browser.run(SHOWN) == ["kernel-1"]
    assert browser.told(*COMPLAINTS) == []


def test_page_follows_the_system_until_the_reader_chooses(browser: Browser, address: str) -> None:
    colours = "[document.body, document.querySelector('section')].map(one => getComputedStyle(one).backgroundColor)"
    browser.open(address, theme="dark")
    dark = browser.run(colours)
    browser.open(address, theme="light")
    light = browser.run(colours)
    assert not set(dark) & set(light)
    browser.run("document.querySelector('#theme').click()")
    assert browser.run(colours) == dark
    browser.open(address, theme="light")
    assert browser.run(colours) == dark  # remembered
    browser.run("document.querySelector('#theme').click(); localStorage.clear()")
    assert browser.run(colours) == light


def test_tables_sort_both_ways_with_what_is_unknown_last(browser: Browser, address: str) -> None:
    browser.open(address)
    column = "[...document.querySelectorAll('#operators tbody tr')].map(row => row.children[2].textContent)"
    press = "document.querySelectorAll('#operators th button')[2].click()"
    sort = "document.querySelectorAll('#operators th')[2].getAttribute('aria-sort')"
    orders = []
    for _ in range(2):
        browser.run(press)
        orders.append((browser.run(sort), browser.run(column)))
    assert orders[0] == ("descending", ["180 µs", "120 µs", "60 µs", "–"])
    assert orders[1] == ("ascending", ["60 µs", "120 µs", "180 µs", "–"])


def test_plots_tell_their_values_on_hover_and_by_keyboard(browser: Browser, address: str) -> None:
    browser.open(address)
    tip = "document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').innerText"
    assert browser.run(tip) == ""
    for selector, expected in (("#latency svg", "Iteration "), ("#histogram svg", "iterations")):
        browser.run(f"document.querySelector('{selector}').scrollIntoView({{ behavior: 'instant', block: 'center' }})")
        browser.settle()
        x, y = browser.run(
            f"(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect();"
            " return [box.left + box.width * 0.4, box.top + box.height * 0.72]; })()"
        )
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        assert expected in browser.run(tip), selector
    browser.open(address)
    step = "document.querySelector('#latency svg').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }))"
    browser.run("document.querySelector('#latency svg').focus()")
    browser.settle()
    browser.run(step)
    assert "latency 4.008 ms (4,007,919 ns)" in browser.run(tip)
    assert "Host CPUs busy" in browser.run(tip)


def test_from_a_file_the_way_to_perfetto_is_explained_and_nothing_is_contacted(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.run("Object.defineProperty(navigator, 'onLine', { get: () => true }); window.open = () => { throw 1; };")
    browser.run("document.querySelector('#perfetto').click()")
    note = browser.run("document.querySelector('#perfetto-note').textContent")
    assert f"aaco report {SESSION} --open" in note
    assert "drag it onto ui.perfetto.dev" in note
    assert browser.run("document.querySelector('#perfetto-note a').download") == "trace.pftrace.gz"
    assert len(browser.told("Network.requestWillBeSent")) == 1


def test_offline_the_way_to_perfetto_says_so(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.run("Object.defineProperty(navigator, 'onLine', { get: () => false })")
    browser.run("document.querySelector('#perfetto').click()")
    assert "This computer is offline" in browser.run("document.querySelector('#perfetto-note').textContent")


@pytest.mark.parametrize("embedded", [True, False])
def test_a_served_page_hands_its_trace_to_perfetto(
    browser: Browser, document: Document, tmp_path: Path, embedded: bool
) -> None:
    content = b"a trace" if embedded else b"x" * (EMBEDDED_TRACE_BYTES + 1)
    page, trace = tmp_path / "report.html", tmp_path / "trace.pftrace.gz"
    page.write_text(render_html(document, content))
    address = f"/reports/session_id={SESSION}/report.html"
    files = {address: page.read_bytes(), f"/traces/session_id={SESSION}/{trace.name}": content}
    with served(contents_app(files.get, first=address)) as server:
        browser.open(server.links[0])
        told = browser.told("Network.requestWillBeSent")
        assert [urlsplit(one["request"]["url"]).path for one in told] == ["/", "/", address]
        # A window that answers as Perfetto does: PONG to a PING, and it keeps what it is handed.
        handed = browser.run(
            """new Promise(done => {
              Object.defineProperty(navigator, 'onLine', { get: () => true });
              const frame = document.createElement('iframe');
              document.body.append(frame);
              const ui = frame.contentWindow;
              let pings = 0;
              ui.postMessage = (message, origin) => {
                if (message === 'PING') {
                  if (++pings === 2) dispatchEvent(new MessageEvent('message', { data: 'PONG', origin, source: ui }));
                } else {
                  const { fileName, title, buffer } = message.perfetto;
                  done([origin, fileName, title, buffer.byteLength]);
                }
              };
              window.open = address => address === 'https://ui.perfetto.dev' ? ui : null;
              document.querySelector('#perfetto').click();
            })"""
        )
        assert handed == ["https://ui.perfetto.dev", "trace.pftrace.gz", f"{MODEL} {SESSION}", len(content)]
        assert browser.run("document.querySelector('#perfetto-note').textContent") == "Perfetto has the trace."


@pytest.fixture(scope="module")
def address_browser(tmp_path_factory: pytest.TempPathFactory) -> str:
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
