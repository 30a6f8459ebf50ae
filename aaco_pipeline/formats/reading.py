"""What every reader gives and obeys: canonical tables with evidence, within limits on size.

A reader is a module of `aaco_pipeline.formats` with `probe(path)` and `read(path, …)`; nothing of one format is here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from aaco_pipeline.lake.contracts import contract, polars_dtype
from aaco_pipeline.lake.evidence import Evidence


@dataclass(frozen=True)
class Recognition:
    """What a path was recognized as."""

    format: str
    detail: str


@dataclass(frozen=True)
class Limits:
    """Bounds on what a reader takes from an untrusted capture; beyond them it refuses with CaptureError."""

    file_bytes: int = 8 << 30
    line_bytes: int = 64 << 20
    events: int = 100_000_000


@dataclass(frozen=True)
class Reading:
    """Canonical tables without their session key, and what the reader found or missed.

    `details` are frames that a later analysis needs and no table of the lake holds; the reader documents each.
    """

    tables: Mapping[str, pl.DataFrame]
    evidence: tuple[Evidence, ...] = field(default=())
    details: Mapping[str, pl.DataFrame] = field(default_factory=dict)


def canonical(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` cast to the contract of `table` in its order; contract columns the format does not have become null.

    Raises ValueError for a column that the contract does not know: a reader must not drop what it read.
    """
    declared = {c.name: polars_dtype(c.dtype) for c in contract(table).columns}
    surplus = [name for name in frame.columns if name not in declared]
    if surplus:
        raise ValueError(f"table {table} has no column {', '.join(surplus)}")
    if frame.height == 0:
        return no_rows(table)
    return frame.select(
        pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in declared.items()
    )


def no_rows(table: str) -> pl.DataFrame:
    """The canonical table without rows."""
    return pl.DataFrame(schema={c.name: polars_dtype(c.dtype) for c in contract(table).columns})
