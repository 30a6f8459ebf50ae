"""`aaco alerts`: open alerts come with their reason and the next step, and are acknowledged by name and reason."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco, Refused
from tests.places import ROOT
from tests.report.made_up import rows_of

NIGHT = date(2026, 11, 2)


def told(lake: TraceLake, campaign: str, event: str, hours: int = 0, **changed: Any) -> None:
    row = {
        "alert": "alert-nightly-1",
        "workload": "resnet50",
        "backend": "migraphx",
        "host": "MI300X",
        "metric": "latency_p50",
        "event": event,
        "at": datetime(2026, 11, 2, 2, tzinfo=UTC) + timedelta(hours=hours),
        "night": NIGHT,
        "campaign": campaign,
        "sorted_as": "real",
        "effect_ratio": 1.045,
        "ci_low": 1.031,
        "ci_high": 1.059,
        "reasons": ["the interval speaks for itself"],
    }
    frame = rows_of("alerts", [{**row, **changed}])
    lake.publish(campaign, "alerting", {"alerts": frame}, scope="campaign")


@pytest.fixture
def place(tmp_path: Path) -> Project:
    made = Project(ROOT, tmp_path / "lake", tmp_path / "home")
    made.lake.mkdir()
    return made


def test_open_alerts_are_shown_until_the_user_or_a_night_ends_them(aaco: Aaco, place: Project) -> None:
    assert aaco("alerts", project=place).stdout == "no alert open\n"
    lake = TraceLake(place.lake)
    told(lake, "nightly-1", "suspected")
    suspected = aaco("alerts", "ls", project=place)
    assert (suspected.returncode, suspected.stderr) == (0, "")
    assert suspected.stdout.splitlines() == [
        "alert-nightly-1",
        "  resnet50 on migraphx, MI300X: suspected, 1.045 times (1.031 … 1.059) as long (since 2026-11-02).",
        "  The interval speaks for itself.",
        "  Next: nothing is blamed yet; a second time slot decides, half an hour later or the next night.",
        "",
        "1 open",
    ]
    told(lake, "nightly-2", "confirmed", 1, alert_grade="two boots", sorted_as="selection changed")
    shown = aaco("alerts", project=place).stdout
    assert "confirmed on two boots" in shown
    assert "before code is blamed: selection changed" in shown
    said = aaco("alerts", "acknowledge", "nightly-1", "--why", "the new mask costs that", "--who", "ada", project=place)
    assert (said.returncode, said.stdout) == (0, "alert-nightly-1 is acknowledged\n")
    shown = aaco("alerts", project=place).stdout
    assert "known to ada" in shown
    assert "The new mask costs that." in shown
    assert "Next:" not in shown
    told(lake, "nightly-3", "resolved", 10**6)
    assert aaco("alerts", project=place).stdout == "no alert open, 1 over\n"
    document = json.loads(aaco("alerts", "--json", project=place).stdout)
    assert [one["event"] for one in document["over"][0]["events"]] == [
        *("resolved", "acknowledged", "confirmed", "suspected")
    ]
    assert document["open"] == []
    assert aaco("alerts", "ls", "--json", project=place).stdout == aaco("alerts", "--json", project=place).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing", "--why", "x", "--who", "ada"), "alert 'nothing': there is no such alert in"),
        (("nightly", "--why", "x", "--who", "ada"), "alert 'nightly': 2 alerts are named like it"),
        (("nightly-1", "--why", " ", "--who", "ada"), "say why it may stay"),
        (("nightly-1", "--why", "x", "--who", ""), "say who acknowledges it"),
        (("nightly-2", "--why", "x", "--who", "ada"), "alert-nightly-2 is over: it was cleared"),
        (("nightly-1",), "Missing option '--why'"),
    ],
)
def test_what_cannot_be_acknowledged_is_refused(
    refused: Refused, place: Project, arguments: tuple[str, ...], words: str
) -> None:
    lake = TraceLake(place.lake)
    told(lake, "nightly-1", "suspected")
    told(lake, "nightly-2", "suspected", alert="alert-nightly-2")
    told(lake, "nightly-3", "cleared", 1, alert="alert-nightly-2")
    before = lake.read("alerts").height
    assert words in refused(2, "alerts", "acknowledge", *arguments, project=place)
    assert lake.read("alerts").height == before
