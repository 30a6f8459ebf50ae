"""Matrix products in their spellings: 2·M·N·K operations for each of the batch, and M·N for each addend.

Signatures: aten/src/ATen/native/native_functions.yaml of PyTorch; aiter/tuned_gemm.py, aiter/ops/gradlib.py,
aiter/ops/batched_gemm_op_bf16.py and aiter/ops/batched_gemm_op_a8w8.py of ROCm's AITER, and of its commit e4048607
aiter/ops/gemm_op_a8w8.py, aiter/ops/gemm_op_a4w4.py and aiter/fused_moe.py.
"""

import math
from collections.abc import Callable

from aaco_pipeline.analysis.model.operator_counts import GELU_BY_TANH
from aaco_pipeline.analysis.roofline.operators.inputs import Inputs, Tensor, Unstated, Work, broadcast


def product(
    left: int = 0,
    right: int = 1,
    *,
    transposed: bool = False,
    addend: int | None = None,
    beta: int | None = None,
    beside: tuple[int, ...] = (),
    out: int | None = None,
    out_bytes: int | None = None,
) -> Callable[[Inputs], Work]:
    """A formula for the product of the inputs at `left` and `right`; of `transposed` ones the right is [N, K].

    `addend` is what is added, unless the scalar at `beta` is zero; `beside` are scales, read once. The result is the
    tensor at `out`, else has elements of `out_bytes`, else of the left one's size.
    """

    def work(inputs: Inputs) -> Work:
        a, b = inputs.tensor(left), inputs.tensor(right)
        batch, rows, inner, columns = _extents(a, b, transposed)
        results = batch * rows * columns
        flops, read = 2.0 * results * inner, a.bytes + b.bytes
        if addend is not None and inputs.given(addend) and not (beta is not None and _is_zero(inputs, beta)):
            flops += results
            read += inputs.tensor(addend).bytes
        read += sum(inputs.tensor(at).bytes for at in beside if inputs.given(at))
        written = inputs.tensor(out).bytes if out is not None else results * (out_bytes or a.element_bytes)
        return Work(flops, float(read + written), _format(a, b), is_product=True)

    return work


def with_activation(inputs: Inputs) -> Work:
    """aten::_addmm_activation(self, mat1, mat2, beta, alpha, use_gelu): the product, the addend, ReLU or GELU."""
    plain = product(1, 2, addend=0, beta=3)(inputs)
    rows, columns = inputs.tensor(1).shape[0], inputs.tensor(2).shape[1]
    each = GELU_BY_TANH if inputs.flag(5) else 1
    return Work((plain.flops or 0.0) + each * rows * columns, plain.least_bytes, plain.dtype, is_product=True)


def matrix_vector(matrix: int, vector: int, addend: int | None = None) -> Callable[[Inputs], Work]:
    """A formula for a matrix [M, K] times a vector [K], and what is added."""

    def work(inputs: Inputs) -> Work:
        a, x = inputs.tensor(matrix), inputs.tensor(vector)
        if len(a.shape) != 2 or x.shape != a.shape[1:]:
            raise Unstated("the shapes are not those of a matrix and a vector")
        rows, added = a.shape[0], addend is not None
        moved = a.bytes + x.bytes + rows * a.element_bytes + (inputs.tensor(addend).bytes if addend is not None else 0)
        return Work(2.0 * a.count + (rows if added else 0), float(moved), _format(a, x), is_product=True)

    return work


def grouped(offsets: int, *, scales: tuple[int, ...] = ()) -> Callable[[Inputs], Work]:
    """A formula for aten::_grouped_mm and its scaled form: each row, or each part of K, has one group's matrix.

    [M, K] with [G, K, N] and [G, M, K] with [K, N] give M·N·K products in all, as do [M, K] with [K, N] whose K is
    divided, into G results; [G, M, K] with [G, K, N] is a batch. Rows that the offsets leave out are not known.
    """

    def work(inputs: Inputs) -> Work:
        a, b = inputs.tensor(0), inputs.tensor(1)
        ranks = (len(a.shape), len(b.shape))
        if ranks == (3, 3):
            return product(beside=scales)(inputs)
        inner_fits = len(a.shape) > 1 and len(b.shape) > 1 and a.shape[-1] == b.shape[-2]
        if ranks not in ((2, 3), (3, 2), (2, 2)) or not inner_fits:
            raise Unstated("the shapes are not those of a grouped product")
        rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
        results = rows * columns * (inputs.tensor(offsets).count if ranks == (2, 2) else 1)
        read = a.bytes + b.bytes + sum(inputs.tensor(at).bytes for at in (offsets, *scales) if inputs.given(at))
        # The result of a scaled product has the type that an input of no recorded name says.
        moved = None if scales else float(read + results * a.element_bytes)
        lacking = "the type of the result is not recorded" if scales else None
        return Work(2.0 * rows * inner * columns, moved, _format(a, b), is_product=True, lacking=lacking)

    return work


def scaled(inputs: Inputs) -> Work:
    """aten::_scaled_mm(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum, out)."""
    if inputs.given(8):
        return product(addend=4, beside=(2, 3, 5), out=8)(inputs)
    plain = product(addend=4, beside=(2, 3, 5))(inputs)
    return Work(plain.flops, None, plain.dtype, is_product=True, lacking="the type of the result is not recorded")


def quantized(addend: int | None = None, *, out: int | None = None, packed: int = 1) -> Callable[[Inputs], Work]:
    """A formula for AITER's (XQ [M, K], WQ [N, K], x_scale, w_scale, …); of fp4 an element holds `packed` factors.

    Without a tensor at `out` the result has the type that an input of no recorded name says.
    """

    def work(inputs: Inputs) -> Work:
        a, b = inputs.tensor(0), inputs.tensor(1)
        _, rows, inner, columns = _extents(a, b, transposed=True)
        added = rows * columns if addend is not None and inputs.given(addend) else 0
        flops = 2.0 * rows * columns * inner * packed + added
        if out is None or not inputs.given(out):
            lacking = "the type of the result is not recorded"
            return Work(flops, None, _format(a, b), is_product=True, lacking=lacking)
        moved = sum(inputs.tensor(at).bytes for at in (0, 1, 2, 3, out) if inputs.given(at))
        moved += inputs.tensor(addend).bytes if addend is not None and inputs.given(addend) else 0
        return Work(flops, float(moved), _format(a, b), is_product=True)

    return work


def mixture_of_experts(inputs: Inputs) -> Work:
    """aiter::fused_moe_(hidden [M, D], w1 [E, N, D], w2 [E, D, I], topk_weight, topk_ids [M, k], expert_mask, …).

    Every token goes through k experts, D·N products and I·D more in each; N is I, or 2·I with a gate. Which experts
    these are is on the device, and so which weights are read.
    """
    hidden, up, down, chosen = (inputs.tensor(at) for at in (0, 1, 2, 4))
    if inputs.given(5) or inputs.given(16):
        raise Unstated("how many of the tokens go to experts of this device is on the device")
    fits = (len(hidden.shape), len(up.shape), len(down.shape), len(chosen.shape)) == (2, 3, 3, 2)
    if not fits or up.shape[2] != hidden.shape[1] or down.shape[1] != hidden.shape[1]:
        raise Unstated("the shapes are not those of unpacked experts")
    if up.shape[1] not in (down.shape[2], 2 * down.shape[2]):
        raise Unstated("the inner sizes of the experts differ")
    each = math.prod(up.shape[1:]) + math.prod(down.shape[1:])
    lacking = "which experts' weights are read is on the device"
    return Work(2.0 * chosen.count * each, None, _format(hidden, up), is_product=True, lacking=lacking)


def _extents(a: Tensor, b: Tensor, transposed: bool) -> tuple[int, int, int, int]:
    """Batch, M, K, N."""
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise Unstated("the inputs are no matrices")
    inner, columns = (b.shape[-1], b.shape[-2]) if transposed else (b.shape[-2], b.shape[-1])
    if a.shape[-1] != inner:
        raise Unstated("the inner sizes of the matrices differ")
    if len(b.shape) == 2:
        return 1, math.prod(a.shape[:-1]), inner, columns
    return math.prod(broadcast(a.shape[:-2], b.shape[:-2])), a.shape[-2], inner, columns


def _format(a: Tensor, b: Tensor) -> str | None:
    """The number format of the products; none where the factors differ, as with weights in fewer bits."""
    return a.dtype if a.dtype == b.dtype else None


def _is_zero(inputs: Inputs, at: int) -> bool:
    try:
        return inputs.value(at) == 0
    except Unstated:
        return False
