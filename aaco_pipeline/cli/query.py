"""`aaco sql` and `aaco tables`: query the lake in SQL, and list its tables and columns.

`aaco_pipeline.lake.sql` restricts statements; neither command imports Dagster or Polars.
"""

import csv
import json
import re
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.finishing import say_unfinished
from aaco_pipeline.cli.options import lake_option, new_lake_option, open_lake
from aaco_pipeline.cli.output import console, data_format, json_value, print_json, print_table, say
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.limited_sql import DEFAULT_SECONDS, MOST_MEMORY_BYTES, SPILL_PER_MEMORY, Limits, default_limits
from aaco_pipeline.lake.sql import Result, stream_batches, stream_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.views import HELPER_VIEWS
from aaco_pipeline.report.formatting import printable, shortened
from aaco_pipeline.report.terminal import print_prose, print_result

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project

_NUMBER: Final = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|DECIMAL\(.*\)|NUMBER")
_LONGEST_CELL: Final = 10_000
#: Memory that the process may use beyond the statement's limit, which excludes strings created by functions.
_BESIDE_BYTES: Final = 10**9
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b", re.IGNORECASE)
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class Size(click.ParamType):  # type: ignore[type-arg]  # not generic in older releases of click
    """Parse a number of bytes such as 500MB or 2GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE.fullmatch(value.strip())
        power = " kmgt".index(found[2].lower() or " ") if found else 0
        bytes_ = int(float(found[1]) * (1024 if found[3] else 1000) ** power) if found else 0
        if not 10**7 <= bytes_ <= 10**15:
            self.fail(f"{value!r} is not a size from 10MB up, such as 500MB or 2GB", param, ctx)
        return bytes_


@click.command()
@click.argument("statement")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="A table omits columns and rows that do not fit; the other formats are complete. Parquet is written to "
    "standard output: redirect it to a file. JSON and Parquet keep text unchanged; CSV escapes control and invisible "
    "characters, as in \\x1b.",
)
@click.option("--json", "json_too", is_flag=True, help="Short for --format json.")
@click.option(
    "--guard-formulas",
    is_flag=True,
    help="With CSV: prefix text that a spreadsheet would evaluate as a formula (it begins with = + - @, tab or "
    "carriage return) with an apostrophe. By default text is unchanged.",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=Size(),
    help="Memory limit of the statement (default: half of the machine's memory, at most "
    f"{MOST_MEMORY_BYTES // 10**9} GB). It can spill up to {SPILL_PER_MEMORY} times as much to the lake's disk, but "
    "at most half of the free space.",
)
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, max=10**6, min_open=True),
    default=DEFAULT_SECONDS,
    show_default=True,
    help="Time limit of the statement in seconds.",
)
@lake_option
def sql(
    project: "Project",
    *,
    statement: str,
    form: str,
    json_too: bool,
    guard_formulas: bool,
    memory_bytes: int | None,
    seconds: float,
) -> None:
    """Run one SELECT over the lake: it has a view for each table, and helpers such as latest_sessions.

    Example: aaco sql "SELECT * FROM latest_sessions LIMIT 5"
    """
    form = "json" if json_too else form
    if guard_formulas and form != "csv":
        raise click.UsageError("--guard-formulas is about CSV: it goes with --format csv")
    if form == "parquet" and sys.stdout.isatty():
        raise click.UsageError("Parquet is bytes: redirect standard output to a file")
    lake = open_lake(project)
    loss = say_unfinished(lake)
    limits = Limits(memory_bytes or default_limits().memory_bytes, seconds)
    with _memory_of_process(limits.memory_bytes + _BESIDE_BYTES):
        if form == "parquet":
            _write_parquet(lake, statement, limits)
        else:
            with closing(stream_rows(lake, statement, limits)) as parts:
                if form == "json":
                    _print_json(parts)
                elif form == "csv":
                    print_csv(parts, guard_formulas=guard_formulas)
                else:
                    _print_rows(parts)
    if loss is not None:  # the answer does not depend on it
        say(f"aaco: {loss}", err=True)


@contextmanager
def _memory_of_process(more_bytes: int) -> Iterator[None]:
    """Limit the additional memory of this process within the block."""
    held = int(Path("/proc/self/statm").read_text("ascii").split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = min(held + more_bytes, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY), 2**62)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _write_parquet(lake: TraceLake, statement: str, limits: Limits) -> None:
    """Write the rows as one Parquet file to standard output, batch by batch."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    with closing(stream_batches(lake, statement, limits)) as batches:
        try:
            with ParquetWriter(sys.stdout.buffer, next(batches).schema, compression="zstd") as writer:
                for batch in batches:
                    writer.write_batch(batch)
        except pa.ArrowNotImplementedError as error:
            raise UsageError(
                f"SQL: a column's type cannot be held in Parquet ({' '.join(str(error).split())})"
            ) from error


def _print_json(parts: Iterable[Result]) -> None:
    """Stream the rows as one JSON document in the format of `print_json`."""
    before = "["
    for part in parts:
        for row in part.rows:
            shown = json.dumps(dict(zip(part.columns, row, strict=True)), indent=2, default=json_value)
            sys.stdout.write(f"{before}\n{indent(shown, '  ')}")
            before = ","
    sys.stdout.write("[]\n" if before == "[" else "\n]\n")


def print_csv(parts: Iterable[Result], *, guard_formulas: bool = False) -> None:
    """Print the rows as CSV; `guard_formulas` prefixes text that looks like a formula with an apostrophe."""

    def cell(value: object) -> object:
        if not isinstance(value, str | bytes | list | dict):
            return value
        text = str(value)
        return ("'" if guard_formulas and text.startswith(_FORMULA) else "") + printable(text)

    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, part in enumerate(parts):
        if number == 0:
            writer.writerow(map(cell, part.columns))
        writer.writerows([cell(value) for value in row] for row in part.rows)


@click.command()
@click.argument("name", required=False)
@new_lake_option
@data_format
def tables(project: "Project", name: str | None, as_json: bool) -> None:
    """List the lake's tables with row counts, or describe one table's columns."""
    if name is None:
        _list_tables(project, as_json)
    else:
        _describe_table(name, as_json)


def _list_tables(project: "Project", as_json: bool) -> None:
    with open_lake(project).catalogue() as known:
        rows = {**dict.fromkeys(all_tables(), 0), **known.rows_of_tables()}
    listed = [
        {"table": t.name, "section": t.section, "scope": t.scope, "meaning": t.meaning, "rows": rows[t.name]}
        for t in all_tables().values()
    ]
    if as_json:
        return print_json(listed)
    for section in dict.fromkeys(t.section for t in all_tables().values()):
        print_table(
            ("table", "rows", "meaning"),
            [(t.name, f"{rows[t.name]:,}", t.meaning) for t in all_tables().values() if t.section == section],
            title=section,
            numeric=("rows",),
        )
    return print_table(("view", "meaning"), [(v.name, v.meaning) for v in HELPER_VIEWS], title="Helper views")


def _describe_table(name: str, as_json: bool) -> None:
    from aaco_pipeline.lake.contracts import find_contract

    table = find_contract(name)
    columns = [
        {"column": c.name, "type": c.dtype, "unit": c.unit, "nullable": c.nullable, "meaning": c.meaning}
        for c in table.all_columns
    ]
    if as_json:
        return print_json({"table": table.name, "meaning": table.meaning, "version": table.version, "columns": columns})
    print_prose(console(), f"{table.name}: {table.meaning}")
    return print_table(
        ("column", "type", "unit", "null?", "meaning"),
        [(c.name, c.dtype, c.unit, "yes" if c.nullable else "no", c.meaning) for c in table.all_columns],
    )


def _print_rows(parts: Iterator[Result]) -> None:
    first = next(parts)
    goes_on = next(parts, None) is not None
    numeric = [name for name, kind in zip(first.columns, first.types, strict=True) if _NUMBER.fullmatch(kind)]
    print_result(console(), first.columns, first.rows, _text, numeric=numeric, goes_on=goes_on)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value if isinstance(value, bool | int | str | list | dict) else json_value(value))
    return shortened(text, _LONGEST_CELL)
