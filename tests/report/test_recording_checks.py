"""A machine's quietness in sentences, and every finding about a recording in words."""

from typing import Any

import pytest

from aaco_pipeline.analysis.completeness.findings import NAMES
from aaco_pipeline.report.recording_checks import TAKES, TITLES, consequences, headline, machine_sentences
from tests.places import ROOT


def row(kind: str, name: str | None, occurrences: int, taken_ns: int, **more: Any) -> dict[str, Any]:
    told = {"cpu": 0, "kind": kind, "name": name, "occurrences": occurrences}
    return {**told, "taken_ns": taken_ns, "of_ns": 10_000_000_000, "typical_gap_ns": None, **more}


def test_what_vanished_what_the_timer_costs_and_who_ran() -> None:
    rows = [
        row("unseen", None, 900, 130_000_000),
        row("interrupt", "local_timer", 2_000, 20_000_000, typical_gap_ns=40_000),
        row("beside", None, 2_000, 60_000_000),
        row("thread", "hog", 10, 1_500_000_000),
        row("thread", "kworker", 5, 1_000),
        row("state", "throttled", 1, 500_000_000),
        row("interrupt", "virtio", 1, 5_000),
        row("softirq", "BLOCK", 1, 15_000_000),
    ]
    assert machine_sentences(rows, [1, 2], 10, None) == [
        "On 1 CPU for 10 s, 1.3 % of the CPU time vanished unseen: no event of the kernel explains it.",
        "The timer interrupts 250 times a second; its handler takes 10 µs, "
        "and a gap that holds it alone is typically 40 µs long.",
        "Another 0.6 % went in the gaps around handlers and switches: "
        "entering and leaving them, or a pause that nothing tells apart.",
        "Other threads took 15.0 %, most of it hog.",
        "For 5.0 % the probes were off a CPU otherwise: throttled.",
        "Other handlers took 0.2 %, most of it softirq BLOCK.",
        "On average 1.5 threads wanted a CPU, 1 of them the probes.",
    ]


def test_cpus_that_differ_are_reported_as_a_range() -> None:
    rows = [
        row("interrupt", "local_timer", 2_500, 20_000_000, cpu=cpu, typical_gap_ns=gap)
        for cpu, gap in ((0, 33_000), (1, 40_000), (2, None))
    ]
    (_, ticks, *_) = machine_sentences(rows, [], 10, None)
    assert ticks.startswith("The timer interrupts 250 times a second; its handler takes 8 µs, ")
    assert ticks.endswith("typically 33 … 40 µs long.")
    assert "typically" not in machine_sentences(rows[2:], [], 10, None)[1]


def test_without_rights_it_says_what_it_could_not_see() -> None:
    said = machine_sentences([row("gap", None, 5, 500_000_000)], [], 10, "tracefs is not mounted")
    assert said == [
        "On 1 CPU for 10 s, 5.0 % of the CPU time went elsewhere. By what is unknown: tracefs is not mounted."
    ]


def test_a_quiet_machine_has_no_others() -> None:
    assert "No other thread took a CPU." in machine_sentences([row("unseen", None, 0, 0)], [], 10, None)
    assert TAKES["taken by"](row("unseen", None, 0, 0)) == "nothing that was seen"


def test_how_many_wanted_a_cpu_is_unknown_where_the_host_does_not_say() -> None:
    unknown = "How many threads wanted a CPU is unknown: /proc/stat does not say procs_running."
    assert machine_sentences([row("unseen", None, 0, 0)], None, 10, None)[-1] == unknown


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
