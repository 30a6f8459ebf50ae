"""Run nights one after the other: their baselines, their alerts, and the rolling baseline."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import polars as pl
import pytest

from aaco_pipeline.lake.artefacts import ARTEFACTS
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import read_plan
from aaco_pipeline.pipeline.nightly.alerts import acknowledge
from aaco_pipeline.report.nights import night_document
from tests.pipeline.nightly.nights import Nights, nights

DAY = timedelta(days=1)


@dataclass
class Story:
    """Nights that were lived through once: campaigns by what they are called, and what was so after each."""

    of: Nights
    campaigns: dict[str, str] = field(default_factory=dict)
    rolling: dict[str, list[str]] = field(default_factory=dict)

    def verdict(self, name: str, arm: str = "candidate") -> str:
        rows = self.of.lake.read("verdicts", self.campaigns[name])
        return str(rows.filter((pl.col("candidate") == arm) & (pl.col("role") == "primary")).item(0, "verdict"))

    def note(self, name: str, campaign: str) -> None:
        self.campaigns[name] = campaign
        self.rolling[name] = self.of.rolling().get_column("campaign").to_list()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A first night, a clean one, a slower one with its second slot, and those after it was acknowledged."""
    folder = tmp_path_factory.mktemp("nights")
    with pytest.MonkeyPatch.context() as patch:
        lived = nights(TraceLake(folder / "lake"), folder / "configs", patch)
        began, told = lived.now, Story(lived)
        for name, days in (("first", 0), ("clean", 1)):
            lived.now = began + days * DAY
            (campaign,) = lived.night()
            told.note(name, campaign)
        lived.now = began + 2 * DAY
        lived.model(2_000_000)
        (campaign,) = lived.night()
        told.note("slower", campaign)
        assert lived.night() == []  # it is not half an hour later yet
        lived.now += timedelta(minutes=31)
        (campaign,) = lived.night()
        told.note("confirming", campaign)
        assert lived.night() == []
        (alert,) = lived.lake.read("alerts").get_column("alert").unique()
        acknowledge(lived.lake, alert, "ada", "twice the work")
        lived.now = began + 20 * DAY
        (campaign,) = lived.night()
        told.note("acknowledged", campaign)
        yield told


def test_the_first_night_is_its_own_baseline_and_becomes_the_rolling_one(story: Story) -> None:
    plan = read_plan(story.of.lake, story.campaigns["first"])
    assert sorted(plan.arms) == ["baseline", "candidate", "placebo"]
    assert plan.arms["baseline"].baseline is None
    assert len({one.artefact_sha256 for one in plan.arms.values()}) == 1
    assert story.verdict("first") in ("equivalent", "inconclusive")
    assert story.rolling["first"] == [story.campaigns["first"]]
    assert story.of.rolling().item(0, "fingerprint") == "stack 1"
    assert story.of.lake.read("aa_ledger", story.campaigns["first"]).height > 0


def test_a_clean_night_of_the_same_file_and_environment_takes_nobody_s_place(story: Story) -> None:
    plan = read_plan(story.of.lake, story.campaigns["clean"])
    assert plan.arms["baseline"].baseline == story.of.rolling().item(0, "campaign_id")
    assert story.rolling["clean"] == story.rolling["first"]


def test_every_arm_is_measured_from_the_lake_and_the_placebo_from_a_copy_of_its_own(story: Story) -> None:
    plan = read_plan(story.of.lake, story.campaigns["slower"])
    folders = {arm: one.artefact.parent for arm, one in plan.arms.items()}
    assert {folder.parent for folder in folders.values()} == {story.of.lake.path / ARTEFACTS}
    assert len(set(folders.values())) == 3
    assert plan.arms["placebo"].artefact_sha256 == plan.arms["baseline"].artefact_sha256
    assert not folders["placebo"].exists()  # it goes with its campaign
    assert plan.workload == "m"


def test_a_slower_night_is_suspected_and_its_second_slot_confirms_the_same_files(story: Story) -> None:
    first, second = (read_plan(story.of.lake, story.campaigns[name]) for name in ("slower", "confirming"))
    assert story.verdict("slower") == "regressed"
    assert story.verdict("slower", "placebo") != "regressed"
    assert (second.night, second.confirms) == (first.night, first.campaign)
    assert all(second.arms[arm].artefact == first.arms[arm].artefact for arm in ("baseline", "candidate"))
    assert second.arms["placebo"].artefact != first.arms["placebo"].artefact
    assert [event for _, event in story.of.events()][:2] == ["suspected", "confirmed"]


def test_an_alerting_night_is_not_the_baseline_until_the_user_acknowledges_it(story: Story) -> None:
    before = story.rolling["clean"]
    assert [story.rolling[name] for name in ("slower", "confirming")] == [before] * 2
    assert story.rolling["acknowledged"] == [*before, story.campaigns["slower"]]
    plan = read_plan(story.of.lake, story.campaigns["acknowledged"])
    assert plan.arms["baseline"].artefact_sha256 == plan.arms["candidate"].artefact_sha256
    assert plan.arms["baseline"].baseline == story.of.rolling().item(-1, "campaign_id")
    assert story.of.events()[-1][1] == "resolved"


def test_the_night_s_document_says_what_it_came_to_and_what_to_do(story: Story) -> None:
    night = read_plan(story.of.lake, story.campaigns["slower"]).night
    assert night is not None
    (row,) = night_document(story.of.lake, night, {})["benchmarks"]
    assert (row["workload"], row["backend"], row["verdict"]) == ("m", "cpu", "regressed")
    assert row["confirmed_by"] == story.campaigns["confirming"]
    assert row["against"]["kind"] == "rolling"
