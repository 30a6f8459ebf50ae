"""Attack `aaco ui` from pages of other origins in a real browser; the server counts what reaches Dagster.

The same attacks on Dagster's own web server, without the door, show that they work.
"""

import argparse
import base64
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.resources.project import DEFAULTS, HOME_VARIABLE, LAKE_VARIABLE
from tests.report.html.browser import Browser
from tests.user_interface import ROOT, UserInterface, free_port, kill, user_interface, wait_for

_FILE_VARIABLE: Final = "AACO_COUNTED_REQUESTS"
#: Python runs this in every process that starts; in the web server it puts a counter into Dagster's application.
_SITECUSTOMIZE: Final = """
import json, os, sys
if any("dagster_webserver" in word for word in sys.orig_argv):
    from dagster_webserver.webserver import DagsterWebserver
    from starlette.middleware import Middleware

    class Counted:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            if scope["type"] != "lifespan":
                told = {"type": scope["type"], "path": scope["path"], "query": scope["query_string"].decode()}
                with open(os.environ["AACO_COUNTED_REQUESTS"], "a") as file:
                    file.write(json.dumps(told) + "\\n")
            await self.app(scope, receive, send)

    before = DagsterWebserver.build_middleware
    DagsterWebserver.build_middleware = lambda self: [Middleware(Counted), *before(self)]
"""


@dataclass(frozen=True)
class Counts:
    """The requests that reached Dagster's application so far."""

    file: Path

    def requests(self) -> list[dict[str, Any]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [json.loads(line) for line in lines]


def environment(folder: Path) -> tuple[dict[str, str], Counts]:
    """The variables of a lake and home in `folder` whose server counts."""
    (folder / "counting").mkdir(parents=True)
    (folder / "counting" / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    counts = Counts(folder / "requests.jsonl")
    variables = {
        LAKE_VARIABLE: str(folder / "lake"),
        HOME_VARIABLE: str(folder / "home"),
        _FILE_VARIABLE: str(counts.file),
        "PYTHONPATH": f"{folder / 'counting'}:{ROOT}",
    }
    return variables, counts


@contextmanager
def with_the_door(folder: Path) -> Iterator[tuple[UserInterface, Counts]]:
    """`aaco ui` on a lake of its own."""
    variables, counts = environment(folder)
    (folder / "empty").mkdir()
    with user_interface(folder / "empty", variables) as running:
        wait_for(running.is_up, running.log.read_text)
        yield running, counts


@contextmanager
def without_a_door(folder: Path) -> Iterator[tuple[int, Counts]]:
    """Dagster's web server as it comes, on a home of its own: its port."""
    variables, counts = environment(folder)
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text((DEFAULTS / "dagster.yaml").read_text())
    port, log = free_port(), folder / "bare.log"
    arguments = ["-m", "dagster_webserver", "-w", str(DEFAULTS / "workspace.yaml"), "-p", str(port)]
    everything: Mapping[str, str] = {**os.environ, **variables}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments], env=everything, cwd=folder, stdout=stream, stderr=stream
        )
    try:
        wait_for(lambda: "Serving" in log.read_text() or process.poll() is not None, log.read_text)
        yield port, counts
    finally:
        process.terminate()
        process.wait(60)
        kill(process.pid)


SCRIPT: Final = Path(__file__).with_suffix(".js")
FEWEST_ATTACKS: Final = 30
#: Without a door at least so many of the attacks must get through, else the page proves nothing.
FEWEST_THROUGH: Final = 100
#: Names of others lead to this host; every tab may be opened, as a user who clicks allows one at a time.
BROWSER_FLAGS: Final = (
    "--host-resolver-rules=MAP evil.example 127.0.0.1, MAP rebind.example 127.0.0.1",
    "--disable-popup-blocking",
)
#: What the attacks would have made: partitions of sessions, by their names.
CANARIES: Final = """{ assetNodeOrError(assetKey: {path: ["report"]}) { ... on AssetNode { partitionKeys } }
  runsOrError { ... on Runs { results { runId } } } }"""
STALE: Final = "B" * 43
QUIET_SECONDS: Final = 3.0
_PAGE: Final = "<!doctype html><meta charset=utf-8><title>attack</title><body><script>{}</script>"


@contextmanager
def attacker() -> Iterator[int]:
    """A server of the attacking page on a port of loopback; below /sandboxed its page has no origin."""
    page = _PAGE.format(SCRIPT.read_text()).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            if self.path == "/sandboxed":
                self.send_header("Content-Security-Policy", "sandbox allow-scripts allow-forms allow-popups")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def attack_from_everywhere(browser: Browser, port: int, evil: int, folder: Path) -> dict[str, dict[str, str]]:
    """Responses that each attack saw, from each kind of page."""
    page = folder / "attack.html"
    page.write_text(_PAGE.format(SCRIPT.read_text()))
    own, rebound = f"127.0.0.1:{port}", f"rebind.example:{port}"
    places = {
        "other_site": (f"http://evil.example:{evil}/", own),
        "other_port": (f"http://127.0.0.1:{evil}/", own),
        "localhost": (f"http://localhost:{evil}/", f"localhost:{port}"),
        "rebound_name": (f"http://{rebound}/attack.html", rebound),
        "file": (page.as_uri(), own),
        "sandboxed": (f"http://evil.example:{evil}/sandboxed", own),
    }
    seen = {}
    for name, (address, target) in places.items():
        _open(browser, address, page.read_bytes())
        call = f"attack({json.dumps(target)}, {json.dumps(name)}, {json.dumps(STALE)})"
        told = browser.call(
            "Runtime.evaluate", expression=call, returnByValue=True, awaitPromise=True, userGesture=True
        )
        seen[name] = told["result"]["value"]
    return seen


def _open(browser: Browser, address: str, page: bytes) -> None:
    """Load a page. What the rebound name gives before it is rebound, the browser is handed instead of a server."""
    browser.events.clear()
    if "rebind.example" in address:
        browser.call("Page.bringToFront")
        browser.call("Fetch.enable", patterns=[{"urlPattern": "*attack.html"}])
        browser.call("Runtime.evaluate", expression=f"location.href = {json.dumps(address)}")
        headers = [{"name": "Content-Type", "value": "text/html; charset=utf-8"}]
        browser.call(
            "Fetch.fulfillRequest",
            requestId=browser.wait_for("Fetch.requestPaused")["requestId"],
            responseCode=200,
            responseHeaders=headers,
            body=base64.b64encode(page).decode(),
        )
        browser.wait_for("Page.loadEventFired")
        browser.call("Fetch.disable")
    else:
        browser.open(address)
    assert browser.run("location.href") == address


def settled(counts: Counts) -> int:
    """Count the requests that have reached the application, once no more come."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        now = len(counts.requests())
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.2)
    return before


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    broken = []
    with tempfile.TemporaryDirectory() as scratch, attacker() as evil:
        folder = Path(scratch)
        with without_a_door(folder / "bare") as (port, counts):
            browser = Browser(folder / "bare_profile", *BROWSER_FLAGS)
            seen = attack_from_everywhere(browser, port, evil, folder)
            settled(counts)
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}/graphql",
                json.dumps({"query": CANARIES}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(asked, timeout=60) as answer:
                made = json.load(answer)["data"]["assetNodeOrError"]["partitionKeys"]
            reached = {one["query"].partition("attack=")[2].partition("&")[0] for one in counts.requests()} - {""}
            browser.close()
        tried = sum(map(len, seen.values()))
        kinds = min(map(len, seen.values()))
        print(f"without a door: {len(reached)} of {tried} through: {kinds} attacks from {len(seen)} kinds of pages")
        print(f"   {len(made)} of them changed Dagster's storage")
        if kinds < FEWEST_ATTACKS or len(reached) < FEWEST_THROUGH or not made:
            broken.append("the attacks themselves do not work")
        with with_the_door(folder / "doored") as (running, counts):
            browser = Browser(folder / "profile", *BROWSER_FLAGS)
            browser.open(running.links[0])
            assert browser.run("document.title") == "Dagster", "the browser is not signed in"
            browser.call("Page.navigate", url="about:blank")
            opener = running.signed_in_again()
            before = settled(counts)
            seen = attack_from_everywhere(browser, running.port, evil, folder)
            after = settled(counts)
            told = running.ask(opener, CANARIES)
            browser.close()
        through = counts.requests()[before:after]
        print(f"with the door, signed in: {len(through)} of {sum(map(len, seen.values()))} through")
        broken += [f"reached: {one}" for one in through]
        broken += [f"run: {one}" for one in told["runsOrError"]["results"]]
        broken += [f"partition: {one}" for one in told["assetNodeOrError"]["partitionKeys"]]
        if sum(map(len, seen.values())) != tried:
            broken.append("not every attack ran")
    for line in broken:
        print(f"BROKEN: {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
