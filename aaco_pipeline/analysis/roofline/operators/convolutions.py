"""Convolutions, forward and backward: every output element is a sum over the weights of its filter.

Signatures: aten/src/ATen/native/native_functions.yaml of PyTorch. Taps that fall into the padding are counted, as
implementations multiply them by zero.
"""

import math

from aaco_pipeline.analysis.model.operator_counts import Operation
from aaco_pipeline.analysis.model.product_formulas import convolution as convolution_flops
from aaco_pipeline.analysis.model.product_formulas import transposed_convolution as transposed_flops
from aaco_pipeline.analysis.roofline.operators.inputs import Inputs, Tensor, Unstated, Work

#: What stands behind the tensors, from the position of the strides on.
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

    The gradient of the data and that of the weights take what the forward pass takes, each only where the mask asks for
    it; that of a bias is a sum over grad_output.
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
    """One number for every axis; a single one stands for all."""
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


def _format(x: Tensor, weight: Tensor) -> str | None:
    return x.dtype if x.dtype == weight.dtype else None


def _detail(inputs: Inputs, at: int) -> str:
    """Stride and padding, and what else is not as usual."""
    stride, padding, dilation = ("×".join(map(str, inputs.integers(at + one))) for one in (0, _PADDING, _DILATION))
    parts = [f"stride {stride}", f"padding {padding}"]
    parts += [f"dilation {dilation}"] if set(dilation) - {"1", "×"} else []
    groups = inputs.integer(at + _GROUPS)
    parts += [f"{groups} groups"] if groups != 1 else []
    return ", ".join([*parts, "transposed"] if inputs.flag(at + _TRANSPOSED) else parts)
