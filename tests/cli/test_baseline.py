"""`aaco baseline`: what is pinned is listed until it is retired, and nothing is measured for it."""

import json

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco, Refused


def listed(aaco: Aaco, place: Project) -> list[dict[str, object]]:
    answer = aaco("baseline", "ls", "--json", project=place)
    assert (answer.returncode, answer.stderr) == (0, "")
    rows = json.loads(answer.stdout)
    assert isinstance(rows, list)
    return rows


def test_a_baseline_is_pinned_listed_and_retired(aaco: Aaco, place: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    pinned = aaco("baseline", "pin", "--model", "control_flow", "--threads", "2", "--json", project=place)
    assert (pinned.returncode, pinned.stderr) == (0, "")
    row = json.loads(pinned.stdout)
    name = row["campaign_id"]
    assert json.loads(row["specification"])["threads"] == 2
    assert (place.lake / row["artefact"]).is_file()
    assert TraceLake(place.lake).sessions() == []
    second = aaco("baseline", "pin", "--model", "control_flow", project=place)
    assert second.stdout.endswith(": control_flow on cpu is pinned\n")
    assert [one["is_current"] for one in listed(aaco, place)] == [True, False]
    assert len(list((place.lake / "artefacts").iterdir())) == 1
    shown = aaco("baseline", "ls", project=place).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    rows = [line for line in shown if line.strip().startswith("baseline-")]
    assert [line.rstrip().endswith("yes") for line in rows] == [True, False]
    newer = second.stdout.partition(":")[0]
    retired = aaco("baseline", "retire", newer, project=place)
    assert (retired.returncode, retired.stdout) == (0, f"{newer} is retired\n")
    assert [(one["campaign_id"], one["is_current"]) for one in listed(aaco, place)] == [(newer, False), (name, True)]
    assert aaco("doctor", project=place).returncode == 0


@pytest.mark.parametrize(
    ("code", "arguments", "words"),
    [
        (2, ("retire", "nothing"), "no baseline 'nothing' in"),
        (2, ("retire", "../lake"), "'../lake' is not a campaign id"),
        (2, ("pin", "--model", "no_such_model"), "no_such_model"),
        (2, ("pin", "--model", "control_flow", "--threads", "0"), "threads"),
    ],
)
def test_what_cannot_be_kept_or_let_go_is_refused_in_one_line(
    code: int, arguments: tuple[str, ...], words: str, refused: Refused, place: Project
) -> None:
    TraceLake(place.lake).path.mkdir()
    assert words in refused(code, "baseline", *arguments, project=place)
    assert list(place.lake.iterdir()) == []
