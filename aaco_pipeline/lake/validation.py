"""Check a frame against a table's contract, and convert it to the contract's order.

Contracts are declared in `aaco_pipeline.lake.tables`; `aaco_pipeline.lake.store` publishes.
"""

from collections.abc import Sequence

import polars as pl

from aaco_pipeline.errors import ContractError
from aaco_pipeline.lake.contracts import polars_schema, polars_types
from aaco_pipeline.lake.declaration import Table


def empty_table(table: str) -> pl.DataFrame:
    """Return the table without rows: the contract's columns except the key."""
    return pl.DataFrame(schema=polars_types(table))


def to_contract(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Cast `frame` to the contract of `table` in its order; missing columns become null.

    ValueError for a column that is not in the contract: a reader must not drop data.
    """
    declared = polars_types(table)
    surplus = [name for name in frame.columns if name not in declared]
    if surplus:
        raise ValueError(f"table {table} has no column {', '.join(surplus)}")
    if frame.height == 0:
        return empty_table(table)
    return frame.select(
        pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in declared.items()
    )


def conform(table: Table, frame: pl.DataFrame, key: str) -> pl.DataFrame:
    """Convert `frame` to the contract's column order and sort order, with the key column.

    `frame` must have exactly the contract's columns, with or without the key column; a column of nulls may be untyped.
    ContractError names the table, the column, and the found and expected values.
    """
    schema = polars_schema(table)
    if frame.is_empty() and frame.schema in (schema, polars_types(table.name)):
        return pl.DataFrame(schema=schema)
    held = frame.schema
    unlike = {
        "is missing": [name for name in schema if name not in held and name != table.key],
        "is not in the contract": [name for name in held if name not in schema],
    }
    if any(unlike.values()):
        told = "; ".join(f"column {', '.join(names)} {what}" for what, names in unlike.items() if names)
        raise ContractError(f"table {table.name}: {told}")
    untyped = [name for name, dtype in held.items() if dtype == pl.Null]
    if untyped:
        frame = frame.with_columns(pl.col(name).cast(schema[name]) for name in untyped)
    for declared in (one for one in table.all_columns if one.name in held):
        problem = _problem(frame.get_column(declared.name), schema[declared.name], declared.nullable)
        if problem is not None:
            raise ContractError(f"table {table.name}, column {declared.name}: {problem}")
    strangers = frame.select(table.key).filter(pl.col(table.key) != key) if table.key in held else frame.clear()
    if strangers.height:
        raise ContractError(
            f"table {table.name}: {strangers.height} rows name {table.key} {strangers.item(0, 0)!r}, expected {key!r}"
        )
    named = pl.lit(key, pl.String).alias(table.key)
    keyed = frame.select(named if name == table.key else name for name in schema)
    if _in_order(keyed, table.sort_by):
        return keyed
    return keyed.sort(table.sort_by, maintain_order=True, nulls_last=False)


def _in_order(frame: pl.DataFrame, by: Sequence[str]) -> bool:
    """Return whether the frame is known to be sorted, without sorting it."""
    return frame.height < 2 or (len(by) == 1 and frame.get_column(by[0]).is_sorted())


def _problem(values: pl.Series, expected: pl.DataType, nullable: bool) -> str | None:
    """Describe how the values of one column violate its contract."""
    if values.dtype != expected:
        return f"found type {values.dtype}, expected {expected}"
    if values.null_count() and not nullable:
        return f"{values.null_count()} of {len(values)} values are null, and the contract allows none"
    return "holds NaN; missing evidence is null, never NaN" if _holds_nan(values) else None


def _holds_nan(series: pl.Series) -> bool:
    """Return whether the series contains a NaN, also within lists and records."""
    if series.dtype == pl.Float64:
        return bool(series.is_nan().any())
    if isinstance(series.dtype, pl.List):
        return _holds_nan(series.explode())
    if isinstance(series.dtype, pl.Struct):
        return any(_holds_nan(series.struct.field(field.name)) for field in series.dtype.fields)
    return False


def in_contract(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Select the columns of the contract of `table` from a frame that also has others."""
    return to_contract(table, frame.select(polars_types(table).keys()))
