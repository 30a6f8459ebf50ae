"""The work of every kernel of a session, from whatever tells it: counters, the model, or a framework's operators.

Each source is a module beside this one; which resource the work was limited by is `placement`.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.kernels.statistics import measured_dispatches, timed
from aaco_pipeline.analysis.roofline import counter_work, model_based_work
from aaco_pipeline.analysis.roofline.framework_work import framework_work
from aaco_pipeline.analysis.roofline.operators.launches import OperatorLaunches
from aaco_pipeline.hardware.device_facts import cache_bytes

#: The handle of the CPU among a session's devices.
CPU: Final = "cpu"
Tables = Mapping[str, pl.DataFrame]


def work_of_kernels(
    counted: pl.DataFrame, tables: Tables, operators: OperatorLaunches, ceilings: pl.DataFrame, capacities: pl.DataFrame
) -> pl.DataFrame:
    """What counters say of dispatches, and what the model or the operators say of kernels that no counter saw.

    `counted` as `derived_metrics.counted`; `tables` are devices, dispatches, iterations, kernels, kernel_stats,
    model_nodes, model_edges and operator_kernels; `operators` the launches of framework operators.
    """
    seen = counter_work.work_of(counted)
    modelled = _modelled(tables, operators, ceilings, capacities)
    unseen = modelled.join(seen.select("kernel_id").unique(), on="kernel_id", how="anti")
    return pl.concat([seen, unseen], how="diagonal_relaxed")


def cpu_facts(environment: pl.DataFrame) -> dict[str, str]:
    """Facts of the category `cpu` that are known."""
    rows = environment.filter((pl.col("category") == CPU) & pl.col("value").is_not_null())
    return dict(rows.select("key", "value").iter_rows())


def threads_of(sessions: pl.DataFrame, facts: Mapping[str, str]) -> int | None:
    """The threads that were asked for, else the runtime's own choice: one for each CPU it may use."""
    asked = sessions.get_column("threads").first() if sessions.height else None
    usable = facts.get("usable_cpus")
    return asked if isinstance(asked, int) else int(usable) if usable is not None else None


def cache_capacities(devices: pl.DataFrame, facts: Mapping[str, str], threads: int | None) -> pl.DataFrame:
    """device_id, resource, bytes of the caches of the CPU that so many threads can fill."""
    rows = [
        (device, resource, int(size) * min(int(count), threads or int(count)))
        for device in devices.filter(pl.col("handle") == CPU).get_column("device_id")
        for resource, level in (("l1", "l1d"), ("l2", "l2"), ("l3", "l3"))
        if (size := facts.get(f"{level}_cache_bytes")) is not None
        and (count := facts.get(f"{level}_caches")) is not None
    ]
    return pl.DataFrame(rows, schema={"device_id": pl.Int32, "resource": pl.String, "bytes": pl.Int64}, orient="row")


def kernels_by_time(tables: Tables) -> pl.DataFrame:
    """Rows of `roofline` for whole kernels, with name and share of the kernel time, the longest first.

    `tables` are roofline, kernels and kernel_stats.
    """
    named = tables["roofline"].filter(pl.col("dispatch_id").is_null())
    named = named.join(tables["kernels"].select("kernel_id", "name"), on="kernel_id")
    timed = named.join(tables["kernel_stats"].select("kernel_id", "share_ratio"), on="kernel_id", how="left")
    shown = timed.with_columns(kernel="name", flags=pl.col("quality_flags").list.join(", "))
    return shown.sort("share_ratio", "duration_ns", "kernel_id", descending=[True, True, False], nulls_last=True)


def _modelled(
    tables: Tables, operators: OperatorLaunches, ceilings: pl.DataFrame, capacities: pl.DataFrame
) -> pl.DataFrame:
    """Work per kernel by the nodes of the model, or by the shapes that the launching operators were given."""
    if tables["model_nodes"].height:
        iterations = tables["iterations"].filter((pl.col("pass") == "trace") & (pl.col("phase") == "measure"))
        return model_based_work.model_work(tables, ceilings, capacities, iterations.height or None)
    if not ceilings.height or not operators.launches.height:
        return pl.DataFrame(schema={"kernel_id": pl.Int32})
    dispatches = measured_dispatches(timed(tables["dispatches"]), tables["iterations"])
    return framework_work(operators, dispatches, cache_bytes(tables["devices"]), ceilings)
