"""Headless Chromium for tests of what a page does in a browser; they are skipped where there is none."""

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
COMPLAINTS: Final = (
    "Runtime.exceptionThrown",
    "Log.entryAdded",
    "Runtime.consoleAPICalled",
    "Page.javascriptDialogOpening",
)


class Browser:
    """Headless Chromium with one tab, spoken to over its debugging pipe; `events` are what it told since `open`."""

    def __init__(self, profile: Path, *more_flags: str) -> None:
        assert CHROMIUM is not None
        read_by_it, self._write = os.pipe()
        self._read, written_by_it = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
        flags += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"]
        flags += [*more_flags, f"--user-data-dir={profile}"]
        # Chromium reads from descriptor 3 and writes to 4.
        redirect = f'exec 3<&{read_by_it} 4>&{written_by_it}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", CHROMIUM, *flags, "about:blank"],
            pass_fds=(read_by_it, written_by_it),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_by_it)
        os.close(written_by_it)
        self._received, self._calls, self._tab = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._tab = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._tab = ""
        self.call("Browser.close")
        try:
            self._process.wait(timeout=20)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._read)
            os.close(self._write)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        message: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if self._tab:
            message["sessionId"] = self._tab
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (heard := self._hear()).get("id") != self._calls:
            self.events.append(heard)
        assert "error" not in heard, (method, heard)
        result: dict[str, Any] = heard["result"]
        return result

    def open(self, address: str, *, width: int = 1280, height: int = 900, theme: str = "light") -> None:
        """Load a page and wait until it is drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        # Without smooth scrolling, which would go on for a while after what caused it.
        features = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        named = [{"name": name, "value": wanted} for name, wanted in features.items()]
        self.call("Emulation.setEmulatedMedia", features=named)
        self.call("Page.bringToFront")  # a page behind another is not drawn
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")
        self.settle()

    def wait_for(self, method: str) -> dict[str, Any]:
        """The first event `method` since `open`."""
        while not self.told(method):
            self.events.append(self._hear())
        return self.told(method)[0]

    def settle(self) -> None:
        """Wait until what was begun is on the screen."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def told(self, *methods: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") in methods]

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], 30)
            assert ready, "Chromium said nothing for 30 seconds"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium ended"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        heard: dict[str, Any] = json.loads(message)
        return heard


def browser_or_skip(profile: Path) -> Iterator[Browser]:
    """The body of a fixture: a browser that is closed in the end, or a skip that says why."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this host: what the page does in a browser is not tested")
    opened = Browser(profile)
    yield opened
    opened.close()
