"""What the whole run would save were one kernel faster, for any kernel and factor that a person asks about.

The stage `critical_path` publishes it for the few kernels that matter most; how it is computed is `critical_path`.
"""

import polars as pl

from aaco_pipeline.analysis.timeline.critical_path import critical_path, largest_savings
from aaco_pipeline.analysis.timeline.dependency_graph import network
from aaco_pipeline.analysis.timeline.recorded import Recorded
from aaco_pipeline.lake.validation import empty_table, to_contract


def saving_of_kernel(run: Recorded, kernel: int, speedup: float) -> pl.DataFrame:
    """The row of `what_if` for one kernel and any speed-up above zero; none when the session has no activities."""
    if not run.activities.height:
        return empty_table("what_if")
    graph = network(run.activities, run.calls, run.waits)
    kernels = critical_path(graph).kernels.filter(pl.col("kernel_id") == kernel)
    found = largest_savings(graph, kernels, 1, speedup)
    if found.is_empty():
        nothing = {"kernel_id": kernel, "speedup_ratio": speedup, "critical_ns": 0, "saved_ns": 0, "saved_ratio": 0.0}
        found = pl.DataFrame([nothing])
    return to_contract("what_if", found)
