"""What a table of the TraceLake is: its columns with type, unit, nullability and meaning, declared once.

The vocabulary and the look-up live here; the declarations themselves live in `aaco_pipeline.lake.tables`,
one module per part of the lake. Checking a frame against a contract is `aaco_pipeline.lake.validation`.
This module imports neither Polars nor DuckDB, so that the command line can list tables at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import polars as pl

Scope = Literal["session", "campaign"]
"""What one file of a table belongs to: one session, or one campaign (a judgement over sets of sessions)."""

#: Type names a contract may use, with the DuckDB type each becomes in a view.
DUCKDB_TYPES: Final[Mapping[str, str]] = {
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint64": "UBIGINT",
    "float64": "DOUBLE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "list<string>": "VARCHAR[]",
    "list<int64>": "BIGINT[]",
    "list<evidence>": (
        "STRUCT(signal VARCHAR, value DOUBLE, unit VARCHAR, threshold DOUBLE, weight DOUBLE, source VARCHAR)[]"
    ),
    "list<flops_of_type>": "STRUCT(dtype VARCHAR, flops DOUBLE)[]",
}


@dataclass(frozen=True)
class Column:
    """One column: `unit` is a word such as ns, bytes, ratio, id, text; `since` the table version that brought it."""

    name: str
    dtype: str
    unit: str
    nullable: bool
    meaning: str
    since: int = 1


def column(name: str, dtype: str, unit: str, nullable: bool, meaning: str, *, since: int = 1) -> Column:
    """Declare a column. `dtype` must be a key of `DUCKDB_TYPES`; unknown names raise KeyError at import."""
    DUCKDB_TYPES[dtype]
    return Column(name, dtype, unit, nullable, meaning, since)


@dataclass(frozen=True)
class Table:
    """One table's contract.

    `columns` excludes the key: `all_columns` puts `session_id` (or `campaign_id`) first. Files are sorted by
    `sort_by`, whose first entry is the table's first key. `version` grows by one whenever columns are added;
    a reader takes any version up to its own (missing columns are null) and refuses a newer one by name.
    """

    name: str
    section: str
    meaning: str
    columns: tuple[Column, ...]
    sort_by: tuple[str, ...]
    scope: Scope = "session"
    version: int = 1

    @property
    def key(self) -> str:
        return f"{self.scope}_id"

    @property
    def all_columns(self) -> tuple[Column, ...]:
        meaning = (
            "The session the row belongs to."
            if self.scope == "session"
            else "The campaign (set of sessions judged together) the row belongs to."
        )
        return (column(self.key, "string", "id", False, meaning), *self.columns)

    def columns_of_version(self, version: int) -> tuple[Column, ...]:
        """The columns a file written under `version` of this contract must hold."""
        return tuple(c for c in self.all_columns if c.since <= version)


@cache
def polars_dtype(dtype: str) -> "pl.DataType":
    """The Polars data type a contract's type name stands for."""
    import polars as pl

    simple: dict[str, pl.DataType] = {
        "string": pl.String(),
        "bool": pl.Boolean(),
        "int32": pl.Int32(),
        "int64": pl.Int64(),
        "uint64": pl.UInt64(),
        "float64": pl.Float64(),
        "timestamp": pl.Datetime("us", "UTC"),
        "list<string>": pl.List(pl.String()),
        "list<int64>": pl.List(pl.Int64()),
        "list<evidence>": pl.List(
            pl.Struct(
                {
                    "signal": pl.String(),
                    "value": pl.Float64(),
                    "unit": pl.String(),
                    "threshold": pl.Float64(),
                    "weight": pl.Float64(),
                    "source": pl.String(),
                }
            )
        ),
        "list<flops_of_type>": pl.List(pl.Struct({"dtype": pl.String(), "flops": pl.Float64()})),
    }
    return simple[dtype]


def polars_schema(table: Table) -> "pl.Schema":
    """Column names and Polars types of `table`, key first."""
    import polars as pl

    return pl.Schema({c.name: polars_dtype(c.dtype) for c in table.all_columns})


def polars_types(table: str, *columns: str) -> "dict[str, pl.DataType]":
    """The Polars types of these columns of `table`, or of all but its key; KeyError for one it does not have."""
    declared = {c.name: c.dtype for c in contract(table).all_columns}
    wanted = columns or [c.name for c in contract(table).columns]
    return {name: polars_dtype(declared[name]) for name in wanted}


@cache
def all_tables() -> Mapping[str, Table]:
    """Every contract by table name, in the order of the data dictionary."""
    from aaco_pipeline.lake import tables

    declared: Iterable[Table] = tables.declared()
    by_name: dict[str, Table] = {}
    for table in declared:
        if table.name in by_name:
            raise ValueError(f"table {table.name} is declared twice")
        by_name[table.name] = table
    return by_name


def contract(name: str) -> Table:
    """The contract of table `name`; KeyError when there is none."""
    return all_tables()[name]
