"""Print results: readable tables and bars, JSON, and verdicts on the terminal or in files.

Sentences and tables come from `aaco_pipeline.report`.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import click

from aaco_pipeline.lake.files import lake_errors, write_atomically
from aaco_pipeline.report.formatting import printable
from aaco_pipeline.report.terminal import open_screen, print_cells, print_prose

if TYPE_CHECKING:
    from rich.console import Console

    from aaco_pipeline.report.view import View

#: The formats of `aaco_pipeline.report.comparing.exchange`, repeated so that `--help` imports nothing.
WRITTEN: Final = ("markdown", "html", "junit", "bencher", "github-action-benchmark")
#: The output of `--json`, written next to every output file for other programs.
BESIDE: Final = "verdict.json"
Kind = Literal["verdict", "difference", "stored difference"]


def data_format(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--format table|json` and `--json` to a command that shows data; the command receives `as_json`."""

    def chosen(context: click.Context, parameter: click.Parameter, value: str) -> bool:
        return value == "json"

    command = click.option("--json", "as_json", flag_value="json", help="Print JSON (short for --format json).")(
        command
    )
    return click.option(
        "--format",
        "as_json",
        type=click.Choice(["table", "json"]),
        default="table",
        callback=chosen,
        help="Output format: a readable table (default) or JSON.",
    )(command)


def say(line: object, *, err: bool = False) -> None:
    """Print one line on standard output or standard error; unprintable characters are escaped."""
    click.echo(printable(str(line)), err=err)


def tell(line: object) -> None:
    """Print one line on standard error."""
    say(line, err=True)


def print_document(document: Any, view: Callable[[Any], "View"], *, as_json: bool) -> None:
    """Print a document as JSON, or its terminal view."""
    if as_json:
        return print_json(document)
    from aaco_pipeline.report.terminal import print_view

    return print_view(view(document))


def print_plan(document: Any, words: Callable[[Any], Iterable[str]], *, as_json: bool) -> None:
    """Print a measurement plan as JSON or as sentences."""
    if as_json:
        return print_json(document)
    screen = console()
    for line in words(document):
        print_prose(screen, line)
    return print_prose(screen, "Nothing was measured.", "bold")


def print_json(document: Any) -> None:
    """Print one JSON document on standard output; times in ISO 8601, missing values as null."""
    click.echo(json.dumps(document, indent=2, default=json_value))


def print_json_rows(rows: Iterable[Any]) -> None:
    """Print a list like `print_json`, with one row per line, because there may be very many."""
    shown = ",\n".join(json.dumps(row, default=json_value) for row in rows)
    click.echo(f"[\n{shown}\n]" if shown else "[]")


def json_value(value: object) -> object:
    """Convert a value that has no JSON equivalent."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return str(value)


def console(*, stderr: bool = False) -> "Console":
    """Open a console on standard output or standard error, with the width from `open_screen`."""
    return open_screen(sys.stderr if stderr else sys.stdout)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str | None]], *, numeric: Sequence[str] = (), **layout: Any
) -> None:
    """Print a table on standard output; columns in `numeric` are right-aligned, missing values are a dash."""
    print_cells(console(), [f"*{name}" if name in numeric else name for name in columns], rows, **layout)


@contextmanager
def progress_bar(quiet: bool, *, single: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Draw a bar for each task in progress, including tasks reported elsewhere within the block.

    Nothing is drawn in quiet mode or without a terminal. A `single` bar changes its description instead.
    """
    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda doing, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from aaco_pipeline.resources.progress import progress_listener

    amount = TaskProgressColumn() if single else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
    # No automatic refresh: a redrawing thread would disturb the measurement.
    with Progress(*columns, console=screen, transient=True, auto_refresh=False) as bar:
        tasks: dict[str, Any] = {}

        def show(doing: str, done: int, total: int) -> None:
            name = "" if single else doing
            if name not in tasks:
                tasks[name] = bar.add_task(doing, total=total or None)
            bar.update(tasks[name], description=doing, completed=done, total=total if single else None)
            bar.refresh()

        with progress_listener(show):
            yield show


def verdict_format(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--format`, `--json` and `--output` to a command that shows a verdict; it receives `form` and `output`."""
    command = click.option(
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Output file; verdict.json is written to the same folder (default: standard output).",
    )(command)
    command = click.option("--json", "form", flag_value="json", help="Print JSON (short for --format json).")(command)
    return click.option(
        "--format",
        "form",
        type=click.Choice(["table", "json", *WRITTEN]),
        default="table",
        show_default=True,
        help="Output format: a readable table, JSON, Markdown, HTML, JUnit XML for CI, or the input format of Bencher "
        "or github-action-benchmark.",
    )(command)


def give(document: dict[str, Any], form: str, output: Path | None, of: Kind) -> None:
    """Print the document in the given format, or write it to `output` with its JSON in the same folder."""
    if output is None and form == "table":
        return _print(document, of)
    if output is None and form == "json":
        return print_json(document)
    text = _rendered(document, form, of)
    if output is None:
        return click.echo(text, nl=False)
    for path, content in {output.with_name(BESIDE): _as_json(document), output: text}.items():
        with lake_errors(path):
            write_atomically(path.absolute(), content.encode())
    return say(output)


def _print(document: dict[str, Any], of: Kind, stream: TextIO | None = None) -> None:
    """Print a document for a terminal."""
    from aaco_pipeline.report.comparing.exchange import VIEWS
    from aaco_pipeline.report.terminal import print_view

    print_view(VIEWS[of](document), stream)


def _rendered(document: dict[str, Any], form: str, of: Kind) -> str:
    """Render a document in a file format."""
    if form == "json":
        return _as_json(document)
    if form == "table":
        _print(document, of, text := StringIO())
        return text.getvalue()
    from aaco_pipeline.report.comparing.exchange import forms, rendered

    if form not in forms(of):
        raise click.UsageError(f"there is no {form} of a {of}; there is {', '.join(forms(of))}")
    return rendered(document, of, form)


def _as_json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, default=json_value) + "\n"
