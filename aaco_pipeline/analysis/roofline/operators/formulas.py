"""List the operators with a known formula, and find the operator call to which each launch counts.

`products` and `streams` have the formulas themselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.model.launching_operators import OPERATOR_DOMAIN, launched, outer_first, within
from aaco_pipeline.analysis.roofline.operators import products, streams
from aaco_pipeline.analysis.roofline.operators.inputs import Inputs, Unstated, Work


@dataclass(frozen=True)
class Formula:
    """A formula for the work of an operator.

    Copies, fills and elementwise functions launched by an operator that `is_whole` belong to it: its formula covers the
    complete call, and internal moves are an implementation detail. `reads_values` is true if the formula reads
    non-tensor inputs.
    """

    work: Callable[[Inputs], Work]
    is_whole: bool = False
    reads_values: bool = False


def work_of(operator: str, inputs: Inputs) -> Work:
    """The work of one call; if it is unknown, its `lacking` gives the reason."""
    formula = FORMULAS.get(operator)
    if formula is None:
        return Work(None, None, _first_format(inputs), lacking=f"no formula for {operator}")
    try:
        return formula.work(inputs)
    except Unstated as reason:
        return Work(None, None, _first_format(inputs), lacking=f"{operator}: {reason}")


def _first_format(inputs: Inputs) -> str | None:
    for at in range(len(inputs)):
        try:
            return inputs.tensor(at).dtype
        except Unstated:
            continue
    return None


def _whole(work: Callable[[Inputs], Work]) -> Formula:
    return Formula(work, is_whole=True, reads_values=True)


def _both(names: tuple[str, ...], arity: int, each: float = 1.0) -> dict[str, Formula]:
    """Elementwise functions, and their forms that overwrite the first input."""
    return {
        f"aten::{name}{ending}": Formula(streams.elementwise(arity, each, in_place=bool(ending)))
        for name in names
        for ending in ("", "_")
    }


_PRODUCTS: Final[Mapping[str, Formula]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm"), _whole(products.product())),
    "aten::_int_mm": _whole(products.product(out_bytes=4)),
    **dict.fromkeys(("aten::addmm", "aten::addmm_"), _whole(products.product(1, 2, addend=0, beta=3))),
    **dict.fromkeys(("aten::baddbmm", "aten::baddbmm_"), _whole(products.product(1, 2, addend=0, beta=3))),
    "aten::_addmm_activation": _whole(products.with_activation),
    "aten::mv": _whole(products.matrix_vector(0, 1)),
    **dict.fromkeys(("aten::addmv", "aten::addmv_"), _whole(products.matrix_vector(1, 2, 0))),
    "aten::_scaled_mm": _whole(products.scaled),
    "aten::_grouped_mm": _whole(products.grouped(2)),
    "aten::_scaled_grouped_mm": _whole(products.grouped(4, scales=(2, 3))),
    "aten::_weight_int8pack_mm": _whole(products.product(transposed=True, beside=(2,))),
    "aiter::gemm_a16w16": _whole(products.product(transposed=True, addend=2)),
    "aiter::hipb_mm": _whole(products.product(addend=3)),
    "aiter::batched_gemm_bf16": _whole(products.product(transposed=True, addend=3, out=2)),
    "aiter::batched_gemm_a8w8": _whole(products.product(transposed=True, addend=5, beside=(2, 3), out=4)),
    **dict.fromkeys(("aiter::gemm_a8w8", "aiter::gemm_a8w8_bpreshuffle"), _whole(products.quantized(4))),
    "aiter::gemm_a8w8_blockscale": _whole(products.quantized()),
    "aiter::gemm_a8w8_blockscale_bpreshuffle": _whole(products.quantized(out=5)),
    "aiter::gemm_a4w4": _whole(products.quantized(4, packed=2)),
    "aiter::gemm_a4w4_blockscale": _whole(products.quantized(out=4, packed=2)),
    "aiter::fused_moe_": _whole(products.mixture_of_experts),
}
_CONVOLUTIONS: Final[Mapping[str, Formula]] = {
    "aten::convolution": _whole(products.forward),
    "aten::convolution_backward": _whole(products.backward),
}
_ATTENTION: Final[Mapping[str, Formula]] = {
    "aten::_scaled_dot_product_flash_attention": _whole(products.scaled_dot_product(4)),
    "aten::_scaled_dot_product_efficient_attention": _whole(products.scaled_dot_product(6, bias=3)),
    "aten::_scaled_dot_product_cudnn_attention": _whole(products.scaled_dot_product(6, bias=3)),
    "aten::_scaled_dot_product_flash_attention_backward": _whole(products.scaled_dot_product_backward(11)),
    "aten::_scaled_dot_product_efficient_attention_backward": _whole(products.scaled_dot_product_backward(11)),
    "aten::_scaled_dot_product_cudnn_attention_backward": _whole(products.scaled_dot_product_backward(14)),
    **dict.fromkeys(("aiter::mha_fwd", "aiter::fmha_v3_fwd"), _whole(products.flash(5, (6, 7)))),
    **dict.fromkeys(
        ("aiter::mha_varlen_fwd", "aiter::fmha_v3_varlen_fwd"),
        _whole(products.packed(12, (5, 6), (13, 14), paged=False)),
    ),
    "aiter::mha_batch_prefill": _whole(products.packed(12, (6, 7), (13, 14), paged=True)),
    **dict.fromkeys(
        ("_C::paged_attention_v1", "_C::paged_attention_v2", "aiter::paged_attention_rocm"),
        _whole(products.of_unknown_lengths),
    ),
}
_NORMALIZATIONS: Final[Mapping[str, Formula]] = {
    **dict.fromkeys(
        ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"), _whole(streams.batch_norm)
    ),
    **dict.fromkeys(
        (
            *("aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward"),
            *("aten::miopen_batch_norm_backward", "aten::native_layer_norm_backward"),
        ),
        # Σ dy and Σ dy·(x − mean), then dy minus both means, scaled: eight per element.
        _whole(streams.like_first(read=(0, 1), each=8.0)),
    ),
    "aten::native_layer_norm": _whole(streams.layer_norm),
    "aten::_fused_rms_norm": _whole(streams.like_first(read=(0, 2), each=4.0)),
    "aten::_softmax": _whole(streams.softmax),
    # dy·y, its sum, dy minus the sum, times y.
    "aten::_softmax_backward_data": _whole(streams.like_first(read=(0, 1), each=4.0)),
    **dict.fromkeys(
        ("aiter::rmsnorm", "aiter::rms_norm_cu", "_C::rms_norm"),
        _whole(streams.in_arguments(read=(1, 2), written=(0,), each=4.0, of=1)),
    ),
    "aiter::add_rmsnorm": _whole(streams.in_arguments(read=(1, 2, 4), written=(0, 3), each=5.0, of=1)),
    "aiter::rmsnorm_quant": _whole(streams.in_arguments(read=(1, 3), written=(0, 2), each=5.0, of=1)),
    "aiter::add_rmsnorm_quant": _whole(streams.in_arguments(read=(1, 2, 5), written=(0, 3, 4), each=6.0, of=1)),
    **dict.fromkeys(
        ("aiter::fused_add_rms_norm_cu", "_C::fused_add_rms_norm"),
        _whole(streams.in_arguments(read=(0, 1, 2), written=(0, 1), each=5.0, of=0)),
    ),
    "aiter::layernorm2d_fwd_with_add": _whole(streams.in_arguments(read=(1, 2, 4, 5), written=(0, 3), each=8.0, of=1)),
    "aten::max_pool2d_with_indices": _whole(streams.maximum_pooling),
    "aten::max_pool2d_with_indices_backward": _whole(streams.maximum_pooling_backward),
}
_GATED: Final = ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")
_STREAMS: Final[Mapping[str, Formula]] = {
    **_both(("add", "sub", "mul", "div", "maximum", "minimum", "rsub", "pow"), 2),
    **_both(("relu", "exp", "sqrt", "neg", "tanh", "sigmoid", "rsqrt", "reciprocal", "cos", "sin", "abs", "log"), 1),
    **_both(("ceil", "round"), 1),
    **_both(("clamp_min", "clamp_max"), 2),
    **_both(("clamp",), 3),
    **_both(("silu", "gelu"), 1, 2.0),
    "aten::eq": Formula(streams.elementwise(2, truth=True)),
    "aten::threshold_backward": Formula(streams.elementwise(2)),
    **dict.fromkeys(("aten::gelu_backward", "aten::silu_backward"), Formula(streams.elementwise(2, 4.0))),
    "aten::mse_loss": Formula(streams.squared_error, reads_values=True),
    "aten::mse_loss_backward": Formula(streams.elementwise(3, 2.0)),
    "aten::masked_fill_": Formula(streams.elementwise(2, 0.0, in_place=True)),
    **dict.fromkeys(
        (f"{library}::{name}" for library in ("aiter", "sgl_kernel", "_C") for name in _GATED),
        # A sigmoid or similar, and two products, for each element of the result.
        Formula(streams.in_arguments(read=(1,), written=(0,), each=3.0, of=0)),
    ),
    **dict.fromkeys(("sgl_kernel::rotary_embedding", "_C::rotary_embedding"), Formula(streams.rotary_embedding)),
    **dict.fromkeys(("aten::sum", "aten::mean"), Formula(streams.reduction(1), reads_values=True)),
    "aten::max": Formula(streams.maximum, reads_values=True),
    **dict.fromkeys(("aten::argmax", "aten::argmin"), Formula(streams.reduction(1, result_bytes=8), reads_values=True)),
    **dict.fromkeys(("aten::all", "aten::any"), Formula(streams.reduction(1, result_bytes=1), reads_values=True)),
    "aten::cumsum": Formula(streams.like_first(read=(0,), each=1.0)),
    "aten::copy_": Formula(streams.copy),
    **dict.fromkeys(("aten::fill_", "aten::zero_"), Formula(streams.fill)),
    **dict.fromkeys(("aten::cat", "aten::stack", "aten::_foreach_add_"), Formula(streams.unknown_types)),
    **dict.fromkeys(("aten::index", "aten::index_put_", "aten::_index_put_impl_"), Formula(streams.unknown_indices)),
    "aten::index_select": Formula(streams.index_select, reads_values=True),
    "aten::gather": Formula(streams.gather),
    **dict.fromkeys(
        ("aten::index_add", "aten::index_add_", "aten::scatter_add", "aten::scatter_add_"),
        Formula(streams.scattered_sum),
    ),
    "sglang::store_cache": Formula(streams.store_cache),
}
#: Formulas by operator name.
FORMULAS: Final[Mapping[str, Formula]] = {**_PRODUCTS, **_CONVOLUTIONS, **_ATTENTION, **_NORMALIZATIONS, **_STREAMS}


#: Records a collective, which is not work on shapes; see `aaco_pipeline.analysis.timeline.collectives`.
_COLLECTIVE: Final = "record_param_comms"
_OVER_THE_HOST: Final = ("host_to_device", "device_to_host")


def owned_launches(
    dispatches: pl.DataFrame, copies: pl.DataFrame, api_calls: pl.DataFrame, inputs: pl.DataFrame
) -> pl.DataFrame:
    """One row per kernel, copy or fill launched by an operator with recorded inputs, with its call.

    If no operator around a launch has a formula, the launch counts to the innermost one. All arguments are canonical
    tables (`copies` is memory_copies, `inputs` operator_inputs). Columns: activity_kind (`dispatch`, `memory_copy`),
    activity_id, kernel_id (null for copies), device_id, duration_ns, call_id, from_or_to_host (for copies).
    """
    activities = pl.concat([activities_of(dispatches, "dispatch"), activities_of(copies, "memory_copy")])
    launches = launched(activities.with_row_index("row"), api_calls)
    return owners(launches, api_calls, inputs).select(
        *("activity_kind", "activity_id", "kernel_id", "device_id", "duration_ns", "from_or_to_host"),
        call_id="operator_call_id",
    )


def owners(launches: pl.DataFrame, api_calls: pl.DataFrame, inputs: pl.DataFrame) -> pl.DataFrame:
    """Return launches made by an operator with recorded inputs, with `operator_call_id`, the call to which each counts.

    `launches` has row, process_id, thread_id and launched_ns; the result is sorted by `row`. The other arguments are
    those of `owned_launches`.
    """
    operators = api_calls.filter((pl.col("domain") == OPERATOR_DOMAIN) & pl.col("thread_id").is_not_null())
    operators = operators.filter(among(operators.get_column("call_id"), inputs.get_column("call_id")))
    name = pl.col("name").cast(pl.String)
    whole = [one for one, formula in FORMULAS.items() if formula.is_whole]
    parts = [one for one, formula in FORMULAS.items() if not formula.is_whole]
    found = []
    for candidates in (
        _last_of_nested(operators.filter(name.is_in(whole))),
        operators.filter(name.is_in(parts)),
        operators,
    ):
        owned = within(launches, candidates)
        found.append(owned)
        launches = launches.join(owned.select("row"), on="row", how="anti", maintain_order="left")
    return pl.concat(found).filter(pl.col("operator") != _COLLECTIVE).sort("row")


def among(numbers: pl.Series, wanted: pl.Series) -> pl.Series:
    """Return a mask of the dense numbers that are among the wanted ones."""
    last = max((one for one in (numbers.max(), wanted.max()) if isinstance(one, int)), default=0)
    is_wanted = np.zeros(last + 1, np.bool_)
    is_wanted[wanted.to_numpy()] = True
    return pl.Series(is_wanted[numbers.to_numpy()])


def activities_of(rows: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return device work with usable times, from `dispatches` or from memory_copies with that `kind`."""
    is_copy = kind == "memory_copy"
    known = rows.filter((pl.col("end_ns") >= pl.col("start_ns")) & pl.col("device_id").is_not_null())
    return known.select(
        "process_id",
        "correlation_id",
        "device_id",
        pl.lit(kind).alias("activity_kind"),
        pl.col("copy_id" if is_copy else "dispatch_id").alias("activity_id"),
        pl.lit(None, pl.Int32).alias("kernel_id") if is_copy else pl.col("kernel_id"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        (pl.col("direction").is_in(_OVER_THE_HOST) if is_copy else pl.lit(False)).alias("from_or_to_host"),
    )


def _last_of_nested(operators: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that contain no other of these calls."""
    holds = (pl.col("start_ns").shift(-1) < pl.col("end_ns")).fill_null(False)
    threads = operators.partition_by("process_id", "thread_id", maintain_order=True)
    return pl.concat([operators.clear(), *(outer_first(own).filter(~holds) for own in threads)])
