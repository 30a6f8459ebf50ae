"""Whether a frame fulfils a table's contract, and the frame put into the contract's order.

The contracts themselves are declared in `aaco_pipeline.lake.tables`; publishing is `aaco_pipeline.lake.store`.
"""

import polars as pl

from aaco_pipeline.errors import ContractError
from aaco_pipeline.lake.contracts import Table, polars_dtype, polars_schema


def empty(table: Table) -> pl.DataFrame:
    """A frame without rows that fulfils the contract, without the key column."""
    return pl.DataFrame(schema={c.name: polars_dtype(c.dtype) for c in table.columns})


def conform(table: Table, frame: pl.DataFrame, key: str) -> pl.DataFrame:
    """`frame` with the key column, in the contract's column order and sort order.

    `frame` holds exactly the contract's columns, with or without the key column. Raises ContractError naming the
    table, the column, what was found and what is expected. A column that is null throughout may come untyped.
    """
    if table.key not in frame.columns:
        frame = frame.with_columns(pl.lit(key, pl.String).alias(table.key))
    schema = polars_schema(table)
    missing = [name for name in schema if name not in frame.columns]
    surplus = [name for name in frame.columns if name not in schema]
    if missing or surplus:
        raise ContractError(
            f"table {table.name}: "
            + "; ".join(
                part
                for part in (
                    f"column {', '.join(missing)} is missing" if missing else "",
                    f"column {', '.join(surplus)} is not in the contract" if surplus else "",
                )
                if part
            )
        )
    untyped = [name for name, found in frame.schema.items() if found == pl.Null]
    frame = frame.select(schema.names())
    if untyped:
        frame = frame.with_columns(pl.col(name).cast(schema[name]) for name in untyped)
    for declared in table.all_columns:
        series = frame.get_column(declared.name)
        expected = schema[declared.name]
        if series.dtype != expected:
            raise ContractError(
                f"table {table.name}, column {declared.name}: found type {series.dtype}, expected {expected}"
            )
        if not declared.nullable and series.null_count() > 0:
            raise ContractError(
                f"table {table.name}, column {declared.name}: {series.null_count()} of {len(series)} values are null, "
                "and the contract allows none"
            )
        if not frame.is_empty() and _holds_nan(series):
            raise ContractError(
                f"table {table.name}, column {declared.name}: holds NaN; missing evidence is null, never NaN"
            )
    if frame.is_empty():
        return frame
    strangers = frame.filter(pl.col(table.key) != key)
    if strangers.height:
        raise ContractError(
            f"table {table.name}: {strangers.height} rows name {table.key} {strangers.item(0, 0)!r}, expected {key!r}"
        )
    return frame.sort(table.sort_by, maintain_order=True, nulls_last=False)


def _holds_nan(series: pl.Series) -> bool:
    """Whether a NaN is in the series, also within its lists and records."""
    if series.dtype == pl.Float64:
        return bool(series.is_nan().any())
    if isinstance(series.dtype, pl.List):
        return _holds_nan(series.explode())
    if isinstance(series.dtype, pl.Struct):
        return any(_holds_nan(series.struct.field(field.name)) for field in series.dtype.fields)
    return False
