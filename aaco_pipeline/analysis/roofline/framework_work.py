"""Work of kernels that framework operators launched, from the shapes of the operators' inputs: no counter needed.

A matrix product of M by K with K by N takes 2 M N K operations; an operator on elements one for each element. Bytes are
the least there can be: every input read once, the output written once. Operators without a formula here give nothing.
"""

import json
import math
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.model.launching_operators import launching_operators

#: Flag of every row: the work is by shapes, the least that they imply.
MODEL_BASED: Final = "model_based"
_FORMATS: Final = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16", "double": "fp64"}
_ELEMENT_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2, "fp64": 8}
_PRODUCTS: Final = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
#: Operators on elements, with how many inputs they have without one for the output.
_ON_ELEMENTS: Final = {
    **dict.fromkeys(("aten::add", "aten::sub"), 3),
    **dict.fromkeys(("aten::mul", "aten::div", "aten::maximum", "aten::minimum"), 2),
    **dict.fromkeys(("aten::relu", "aten::exp", "aten::sqrt", "aten::neg", "aten::tanh", "aten::sigmoid"), 1),
}
#: Columns of work by pipe and format, as the roofline reads them.
_COLUMNS: Final = {
    "matrix": {name: f"matrix_{name}_flops" for name in ("fp64", "fp16", "bf16")},
    "vector": {name: f"valu_{name}_flops" for name in ("fp64", "fp32", "fp16")},
}
_WORK: Final = tuple(dict.fromkeys(column for columns in _COLUMNS.values() for column in columns.values()))
_Figures = tuple[str, float, float, str]


def framework_work(
    dispatches: pl.DataFrame, api_calls: pl.DataFrame, shapes: pl.DataFrame, caches: pl.DataFrame
) -> pl.DataFrame:
    """One row per kernel whose dispatches were all launched by operators with a formula, as the roofline reads work.

    `dispatches`, `api_calls` and `shapes` (operator_shapes) are canonical tables, and `caches` has device_id and bytes
    of all caches before the memory, from which repeated runs are served as far as they hold their data; of a device
    that is not in it dram_bytes is null.
    Columns: dispatch_id (null), kernel_id, device_id, duration_ns, dispatch_count, operations by pipe and format,
    dram_bytes, flops_is_lower_bound, quality_flags, work_source. A matrix product in a format that matrix units have is
    taken to run there, in fp32 on the vector units.
    """
    launched = launching_operators(dispatches, api_calls)
    known = shapes.join(_by_shape(shapes), on=["operator", "shapes", "types"], how="inner")
    of_dispatch = launched.join(known, left_on="operator_call_id", right_on="call_id", how="inner")
    placed = dispatches.select("dispatch_id", "device_id")
    rows = of_dispatch.join(placed, on="dispatch_id").join(caches, on="device_id", how="left")
    beyond = (pl.col("least_bytes") - pl.col("bytes")).clip(lower_bound=0.0)
    counts = dispatches.group_by("kernel_id").agg(every=pl.len().cast(pl.Int64))
    summed = (
        rows.group_by("kernel_id", maintain_order=True)
        .agg(
            pl.col("device_id").first(),
            duration_ns=pl.col("duration_ns").sum(),
            dispatch_count=pl.len().cast(pl.Int64),
            dram_bytes=pl.when(pl.col("bytes").null_count() == 0).then(beyond.sum()),
            **{name: pl.col("operations").filter(pl.col("column") == name).sum() for name in _WORK},
        )
        .join(counts, on="kernel_id")
        .filter(pl.col("dispatch_count") == pl.col("every"))
    )
    return summed.select(
        pl.lit(None, pl.Int32).alias("dispatch_id"),
        "kernel_id",
        "device_id",
        "duration_ns",
        "dispatch_count",
        *(pl.when(pl.col(name) > 0).then(name) for name in _WORK),
        "dram_bytes",
        pl.lit(False).alias("flops_is_lower_bound"),
        pl.lit([MODEL_BASED], pl.List(pl.String)).alias("quality_flags"),
        pl.lit("model").alias("work_source"),
    ).sort("kernel_id")


def _by_shape(shapes: pl.DataFrame) -> pl.DataFrame:
    """Operations, least bytes and the column of the work, once for each distinct operator and shapes."""
    distinct = shapes.select("operator", "shapes", "types").unique(maintain_order=True)
    rows = []
    for operator, dims, types in distinct.iter_rows():
        figures = operator_figures(operator, json.loads(dims), json.loads(types))
        if figures is not None:
            dtype, operations, least_bytes, pipe = figures
            column = _COLUMNS[pipe].get(dtype) or _COLUMNS["vector"].get(dtype)
            rows.append((operator, dims, types, operations, least_bytes, column))
    schema = {"operator": pl.String, "shapes": pl.String, "types": pl.String, "operations": pl.Float64}
    return pl.DataFrame(rows, schema={**schema, "least_bytes": pl.Float64, "column": pl.String}, orient="row")


def operator_figures(operator: str, dims: list[Any], types: list[str]) -> _Figures | None:
    """Number format, operations, least bytes and pipe of one run of an operator; None where there is no formula."""
    tensors = [(shape, type_) for shape, type_ in zip(dims, types, strict=False) if type_ in _FORMATS and shape]
    if not tensors or len({type_ for _, type_ in tensors}) != 1:
        return None
    dtype = _FORMATS[tensors[0][1]]
    size = _ELEMENT_BYTES[dtype]
    if operator in _PRODUCTS:
        pair = [shape for shape, _ in tensors[_PRODUCTS[operator] : _PRODUCTS[operator] + 2]]
        if len(pair) < 2 or len(pair[0]) < 2 or pair[0][-1] != pair[1][-2]:
            return None
        batch = math.prod(pair[0][:-2])
        rows, inner, columns = pair[0][-2], pair[0][-1], pair[1][-1]
        moved = sum(math.prod(shape) for shape in pair) + batch * rows * columns
        return dtype, 2.0 * batch * rows * inner * columns, float(size * moved), "matrix"
    plain = operator.removesuffix("_")
    if plain not in _ON_ELEMENTS:
        return None
    # A tensor beyond the operator's own inputs is the one that the result was asked to be written to.
    inputs = [shape for shape, _ in tensors]
    if len(dims) > _ON_ELEMENTS[plain] and dims[-1] and types[-1] in _FORMATS:
        inputs = inputs[:-1]
    elements = max(math.prod(shape) for shape in inputs)
    return dtype, float(elements), float(size * (sum(math.prod(shape) for shape in inputs) + elements)), "vector"
