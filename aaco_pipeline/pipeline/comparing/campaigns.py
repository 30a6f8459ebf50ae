"""Name and publish what spans sessions: comparisons, nights, searches, baselines and sweeps are campaigns in the lake.

What is published is declared in `aaco_pipeline.lake.tables`; each subject's module decides when.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl

from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract

Tables = dict[str, pl.DataFrame]


def new_name(kind: str) -> tuple[str, datetime]:
    """Return a new id, `KIND-YYYYMMDDTHHMMSSZ-<8 hex>`, and the time in it."""
    now = datetime.now(UTC)
    return f"{kind}-{new_session_id(now=now)}", now


def publish(
    lake: TraceLake, identifier: str, stage: str, tables: Mapping[str, pl.DataFrame | Sequence[Mapping[str, Any]]]
) -> Tables:
    """Publish the tables of one stage of a campaign, cast to their contracts, and return them as published.

    Args:
        tables: By table a frame without the key, or rows; columns that a table lacks become null.
    """
    frames = {
        name: to_contract(
            name, rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(rows, infer_schema_length=None)
        )
        for name, rows in tables.items()
    }
    lake.publish(identifier, stage, frames, scope="campaign")
    return frames
