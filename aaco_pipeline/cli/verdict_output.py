"""Where a verdict or a difference goes: to standard output, or into a file with verdict.json beside it.

The forms are `aaco_pipeline.report.renderers`.
"""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import click

from aaco_pipeline.cli.output import json_value, print_json, say
from aaco_pipeline.lake.files import lake_errors, write_atomically

#: What `aaco_pipeline.report.renderers` has, without importing it for `--help`; a test holds them together.
WRITTEN: Final = ("markdown", "html", "junit", "bencher", "github-action-benchmark")
#: For programs that follow: what `--json` prints, beside every file that is written.
BESIDE: Final = "verdict.json"
Kind = Literal["verdict", "difference", "stored difference"]
Print = Callable[[dict[str, Any], TextIO | None], None]


def verdict_format(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of commands that show a verdict or a difference; give `form` and `output`."""
    command = click.option(
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write here, with verdict.json beside it (default: to standard output).",
    )(command)
    command = click.option("--json", "form", flag_value="json", help="Print JSON (short for --format json).")(command)
    return click.option(
        "--format",
        "form",
        type=click.Choice(["table", "json", *WRITTEN]),
        default="table",
        show_default=True,
        help="Tables for people, JSON for programs, Markdown or HTML to keep, JUnit for a CI system, or what Bencher "
        "and github-action-benchmark take.",
    )(command)


def give(document: dict[str, Any], form: str, output: Path | None, of: Kind) -> None:
    """Print the document in that form, or write it to `output` and the document itself beside it."""
    if output is None and form == "table":
        return _on_screen(of)(document, None)
    if output is None and form == "json":
        return print_json(document)
    text = _rendered(document, form, of)
    if output is None:
        return click.echo(text, nl=False)
    for path, content in {output.with_name(BESIDE): _as_json(document), output: text}.items():
        with lake_errors(path):
            write_atomically(path.absolute(), content.encode())
    return say(output)


def _on_screen(of: Kind) -> Print:
    """What prints it for a terminal."""
    from aaco_pipeline.report.terminal import difference, stored_difference, verdict

    return {
        "verdict": verdict.print_verdict,
        "difference": difference.print_difference,
        "stored difference": stored_difference.print_stored_difference,
    }[of]


def _rendered(document: dict[str, Any], form: str, of: Kind) -> str:
    """The document in that form as the text of a file."""
    if form == "json":
        return _as_json(document)
    if form == "table":
        text = StringIO()
        _on_screen(of)(document, text)
        return text.getvalue()
    from aaco_pipeline.report import renderers

    tables = {
        "verdict": renderers.VERDICT,
        "difference": renderers.DIFFERENCE,
        "stored difference": renderers.STORED_DIFFERENCE,
    }
    if form not in tables[of]:
        raise click.UsageError(f"there is no {form} of a {of}; there is {', '.join(tables[of])}")
    return tables[of][form](document)


def _as_json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, default=json_value) + "\n"
