"""The snippets of docs/scale.md, run as they stand there, give exactly what the lake publishes."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.lake.segments.compaction import compact
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Filled, kernels
from tests.places import ROOT

SNIPPETS: Final = re.findall(r"```py(?:thon)?\n(.*?)```", (ROOT / "docs" / "scale.md").read_text(), re.DOTALL)
TOOLS: Final = ("duckdb", "polars", "pyarrow")
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
THIRD, FOURTH = "20250103T000000Z-0000000c", "20250104T000000Z-0000000d"


@pytest.fixture
def lake(lake: TraceLake, filled: Filled) -> TraceLake:
    for session in (SESSION, LATER, THIRD):
        lake.publish(session, "a", {"kernels": kernels(filled, *(f"{session}-{i}" for i in range(9)))})
    return lake


def read_by(tool: str, lake: TraceLake) -> pl.DataFrame:
    """What the page's snippet of a tool reads, in the order of the contract."""
    names: dict[str, Any] = {"lake": str(lake.path)}
    (snippet,) = [one for one in SNIPPETS if f"import {tool}" in one]
    exec(SNIPPETS[0] + snippet, names)
    rows = names["rows"]
    frame = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(pl.from_arrow(rows))
    assert set(frame.columns) == set(lake.read("kernels").columns)
    return frame.select(lake.read("kernels").columns).sort("session_id", "kernel_id")


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_reads_what_is_published_before_compaction_in_the_grace_with_dead_parts_and_after(
    tool: str, lake: TraceLake, filled: Filled
) -> None:
    def require_same() -> None:
        read, published = read_by(tool, lake), lake.read("kernels").sort("session_id", "kernel_id")
        assert read.schema == published.schema
        assert read.equals(published)

    require_same()
    compact(lake, NOW)
    require_same()
    lake.publish(LATER, "a", {"kernels": kernels(filled, "anew")})
    lake.publish(FOURTH, "a", {"kernels": kernels(filled, "added")})
    lake.remove(SESSION)
    assert lake.read("kernels").height == 11
    require_same()
    compact(lake, NOW + timedelta(hours=1))
    require_same()
    compact(lake, NOW + timedelta(days=3))
    assert not list(lake.path.glob("kernels/*/*"))
    require_same()
