"""Work of every kernel of a session, from counters, the model or a framework.

`framework_work` computes work from a framework's operators, `counter_metrics` from counters.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.roofline import counter_metrics
from aaco_pipeline.analysis.roofline.framework_work import OperatorLaunches, framework_work
from aaco_pipeline.analysis.timeline.activities import measured_dispatches, timed
from aaco_pipeline.hardware.device_facts import cache_bytes

MODEL: Final = "model"
#: Names of number formats in arrays, models and ceilings.
_FORMATS: Final[Mapping[str, str]] = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "tfloat32": "xf32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8e4m3": "fp8",
    "float8e4m3fn": "fp8",
    "float8e4m3fnuz": "fp8",
    "float8e5m2": "fp8",
    "float8e5m2fnuz": "fp8",
    "int8": "int8",
    "uint8": "int8",
    **{name: name for name in ("fp64", "fp32", "fp16", "bf16", "fp8", "int8", "xf32")},
}
#: Operators whose formula counts 8-bit integer operations if their first input has that type.
_INTEGER_ARITHMETIC: Final = "MatMul|Conv|Gemm|Attention"
#: Columns of work by pipe and format; the pipe with the highest rate is used.
_PIPES: Final[Mapping[str, Mapping[str, str]]] = {
    "matrix": {
        **{dtype: f"matrix_{dtype}_flops" for dtype in ("fp64", "fp32", "xf32", "fp16", "bf16", "fp8")},
        "int8": "matrix_int8_ops",
    },
    "vector_packed": {dtype: f"valu_packed_{dtype}_flops" for dtype in ("fp32", "fp16")},
    "vector": {dtype: f"valu_{dtype}_flops" for dtype in ("fp64", "fp32", "fp16")},
    "vector_integer": {"int8": "valu_int8_ops"},
}
#: Cache levels from the core outwards; a device has those with ceilings.
_LEVELS: Final = ("l1", "l2", "l3", "infinity_cache", "dram")
_LEVEL_COLUMNS: Final[Mapping[str, str]] = {level: f"{level}_bytes" for level in ("l1", "l2", "l3", "dram")}
_CAPACITY: Final = ("device_id", "resource", "bytes")
_WORK: Final = tuple(dict.fromkeys(name for columns in _PIPES.values() for name in columns.values()))


def model_work(
    tables: Mapping[str, pl.DataFrame], ceilings: pl.DataFrame, capacities: pl.DataFrame, runs: int | None = None
) -> pl.DataFrame:
    """Work per kernel from the `tables` model_nodes, model_edges, operator_kernels, kernel_stats, kernels, dispatches.

    A kernel has a row if all its dispatches are attributed to nodes (ignoring those of inserted kernels), on one
    device, if it is the only main kernel of each node, and if operations or bytes are known. One dispatch counts as one
    execution of its node.

    The columns are those of `counter_metrics` as far as they apply, with dispatch_id null, plus dispatch_count,
    valu_packed_…_flops, valu_int8_ops, l1_bytes, l3_bytes, dram_bytes and work_source. duration_ns is the kernel's
    total. Flags: `model_based`; `number_format_unknown` if neither the kernel nor the first input of its nodes states
    one, so that operations are not assigned to a pipe; `cache_size_unknown` if DRAM traffic is unknown;
    `operations_unknown` and `bytes_unknown` if a node has no formula or no shapes.

    Args:
        tables: See above.
        ceilings: The contract of that name.
        capacities: device_id, resource and bytes of each cache level over the complete device: all cores' first-level
            caches, all XCCs' second level.
        runs: Number of runs of the graph, if known; kernels with another count are omitted.
    """
    pairs = _attributed(tables, runs)
    formats = _formats(tables["model_nodes"], tables["model_edges"])
    nodes = tables["model_nodes"].select("node_id", "flops", "read_bytes", "written_bytes")
    executed = pairs.join(nodes, on="node_id").join(formats, on="node_id", how="left")
    executed = executed.with_columns(
        dtype=pl.coalesce(pl.col("dtype").replace_strict(_FORMATS, default=None), "node_dtype"),
        least_bytes=(pl.col("read_bytes") + pl.col("written_bytes")).cast(pl.Float64),
    )
    executed = executed.with_columns(_level_bytes(capacities, ceilings))
    summed = executed.group_by("kernel_id", "device_id", maintain_order=True).agg(
        pl.when(pl.col("flops").null_count() == 0).then((pl.col("flops") * pl.col("executions")).sum()),
        *[_total(pl.col(name)).alias(name) for name in _LEVEL_COLUMNS.values()],
        dtype=pl.when(pl.col("dtype").drop_nulls().n_unique() == 1, pl.col("dtype").null_count() == 0).then(
            pl.col("dtype").first()
        ),
        least_bytes=_total(pl.col("least_bytes")),
        dispatch_count=pl.col("executions").sum(),
    )
    known = summed.filter(pl.col("flops").is_not_null() | pl.col("least_bytes").is_not_null())
    durations = tables["kernel_stats"].select("kernel_id", duration_ns="total_ns")
    return _as_work(known.join(durations, on="kernel_id"), ceilings).sort("kernel_id")


def _total(amount: pl.Expr) -> pl.Expr:
    """Return the amount over all executions; null if any node's amount is unknown."""
    return pl.when(amount.null_count() == 0).then((amount * pl.col("executions")).sum())


def _attributed(tables: Mapping[str, pl.DataFrame], runs: int | None) -> pl.DataFrame:
    """kernel_id, node_id, executions, device_id and dtype of kernels whose work is fully described by the model."""
    pairs = (
        tables["operator_kernels"]
        .filter(pl.col("node_id").is_not_null())
        .group_by("kernel_id", "node_id", maintain_order=True)
        .agg(executions=pl.col("dispatch_count").sum())
    )
    main = tables["kernels"].filter(pl.col("role") == "main").select("kernel_id", "dtype")
    counts = tables["kernel_stats"].select("kernel_id", "dispatch_count")
    device = pl.col("device_id")
    placed = tables["dispatches"].group_by("kernel_id").agg(device.first(), devices=device.n_unique())
    rows = pairs.join(main, on="kernel_id").join(counts, on="kernel_id").join(placed, on="kernel_id")
    rows = rows.with_columns(
        covered=pl.col("executions").sum().over("kernel_id") == pl.col("dispatch_count"),
        alone=pl.col("kernel_id").n_unique().over("node_id") == 1,
        as_often=pl.lit(True) if runs is None else pl.col("executions") == runs,
    )
    whole = pl.all_horizontal("covered", "alone", "as_often").all().over("kernel_id") & (pl.col("devices") == 1)
    return rows.filter(whole).select("kernel_id", "node_id", "executions", "device_id", "dtype")


def _formats(model_nodes: pl.DataFrame, model_edges: pl.DataFrame) -> pl.DataFrame:
    """node_id and node_dtype: the number format of the node's first input, if operations use it."""
    first = model_nodes.select("node_id", "op_type", tensor=pl.col("inputs").list.first())
    types = model_edges.select(node_id="to_node_id", tensor="tensor", element="dtype").drop_nulls().unique()
    named = first.join(types, on=["node_id", "tensor"]).unique("node_id", keep="none")
    dtype = pl.col("element").replace_strict(_FORMATS, default=None, return_dtype=pl.String)
    counted = (dtype != "int8") | pl.col("op_type").str.contains(_INTEGER_ARITHMETIC)
    return named.select("node_id", node_dtype=pl.when(counted).then(dtype))


def _level_bytes(capacities: pl.DataFrame, ceilings: pl.DataFrame) -> list[pl.Expr]:
    """Bytes that each level must carry per execution: those that do not fit in the levels closer to the core."""
    sizes = {(device, level): size for device, level, size in capacities.select(_CAPACITY).iter_rows()}
    columns = {name: pl.lit(None, pl.Float64) for name in _LEVEL_COLUMNS.values()}
    for device in ceilings.get_column("device_id").unique().sort().to_list():
        limited = set(ceilings.filter(device_id=device).get_column("resource"))
        nearer: float | None = 0.0
        for level in _LEVELS:
            if level in limited and level in _LEVEL_COLUMNS and nearer is not None:
                beyond = (pl.col("least_bytes") - nearer).clip(lower_bound=0.0)
                name = _LEVEL_COLUMNS[level]
                columns[name] = pl.when(pl.col("device_id") == device).then(beyond).otherwise(columns[name])
            size = sizes.get((device, level))
            if size is not None and nearer is not None:
                nearer += size
            elif level in limited:
                nearer = None
    return [column.alias(name) for name, column in columns.items()]


def _as_work(summed: pl.DataFrame, ceilings: pl.DataFrame) -> pl.DataFrame:
    """Convert to the frame of work, with operations in the column of the fastest pipe."""
    arithmetic = ceilings.filter(pl.col("resource").is_in(list(_PIPES)), pl.col("dtype").is_not_null())
    fastest = (
        arithmetic.sort("value", descending=True)
        .unique(["device_id", "dtype"], keep="first", maintain_order=True)
        .select("device_id", "dtype", pipe="resource")
    )
    rows = summed.join(fastest, on=["device_id", "dtype"], how="left", maintain_order="left")
    of_pipe = {
        pipe: pl.col("dtype").replace_strict(columns, default=None, return_dtype=pl.String)
        for pipe, columns in _PIPES.items()
    }
    # A format without a ceiling is assigned to a pipe that every device has, if possible, so that the flag reports it.
    without = pl.coalesce([of_pipe[pipe] for pipe in ("vector", "vector_integer", "matrix")])
    chosen = [pl.when(pl.col("pipe") == pipe).then(column) for pipe, column in of_pipe.items()]
    rows = rows.with_columns(column=pl.coalesce(*chosen, without))
    beyond_unknown = pl.col("least_bytes").is_not_null() & pl.col("dram_bytes").is_null()
    flags = [
        pl.lit(MODEL + "_based"),
        pl.when(pl.col("column").is_null() & (pl.col("flops") > 0)).then(pl.lit("number_format_unknown")),
        pl.when(beyond_unknown).then(pl.lit("cache_size_unknown")),
        pl.when(pl.col("flops").is_null()).then(pl.lit("operations_unknown")),
        pl.when(pl.col("least_bytes").is_null()).then(pl.lit("bytes_unknown")),
    ]
    return rows.select(
        pl.lit(None, pl.Int32).alias("dispatch_id"),
        "kernel_id",
        "device_id",
        "duration_ns",
        "dispatch_count",
        *[pl.when(pl.col("column") == name).then(pl.col("flops")).alias(name) for name in _WORK],
        *_LEVEL_COLUMNS.values(),
        pl.lit(False).alias("flops_is_lower_bound"),
        pl.concat_list(flags).list.drop_nulls().alias("quality_flags"),
        pl.lit(MODEL).alias("work_source"),
    )


#: The CPU's handle among a session's devices.
CPU: Final = "cpu"
Tables = Mapping[str, pl.DataFrame]


def work_of_kernels(
    counted: pl.DataFrame, tables: Tables, operators: OperatorLaunches, ceilings: pl.DataFrame, capacities: pl.DataFrame
) -> pl.DataFrame:
    """Combine counter-based work of dispatches with other kernels' work from the model or the operators.

    `counted` comes from `counter_metrics.counted`; `tables` are devices, dispatches, iterations, kernels, kernel_stats,
    model_nodes, model_edges and operator_kernels; `operators` are the launches of framework operators.
    """
    seen = counter_metrics.work_of(counted)
    modelled = _modelled(tables, operators, ceilings, capacities)
    unseen = modelled.join(seen.select("kernel_id").unique(), on="kernel_id", how="anti")
    return pl.concat([seen, unseen], how="diagonal_relaxed")


def cpu_facts(environment: pl.DataFrame) -> dict[str, str]:
    """The known facts of the category `cpu`."""
    rows = environment.filter((pl.col("category") == CPU) & pl.col("value").is_not_null())
    return dict(rows.select("key", "value").iter_rows())


def threads_of(sessions: pl.DataFrame, facts: Mapping[str, str]) -> int | None:
    """Return the requested number of threads, else the runtime's default: one per allowed CPU."""
    asked = sessions.get_column("threads").first() if sessions.height else None
    usable = facts.get("usable_cpus")
    return asked if isinstance(asked, int) else int(usable) if usable is not None else None


def cache_capacities(devices: pl.DataFrame, facts: Mapping[str, str], threads: int | None) -> pl.DataFrame:
    """device_id, resource and bytes of the CPU caches that this many threads can fill."""
    rows = [
        (device, resource, int(size) * min(int(count), threads or int(count)))
        for device in devices.filter(pl.col("handle") == CPU).get_column("device_id")
        for resource, level in (("l1", "l1d"), ("l2", "l2"), ("l3", "l3"))
        if (size := facts.get(f"{level}_cache_bytes")) is not None
        and (count := facts.get(f"{level}_caches")) is not None
    ]
    return pl.DataFrame(rows, schema={"device_id": pl.Int32, "resource": pl.String, "bytes": pl.Int64}, orient="row")


def kernels_by_time(tables: Tables) -> pl.DataFrame:
    """Rows of `roofline` for complete kernels, with name and share of kernel time, longest first.

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
    """Work per kernel from the model's nodes, or from the input shapes of the launching operators."""
    if tables["model_nodes"].height:
        iterations = tables["iterations"].filter((pl.col("pass") == "trace") & (pl.col("phase") == "measure"))
        return model_work(tables, ceilings, capacities, iterations.height or None)
    if not ceilings.height or not operators.launches.height:
        return pl.DataFrame(schema={"kernel_id": pl.Int32})
    dispatches = measured_dispatches(timed(tables["dispatches"]), tables["iterations"])
    return framework_work(operators, dispatches, cache_bytes(tables["devices"]), ceilings)
