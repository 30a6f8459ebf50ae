"""Attention: queries times keys, and the scores times values, each 2 operations for every pair and element of a head.

Counted as flash-attention counts itself: the two products forward, five backward (the scores are made again), the
softmax not, and of equally many queries and keys under a causal mask half of the pairs. Signatures:
aten/src/ATen/native/native_functions.yaml of PyTorch and aiter/ops/mha.py of ROCm's AITER. Where each sequence has its
own length, those are on the device; they are known where the recorded maxima leave no choice.
"""

from collections.abc import Callable

from aaco_pipeline.analysis.roofline.operators.inputs import Inputs, Tensor, Unstated, Work

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
    """A formula for PyTorch's backward operators: the gradient, query, key and value come first."""

    def work(inputs: Inputs) -> Work:
        grad, q, k, v = (_four(inputs.tensor(at)) for at in range(4))
        width, value_width = q.shape[3], v.shape[3]
        # The gradient and the result have one shape; query, key and value are read, and their gradients written.
        moved = float(2 * grad.count * grad.element_bytes + 2 * sum(t.count * t.element_bytes for t in (q, k, v)))
        return _work(inputs, causal, (q, k), 2 * (3 * width + 2 * value_width), moved=moved, top_left=True)

    return work


def flash(causal: int, windows: tuple[int, int]) -> Callable[[Inputs], Work]:
    """A formula for operators on [batch, length, heads, width], whose last query sees the last key."""

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
    """A formula for sequences one behind the other: query [tokens, heads, width], then key, value, their beginnings.

    `lengths` are the positions of the longest query and key. All sequences have the longest length where the tokens are
    as many as sequences times it. Of `paged` keys only those of a causal prompt without a past are so many.
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
    """Paged decoding: what each query sees is as long as its sequence."""
    raise Unstated(_OWN_LENGTHS)


def _work(
    inputs: Inputs, causal: int, sides: tuple[Tensor, Tensor], each_pair: int, *, moved: float, top_left: bool
) -> Work:
    """What the pairs of queries and keys take; bytes alone where it is not recorded whether the mask is causal."""
    q, k = sides
    try:
        masked = inputs.flag(causal)
    except Unstated:
        return Work(None, moved, q.dtype, is_product=True, lacking="whether it is causal is not recorded")
    pairs = q.shape[0] * q.shape[1] * _pairs(q.shape[2], k.shape[2], masked, top_left=top_left)
    detail = "causal" if masked else ""
    return Work(float(each_pair * pairs), moved, q.dtype, is_product=True, detail=detail)


def _pairs(queried: int, attended: int, causal: bool, *, top_left: bool) -> float:
    """Pairs of a query and a key that it sees; a causal mask's edge counts half.

    PyTorch's mask begins at the first key (`top_left`), flash-attention's ends at the last one.
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
