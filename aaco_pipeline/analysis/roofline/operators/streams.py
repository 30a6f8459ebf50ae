"""Operators that read their inputs once and write their outputs once: element by element, reductions, copies, lookups.

Normalization, softmax and pooling are included. One operation is counted for each element and function (an exponential
is one, as on a special-function unit), so operations are a lower bound. Signatures: aten/src/ATen/native/
native_functions.yaml of PyTorch, aiter/ops/{rmsnorm,norm,activation}.py of ROCm's AITER, csrc/torch_bindings.cpp of
vLLM, sgl-kernel/csrc/common_extension_rocm.cc of SGLang; sglang::store_cache as recorded in a trace of SGLang.
"""

import math
from collections.abc import Callable

from aaco_pipeline.analysis.roofline.operators.inputs import Inputs, Tensor, Unstated, Work, broadcast

_INDEX_BYTES = 8


def elementwise(
    arity: int, each: float = 1.0, *, in_place: bool = False, truth: bool = False
) -> Callable[[Inputs], Work]:
    """A formula for a function of the first `arity` tensor inputs; a tensor after them is the result.

    With `truth` the result is Boolean, one byte per element. A number that PyTorch wraps as a tensor without dimensions
    takes no memory.
    """

    def work(inputs: Inputs) -> Work:
        tensors = [inputs.tensor(at) for at in range(arity) if inputs.given(at)]
        tensors = [tensor for tensor in tensors if tensor.shape] or tensors
        if not tensors:
            raise Unstated("none of the inputs is a tensor")
        elements = math.prod(broadcast(*(tensor.shape for tensor in tensors)))
        rest = [inputs.tensor(at) for at in range(arity, len(inputs)) if inputs.given(at)]
        result = inputs.tensor(0) if in_place else rest[-1] if rest else None
        size = 1 if truth else result.element_bytes if result is not None else _promoted(inputs, arity, tensors)
        read = sum(tensor.bytes for tensor in tensors)
        return Work(each * elements, float(read + elements * size), _format(tensors))

    return work


def in_arguments(*, read: tuple[int, ...], written: tuple[int, ...], each: float, of: int) -> Callable[[Inputs], Work]:
    """A formula for operators whose results are also arguments: the positions that are read, and those written.

    `each` operations are counted for every element of the tensor at `of`.
    """

    def work(inputs: Inputs) -> Work:
        moved = sum(inputs.tensor(at).bytes for at in (*read, *written) if inputs.given(at))
        counted = inputs.tensor(of)
        return Work(each * counted.count, float(moved), counted.dtype)

    return work


def like_first(*, read: tuple[int, ...], each: float) -> Callable[[Inputs], Work]:
    """A formula for operators whose result has the first input's shape and type; `each` operations per element."""

    def work(inputs: Inputs) -> Work:
        first = inputs.tensor(0)
        moved = sum(inputs.tensor(at).bytes for at in read if inputs.given(at))
        return Work(each * first.count, float(moved + first.count * first.element_bytes), first.dtype)

    return work


def batch_norm(inputs: Inputs) -> Work:
    """(input, weight, bias, running_mean, running_var, training, …): in training, a mean and a variance first."""
    each = 6.0 + inputs.given(2) if inputs.flag(5) else 2.0
    return like_first(read=(0, 1, 2, 3, 4), each=each)(inputs)


def layer_norm(inputs: Inputs) -> Work:
    """(input, normalized_shape, weight, bias, eps): 6 per element for mean, variance and scaling, 1 for the shift."""
    return like_first(read=(0, 2, 3), each=6.0 + inputs.given(3))(inputs)


def softmax(inputs: Inputs) -> Work:
    """aten::_softmax(self, dim, half_to_float): maximum, subtraction, exponential, sum, division."""
    x = inputs.tensor(0)
    size = 4 if inputs.flag(2) else x.element_bytes
    return Work(5.0 * x.count, float(x.bytes + x.count * size), x.dtype)


def rotary_embedding(inputs: Inputs) -> Work:
    """(positions, query, key, head_size, cos_sin_cache, is_neox): query and key are rotated in place, 3 per element.

    A row of the table is read for each position, but every row at most once.
    """
    places, table = inputs.tensor(0), inputs.tensor(4)
    turned = [inputs.tensor(at) for at in (1, 2) if inputs.given(at)]
    rows = min(places.count * table.shape[-1] * table.element_bytes, table.bytes) if table.shape else 0
    moved = places.bytes + rows + 2 * sum(tensor.bytes for tensor in turned)
    return Work(3.0 * sum(tensor.count for tensor in turned), float(moved), turned[0].dtype if turned else None)


def reduction(
    dimensions: int | None, *, result_bytes: int | None = None, more_bytes: int = 0
) -> Callable[[Inputs], Work]:
    """A formula for reducing n elements to one: the axes' position, and the bytes of a result.

    `more_bytes` are written per result in addition, such as its index. Axes are always followed by the keepdim flag;
    without it the argument is something else, such as the type of a sum.
    """

    def work(inputs: Inputs) -> Work:
        x = inputs.tensor(0)
        by_axis = dimensions is not None and len(inputs) > dimensions + 1
        by_axis = by_axis and inputs.types[dimensions or 0].startswith("Scalar")
        results = math.prod(_without(x.shape, inputs, dimensions)) if by_axis and dimensions is not None else 1
        size = (result_bytes or x.element_bytes) + (more_bytes if by_axis else 0)
        return Work(float(max(x.count - results, 0)), float(x.bytes + results * size), x.dtype)

    return work


def squared_error(inputs: Inputs) -> Work:
    """aten::mse_loss(self, target, reduction): a difference and a square each; one result if it reduces (1, 2)."""
    each = elementwise(2, 2.0)(inputs)
    if inputs.integer(2) == 0:
        return each
    first = inputs.tensor(0)
    read = sum(inputs.tensor(at).bytes for at in (0, 1))
    return Work((each.flops or 0.0) + max(first.count - 1, 0), float(read + first.element_bytes), first.dtype)


def maximum(inputs: Inputs) -> Work:
    """aten::max: of all elements, along an axis with indices, or of two tensors element by element."""
    return (elementwise(2) if inputs.given(1) else reduction(1, more_bytes=_INDEX_BYTES))(inputs)


def copy(inputs: Inputs) -> Work:
    """aten::copy_(self, src, non_blocking)."""
    target, source = inputs.tensor(0), inputs.tensor(1)
    return Work(0.0, float(source.bytes + target.count * target.element_bytes), target.dtype)


def fill(inputs: Inputs) -> Work:
    """aten::fill_(self, value) and aten::zero_(self)."""
    target = inputs.tensor(0)
    return Work(0.0, float(target.bytes), target.dtype)


def unknown_types(inputs: Inputs) -> Work:
    """Operators on lists of tensors, whose types are not recorded."""
    raise Unstated("the types of a list's tensors are not recorded")


def unknown_indices(inputs: Inputs) -> Work:
    """Operators on a list of indices that may be incomplete: neither their shapes nor their types are recorded."""
    raise Unstated("the shapes of the indices are not recorded")


def index_select(inputs: Inputs) -> Work:
    """aten::index_select(self, dim, index): one row per index, but every row is read at most once."""
    table, index = inputs.tensor(0), inputs.tensor(2)
    axis = _axis(inputs.integer(1), len(table.shape))
    if not table.shape[axis]:
        raise Unstated("the table has no rows")
    taken = table.count // table.shape[axis] * index.count * table.element_bytes
    return Work(0.0, float(index.bytes + min(taken, table.bytes) + taken), table.dtype)


def gather(inputs: Inputs) -> Work:
    """aten::gather(self, dim, index, sparse_grad): one element per index, but every element is read at most once."""
    table, index = inputs.tensor(0), inputs.tensor(2)
    taken = index.count * table.element_bytes
    return Work(0.0, float(index.bytes + min(taken, table.bytes) + taken), table.dtype)


def scattered_sum(inputs: Inputs) -> Work:
    """(self, dim, index, source): every element of the source is added to an element of self."""
    target, index, source = inputs.tensor(0), inputs.tensor(2), inputs.tensor(3)
    touched = min(source.count, target.count) * target.element_bytes
    return Work(float(source.count), float(index.bytes + source.bytes + 2 * touched), target.dtype)


def store_cache(inputs: Inputs) -> Work:
    """sglang::store_cache(k, v, k_cache, v_cache, indices, …): write keys and values to their slots."""
    k, v, places = inputs.tensor(0), inputs.tensor(1), inputs.tensor(4)
    return Work(0.0, float(2 * (k.bytes + v.bytes) + places.bytes), k.dtype)


def maximum_pooling(inputs: Inputs) -> Work:
    """aten::max_pool2d_with_indices(self, kernel, stride, padding, dilation, ceil_mode): k − 1 comparisons a result."""
    x = inputs.tensor(0)
    kernel, stride, padding, dilation = (_pair(inputs.integers(at)) for at in range(1, 5))
    if len(x.shape) < 3 or inputs.flag(5):
        raise Unstated("the sizes of the result cannot be told")
    sizes = zip(x.shape[-2:], kernel, stride or kernel, padding or (0, 0), dilation or (1, 1), strict=True)
    found = [(n + 2 * p - d * (k - 1) - 1) // s + 1 if s > 0 else 0 for n, k, s, p, d in sizes]
    if min(found) < 1:
        raise Unstated("the sizes of the pooling do not fit")
    results = math.prod((*x.shape[:-2], *found))
    moved = x.bytes + results * (x.element_bytes + _INDEX_BYTES)
    return Work(float(results * (math.prod(kernel) - 1)), float(moved), x.dtype)


def maximum_pooling_backward(inputs: Inputs) -> Work:
    """(grad_output, self, kernel, stride, padding, dilation, ceil_mode, indices): each gradient to its position."""
    grad, x, places = inputs.tensor(0), inputs.tensor(1), inputs.tensor(7)
    return Work(float(grad.count), float(grad.bytes + places.bytes + x.count * x.element_bytes), grad.dtype)


def _format(tensors: list[Tensor]) -> str | None:
    """The number format of the inputs; if they differ, the widest floating-point one."""
    floats = sorted((tensor for tensor in tensors if tensor.is_float), key=lambda one: -one.element_bytes)
    return (floats or tensors)[0].dtype


def _promoted(inputs: Inputs, arity: int, tensors: list[Tensor]) -> int:
    """Bytes per result element: those of the widest input, floating-point before integer.

    Integers combined with a fraction give the default floating-point type, which is not recorded.
    """
    floats = [tensor.element_bytes for tensor in tensors if tensor.is_float]
    wrapped = [inputs.tensor(at) for at in range(arity) if inputs.given(at)]
    if not floats and any(tensor.is_float for tensor in wrapped):
        raise Unstated("the type of the result is not recorded")
    return max(floats or [tensor.element_bytes for tensor in tensors])


def _without(shape: tuple[int, ...], inputs: Inputs, at: int) -> tuple[int, ...]:
    """The shape without the axes named by the value at a position; an empty list names all."""
    named = inputs.value(at)
    axes = inputs.integers(at) if isinstance(named, tuple) else (inputs.integer(at),)
    gone = {_axis(axis, len(shape)) for axis in axes} or set(range(len(shape)))
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Unstated("the axis is none of the tensor's")
    return axis % rank


def _pair(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if len(numbers) not in (0, 1, 2):
        raise Unstated("the pooling is not of two axes")
    return numbers * 2 if len(numbers) == 1 else numbers
