"""CPU seconds of each test, its children counted, summed by room: `pytest --cpu-seconds FILE`.

A fixture's cost is that of the test that first asks for it, and of the last one that used it. A child counts when it is
waited for.
"""

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

PROPERTY: Final = "cpu_seconds"


def used() -> float:
    """CPU seconds of this process and of its children that ended."""
    return sum(os.times()[:4])


def room(nodeid: str) -> str:
    """Name the room of a test: its folder beside this file, or `top`."""
    parts = Path(nodeid.partition("::")[0]).parts
    return parts[1] if len(parts) > 2 else "top"


class CpuSeconds:
    """Record in the process that runs tests, sum up in the one that reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since = used()
        self._by_test: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self) -> None:
        """Leave out what passed between two tests."""
        self._since = used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the phase's CPU seconds to its report, which xdist carries to the controller."""
        report = yield
        now = used()
        report.user_properties = [(PROPERTY, now - self._since)]
        self._since = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase to its test."""
        self._by_test[report.nodeid] += sum(
            float(str(seconds)) for name, seconds in report.user_properties if name == PROPERTY
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the rooms, dearest first, and write every test to the file."""
        rooms: defaultdict[str, list[float]] = defaultdict(list)
        for nodeid, seconds in self._by_test.items():
            rooms[room(nodeid)].append(seconds)
        terminalreporter.section("CPU seconds")
        for name, of_room in sorted(rooms.items(), key=lambda one: -sum(one[1])):
            terminalreporter.write_line(f"{name:<14}{len(of_room):>7}{sum(of_room):>9.1f}")
        terminalreporter.write_line(f"{'all':<14}{len(self._by_test):>7}{sum(self._by_test.values()):>9.1f}")
        dearest_first = sorted(self._by_test.items(), key=lambda one: -one[1])
        self._path.write_text(json.dumps(dict(dearest_first), indent=1))
