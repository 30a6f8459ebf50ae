"""Fixtures for the tests of the answer: activities of one device, the gaps between them, and rows of any table."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
from hypothesis import strategies as st

from aaco_pipeline.lake.contracts import contract, polars_schema

CAUSES: Final = ("sync", "host_wait", "launch_latency", "dependency", "kernel_kernel", "unknown")
_ACTIVITIES: Final = {"start_ns": pl.Int64, "end_ns": pl.Int64, "category": pl.String}
_PIECES: Final = {"start_ns": pl.Int64, "end_ns": pl.Int64}


def rows(table: str, given: Sequence[Mapping[str, Any]] = ()) -> pl.DataFrame:
    """Rows of a table as stages read them; what is not given is null."""
    schema = polars_schema(contract(table))
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in given], schema=schema).drop("session_id")


def activities(*given: tuple[int, int, str]) -> pl.DataFrame:
    return pl.DataFrame(list(given), schema=_ACTIVITIES, orient="row")


def pieces(*given: tuple[int, int]) -> pl.DataFrame:
    return pl.DataFrame(list(given), schema=_PIECES, orient="row")


def gap(start: int, end: int, cause: str, **more: Any) -> dict[str, Any]:
    return {"device_id": 0, "start_ns": start, "end_ns": end, "cause": cause, **more}


def gaps_between(ran: pl.DataFrame) -> list[tuple[int, int]]:
    """The intervals without activity, from the first start to the last end."""
    found, reached = [], None
    for start, end in ran.sort("start_ns").select("start_ns", "end_ns").iter_rows():
        if reached is not None and start > reached:
            found.append((reached, start))
        reached = end if reached is None else max(reached, end)
    return found


@st.composite
def recordings(draw: st.DrawFn) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Activities of one device, gaps of any causes between them, and a window of pieces that may cut both."""
    categories = st.sampled_from(["compute", "copy", "communication"])
    starts = draw(st.lists(st.integers(0, 10**12), min_size=1, max_size=12))
    ran = activities(*((start, start + draw(st.integers(0, 10**11)), draw(categories)) for start in starts))
    idle = [
        gap(
            *idle,
            draw(st.sampled_from(CAUSES)),
            launches_since_wait=draw(st.none() | st.integers(0, 20)),
            outside_ns=draw(st.none() | st.integers(0, idle[1] - idle[0])),
            doubt=draw(st.sampled_from([None, None, "stream_missing"])),
        )
        for idle in gaps_between(ran)
    ]
    low, high = int(ran.get_column("start_ns").to_numpy().min()), int(ran.get_column("end_ns").to_numpy().max())
    cuts = sorted(draw(st.lists(st.integers(low, high), max_size=6, unique=True)))
    window = pieces(*zip(cuts[::2], cuts[1::2], strict=False)) if len(cuts) > 1 else pieces((low, high))
    return ran, rows("gaps", idle), window
