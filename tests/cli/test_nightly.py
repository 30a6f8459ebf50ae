"""`aaco nightly` from its file to its exit code: a small night really measured, a slowdown seen twice, refusals."""

import json
from datetime import timedelta
from pathlib import Path
from shutil import copyfile

import polars as pl
import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco, Refused
from tests.pipeline.nightly.nights import Nights, nights
from tests.places import ROOT

SMALL = "options: {iterations: 3, warmup: 1}, sessions: 3, traced: 0"


@pytest.fixture
def place(tmp_path: Path) -> Project:
    """A project of its own, in which nothing is yet."""
    (tmp_path / "project" / "configs").mkdir(parents=True)
    copyfile(ROOT / "dagster.yaml", tmp_path / "project" / "dagster.yaml")
    return Project(tmp_path / "project", tmp_path / "lake", tmp_path / "home")


def test_a_night_is_measured_once_and_a_benchmark_that_cannot_be_is_reported(aaco: Aaco, place: Project) -> None:
    (place.configs / "nightly.yaml").write_text(
        f"benchmarks:\n  - {{model: control_flow, {SMALL}, limits: [{{metric: p50, limit_ms: 1000}}]}}\n"
        "  - {model: gone.onnx}\n"
    )
    done = aaco("nightly", "--json", project=place)
    assert done.returncode == 3, done.stderr  # of the model that is not there
    document = json.loads(done.stdout)
    (row,) = document["benchmarks"]
    assert (row["workload"], row["backend"], row["against"]["kind"]) == ("control_flow", "cpu", "itself")
    assert row["verdict"] == "inconclusive"  # three sessions allow no interval
    assert row["service_levels"][0]["state"] == "not_enough_data"
    assert [one["what"] for one in document["failed"]] == ["gone:cpu"]
    lake = TraceLake(place.lake)
    rows = lake.read("campaign_sessions", row["campaign_id"])
    assert sorted(rows.get_column("arm").to_list()) == sorted(["baseline", "candidate", "placebo"] * 3)
    assert lake.read("sessions").get_column("model_name").unique().to_list() == ["control_flow"]
    assert lake.read("baselines").select("kind", "workload").rows() == [("rolling", "control_flow")]

    again = aaco("nightly", "--only", "control_flow", project=place)
    assert again.returncode == 0, again.stderr
    assert "1 of 1 benchmark judged; no alert." in again.stdout
    assert "control_flow on cpu: there was no baseline: compared with itself" in again.stdout
    assert lake.read("campaign_sessions", row["campaign_id"]).equals(rows)
    assert lake.read("campaigns").height == 1


@pytest.fixture
def lived(place: Project, monkeypatch: pytest.MonkeyPatch) -> Nights:
    """The same project after a first night."""
    (place.configs / "nightly.yaml").unlink(missing_ok=True)
    place.configs.rmdir()
    made = nights(TraceLake(place.lake), place.configs, monkeypatch)
    made.now += timedelta(days=13)
    made.night()
    return made


@pytest.mark.nightly
def test_a_slowdown_is_suspected_then_confirmed_and_is_an_exit_code_until_it_is_acknowledged(
    aaco: Aaco, place: Project, lived: Nights
) -> None:
    lived.now += timedelta(hours=20)
    lived.model(2_000_000)
    first = aaco("nightly", "--strict", project=place)
    assert first.returncode == 7, first.stdout + first.stderr
    assert "1 suspected" in first.stdout
    assert "m on cpu: suspected; `aaco nightly` after " in first.stdout
    lived.now += timedelta(minutes=31)
    second = aaco("nightly", "--json", project=place)
    assert second.returncode == 5, second.stdout + second.stderr
    document = json.loads(second.stdout)
    (row,) = document["benchmarks"]
    assert (document["regression"], row["alert"]["state"]) == (True, "confirmed")
    assert row["confirmed_by"] is not None
    measured = len(lived.measured)
    assert aaco("nightly", project=place).returncode == 5
    assert len(lived.measured) == measured
    told = aaco("alerts", "acknowledge", row["alert"]["alert"], "--why", "twice the work", project=place)
    assert told.returncode == 0, told.stderr
    last = aaco("nightly", project=place)
    assert (last.returncode, "1 acknowledged" in last.stdout) == (0, True), last.stdout
    assert lived.rolling().get_column("campaign").to_list()[1:] == [row["campaign_id"]]
    assert lived.lake.read("campaigns").filter(pl.col("confirms").is_not_null()).height == 1


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("benchmarks: []", (), "registers no model; name what each night is to measure"),
        ("benchmarks: [{modle: m}]", (), "benchmarks[0].modle: found an unknown key"),
        (
            "benchmarks: [{model: squeezenet}]",
            ("--only", "resnet50"),
            "no benchmark 'resnet50'; there is squeezenet:cpu",
        ),
    ],
)
def test_what_cannot_be_a_night_is_refused_in_one_line_and_no_lake_is_made(
    text: str, arguments: tuple[str, ...], words: str, refused: Refused, place: Project
) -> None:
    (place.configs / "nightly.yaml").write_text(text)
    assert words in refused(2, "nightly", *arguments, project=place)
    assert not place.lake.exists()


def test_a_pinned_baseline_that_is_not_there_is_reported_with_the_command_that_makes_one(
    aaco: Aaco, place: Project
) -> None:
    (place.configs / "nightly.yaml").write_text("benchmarks: [{model: control_flow, baseline: pinned}]")
    done = aaco("nightly", project=place)
    assert (done.returncode, "nothing was planned" in done.stdout) == (2, True)
    assert "none is pinned; `aaco baseline pin --model control_flow --backend cpu`" in done.stderr
