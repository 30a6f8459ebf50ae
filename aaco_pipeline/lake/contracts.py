"""Look up the contract of a table by name, and the Polars types of its columns.

Declarations are in `aaco_pipeline.lake.tables`; `aaco_pipeline.lake.validation` checks frames. This module imports
neither Polars nor DuckDB, so that the command lists tables quickly.
"""

import difflib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake import declaration
from aaco_pipeline.lake.declaration import Table, Type
from aaco_pipeline.lake.tables import TABLES

if TYPE_CHECKING:
    import polars as pl


@cache
def polars_dtype(dtype: Type) -> "pl.DataType":
    """Return the Polars data type of a contract's type name."""
    import polars as pl

    simple: dict[Type, pl.DataType] = {
        declaration.STRING: pl.String(),
        declaration.BOOL: pl.Boolean(),
        declaration.INT32: pl.Int32(),
        declaration.INT64: pl.Int64(),
        declaration.UINT64: pl.UInt64(),
        declaration.FLOAT64: pl.Float64(),
        declaration.TIMESTAMP: pl.Datetime("us", "UTC"),
        declaration.DAY: pl.Date(),
        declaration.STRINGS: pl.List(pl.String()),
        declaration.INT64S: pl.List(pl.Int64()),
        declaration.SIGNALS: pl.List(
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
        declaration.FLOPS_OF_TYPES: pl.List(pl.Struct({"dtype": pl.String(), "flops": pl.Float64()})),
    }
    return simple[dtype]


def polars_schema(table: Table) -> "pl.Schema":
    """Return column names and Polars types of `table`, key first."""
    import polars as pl

    return pl.Schema({c.name: polars_dtype(c.dtype) for c in table.all_columns})


def polars_types(table: str, *columns: str) -> "dict[str, pl.DataType]":
    """Return the Polars types of these columns of `table`, or of all but its key; KeyError for an unknown column."""
    declared = {c.name: polars_dtype(c.dtype) for c in contract(table).columns}
    return {name: declared[name] for name in columns or declared}


@cache
def all_tables() -> Mapping[str, Table]:
    """Return all contracts by table name, in the order of the data dictionary."""
    by_name = {table.name: table for table in TABLES}
    if len(by_name) < len(TABLES):
        raise ValueError("a table is declared twice")
    return by_name


def contract(name: str) -> Table:
    """Return the contract of table `name`; KeyError if there is none."""
    return all_tables()[name]


def find_contract(name: str) -> Table:
    """Return the contract of a table named by the user; UsageError suggests the closest name if there is none."""
    if name not in all_tables():
        near = difflib.get_close_matches(name, all_tables(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"no table {name!r}; {hint}`aaco tables` lists them")
    return contract(name)
