"""A person's way through Dagster's pages behind the door, in a real browser; what must work does.

python -m benchmarks.reliability.web_door.tour [--pictures FOLDER]
"""

import argparse
import base64
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.served_views import address_of
from benchmarks.reliability.web_door.counted import with_the_door
from tests.report.html.browser import COMPLAINTS, Browser
from tests.user_interface import UserInterface

LONGEST_WAIT_SECONDS: Final = 240.0
CONFIGURATION: Final = "ops: {register_session: {config: {model: control_flow, iterations: 5, warmup: 1}}}"
LOADED: Final = "{ workspaceOrError { ... on Workspace { locationEntries { id updatedTimestamp loadStatus } } } }"
RUNS: Final = "{ runsOrError { ... on Runs { results { jobName status } } } }"


class Tour:
    """Steps, each said when it is done; the first that does not work ends it."""

    def __init__(self, running: UserInterface, browser: Browser, pictures: Path | None) -> None:
        self.running, self.browser, self._pictures = running, browser, pictures
        self._steps = 0

    def step(self, name: str, works: Callable[[], object]) -> None:
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        while not works():
            if time.monotonic() > deadline:
                self._picture(f"broken {name}")
                raise SystemExit(f"BROKEN: {name}: {self.text()[:500]!r}")
            time.sleep(0.5)
        self._steps += 1
        print(f"{self._steps}. {name}")
        self._picture(f"{self._steps} {name}")

    def text(self) -> str:
        told: str = self.browser.run("document.body.innerText")
        return told

    def shows(self, *words: str) -> bool:
        return all(word in self.text() for word in words)

    def press(self, label: str) -> bool:
        """Press the button of that label, where it is."""
        pressed: bool = self.browser.run(
            f"(one => one ? (one.click(), true) : false)([...document.querySelectorAll('button')]"
            f".find(one => one.innerText.trim() === {json.dumps(label)} && !one.disabled))"
        )
        return pressed

    def subscribed(self, name: str) -> bool:
        """Whether the page subscribed to `name` over a WebSocket and got something of it."""
        sent = [json.loads(one["response"]["payloadData"]) for one in self.browser.told("Network.webSocketFrameSent")]
        ids = {one["id"] for one in sent if name in json.dumps(one.get("payload", ""))}
        got = [one["response"]["payloadData"] for one in self.browser.told("Network.webSocketFrameReceived")]
        return any(f'"id":"{number}"' in one.replace(" ", "") and '"data"' in one for number in ids for one in got)

    def _picture(self, name: str) -> None:
        if self._pictures is not None:
            taken = self.browser.call("Page.captureScreenshot", format="png")["data"]
            (self._pictures / f"{name.replace(' ', '_')}.png").write_bytes(base64.b64decode(taken))


def tour(running: UserInterface, browser: Browser, pictures: Path | None, lake: TraceLake) -> None:
    way, at = Tour(running, browser, pictures), running.address
    browser.open(running.links[0])
    way.step("the link opens Dagster", lambda: browser.run("location.search") == "" and way.shows("Overview", "Runs"))
    opener = running.signed_in_again()
    browser.open(f"{at}/assets/timeline")
    way.step("the page of an asset", lambda: way.shows("timeline.session_id"))
    browser.open(f"{at}/locations/aaco_pipeline/jobs/start_session/playground")
    way.step("the launchpad", lambda: browser.run("!!document.querySelector('.CodeMirror')"))
    browser.run(f"document.querySelector('.CodeMirror').CodeMirror.setValue({json.dumps(CONFIGURATION)})")
    way.step("a run is launched", lambda: way.press("Launch Run") or "/runs/" in browser.run("location.pathname"))
    way.step("its log is shown as it goes", lambda: way.shows("RUN_SUCCESS") and way.subscribed("pipelineRunLogs"))

    def observed() -> bool:
        runs = running.ask(opener, RUNS)["runsOrError"]["results"]
        assert not any(run["status"] == "FAILURE" for run in runs), running.log.read_text()
        return {"jobName": "observe", "status": "SUCCESS"} in runs

    way.step("a sensor of the daemon has launched its stages", observed)
    browser.open(f"{at}/locations")
    loaded = running.ask(opener, LOADED)
    way.step("the page of code locations", lambda: way.shows("Loaded", "1 code location"))
    way.step("reloading is begun", lambda: way.press("Reload"))
    way.step("the code is loaded again", lambda: running.ask(opener, LOADED) != loaded and way.shows("Loaded"))
    browser.open(f"{at}/assets/timeline?view=partitions")
    way.step("the partition of the session", lambda: way.shows("control-flow", "Materialized (1)"))
    browser.open(f"{at}/assets/report?view=partitions")
    way.step("its report is not made yet", lambda: way.shows("Missing (1)", "Failed (0)"))
    browser.open(at + address_of(lake.report(lake.sessions()[-1])))
    way.step("the report, made by its link", lambda: browser.run("!!document.querySelector('#perfetto')"))
    trace = "fetch(JSON.parse(document.querySelector('#data').textContent).trace.url).then(answer => answer.status)"
    way.step("its trace", lambda: browser.run(trace) == 200)
    complaints = browser.told(*COMPLAINTS)
    if complaints:
        raise SystemExit(f"BROKEN: the page complains: {complaints}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Go through Dagster's pages behind the door.")
    parser.add_argument("--pictures", type=Path, help="A folder for a picture of each step.")
    pictures = parser.parse_args().pictures
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, with_the_door(Path(scratch) / "doored") as (running, _):
        browser = Browser(Path(scratch) / "profile")
        try:
            tour(running, browser, pictures, TraceLake(Path(scratch) / "doored" / "lake"))
        finally:
            browser.close()
        printed = running.log.read_text()
    print(f"printed: {printed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
