"""Work of operators that are sums of products: matrix products, convolutions and attention.

`streams` has the operators that stream their inputs once.
"""

import math
from collections.abc import Callable

from aaco_pipeline.analysis.model.product_formulas import GELU_BY_TANH, Operation
from aaco_pipeline.analysis.model.product_formulas import convolution as convolution_flops
from aaco_pipeline.analysis.model.product_formulas import transposed_convolution as transposed_flops
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
    """A formula for the product of the inputs at `left` and `right`; with `transposed` the right one is [N, K].

    `addend` is added unless the scalar at `beta` is zero; `beside` are scales, each read once. The result is the tensor
    at `out`; without one, its elements have `out_bytes`, or else the left input's size.
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
    """aten::_addmm_activation(self, mat1, mat2, beta, alpha, use_gelu): product, addend, ReLU or GELU."""
    plain = product(1, 2, addend=0, beta=3)(inputs)
    rows, columns = inputs.tensor(1).shape[0], inputs.tensor(2).shape[1]
    each = GELU_BY_TANH if inputs.flag(5) else 1
    return Work((plain.flops or 0.0) + each * rows * columns, plain.least_bytes, plain.dtype, is_product=True)


def matrix_vector(matrix: int, vector: int, addend: int | None = None) -> Callable[[Inputs], Work]:
    """A formula for a matrix [M, K] times a vector [K], and an optional addend."""

    def work(inputs: Inputs) -> Work:
        a, x = inputs.tensor(matrix), inputs.tensor(vector)
        if len(a.shape) != 2 or x.shape != a.shape[1:]:
            raise Unstated("the shapes are not those of a matrix and a vector")
        rows, added = a.shape[0], addend is not None
        moved = a.bytes + x.bytes + rows * a.element_bytes + (inputs.tensor(addend).bytes if addend is not None else 0)
        return Work(2.0 * a.count + (rows if added else 0), float(moved), _format(a, x), is_product=True)

    return work


def grouped(offsets: int, *, scales: tuple[int, ...] = ()) -> Callable[[Inputs], Work]:
    """A formula for aten::_grouped_mm and its scaled form: each row, or each slice of K, uses one group's matrix.

    [M, K] with [G, K, N] and [G, M, K] with [K, N] take M·N·K products in total, as do [M, K] with [K, N] whose K is
    split, giving G results; [G, M, K] with [G, K, N] is a batch. The number of rows that the offsets skip is unknown.
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
        # The result type of a scaled product is an input that the trace does not record.
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
    """A formula for AITER's (XQ [M, K], WQ [N, K], x_scale, w_scale, …); an fp4 element holds `packed` factors.

    Without a tensor at `out`, the result type is an input that the trace does not record.
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

    Every token passes through k experts, with D·N products and I·D more in each; N is I, or 2·I with a gate. Experts
    are chosen on the device, so the weights that are read are unknown.
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
    """The number format of the products; None if the factors differ, as with quantized weights."""
    return a.dtype if a.dtype == b.dtype else None


def _is_zero(inputs: Inputs, at: int) -> bool:
    try:
        return inputs.value(at) == 0
    except Unstated:
        return False


#: Positions of the arguments after the tensors, relative to the strides.
_PADDING, _DILATION, _TRANSPOSED, _OUTPUT_PADDING, _GROUPS = range(1, 6)


def forward(inputs: Inputs) -> Work:
    """aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    x, weight = inputs.tensor(0), inputs.tensor(1)
    y = Tensor(_output(inputs, x, weight, 3), x.dtype, x.element_bytes)
    bias = inputs.tensor(2) if inputs.given(2) else None
    node = _node(x, weight, bias, y)
    flops = transposed_flops(node) if inputs.flag(3 + _TRANSPOSED) else convolution_flops(node)
    moved = x.bytes + weight.bytes + y.bytes + (bias.bytes if bias else 0)
    return Work(float(flops), float(moved), _format(x, weight), is_product=True, detail=_detail(inputs, 3))


def backward(inputs: Inputs) -> Work:
    """aten::convolution_backward(grad_output, input, weight, bias_sizes, stride, …, groups, output_mask).

    The data and weight gradients each cost as much as the forward pass, if the mask requests them; the bias gradient is
    a sum over grad_output.
    """
    grad, x, weight = inputs.tensor(0), inputs.tensor(1), inputs.tensor(2)
    of_data, of_weights, of_bias = _mask(inputs.flags(10))
    node = _node(x, weight, None, grad)
    once = transposed_flops(node) if inputs.flag(4 + _TRANSPOSED) else convolution_flops(node)
    flops = once * (of_data + of_weights) + (grad.count if of_bias else 0)
    moved = grad.bytes + (of_data + of_weights) * (x.count * x.element_bytes + weight.bytes)
    asked = (("no data gradient", of_data), ("no weight gradient", of_weights))
    details = [_detail(inputs, 4), *(text for text, wanted in asked if not wanted)]
    return Work(float(flops), float(moved), _format(x, weight), is_product=True, detail=", ".join(details))


def _output(inputs: Inputs, x: Tensor, weight: Tensor, at: int) -> tuple[int, ...]:
    """The shape of the result: [N, filters, sizes…]."""
    rank = len(weight.shape) - 2
    if rank < 1 or len(x.shape) != rank + 2:
        raise Unstated("the shapes are not those of a convolution")
    stride, padding, dilation = (_each(inputs.integers(at + one), rank) for one in (0, _PADDING, _DILATION))
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    if inputs.flag(at + _TRANSPOSED):
        more = _each(inputs.integers(at + _OUTPUT_PADDING), rank)
        found = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + m for (n, k, s, p, d), m in zip(sizes, more, strict=True)]
        filters = weight.shape[1] * inputs.integer(at + _GROUPS)
    else:
        found = [(n + 2 * p - d * (k - 1) - 1) // s + 1 if s > 0 else 0 for n, k, s, p, d in sizes]
        filters = weight.shape[0]
    if min(found) < 1:
        raise Unstated("the sizes of the convolution do not fit")
    return (x.shape[0], filters, *found)


def _each(numbers: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """One number for each axis; a single one applies to all."""
    if len(numbers) not in (1, rank):
        raise Unstated("strides, padding or dilation are not of the convolution's axes")
    return numbers * rank if len(numbers) == 1 else numbers


def _mask(flags: tuple[bool, ...]) -> tuple[bool, bool, bool]:
    if len(flags) != 3:
        raise Unstated("the output mask has not three flags")
    return flags[0], flags[1], flags[2]


def _node(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor) -> Operation:
    if math.prod(weight.shape) == 0:
        raise Unstated("the convolution has no weights")
    tensors = (x.of_model, weight.of_model, bias.of_model if bias else None)
    return Operation("Conv", "", tensors, (y.of_model,), {})


def _detail(inputs: Inputs, at: int) -> str:
    """Stride, padding and any unusual settings."""
    stride, padding, dilation = ("×".join(map(str, inputs.integers(at + one))) for one in (0, _PADDING, _DILATION))
    parts = [f"stride {stride}", f"padding {padding}"]
    parts += [f"dilation {dilation}"] if set(dilation) - {"1", "×"} else []
    groups = inputs.integer(at + _GROUPS)
    parts += [f"{groups} groups"] if groups != 1 else []
    return ", ".join([*parts, "transposed"] if inputs.flag(at + _TRANSPOSED) else parts)


_OWN_LENGTHS = "the lengths of the sequences are on the device, and not recorded"


def scaled_dot_product(causal: int, *, bias: int | None = None) -> Callable[[Inputs], Work]:
    """A formula for PyTorch's forward operators: query, key, value as [batch, heads, length, width] come first."""

    def work(inputs: Inputs) -> Work:
        q, k, v = (_four(inputs.tensor(at)) for at in range(3))
        width, value_width = q.shape[3], v.shape[3]
        result = q.count // max(width, 1) * value_width * q.element_bytes
        more = inputs.tensor(bias).bytes if bias is not None and inputs.given(bias) else 0
        moved = float(q.bytes + k.bytes + v.bytes + more + result)
        return _work(inputs, causal, (q, k), 2 * (width + value_width), moved=moved, top_left=True)

    return work


def scaled_dot_product_backward(causal: int) -> Callable[[Inputs], Work]:
    """A formula for PyTorch's backward operators, which begin with the gradient, query, key and value."""

    def work(inputs: Inputs) -> Work:
        grad, q, k, v = (_four(inputs.tensor(at)) for at in range(4))
        width, value_width = q.shape[3], v.shape[3]
        # Gradient and result have the same shape; query, key and value are read, and their gradients written.
        moved = float(2 * grad.count * grad.element_bytes + 2 * sum(t.count * t.element_bytes for t in (q, k, v)))
        return _work(inputs, causal, (q, k), 2 * (3 * width + 2 * value_width), moved=moved, top_left=True)

    return work


def flash(causal: int, windows: tuple[int, int]) -> Callable[[Inputs], Work]:
    """A formula for operators on [batch, length, heads, width], whose last query attends to the last key."""

    def work(inputs: Inputs) -> Work:
        q, k, v = (_transposed(_four(inputs.tensor(at))) for at in range(3))
        width, value_width = q.shape[3], v.shape[3]
        result = q.count // max(width, 1) * value_width * q.element_bytes
        moved = float(q.bytes + k.bytes + v.bytes + result)
        if any(inputs.integer(at) >= 0 for at in windows):
            return Work(None, moved, q.dtype, is_product=True, lacking="a window limits what each query sees")
        return _work(inputs, causal, (q, k), 2 * (width + value_width), moved=moved, top_left=False)

    return work


def packed(causal: int, lengths: tuple[int, int], windows: tuple[int, int], *, paged: bool) -> Callable[[Inputs], Work]:
    """A formula for concatenated sequences: query [tokens, heads, width], then key, value, and their offsets.

    `lengths` are the positions of the longest query and key. All sequences have the maximum length if the number of
    tokens is the number of sequences times that length. With `paged` keys, this holds only for a causal prompt without
    a past.
    """

    def work(inputs: Inputs) -> Work:
        q, k, v, starts = (inputs.tensor(at) for at in range(4))
        if len(q.shape) != 3 or len(starts.shape) != 1:
            raise Unstated("the shapes are not those of packed sequences")
        sequences = starts.shape[0] - 1
        queried, attended = (inputs.integer(at) for at in lengths)
        masked = inputs.flag(causal)
        all_keys = masked and queried == attended if paged else k.shape[0] == sequences * attended
        if q.shape[0] != sequences * queried or not all_keys:
            raise Unstated(_OWN_LENGTHS)
        if any(inputs.integer(at) >= 0 for at in windows):
            raise Unstated("a window limits what each query sees")
        heads, width, kept, value_width = q.shape[1], q.shape[2], k.shape[-2], v.shape[-1]
        pairs = sequences * heads * _pairs(queried, attended, masked, top_left=False)
        keys = sequences * attended * kept * (width + value_width) * k.element_bytes
        result = q.shape[0] * heads * value_width * q.element_bytes
        detail = f"{sequences} sequences of {queried}" + (", causal" if masked else "")
        flops = 2.0 * (width + value_width) * pairs
        return Work(flops, float(q.bytes + keys + result), q.dtype, is_product=True, detail=detail)

    return work


def of_unknown_lengths(inputs: Inputs) -> Work:
    """Paged decoding: each query attends to its complete sequence, whose length is not recorded."""
    raise Unstated(_OWN_LENGTHS)


def _work(
    inputs: Inputs, causal: int, sides: tuple[Tensor, Tensor], each_pair: int, *, moved: float, top_left: bool
) -> Work:
    """Work of the query-key pairs; only bytes if it is not recorded whether the mask is causal."""
    q, k = sides
    try:
        masked = inputs.flag(causal)
    except Unstated:
        return Work(None, moved, q.dtype, is_product=True, lacking="whether it is causal is not recorded")
    pairs = q.shape[0] * q.shape[1] * _pairs(q.shape[2], k.shape[2], masked, top_left=top_left)
    detail = "causal" if masked else ""
    return Work(float(each_pair * pairs), moved, q.dtype, is_product=True, detail=detail)


def _pairs(queried: int, attended: int, causal: bool, *, top_left: bool) -> float:
    """Number of query-key pairs that are attended to; the edge of a causal mask counts half.

    PyTorch's mask is aligned to the first key (`top_left`), flash-attention's to the last one.
    """
    if not causal:
        return float(queried * attended)
    short = min(queried, attended)
    square = short * short / 2
    if queried > attended:
        return square + (queried - attended) * attended if top_left else square
    return square if top_left else square + queried * (attended - queried)


def _four(tensor: Tensor) -> Tensor:
    if len(tensor.shape) != 4:
        raise Unstated("the shapes are not those of attention")
    return tensor


def _transposed(tensor: Tensor) -> Tensor:
    """[batch, heads, length, width] from [batch, length, heads, width]."""
    batch, length, heads, width = tensor.shape
    return Tensor((batch, heads, length, width), tensor.dtype, tensor.element_bytes)
