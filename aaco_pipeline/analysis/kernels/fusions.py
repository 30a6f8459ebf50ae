"""Operators a compiler fused into one kernel, from the kernel's name.

MIGraphX strings the operators of a fusion together: `mlir_convolution_add_relu` for one compiled by rocMLIR,
`add_layernorm_mul_kernel` for one of its own. Inductor writes `triton_<kind>_fused_<operators>_<counter>` with all
operators that contributed, among them those that another kernel computes and this one only completes.
"""

import re
from typing import Final, NamedTuple

from aaco_pipeline.analysis.kernels.grammar import inductor

#: MIGraphX's operators as they stand in kernel names (its documentation, Operators; and its generated kernels).
_MIGRAPHX_OPERATORS: Final = frozenset({
    "abs", "acos", "acosh", "add", "argmax", "argmin", "asin", "asinh", "atan", "atanh", "attention", "bitwise_and",
    "broadcast", "ceil", "clip", "concat", "contiguous", "convert", "convolution", "copy", "cos", "cosh",
    "dequantizelinear", "div", "dot", "elu", "equal", "erf", "exp", "fill", "flatten", "floor", "fmod", "gather",
    "gathernd", "gelu", "gemm", "greater", "group_query_attention", "groupnorm", "identity", "isinf", "isnan",
    "layernorm", "layout", "leaky_relu", "less", "log", "log2", "logical_and", "logical_or", "logical_xor",
    "logsoftmax", "lrn", "max", "min", "mod", "mul", "multibroadcast", "nearbyint", "neg", "nonzero", "noop", "not",
    "pack_int4", "pad", "pointwise", "pooling", "pow", "prefix_scan_sum", "prelu", "quant_convolution", "quant_dot",
    "quantizelinear", "recip", "reduce", "reduce_all", "reduce_any", "reduce_max", "reduce_mean", "reduce_min",
    "reduce_prod", "reduce_sum", "relu", "reshape", "resize", "rmsnorm", "roialign", "round", "rsqrt",
    "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "scatter_none", "sigmoid", "sign", "sin", "sinh",
    "slice", "softmax", "sqdiff", "sqrt", "squeeze", "step", "sub", "tan", "tanh", "topk", "transpose",
    "unpack_fp4", "unpack_int4", "unsqueeze", "where"
})  # fmt: skip
_MIGRAPHX_PREFIX: Final = re.compile(r"(?:gpu::)?(?:code_object::)?(?:mlir_)?")
_MIGRAPHX_ENDING: Final = re.compile(r"(?:_kernel)?(?:_\d+)?$")
_LONGEST_OPERATOR: Final = 3

#: Operators that only move elements or describe how they lie.
_MOVING: Final = re.compile(
    r"(?<=_)(?:split_with_sizes|constant_pad_nd|slice_scatter|select_scatter|as_strided|new_zeros|lift_fresh|to_copy"
    r"|unsafe_view|transpose|unsqueeze|contiguous|squeeze|permute|expand|select|detach|repeat|reshape|getitem|unbind"
    r"|clone|slice|split|stack|empty|zeros|view|copy|full|fill|flip|roll|ones|cat|t)(?=_)"
)
#: Operators that Inductor calls a library for; such an operator in a fusion's name ran before or runs after it.
_ELSEWHERE: Final = {
    "attention": re.compile(
        r"(?<=_)scaled_dot_product(?:_[a-z]+)*?_attention(?:_for_cpu|_backward)?(?=_)|flex_attention"
    ),
    "conv": re.compile(r"(?<=_)convolution(?:_backward)?(?=_)"),
    "gemm": re.compile(r"(?<=_)(?:addmm|baddbmm|bmm|mm|scaled_mm)(?=_)"),
}
_NORM: Final = re.compile(r"(?<=_)(?:native_|fused_)*(?:layer|batch|group|instance|rms)_norm\w*?(?=_)")
#: A root mean square norm is taken apart before it is fused; so is the normalising half of the others.
_NORM_PARTS: Final = (re.compile(r"_(?:mean|var_mean|var)_"), re.compile(r"_rsqrt_"))
_POOL: Final = re.compile(r"(?<=_)(?:max|avg)_pool\dd")
_SOFTMAX: Final = re.compile(r"softmax")
_INDEXED: Final = re.compile(r"(?<=_)(?:embedding|index_select|index_put|index|gather|scatter|scatter_add)\w*?(?=_)")
_REDUCING_KINDS: Final = frozenset({"red", "per", "mix"})


class Fusion(NamedTuple):
    """Kind of work of a fused kernel, and whether it only serves an operator computed elsewhere."""

    family: str | None
    is_auxiliary: bool


def fused_operators(name: str) -> list[str]:
    """Operators fused into one MIGraphX kernel, in the order of its name; none where the name is of another kind."""
    prefix = _MIGRAPHX_PREFIX.match(name)
    start = prefix.end() if prefix else 0
    ending = _MIGRAPHX_ENDING.search(name, start)
    end = ending.start() if ending else len(name)
    if not start and not name.endswith("_kernel", 0, len(name)) and not name[end:].startswith("_kernel"):
        return []
    parts = name[start:end].split("_")
    operators: list[str] = []
    while parts:
        length = next(
            (size for size in range(_LONGEST_OPERATOR, 0, -1) if "_".join(parts[:size]) in _MIGRAPHX_OPERATORS), 0
        )
        if not length:
            return []
        operators.append("_".join(parts[:length]))
        del parts[:length]
    return operators


def migraphx_family(operators: list[str]) -> str | None:
    """Kind of work of operators compiled together where one of them is a product or a convolution."""
    if any(operator.endswith("attention") for operator in operators):
        return "attention"
    products = sum(operator in {"dot", "quant_dot", "gemm"} for operator in operators)
    if products > 1 and "softmax" in operators:
        return "attention"
    if any(operator.endswith("convolution") for operator in operators):
        return "conv"
    return "gemm" if products else None


def inductor_fusion(name: str) -> Fusion | None:
    """What a kernel that Inductor generated does; nothing for kernels it did not."""
    parts = inductor(name)
    if parts is None:
        return None
    kind, operators = parts
    text, reduces = f"_{operators}_", kind in _REDUCING_KINDS
    family: str | None
    if kind == "tem":
        family = _elsewhere(text)
    elif _NORM.search(text) or (reduces and all(part.search(text) for part in _NORM_PARTS)):
        family = "norm"
    elif _SOFTMAX.search(text):
        family = "softmax"
    elif _POOL.search(text):
        family = "pool"
    elif reduces:
        family = "reduction"
    elif _INDEXED.search(text):
        family = "embedding/gather"
    else:
        return _pointwise(text)
    return Fusion(family, is_auxiliary=False)


def _elsewhere(text: str) -> str | None:
    """The first of the operators a library computes that stands in the text."""
    return next((family for family, pattern in _ELSEWHERE.items() if pattern.search(text)), None)


def _pointwise(text: str) -> Fusion:
    """An elementwise kernel; one that only moves elements is a copy, or serves the operator whose elements they are."""
    if not text.strip("_"):
        return Fusion(None, is_auxiliary=False)
    computed = text
    for pattern in _ELSEWHERE.values():
        computed = pattern.sub("", computed)
    if _MOVING.sub("", computed).strip("_"):
        return Fusion("elementwise", is_auxiliary=False)
    family = _elsewhere(text)
    return Fusion(family or "copy/memset", is_auxiliary=family is not None)
