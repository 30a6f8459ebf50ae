"""Render a view as Markdown, for a pull request or a note.

Each subject provides its view; plots are only on HTML pages.
"""

import re
from collections.abc import Iterator

from aaco_pipeline.report.formatting import counted, in_a_line, in_lines
from aaco_pipeline.report.view import Code, Lines, Part, Sentence, Table, View


def render_view(view: View) -> str:
    """Render the view as a Markdown document; names from the capture are escaped."""
    parts = [f"# {_with_code(view.title)}"]
    for part in view.parts:
        parts += _rendered(part) if part.only != "terminal" else ()
    return "\n\n".join(parts) + "\n"


def _rendered(part: Part) -> Iterator[str]:
    if isinstance(part, Sentence) and part.text:
        text = _with_code(part.text)
        yield f"**{text}**" if part.tone in ("good", "bad", "open") else text
    elif isinstance(part, Lines) and part.lines:
        yield f"## {part.heading}"
        yield "\n".join(f"- {_with_code(line)}" for line in part.lines)
    elif isinstance(part, Table) and part.rows:
        yield from _table(part)
    elif isinstance(part, Code):
        yield f"## {part.heading}"
        yield fenced(part.text, part.language)


def _table(table: Table) -> Iterator[str]:
    """Render a heading and the first rows of a table, and the number of further rows."""
    if heading := table.heading or table.title:
        yield f"## {heading}"
    texts = [[show(row) for show in table.columns.values()] for row in table.rows[: table.most]]
    rows = [
        [name.lstrip("*") for name in table.columns],
        *(["–" if text is None else markdown_text(text) for text in row] for row in texts),
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    marks = "|".join(" ---: " if name.startswith("*") else " --- " for name in table.columns)
    yield "\n".join([lines[0], f"|{marks}|", *lines[1:]])
    if len(table.rows) > table.most:
        yield f"{counted(len(table.rows) - table.most, 'further row')} in `aaco report --format json`."


def fenced(text: str, language: str) -> str:
    """Render code in a fence that nothing in it can close."""
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{in_lines(text.expandtabs(8))}{fence}"


def markdown_text(text: str) -> str:
    """Escape text for Markdown, on one line."""
    return _escaped(" ".join(in_a_line(text).split()))


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~&$])", r"\\\1", text)


def _with_code(text: str) -> str:
    """Escape text for Markdown, on one line; text between two backticks becomes code."""
    parts = " ".join(in_a_line(text).split()).split("`")
    if len(parts) % 2 == 0 or not all(parts[1::2]):
        return markdown_text(text)  # a name from the capture contains backticks
    return "".join(f"`{part}`" if at % 2 else _escaped(part) for at, part in enumerate(parts))
