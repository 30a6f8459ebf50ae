"""The report as Markdown."""

import re

from aaco_pipeline.report.markdown import render_markdown
from aaco_pipeline.report.session.sentences import Document


def test_markdown_shows_names_as_text_in_tables_of_equal_width(document: Document) -> None:
    text = render_markdown(document)
    assert "<" not in re.sub(r"\\<", "", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) >= 6
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_spikes_and_how_quiet_the_machine_was_are_told(document: Document) -> None:
    quiet = {"iterations": 300, "clean": 280, "disturbed": 20, "unknown": 0, "disturbed_by": "preempted", "spikes": 1}
    spike = {
        **{"iteration": 57, "latency_ns": 9_000_000, "excess_ns": 4_000_000, "spike_cause": "preempted"},
        **{"explained_ns": 3_900_000, "occurrences": 1, "evidence_grade": "observed", "by_kind": "thread"},
        **{"by_name": "hog", "by_thread_id": 900},
    }
    text = render_markdown({**document, "quietness": [quiet], "spikes": [spike]})
    assert "The machine disturbed 6.7 % of the iterations" in text
    assert "1 spike in 300 iterations" in text, "the answer stands above the table"
    assert "| 57 | 9 ms | 4 ms | another thread had the CPU | 3.9 ms | hog" in text
    assert "spike" not in render_markdown(document)
