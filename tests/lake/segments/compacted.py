"""Helpers for tests of segments: compacting a lake and inspecting it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.segments.compaction import TableRound, compact
from aaco_pipeline.lake.segments.format import SegmentList, readable_lists
from aaco_pipeline.lake.store import TraceLake

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
AFTER_GRACE: Final = NOW + timedelta(days=1)
THIRD: Final = "20250103T000000Z-0000000c"
CAMPAIGN: Final = "nightly-1"


def compacted(lake: TraceLake) -> dict[str, TableRound]:
    """The lake with its files put into segments, and those files gone."""
    rounds = {one.table: one for one in compact(lake, NOW)}
    compact(lake, AFTER_GRACE)
    return rounds


def segments_of(lake: TraceLake, table: str = "session_metrics") -> list[SegmentList]:
    return readable_lists(lake.path, table)


def everything(lake: TraceLake) -> dict[str, pl.DataFrame]:
    return {table: lake.read(table) for table in all_tables()}


def values(lake: TraceLake, session: str | None = None) -> list[Any]:
    return lake.read("session_metrics", session).get_column("value").to_list()


def own_files(lake: TraceLake) -> list[Path]:
    return sorted(lake.path.glob("*/*_id=*/*.parquet"))
