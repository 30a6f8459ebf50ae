"""Name and publish records that span sessions: comparisons, nights, searches, baselines and sweeps are campaigns.

`aaco_pipeline.lake.tables` declares the tables; each subject's module decides when to publish.
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
    """Return a new id, `KIND-YYYYMMDDTHHMMSSZ-<8 hex>`, and the time that it contains."""
    now = datetime.now(UTC)
    return f"{kind}-{new_session_id(now=now)}", now


def publish(
    lake: TraceLake, identifier: str, stage: str, tables: Mapping[str, pl.DataFrame | Sequence[Mapping[str, Any]]]
) -> Tables:
    """Publish the tables of one campaign stage, cast to their contracts, and return them as published.

    Args:
        tables: For each table, a frame without the key, or rows; missing columns become null.
    """
    frames = {
        name: to_contract(
            name, rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(rows, infer_schema_length=None)
        )
        for name, rows in tables.items()
    }
    lake.publish(identifier, stage, frames, scope="campaign")
    return frames
