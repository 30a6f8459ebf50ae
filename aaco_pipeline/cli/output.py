"""How the command shows data: tables for people, JSON for programs, and numbers in units a person reads.

What is shown is decided by each command's module.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

_MISSING: Final = "–"


def data_format(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every command that shows data: `--format table|json`, and `--json` for short. Gives `as_json`."""

    def chosen(context: click.Context, parameter: click.Parameter, value: str) -> bool:
        return value == "json"

    command = click.option(
        "--json", "as_json", flag_value="json", help="Print JSON, for programs (short for --format json)."
    )(command)
    return click.option(
        "--format",
        "as_json",
        type=click.Choice(["table", "json"]),
        default="table",
        callback=chosen,
        help="A table for people (default), or JSON for programs.",
    )(command)


def print_json(document: Any) -> None:
    """One JSON document on standard output; times in ISO 8601, missing values as null."""
    click.echo(json.dumps(document, indent=2, default=json_value))


def json_value(value: object) -> object:
    """A value JSON has no form for, as text."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return str(value)


def console(*, stderr: bool = False) -> "Console":
    """A console that keeps whole lines when its output is not a terminal."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1; that nobody reads on is no fault

    stream = sys.stderr if stderr else sys.stdout
    return Piped(stderr=stderr, highlight=False, width=None if stream.isatty() else 160)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    *,
    title: str | None = None,
    numeric: Sequence[str] = (),
) -> None:
    """A table on standard output; the columns named in `numeric` are set flush right, missing values as a dash."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    screen = console()
    if title is not None:
        screen.print(title, style="bold", markup=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_MISSING if cell is None else escape(cell) for cell in row))
    screen.print(table)
