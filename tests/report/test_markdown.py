"""The report as Markdown."""

import re

from aaco_pipeline.report.markdown import render_view
from aaco_pipeline.report.session.sentences import Document
from aaco_pipeline.report.session.view import report_view
from tests.report.made_up import QUIET, SPIKE


def test_markdown_shows_names_as_text_in_tables_of_equal_width(document: Document) -> None:
    text = render_view(report_view(document))
    assert "<" not in re.sub(r"\\<", "", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) >= 6
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_spikes_and_how_quiet_the_machine_was_are_reported(document: Document) -> None:
    text = render_view(report_view({**document, "quietness": [QUIET], "spikes": [SPIKE]}))
    assert "The machine disturbed 6.7 % of the iterations" in text
    assert "1 spike in 300 iterations" in text, "the answer stands above the table"
    assert "| 57 | 9 ms | 4 ms | another thread had the CPU | 3.9 ms | hog" in text
    assert "spike" not in render_view(report_view(document))
