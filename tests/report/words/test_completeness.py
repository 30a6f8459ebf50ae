"""Every finding has a title for people and its place in the documentation."""

import pytest

from aaco_pipeline.analysis.completeness.findings import NAMES
from aaco_pipeline.report.words.completeness import TITLES, consequences, headline
from tests.places import ROOT


@pytest.mark.parametrize("name", NAMES)
def test_every_finding_has_a_title_and_is_documented(name: str) -> None:
    assert TITLES[name]
    assert f"| `{name}` |" in (ROOT / "docs/completeness.md").read_text()


def test_no_title_is_of_a_finding_that_does_not_exist() -> None:
    assert set(TITLES) == set(NAMES)


@pytest.mark.parametrize(
    ("severities", "words"),
    [((), "shows a loss"), (("bound",), "with care (1 bound)"), (("fault", "bound", "fault"), "(2 faults, 1 bound)")],
)
def test_the_first_sentence_says_how_far_it_can_be_believed(severities: tuple[str, ...], words: str) -> None:
    assert words in headline([{"severity": severity} for severity in severities])


def test_consequences_name_the_side_of_each_bound() -> None:
    told = consequences({"voids": ["a.b"], "at_least": ["c.d", "e.f"], "at_most": []})
    assert told == ["Void: a.b.", "The truth is at least: c.d, e.f."]
