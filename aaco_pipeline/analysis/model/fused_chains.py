"""Chains of a model's nodes that a kernel's list of fused operators can stand for.

The list comes from the kernel's name (`aaco_pipeline.analysis.kernels.fusions`); which chain a kernel ran is decided in
`device_kernel_nodes`. Names of operators are MIGraphX's, as its documentation lists them and its ONNX parser makes
them. Written to that documentation and to published program listings, never tried on a capture of MIGraphX.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aaco_pipeline.analysis.model.graph_provenance import Graph

#: The operators a node of a type can appear as. A division or difference by a constant is turned into a product or sum
#: (MIGraphX, simplify_algebra: find_div_const, find_sub_const).
_OPERATORS: Final[Mapping[str, tuple[str, ...]]] = {
    "Attention": ("attention",),
    "AveragePool": ("pooling",),
    "Cast": ("convert",),
    "Concat": ("concat",),
    "Conv": ("convolution",),
    "ConvInteger": ("quant_convolution",),
    "DequantizeLinear": ("dequantizelinear",),
    "Div": ("div", "mul"),
    "Gather": ("gather",),
    "GatherND": ("gathernd",),
    "Gemm": ("dot", "gemm"),
    "GlobalAveragePool": ("pooling", "reduce_mean"),
    "GlobalMaxPool": ("pooling", "reduce_max"),
    "GroupQueryAttention": ("group_query_attention",),
    "LayerNormalization": ("layernorm",),
    "LeakyRelu": ("leaky_relu",),
    "LogSoftmax": ("logsoftmax",),
    "MatMul": ("dot", "gemm"),
    "MatMulInteger": ("quant_dot",),
    "MaxPool": ("pooling",),
    "PRelu": ("prelu",),
    "QuantizeLinear": ("quantizelinear",),
    "Reciprocal": ("recip",),
    "ReduceMax": ("reduce_max",),
    "ReduceMean": ("reduce_mean",),
    "ReduceMin": ("reduce_min",),
    "ReduceProd": ("reduce_prod",),
    "ReduceSum": ("reduce_sum",),
    "Sub": ("sub", "add"),
    "TopK": ("topk",),
}
#: Types whose operator is the type's name in small letters.
_SAME_NAME: Final = frozenset(
    {"Abs", "Add", "Ceil", "Clip", "Cos", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater", "Less", "Log", "Max"}
    | {"Min", "Mul", "Neg", "Not", "Pad", "Pow", "Relu", "Resize", "Round", "Sigmoid", "Sign", "Sin", "Softmax"}
    | {"Sqrt", "Tanh", "Where"}
)
#: Operators that a node brings along beside its own where it has an input at that place: its bias or its scale.
_BROUGHT: Final[Mapping[str, tuple[tuple[int, str], ...]]] = {
    "Conv": ((2, "add"),),
    "Gemm": ((2, "add"), (0, "mul")),
    "LayerNormalization": ((1, "mul"), (2, "add")),
}
#: How tensors lie: a name may hold these or leave them out, and the compiler puts in its own.
_VIEWS: Final = frozenset(
    {"broadcast", "contiguous", "copy", "flatten", "identity", "layout", "multibroadcast", "noop", "pointwise"}
    | {"reduce", "reshape", "slice", "squeeze", "step", "transpose", "unsqueeze"}
)
#: Types whose nodes a chain may pass through without naming them.
_PASSED: Final = frozenset({"Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
#: What a model spells out where it has no node of its own for it.
_SPELLED_OUT: Final[Mapping[str, tuple[str, ...]]] = {
    "layernorm": ("reduce_mean", "sub", "pow", "reduce_mean", "add", "sqrt", "div"),
}
_HEAVY: Final = frozenset({"convolution", "quant_convolution", "dot", "gemm", "quant_dot", "attention"})
_MOST_STEPS: Final = 500


@dataclass
class Chains:
    """Finds chains in one graph; looks up its edges once."""

    graph: Graph
    _followers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _has_operator: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._has_operator = frozenset(name for op_type in self.graph.op_types for name in operators_of(op_type))

    def needed(self, operators: Sequence[str]) -> tuple[str, ...]:
        """What of a kernel's list must be found in this graph: views left out, what it spells out spelled out."""
        needed: list[str] = []
        for operator in operators:
            spelled = _SPELLED_OUT.get(operator, ()) if operator not in self._has_operator else ()
            needed.extend(spelled or (() if operator in _VIEWS else (operator,)))
        return tuple(needed)

    def disjoint(self, needed: Sequence[str], pool: Sequence[int], taken: Collection[int]) -> list[tuple[int, ...]]:
        """Chains of the nodes in `pool` that are not `taken`, none sharing a node, in the pool's order of their starts.

        Every node of a chain but the first reads what one before it wrote, directly or through nodes that only say how
        tensors lie. None for an empty list.
        """
        if not needed:
            return []
        free = set(pool) - set(taken)
        found = []
        for node in pool:
            if node in free and needed[0] in operators_of(self.graph.op_types[node]):
                chain = self._from(node, needed, free)
                if chain:
                    found.append(chain)
                    free -= set(chain)
        return found

    def main_node(self, chain: Sequence[int]) -> int:
        """The node that gets the kernel's time: the first product or convolution, else the result's writer."""
        return next((node for node in chain if _HEAVY & set(operators_of(self.graph.op_types[node]))), chain[-1])

    def followers(self, node: int) -> tuple[int, ...]:
        """The nodes that read what `node` writes, and those behind nodes that only say how tensors lie."""
        if node not in self._followers:
            reached: dict[int, None] = {}
            waiting = [node]
            while waiting:
                for name in self.graph.outputs[waiting.pop()]:
                    for reader in self.graph.readers.get(name, ()) if name else ():
                        if reader not in reached:
                            reached[reader] = None
                            if self.graph.op_types[reader] in _PASSED:
                                waiting.append(reader)
            self._followers[node] = tuple(sorted(reached))
        return self._followers[node]

    def _from(self, start: int, needed: Sequence[str], free: Collection[int]) -> tuple[int, ...] | None:
        """The first chain from `start` in the graph's order, by depth first; None after too many steps."""
        brought = self._brought(start)
        waiting: list[tuple[int, tuple[int, ...], tuple[str, ...]]] = [(1, (start,), brought)]
        for _ in range(_MOST_STEPS):
            if not waiting:
                return None
            place, chain, pending = waiting.pop()
            if place == len(needed):
                return chain
            waiting.extend(reversed(list(self._next(needed[place], place, chain, pending, free))))
        return None

    def _next(
        self, operator: str, place: int, chain: tuple[int, ...], pending: tuple[str, ...], free: Collection[int]
    ) -> Iterator[tuple[int, tuple[int, ...], tuple[str, ...]]]:
        """Ways to account for the next operator: a node's own bias or scale first, then a node that follows."""
        if operator in pending:
            place_of = pending.index(operator)
            yield place + 1, chain, (*pending[:place_of], *pending[place_of + 1 :])
        following = {node for one in chain for node in self.followers(one)} - set(chain)
        for node in sorted(following):
            if node in free and operator in operators_of(self.graph.op_types[node]):
                yield place + 1, (*chain, node), (*pending, *self._brought(node))

    def _brought(self, node: int) -> tuple[str, ...]:
        inputs = self.graph.inputs[node]
        brought = _BROUGHT.get(self.graph.op_types[node], ())
        return tuple(operator for place, operator in brought if len(inputs) > place and inputs[place])


def operators_of(op_type: str) -> tuple[str, ...]:
    """The operators of MIGraphX that a node of an ONNX type can appear as; none for types not known here."""
    return (op_type.lower(),) if op_type in _SAME_NAME else _OPERATORS.get(op_type, ())
