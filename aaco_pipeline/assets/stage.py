"""What all stages have in common: publishing what a stage made, and describing it to Dagster.

What a stage makes is in the module of that stage; nothing here knows any one of them. `Outcome` is free of Dagster,
so a test or a notebook can call a stage's function and look at it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import dagster as dg
import polars as pl

from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.store import TraceLake

OWNERS: Final = ["team:aaco"]
EXIT_CODE_KEY: Final = "aaco/exit_code"
_PREVIEW_ROWS: Final = 10


@dataclass(frozen=True)
class Outcome:
    """What a stage made of one session: its tables, its headline numbers, and a small table for people."""

    tables: Mapping[str, pl.DataFrame]
    headline: Mapping[str, int | float | str | None] = field(default_factory=dict)
    preview: pl.DataFrame | None = None
    preview_title: str = "preview"


def publish_outcome(lake: TraceLake, session: str, stage: str, outcome: Outcome) -> dg.MaterializeResult[None]:
    """Publish the stage's tables and describe them; the data version is the digest of what was published."""
    entries = lake.publish(session, stage, outcome.tables)
    metadata: dict[str, Any] = {
        "dagster/row_count": sum(entry.rows for entry in entries),
        "dagster/uri": str(lake.path),
        **{f"{entry.table}_rows": entry.rows for entry in entries},
        "published_bytes": sum(entry.bytes for entry in entries),
        **{name: value for name, value in outcome.headline.items() if value is not None},
    }
    if outcome.preview is not None and outcome.preview.height:
        metadata[outcome.preview_title] = dg.MetadataValue.md(markdown_table(outcome.preview.head(_PREVIEW_ROWS)))
    digest = sha256("".join(entry.sha256 for entry in entries).encode()).hexdigest()[:16]
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(digest))


def column_schema(tables: Iterable[str]) -> dg.TableSchema:
    """The contracts of the tables a stage publishes as one schema, each column named `table.column`."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=f"{name}.{column.name}",
                type=column.dtype,
                description=f"{column.meaning} [{column.unit}]",
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for name in tables
            for column in contract(name).all_columns
        ]
    )


def stage_metadata(tables: Iterable[str]) -> dict[str, Any]:
    """Metadata an asset carries before it is ever materialized: its column schema."""
    return {"dagster/column_schema": column_schema(tables)}


@contextmanager
def expected_errors() -> Iterator[None]:
    """Show an expected error in Dagster as its one line, with the exit code the command would give, and no retry."""
    try:
        yield
    except AacoError as error:
        raise dg.Failure(
            description=str(error), metadata={EXIT_CODE_KEY: error.exit_code}, allow_retries=False
        ) from error


def markdown_table(frame: pl.DataFrame) -> str:
    """A frame as a Markdown table; numbers with thousands separators, nulls as an en dash."""
    header = "| " + " | ".join(frame.columns) + " |"
    rule = "|" + "|".join(" ---: " if dtype.is_numeric() else " --- " for dtype in frame.dtypes) + "|"
    rows = ["| " + " | ".join(_cell(value) for value in row) + " |" for row in frame.iter_rows()]
    return "\n".join([header, rule, *rows])


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|")
