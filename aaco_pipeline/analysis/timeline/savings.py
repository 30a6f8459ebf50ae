"""What the whole run would save were one kernel faster, for any kernel and factor that a person asks about.

The stage `critical_path` publishes it for the few kernels that matter most; how it is computed is `critical_path`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.critical_path import critical_path, faster_weights, largest_savings
from aaco_pipeline.analysis.timeline.dependency_graph import Network, network
from aaco_pipeline.analysis.timeline.device_timeline import covered_by
from aaco_pipeline.analysis.timeline.longest_path import earliest_finish, first_start
from aaco_pipeline.analysis.timeline.recorded import Recorded
from aaco_pipeline.lake.validation import empty_table, to_contract

Scope = Literal["iteration", "recording"]


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


@dataclass(frozen=True)
class Effect:
    """What one kernel is to the whole: ratios of an iteration's length, or of the recording's where none is marked.

    `share_ratio` is the kernel's time on the longest path, which no gain of it can exceed. `shorter_ratios` is what the
    iteration would be shorter by, for each speed-up that was asked about: less than Amdahl's share x (1 - 1 / speed-up)
    where work beside the kernel then becomes the longest path. Medians over the measured iterations.
    """

    scope: Scope
    share_ratio: float
    shorter_ratios: tuple[float, ...]


def effect_of_kernel(run: Recorded, iterations: pl.DataFrame, kernel: int, speedups: Sequence[float]) -> Effect | None:
    """What `kernel` takes of an iteration, and what it would save at each speed-up of 1 or more; null without activity.

    `iterations` is the table. Raises ValueError for a speed-up below 1.
    """
    if not run.activities.height:
        return None
    return effect_in(network(run.activities, run.calls, run.waits), iterations, kernel, speedups)


def effect_in(graph: Network, iterations: pl.DataFrame, kernel: int, speedups: Sequence[float]) -> Effect | None:
    """As `effect_of_kernel`, of a network; null where its windows have no length.

    The path is computed anew for each speed-up. An iteration is shorter by how much earlier all that had ended by its
    end would then have ended, less the same of its beginning. Waits that nothing recorded explains stay as they were.
    """
    if any(not factor >= 1 for factor in speedups):
        raise ValueError("an effect is asked of speed-ups of 1 or more")
    scope, starts, ends = _windows(graph, iterations)
    lengths = ends - starts
    if not lengths.any():
        return None
    own = critical_path(graph).steps.filter(pl.col("kernel_id") == kernel, pl.col("own_ns") > 0)
    begun = own.get_column("start_ns").to_numpy()
    on_path = covered_by(begun, begun + own.get_column("own_ns").to_numpy()).between(starts, ends)
    ended = graph.start_ns + graph.weight_ns
    order = np.argsort(ended, kind="stable")
    before = np.maximum.accumulate(earliest_finish(graph, graph.weight_ns)[order])
    shorter = []
    for factor in speedups:
        after = np.maximum.accumulate(earliest_finish(graph, faster_weights(graph, {kernel: factor}))[order])
        # How much earlier all would have ended that had ended by each place of the order; nothing at its beginning.
        saved = np.concatenate([[0], before - after])
        by_then = [saved[np.searchsorted(ended[order], times, side="right")] for times in (starts, ends)]
        shorter.append(float(np.median((by_then[1] - by_then[0]) / lengths)))
    return Effect(scope, float(np.median(on_path / lengths)), tuple(shorter))


def _windows(graph: Network, iterations: pl.DataFrame) -> tuple[Scope, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Starts and ends of the traced pass's measured iterations, ns; the recording's where there are none with times."""
    marked = iterations.filter(
        pl.col("pass") == "trace", pl.col("phase") == "measure", pl.col("end_ns") > pl.col("start_ns")
    )
    if marked.height:
        return "iteration", marked.get_column("start_ns").to_numpy(), marked.get_column("end_ns").to_numpy()
    last = int((graph.start_ns + graph.weight_ns).max())
    return "recording", np.array([first_start(graph)]), np.array([last])
