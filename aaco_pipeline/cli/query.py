"""`aaco sql` and `aaco tables`: asking the lake in SQL, and what there is to ask for.

The guard around SQL is `aaco_pipeline.lake.sql`; neither command imports Dagster or Polars unless Parquet is asked for.
"""

import csv
import sys
from typing import TYPE_CHECKING

import click

from aaco_pipeline.cli.lake_option import lake_option, new_lake_option
from aaco_pipeline.cli.output import console, data_format, json_value, print_json, print_table
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.sql import HELPER_VIEWS, Result, select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.words.units import counted

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project

_NUMERIC_TYPES = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "NUMBER")


@click.command()
@click.argument("statement")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="Parquet goes to standard output as bytes: redirect it to a file.",
)
@click.option("--json", "json_too", is_flag=True, help="Short for --format json.")
@lake_option
def sql(project: "Project", statement: str, form: str, json_too: bool) -> None:
    """Run one SELECT over the lake: a view for each table, and helpers such as latest_sessions.

    Example: aaco sql "SELECT * FROM latest_sessions LIMIT 5"
    """
    lake = TraceLake(project.lake)
    if form == "parquet" and not json_too:
        if sys.stdout.isatty():
            raise click.UsageError("Parquet is bytes: redirect standard output to a file")
        lake.sql(statement).write_parquet(sys.stdout.buffer, compression="zstd")
        return
    result = select_rows(lake, statement)
    if json_too or form == "json":
        print_json([dict(zip(result.columns, row, strict=True)) for row in result.rows])
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.columns)
        writer.writerows(result.rows)
    else:
        _print_rows(result)


@click.command()
@click.argument("name", required=False)
@new_lake_option
@data_format
def tables(project: "Project", name: str | None, as_json: bool) -> None:
    """List the lake's tables with their row counts, or one table's columns and what they mean."""
    if name is None:
        _list_tables(project, as_json)
    else:
        _describe_table(name, as_json)


def _list_tables(project: "Project", as_json: bool) -> None:
    rows: dict[str, int] = dict.fromkeys(all_tables(), 0)
    for manifest in TraceLake(project.lake).manifests():
        for entry in manifest.entries:
            if entry.table in rows:
                rows[entry.table] += entry.rows
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
    console().print(f"[bold]{table.name}[/bold]: {table.meaning}")
    return print_table(
        ("column", "type", "unit", "null?", "meaning"),
        [(c.name, c.dtype, c.unit, "yes" if c.nullable else "no", c.meaning) for c in table.all_columns],
    )


def _print_rows(result: Result) -> None:
    numeric = [
        name
        for name, kind in zip(result.columns, result.types, strict=True)
        if any(part in kind.upper() for part in _NUMERIC_TYPES)
    ]
    rows = [[None if value is None else _text(value) for value in row] for row in result.rows]
    print_table(result.columns, rows, numeric=numeric, spare=None, whole="--format csv or json")
    click.echo(counted(len(result.rows), "row"))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value if isinstance(value, bool | int | str | list | dict) else json_value(value))
