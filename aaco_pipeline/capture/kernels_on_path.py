"""Which kernels of a pass under a profiler are on its critical path: what a thread trace is best taken of.

Asking for that trace is `aaco_pipeline.resources.rocprofv3`; the session's own path is the stage `critical_path`.
"""

from pathlib import Path

import polars as pl

from aaco_pipeline.analysis.timeline.critical_path import critical_path
from aaco_pipeline.analysis.timeline.dependency_graph import network
from aaco_pipeline.analysis.timeline.recorded import recorded
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.formats.capture_tables import Limits


def kernels_on_path(folder: Path) -> dict[str, tuple[int, int]]:
    """Of each kernel in the files of a pass: its time on the critical path in ns, and how often it ran."""
    parts = [part for run in discover_runs(folder).runs for part in run.parts]
    if not parts:
        return {}
    tables = merge_parts([NamedReading(part.name, part.read(Limits())) for part in parts]).tables
    run = recorded({**tables, "iterations": tables["iterations"].clear()})
    if run.dispatches.is_empty():
        return {}
    path = critical_path(network(run.activities, run.calls, run.waits))
    counts = run.dispatches.group_by("kernel_id").agg(count=pl.len())
    kernels = path.kernels.join(counts, on="kernel_id").join(tables["kernels"], on="kernel_id")
    return {row["name"]: (int(row["critical_ns"]), int(row["count"])) for row in kernels.to_dicts()}
