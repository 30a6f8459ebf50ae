"""The report as Markdown."""

import re

from aaco_pipeline.report.markdown import render_markdown
from aaco_pipeline.report.words.session import Document


def test_markdown_shows_names_as_text_in_tables_of_equal_width(document: Document) -> None:
    text = render_markdown(document)
    assert "<" not in re.sub(r"\\<", "", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) >= 6
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table
