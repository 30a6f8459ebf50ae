"""The frame that the pages of verdicts, differences and searches share: style, script, footer, and tables of texts.

How they look is `templates/comparison`. Nothing is loaded from elsewhere, and without its script a page only lacks the
switch of themes.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from aaco_pipeline import __version__
from aaco_pipeline.report.html.comparison.places import HEIGHT
from aaco_pipeline.report.html.page import OF_THE_PAGE, UNIT, templates
from aaco_pipeline.report.words.printable import printable
from aaco_pipeline.report.words.verdicts import Row


def framed_page(template: str, **values: Any) -> str:
    """A page of `templates/comparison` with its style and script; the same values give the same page."""
    folder = files("aaco_pipeline.report.html").joinpath("templates")
    style, script = (
        Markup("".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names))
        for names in (("report.css", "comparison/comparison.css"), ("comparison/comparison.js",))
    )
    page = (
        templates()
        .get_template(f"comparison/{template}.html.jinja")
        .render(style=style, script=script, height=HEIGHT, written_by=f"aaco_pipeline {__version__}", **_held(values))
    )
    return printable(page, keep=OF_THE_PAGE)


def cells(columns: Mapping[str, Callable[[Row], str | None]], rows: Iterable[Row]) -> dict[str, Any]:
    """A table as texts; empty, and so not shown, without rows."""
    told = [["–" if (text := show(row)) is None else text for show in columns.values()] for row in rows]
    return {"columns": list(columns), "rows": told} if told else {}


# ---- inside ----------------------------------------------------------------------------------------------------------


def _held(value: Any) -> Any:
    """The same with every figure held to its unit, so that no line ends between them; markup, as code is, stays."""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else UNIT.sub("\N{NO-BREAK SPACE}", value)
    if isinstance(value, dict):
        return {key: _held(one) for key, one in value.items()}
    return type(value)(map(_held, value)) if isinstance(value, list | tuple) else value
