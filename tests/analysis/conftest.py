"""Fixtures: real captures and sessions written by hand, with the results of the analyses of activities."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls
from aaco_pipeline.analysis.timeline.critical_path import CriticalPath, critical_path
from aaco_pipeline.analysis.timeline.dependency_graph import Network, network
from aaco_pipeline.analysis.timeline.device_timeline import timeline
from aaco_pipeline.analysis.timeline.gap_causes import gaps
from aaco_pipeline.analysis.timeline.host_waits import Waits, waits
from aaco_pipeline.capture import discovery as detection
from aaco_pipeline.capture import merging as assembly
from aaco_pipeline.formats import kineto
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.lake.contracts import contract, polars_schema
from tests.places import SHARED

_NEEDED: Final = ("dispatches", "memory_copies", "api_calls", "kernels", "synchronizations")


@dataclass(frozen=True)
class Analysed:
    """A capture's tables and what is computed from them."""

    tables: dict[str, pl.DataFrame]
    calls: pl.DataFrame
    activities: pl.DataFrame
    waits: Waits
    timeline: pl.DataFrame
    gaps: pl.DataFrame
    network: Network
    path: CriticalPath


@cache
def _analysed(path: Path) -> Analysed:
    if path.is_file():
        return _analyse(dict(kineto.read(path).tables))
    parts = detection.discover_runs(path).runs[0].parts
    run = assembly.merge_parts([assembly.NamedReading(part.name, part.read(Limits())) for part in parts])
    empty = {name: pl.DataFrame(schema=polars_schema(contract(name))) for name in _NEEDED}
    return _analyse({**empty, **run.tables})


def _analyse(tables: dict[str, pl.DataFrame]) -> Analysed:
    calls = host_calls(tables["api_calls"])
    activities = device_activities(tables["dispatches"], tables["memory_copies"], tables["kernels"], calls)
    waiting = waits(activities, calls, tables["synchronizations"])
    iterations = pl.DataFrame(schema=polars_schema(contract("iterations")))
    net = network(activities, calls, waiting)
    return Analysed(
        tables=tables,
        calls=calls,
        activities=activities,
        waits=waiting,
        timeline=timeline(activities, tables["api_calls"], iterations),
        gaps=gaps(activities, tables["api_calls"], waiting),
        network=net,
        path=critical_path(net),
    )


@pytest.fixture
def analysed() -> Callable[[str], Analysed]:
    """Reads and analyses the capture at a path inside the shared folder."""

    def of(relative: str) -> Analysed:
        path = SHARED / relative
        if not path.exists():
            pytest.skip(f"{path} is not there: the shared captures are not part of the repository")
        return _analysed(path)

    return of


def _frame(name: str, key: str, rows: list[dict[str, object]]) -> tuple[str, pl.DataFrame]:
    usual: dict[str, object] = {"process_id": 0, "device_id": 0, "stream_id": 0, "thread_id": 1, "kernel_id": 0}
    schema = polars_schema(contract(name))
    filled = [{**usual, "domain": "hip_runtime", key: number, **row} for number, row in enumerate(rows)]
    return name, pl.DataFrame([{column: row.get(column) for column in schema} for row in filled], schema=schema)


@pytest.fixture
def session() -> Callable[..., Analysed]:
    """Analyses rows written by hand; the defaults are process, device and stream 0, and thread 1."""

    def of(
        dispatches: list[dict[str, object]],
        calls: list[dict[str, object]] | None = None,
        copies: list[dict[str, object]] | None = None,
        synchronizations: list[dict[str, object]] | None = None,
        kernels: list[dict[str, object]] | None = None,
    ) -> Analysed:
        frames = (
            _frame("dispatches", "dispatch_id", dispatches),
            _frame("api_calls", "call_id", calls or []),
            _frame("memory_copies", "copy_id", copies or []),
            _frame("synchronizations", "synchronization_id", synchronizations or []),
            _frame("kernels", "kernel_id", kernels or [{"name": "gemm"}]),
        )
        return _analyse(dict(frames))

    return of
