"""How the command shows data: tables for people, JSON for programs, and numbers in units a person reads.

What is shown is decided by each command's module.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from aaco_pipeline.report.terminal.screen import open_screen, print_cells
from aaco_pipeline.report.words.printable import printable

if TYPE_CHECKING:
    from rich.console import Console


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


def say(line: object, *, err: bool = False) -> None:
    """One line for people on standard output or standard error, harmless whatever capture or path it quotes."""
    click.echo(printable(str(line)), err=err)


def tell(line: object) -> None:
    """One line for people on standard error."""
    say(line, err=True)


def print_json(document: Any) -> None:
    """One JSON document on standard output; times in ISO 8601, missing values as null."""
    click.echo(json.dumps(document, indent=2, default=json_value))


def print_json_rows(rows: Iterable[Any]) -> None:
    """A list as `print_json` prints it, but for the white space: each of what may be very many rows on a line."""
    shown = ",\n".join(json.dumps(row, default=json_value) for row in rows)
    click.echo(f"[\n{shown}\n]" if shown else "[]")


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
    """A console on standard output or standard error, as wide as `open_screen` finds it."""
    return open_screen(sys.stderr if stderr else sys.stdout)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    *,
    numeric: Sequence[str] = (),
    **layout: Any,
) -> None:
    """A table on standard output; the columns named in `numeric` are set flush right, missing values as a dash."""
    print_cells(console(), [f"*{name}" if name in numeric else name for name in columns], rows, **layout)
