"""Report each finding once: to the log, as a file, and to a command that is tried twice at most."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.nightly.findings import Finding, findings, tell
from aaco_pipeline.resources.project_settings import Hook
from tests.pipeline.comparing.made_up import judged, planned, verdict_row
from tests.report.made_up import rows_of

FINDING = Finding("compare-1.candidate", "It regressed\nby a lot.", {"kind": "verdict", "regression": True})
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def counting(folder: Path, code: int) -> Hook:
    """A command that leaves a line for each run and then ends with that code."""
    program = "import sys; open(sys.argv[1], 'a').write('run\\n'); sys.exit(int(sys.argv[2]))"
    return Hook(command=[sys.executable, "-c", program, str(folder / "runs"), str(code)])


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines()) if (folder / "runs").exists() else 0


def file_of(lake: TraceLake) -> dict[str, object]:
    (path,) = (lake.path / "findings").iterdir()
    document = json.loads(path.read_text())
    assert isinstance(document, dict)
    return document


def test_without_a_command_it_is_a_line_and_a_file(empty_lake: TraceLake) -> None:
    log: list[str] = []
    assert tell(empty_lake, [FINDING], None, log.append) == ["told compare-1.candidate"]
    assert log == ["It regressed by a lot."]
    assert file_of(empty_lake) == {**FINDING.document, "command": {"attempts": 0, "done": True, "failure": None}}
    assert tell(empty_lake, [FINDING], None, log.append) == []
    assert len(log) == 1


def test_a_command_is_run_once(empty_lake: TraceLake, tmp_path: Path) -> None:
    hook = counting(tmp_path, 0)
    for _ in range(3):
        tell(empty_lake, [FINDING], hook, lambda line: None)
    assert runs(tmp_path) == 1
    assert file_of(empty_lake)["command"] == {"attempts": 1, "done": True, "failure": None}


def test_a_command_that_fails_is_reported_and_tried_once_more(empty_lake: TraceLake, tmp_path: Path) -> None:
    log: list[str] = []
    hook = counting(tmp_path, 3)
    for _ in range(4):
        tell(empty_lake, [FINDING], hook, log.append)
    assert runs(tmp_path) == 2
    assert [line for line in log if "tried once more at the next look" in line] == log[1:2]
    assert [line for line in log if "not tried again" in line] == log[2:]
    assert file_of(empty_lake)["command"] == {
        "attempts": 2,
        "done": False,
        "failure": f"{sys.executable}: ended with 3",
    }


def test_a_kill_while_the_command_ran_counts_as_an_attempt(
    empty_lake: TraceLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(hook: Hook, document: object) -> str | None:
        raise KeyboardInterrupt

    hook = counting(tmp_path, 3)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("aaco_pipeline.pipeline.nightly.findings.run_hook", killed)
        tell(empty_lake, [FINDING], hook, lambda line: None)
    for _ in range(3):
        tell(empty_lake, [FINDING], hook, lambda line: None)
    assert runs(tmp_path) == 1


def test_a_key_cannot_leave_the_folder(empty_lake: TraceLake) -> None:
    tell(empty_lake, [Finding("../../x/y", "s", {})], None, lambda line: None)
    assert [path.name for path in (empty_lake.path / "findings").iterdir()] == ["_.._x_y.json"]


@pytest.mark.parametrize(
    ("verdict", "is_told"),
    [
        ("regressed", True),
        ("regressed between nights", True),
        ("improved", False),
        ("inconclusive", False),
        ("withheld", False),
    ],
)
def test_regressions_of_campaigns_are_findings(verdict: str, is_told: bool, empty_lake: TraceLake) -> None:
    plan = planned(empty_lake)
    judged(empty_lake, plan, verdict_row(verdict))
    found = findings(empty_lake, LONG_AGO)
    assert [one.key for one in found] == ([f"{plan.campaign}.candidate"] if is_told else [])
    if is_told:
        assert found[0].document["regression"] is True
        assert found[0].document["severity"] == pytest.approx(3)
        assert found[0].sentence.startswith(verdict.capitalize())
        json.dumps(found[0].document)


def test_what_was_planned_long_ago_is_history(empty_lake: TraceLake) -> None:
    plan = planned(empty_lake)
    judged(empty_lake, plan, verdict_row("regressed"))
    assert findings(empty_lake, datetime.now(UTC) + timedelta(days=1)) == []


@pytest.mark.skipif("alerts" not in all_tables(), reason="this lake declares no alerts")
def test_alerts_are_reported_when_they_are_confirmed(empty_lake: TraceLake) -> None:
    plan = planned(empty_lake)
    at = datetime(2026, 1, 2, 3, tzinfo=UTC)
    what = {"alert": "squeezenet-cpu-1", "workload": "squeezenet", "backend": "cpu", "at": at, "effect_ratio": 1.05}
    rows = [{**what, "event": event, "reasons": [f"it is {event}"]} for event in ("suspected", "confirmed", "resolved")]
    events = rows_of("alerts", rows).drop("campaign_id", strict=False)
    empty_lake.publish(plan.campaign, "alerting", {"alerts": events}, scope="campaign")
    (found,) = findings(empty_lake, LONG_AGO)
    assert found.key == "squeezenet-cpu-1.confirmed"
    assert found.sentence == ("Confirmed: squeezenet on cpu regressed, 1.050 times as long; it is confirmed.")
    assert json.loads(json.dumps(found.document))["at"] == at.isoformat()


def test_a_supporting_metric_is_none(empty_lake: TraceLake) -> None:
    judged(
        empty_lake,
        planned(empty_lake),
        verdict_row("equivalent"),
        verdict_row("regressed", metric="latency_p99", role="supporting"),
    )
    assert findings(empty_lake, LONG_AGO) == []
