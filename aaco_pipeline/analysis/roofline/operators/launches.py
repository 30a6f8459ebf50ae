"""The work of every launch that an operator with recorded inputs made, each distinct call looked at once.

Which call a launch counts to is `calls`, what a call has to do `formulas`.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.roofline.operators.calls import among, owned_launches
from aaco_pipeline.analysis.roofline.operators.formulas import FORMULAS, work_of
from aaco_pipeline.analysis.roofline.operators.graphs.replays import FROM_TRACE, Replays
from aaco_pipeline.analysis.roofline.operators.inputs import Inputs, Unstated, Work

_RECORDED: Final = ("operator", "shapes", "types", "strides", "values")
_FIGURES: Final = pl.Schema(
    {
        "operator": pl.String(),
        "shapes": pl.String(),
        "types": pl.String(),
        "dtype": pl.String(),
        "flops": pl.Float64(),
        "least_bytes": pl.Float64(),
        "is_product": pl.Boolean(),
        "detail": pl.String(),
        "reason": pl.String(),
    }
)
#: Formats in which matrix units take products on every device that has them, and the columns of their work.
_MATRIX: Final = {
    **{name: f"matrix_{name}_flops" for name in ("fp64", "fp16", "bf16", "fp8")},
    "int8": "matrix_int8_ops",
}
#: The framework computes functions of elements in bf16 in fp32.
_VECTOR: Final = {
    **{name: f"valu_{name}_flops" for name in ("fp64", "fp32", "fp16")},
    "bf16": "valu_fp32_flops",
    **{name: f"valu_{name}_ops" for name in ("int32", "int64")},
}
#: Products in fp32 that a library may take in fewer bits (TF32) without the inputs telling.
_MAYBE_ROUNDED: Final = "aten::(?:convolution|_scaled_dot_product_)"
#: Every column of work there can be.
WORK: Final = tuple(dict.fromkeys((*_MATRIX.values(), *_VECTOR.values())))


@dataclass(frozen=True)
class OperatorLaunches:
    """`launches`: what `owned_launches` gives, with `inputs_from`, `work` and `part`; `figures`: a row per distinct
    `work`.

    `part` is the share of the call's work that the launch did, by time among the call's main kernels: of several it is
    not known which did what. It is null of copies, and of auxiliary kernels beside a main one, such as those that
    change a layout for it. `figures` has operator, shapes, types, dtype, flops,
    least_bytes, is_product, detail, reason, and `column`, where the roofline reads such operations.
    """

    launches: pl.DataFrame
    figures: pl.DataFrame


def operator_launches(
    dispatches: pl.DataFrame,
    copies: pl.DataFrame,
    api_calls: pl.DataFrame,
    inputs: pl.DataFrame,
    kernels: pl.DataFrame,
    *,
    replays: Replays | None = None,
) -> OperatorLaunches:
    """The launches with their work; arguments as those of `owned_launches`, and the table `kernels`.

    What `replays` matches with captured graphs counts to the operators that were captured.
    """
    owned = owned_launches(dispatches, copies, api_calls, inputs).with_columns(inputs_from=pl.lit(FROM_TRACE))
    if replays is not None:
        own = owned.join(replays.launches, on=["activity_kind", "activity_id"], how="anti", maintain_order="left")
        owned = pl.concat([own, replays.launches])
        inputs = pl.concat([inputs, replays.inputs])
    called = inputs.filter(among(inputs.get_column("call_id"), owned.get_column("call_id")))
    numbered, figures = _figures(called)
    calls = owned.get_column("call_id").to_numpy()
    works = np.zeros(int(calls.max()) + 1 if len(calls) else 0, np.uint32)
    works[numbered.get_column("call_id").to_numpy()] = numbered.get_column("work").to_numpy()
    roles = kernels.select("kernel_id", is_main=pl.col("role") == "main")
    owned = owned.join(roles, on="kernel_id", how="left", maintain_order="left")
    launches = owned.drop("is_main").with_columns(work=pl.Series(works[calls], dtype=pl.UInt32), part=_parts(owned))
    return OperatorLaunches(launches, figures)


def _parts(owned: pl.DataFrame) -> pl.Series:
    """Each launch's share of its call's work, by time among the main kernels, or where there are none among all."""
    calls, took = (owned.get_column(name).to_numpy() for name in ("call_id", "duration_ns"))
    is_kernel = owned.get_column("kernel_id").is_not_null().to_numpy()
    is_main = owned.get_column("is_main").fill_null(False).to_numpy()
    has_main = np.bincount(calls[is_main], minlength=int(calls.max()) + 1 if len(calls) else 0) > 0
    working = is_kernel & (is_main | ~has_main[calls])
    count = np.bincount(calls[working], minlength=len(has_main))[calls]
    whole = np.bincount(calls[working], weights=took[working], minlength=len(has_main))[calls]
    part = np.where(whole > 0, took / np.where(whole > 0, whole, 1), 1 / np.maximum(count, 1))
    return pl.select(pl.when(pl.Series(working)).then(pl.Series(part))).to_series()


def _figures(called: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """call_id with `work`, and what each distinct work is."""
    reading = [name for name, formula in FORMULAS.items() if formula.reads_values]
    values = pl.when(pl.col("operator").is_in(reading)).then("values")
    short = called.with_columns(values).with_columns(pl.col(name).cast(pl.Categorical) for name in _RECORDED)
    distinct = short.select(_RECORDED).unique(maintain_order=True).with_row_index("recorded")
    rows = [
        (operator, shapes, types, *_figure(operator, shapes, types, strides, given))
        for operator, shapes, types, strides, given in distinct.select(
            pl.col(name).cast(pl.String) for name in _RECORDED
        ).iter_rows()
    ]
    every = pl.DataFrame(rows, schema=_FIGURES, orient="row").with_columns(distinct.get_column("recorded"))
    # Calls that differ in what no figure depends on are of one work.
    names = list(_FIGURES)
    merged = every.select(names).unique().sort(names).with_row_index("work")
    works = every.join(merged, on=names, nulls_equal=True, how="left").select("recorded", "work")
    found = short.join(distinct, on=_RECORDED, nulls_equal=True, how="left", maintain_order="left")
    numbered = found.join(works, on="recorded", how="left", maintain_order="left").select("call_id", "work")
    return numbered, merged.with_columns(column=_column())


def _figure(operator: str, shapes: str, types: str, strides: str | None, values: str | None) -> tuple[object, ...]:
    try:
        work = work_of(operator, Inputs(shapes, types, strides, values))
    except Unstated as reason:
        work = Work(None, None, None, lacking=f"{operator}: {reason}")
    return work.dtype, work.flops, work.least_bytes, work.is_product, work.detail, work.lacking


def _column() -> pl.Expr:
    """Where the roofline reads the operations; null where it is not known which unit does them."""
    dtype = pl.col("dtype")
    of_matrix = dtype.replace_strict(_MATRIX, default=None, return_dtype=pl.String)
    of_vector = dtype.replace_strict(_VECTOR, default=None, return_dtype=pl.String)
    rounded = pl.col("operator").str.contains(_MAYBE_ROUNDED)
    in_fp32 = pl.when((dtype == "fp32") & ~rounded).then(pl.lit(_VECTOR["fp32"]))
    return pl.when("is_product").then(pl.coalesce(of_matrix, in_fp32)).otherwise(of_vector)
