"""Generate the data dictionary: every table, view and column of the TraceLake on one Markdown page.

Tables and views are declared in `aaco_pipeline.lake.tables` and `aaco_pipeline.lake.views`. Run as
`python -m aaco_pipeline.lake.dictionary [--check] PATH` to write the page, or to check that it is up to date.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.declaration import DUCKDB_TYPES, Table
from aaco_pipeline.lake.views import HELPER_VIEWS, HelperView

#: The page's place in the repository.
DEFAULT_PATH: Final = "docs/data_dictionary.md"

INTRODUCTION: Final = """\
# Data dictionary

<!-- Made by `python -m aaco_pipeline.lake.dictionary docs/data_dictionary.md`; change the contracts, not this page. -->

Every table of the TraceLake and every column in it. These names, types, units and meanings are the public interface:
a table may gain columns and the lake may gain tables, and nothing that is listed here changes its meaning.

- **Null means 'no evidence'; zero means measured zero.** The table `evidence` says why something is missing.
- **Every column has a unit.** Durations and times are in ns, sizes in bytes, power in W, energy in J, temperatures in
  degC, clocks in MHz. A ratio is never a percentage: a share lies in 0..1, an effect is candidate divided by baseline,
  a threshold or detectable effect is a difference from 1. A value whose unit `varies` has it in the column `unit`
  of its row.
- **All times of a session lie on one axis**, the session's own, as nanoseconds in an int64. `clock_domains` says how
  each source's clock maps onto it, and where wall-clock is known.
- **Ids are dense within a session** and mean nothing outside it. Kernels are compared across sessions by
  `kernels.name` and `kernels.fingerprint`. An activity elsewhere is named by its kind (`dispatch`, `memory_copy`,
  `api_call`) and its number in that kind's table.
- **One Parquet file per table, stage and session**, or per campaign for tables of scope campaign; none for a table
  without rows. Rows are sorted by the sort key. `session_id` (or `campaign_id`) stands in the file's path, as
  `dispatches/session_id=…/`, so that pandas, pyarrow, DuckDB and Polars read a table's folder as one partitioned data
  set, until `aaco compact` has put files together; of `sessions` and `campaigns`, which hold markers too, pandas and
  pyarrow need the files by name, `[*Path(lake, "sessions").glob("*/*.parquet")]`: see
  [how to read those, too](scale.md#reading-the-lake-with-other-tools). The contract's version is written into each
  file: older files are read with the columns they lack as null, newer ones are refused by name.
"""


def render() -> str:
    """Render the full page; the same contracts give the same text."""
    tables = list(all_tables().values())
    parts = [INTRODUCTION, _types(), _contents(tables)]
    for section, members in groupby(tables, key=lambda table: table.section):
        parts.append(f"## {section}\n")
        parts.extend(_table(table) for table in members)
    parts.append("## Views\n\nIn SQL alone (`aaco sql`): questions that people ask often, over the tables.\n")
    parts.extend(map(_view, HELPER_VIEWS))
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page to PATH, or with --check return 1 when PATH does not hold it."""
    parser = argparse.ArgumentParser(prog="python -m aaco_pipeline.lake.dictionary", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when PATH is out of date")
    parser.add_argument("path", metavar="PATH", type=Path, help=f"the page, {DEFAULT_PATH} in the repository")
    options = parser.parse_args(arguments)
    path: Path = options.path
    page = render()
    if not options.check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8", newline="\n")
        return 0
    if path.is_file() and path.read_bytes() == page.encode():
        return 0
    state = "is out of date" if path.exists() else "does not exist"
    print(f"{path} {state}; run: python -m aaco_pipeline.lake.dictionary {path}", file=sys.stderr)
    return 1


def _types() -> str:
    rows = ([f"`{name}`", f"`{duckdb_type}`"] for name, duckdb_type in DUCKDB_TYPES.items())
    return "## Types\n\n" + _grid(["Type", "In SQL"], rows)


def _contents(tables: Iterable[Table]) -> str:
    lines = [
        f"- {section}: " + ", ".join(f"[`{table.name}`](#{table.name})" for table in members)
        for section, members in groupby(tables, key=lambda table: table.section)
    ]
    views = "- Views: " + ", ".join(f"[`{view.name}`](#{view.name})" for view in HELPER_VIEWS)
    return "## Tables\n\n" + "\n".join([*lines, views]) + "\n"


def _table(table: Table) -> str:
    sort_key = ", ".join(f"`{name}`" for name in table.sort_by)
    rows = (
        [f"`{c.name}`", f"`{c.dtype}`", c.unit, "yes" if c.nullable else "no", c.meaning] for c in table.all_columns
    )
    return (
        f"### {table.name}\n\n{table.meaning}\n\n"
        f"Scope: {table.scope} · version: {table.version} · sort key: {sort_key}\n\n"
        + _grid(["Column", "Type", "Unit", "Nullable", "Meaning"], rows)
    )


def _view(view: HelperView) -> str:
    tables = ", ".join(f"`{name}`" for name in view.tables)
    rows = ([f"`{name}`", meaning] for name, meaning in view.columns.items())
    return f"### {view.name}\n\n{view.meaning}\n\nFrom: {tables}\n\n" + _grid(["Column", "Meaning"], rows)


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
