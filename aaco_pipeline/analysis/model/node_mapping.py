"""Map executed kernels to model nodes, including the chains of nodes behind fused kernels.

`graph_provenance` traces nodes back to the original graph.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from aaco_pipeline.analysis.model.graph_provenance import (
    BY_MANGLED_NAME,
    BY_NAME,
    BY_ORDER,
    BY_TENSORS,
    GENERATED,
    TOP,
    Graph,
    Match,
    Trace,
    by_generated_name,
    by_mangled_name,
    fits,
    grouped,
    is_inserted,
)
from aaco_pipeline.lake.contracts import polars_types

#: Operators as which a node type can appear. Division or subtraction of a constant becomes a product or sum (MIGraphX,
#: simplify_algebra: find_div_const, find_sub_const).
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
#: Types whose operator is the type's name in lower case.
_SAME_NAME: Final = frozenset(
    {"Abs", "Add", "Ceil", "Clip", "Cos", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater", "Less", "Log", "Max"}
    | {"Min", "Mul", "Neg", "Not", "Pad", "Pow", "Relu", "Resize", "Round", "Sigmoid", "Sign", "Sin", "Softmax"}
    | {"Sqrt", "Tanh", "Where"}
)
#: Additional operators of a node with an input at this position: its bias or its scale.
_BROUGHT: Final[Mapping[str, tuple[tuple[int, str], ...]]] = {
    "Conv": ((2, "add"),),
    "Gemm": ((2, "add"), (0, "mul")),
    "LayerNormalization": ((1, "mul"), (2, "add")),
}
#: Layout operators: a name may omit them, and the compiler inserts its own.
_VIEWS: Final = frozenset(
    {"broadcast", "contiguous", "copy", "flatten", "identity", "layout", "multibroadcast", "noop", "pointwise"}
    | {"reduce", "reshape", "slice", "squeeze", "step", "transpose", "unsqueeze"}
)
#: Types whose nodes may occur unnamed inside a chain.
_PASSED: Final = frozenset({"Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
#: Nodes with which a model composes an operator that it lacks.
_SPELLED_OUT: Final[Mapping[str, tuple[str, ...]]] = {
    "layernorm": ("reduce_mean", "sub", "pow", "reduce_mean", "add", "sqrt", "div")
}
_HEAVY: Final = frozenset({"convolution", "quant_convolution", "dot", "gemm", "quant_dot", "attention"})
_MOST_STEPS: Final = 500


@dataclass
class Chains:
    """Chains in one graph, whose edges are looked up once."""

    graph: Graph
    _followers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _has_operator: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._has_operator = frozenset(name for op_type in self.graph.op_types for name in operators_of(op_type))

    def needed(self, operators: Sequence[str]) -> tuple[str, ...]:
        """Return the part of a kernel's list to find in this graph: without views, composed operators decomposed."""
        needed: list[str] = []
        for operator in operators:
            spelled = _SPELLED_OUT.get(operator, ()) if operator not in self._has_operator else ()
            needed.extend(spelled or (() if operator in _VIEWS else (operator,)))
        return tuple(needed)

    def disjoint(self, needed: Sequence[str], pool: Sequence[int], taken: Collection[int]) -> list[tuple[int, ...]]:
        """Find disjoint chains of nodes in `pool` that are not `taken`, in the pool's order of their starts.

        Every node of a chain except the first reads an earlier one's output, directly or through layout nodes. Empty
        for an empty list.
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
        """Return the node that gets the kernel's time: the first product or convolution, else the result's writer."""
        return next((node for node in chain if _HEAVY & set(operators_of(self.graph.op_types[node]))), chain[-1])

    def followers(self, node: int) -> tuple[int, ...]:
        """Return the nodes that read the output of `node`, also through layout nodes."""
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
        """Return the first chain from `start` in graph order, depth first; None after too many steps."""
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
        """Candidates for the next operator: a node's own bias or scale first, then a following node."""
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
    """Return the MIGraphX operators as which a node of an ONNX type can appear; empty for unknown types."""
    return (op_type.lower(),) if op_type in _SAME_NAME else _OPERATORS.get(op_type, ())


TensorType = tuple[str | None, tuple[int | None, ...] | None]
"""Element type and dimensions of a tensor; None if unknown."""

_OPERATOR_KERNELS: Final = polars_types(
    "operator_kernels", "node_id", "kernel_id", "dispatch_count", "total_ns", "match", "score"
)
_RUNTIME_DTYPES: Final[Mapping[str, str]] = {"float": "float32", "double": "float64"}


@dataclass(frozen=True)
class KernelMapping:
    """Attribution of kernel time.

    `operator_kernels`: the table's columns, with one row per kernel with statistics so that its time is conserved.
    `inserted`: kernel_id and op_type of kernels that the runtime inserted; their time is unattributed. `covered`:
    kernel_id and node_id of every original node that a kernel executed, including the one that gets its time; several
    kernels may cover one node, and no kernel covers folded constants. `executed`: kernel_id and node_id in the
    optimized graph, for kernels found in it.
    """

    operator_kernels: pl.DataFrame
    inserted: pl.DataFrame
    covered: pl.DataFrame
    executed: pl.DataFrame


def map_kernels(
    kernels: pl.DataFrame,
    kernel_stats: pl.DataFrame,
    optimized_nodes: pl.DataFrame | None,
    original_nodes: pl.DataFrame,
    initializers: Collection[str] = (),
) -> KernelMapping:
    """Attribute each kernel's time to one node of the original graph, or to none.

    The rules, in order and with the scores above, are: equal name and matching type; equal tensors; a name with known
    additions; position. The time of a kernel that fused several nodes goes to one of them: one of the kernel's own
    type, else the heaviest by type, else the one that writes the result.

    Args:
        kernels: kernel_id, name (of the executed node) and short_name (its type), with ids in order of first execution.
        kernel_stats: kernel_id, dispatch_count and total_ns.
        optimized_nodes: Nodes of the optimized `ModelGraph`; None if the runtime did not save it.
        original_nodes: Nodes of the model's `ModelGraph`.
        initializers: Names of the original graph's weights.
    """
    original = Graph.of(original_nodes, initializers)
    names = list(kernels.sort("kernel_id").select("kernel_id", "name", "short_name").iter_rows())
    if optimized_nodes is None:
        found = _by_names_alone(names, original)
        executed: dict[int, int] = {}
    else:
        optimized = Graph.of(optimized_nodes, ())
        trace = Trace(original, optimized)
        executed = _executed_nodes(names, optimized, original, trace)
        found = _by_graph(names, executed, trace, original)
    inserted = {
        kernel: op_type for kernel, name, op_type in names if kernel not in found and is_inserted(name, op_type)
    }
    if len(found) + len(inserted) < len(names):
        _by_order(names, inserted, found, original)
    rows: list[tuple[int | None, int, int, int, str, float | None]] = []
    for kernel, dispatches, total in kernel_stats.select("kernel_id", "dispatch_count", "total_ns").iter_rows():
        match = found.get(kernel)
        if match is None:
            rows.append((None, kernel, dispatches, total, "unattributed", None))
        else:
            rule = "order" if match.score == BY_ORDER else "name"
            rows.append((match.node, kernel, dispatches, total, rule, match.score))
    covered = [
        (kernel, node) for kernel, match in sorted(found.items()) for node in sorted({match.node, *match.covered})
    ]
    return KernelMapping(
        pl.DataFrame(rows, schema=_OPERATOR_KERNELS, orient="row").sort("node_id", "kernel_id", "match"),
        pl.DataFrame(sorted(inserted.items()), schema={"kernel_id": pl.Int32, "op_type": pl.String}, orient="row"),
        pl.DataFrame(covered, schema={"kernel_id": pl.Int32, "node_id": pl.Int32}, orient="row"),
        pl.DataFrame(sorted(executed.items()), schema={"kernel_id": pl.Int32, "node_id": pl.Int32}, orient="row"),
    )


def kernel_activity_ratio(kernels_per_iteration: float, nodes_non_constant: int) -> float | None:
    """Kernels launched per iteration for each node that computes something; None for a graph without such nodes.

    A ratio below one is normal because of fusion; inserted layout changes and loops can exceed one. It is per
    iteration, so it does not grow with the length of the run.
    """
    return kernels_per_iteration / nodes_non_constant if nodes_non_constant else None


def non_constant_node_count(nodes: pl.DataFrame, initializers: Collection[str] = ()) -> int:
    """Return the number of nodes whose result depends on the model's inputs, which remain after constant folding."""
    graph = Graph.of(nodes, initializers)
    return len(graph.op_types) - len(graph.constant)


def runtime_types(
    mapping: KernelMapping, kernel_shapes: pl.DataFrame, optimized_nodes: pl.DataFrame, original_nodes: pl.DataFrame
) -> dict[str, TensorType]:
    """Return the types of the original graph's tensors as seen in the kernels' first execution.

    `kernel_shapes` is the detail of that name from the profile's reader. The profile lists tensors by position,
    omitting absent ones and non-tensors; a kernel whose count differs from its node's is ignored.
    """
    kept = {name for names in original_nodes.get_column("outputs").to_list() for name in names}
    kept |= {name for names in original_nodes.get_column("inputs").to_list() for name in names}
    tensors = optimized_nodes.select("node_id", "inputs", "outputs")
    seen = kernel_shapes.join(mapping.executed, on="kernel_id").join(tensors, on="node_id")
    types: dict[str, TensorType] = {}
    for side in ("input", "output"):
        columns = (f"{side}s", f"{side}_dtypes", f"{side}_shapes")
        for names, dtypes, shapes in seen.select(columns).iter_rows():
            given = [name for name in names if name]
            if dtypes is None or shapes is None or not len(given) == len(dtypes) == len(shapes):
                continue
            for name, dtype, shape in zip(given, dtypes, shapes, strict=True):
                if name in kept:
                    types.setdefault(name, (_RUNTIME_DTYPES.get(dtype, dtype), tuple(shape)))
    return types


def _executed_nodes(
    names: Sequence[tuple[int, str, str]], optimized: Graph, original: Graph, trace: Trace
) -> dict[int, int]:
    """Return each kernel's optimized node: by name and type, or by the generated name's original node.

    Kernels with the same name and type are matched in order of their first end, if there are as many as nodes.
    """
    by_key = grouped((key, node) for node, key in enumerate(zip(optimized.names, optimized.op_types, strict=True)))
    kernels_by_key = grouped(((name, op_type), kernel) for kernel, name, op_type in names)
    unnamed = {
        match.node: node
        for node, match in trace.matches.items()
        if not optimized.names[node] and match.score == BY_TENSORS
    }
    executed: dict[int, int] = {}
    for key, kernels in kernels_by_key.items():
        nodes = by_key.get(key, [])
        if len(nodes) == len(kernels):
            executed.update(zip(kernels, sorted(nodes, key=lambda node: _end_order(optimized, node)), strict=True))
        elif not nodes and (node := by_generated_name(key[0], key[1], original)) in unnamed:
            executed[kernels[0]] = unnamed[node]
    _pair_unnamed(names, optimized, executed)
    return executed


def _pair_unnamed(names: Sequence[tuple[int, str, str]], optimized: Graph, executed: dict[int, int]) -> None:
    """Pair kernels with generated names and unnamed nodes by order within a type, if their numbers are equal."""
    taken = set(executed.values())
    nodes = grouped(
        (op_type, node)
        for node, op_type in enumerate(optimized.op_types)
        if not optimized.names[node] and node not in taken
    )
    kernels = grouped(
        (op_type, kernel)
        for kernel, name, op_type in names
        if kernel not in executed and (found := GENERATED.match(name)) and found["op_type"] == op_type
    )
    for op_type, waiting in kernels.items():
        fitting = nodes.get(op_type, [])
        if len(fitting) == len(waiting):
            executed.update(zip(waiting, sorted(fitting, key=lambda node: _end_order(optimized, node)), strict=True))


def _end_order(graph: Graph, node: int) -> tuple[int, ...]:
    """Sort nodes by the order in which their executions end: a body before the node that contains it."""
    path = [node]
    while (parent := graph.scopes[path[-1]][0]) is not None and parent < path[-1]:
        path.append(parent)
    return (*reversed(path), len(graph.op_types))


def _by_graph(
    names: Sequence[tuple[int, str, str]], executed: Mapping[int, int], trace: Trace, original: Graph
) -> dict[int, Match]:
    """Match kernels by their node in the optimized graph if it could be traced; the others only by name."""
    found = _by_names_alone([row for row in names if executed.get(row[0]) not in trace.matches], original)
    shared = grouped(((name, op_type), kernel) for kernel, name, op_type in names)
    for kernel, name, op_type in names:
        match = trace.matches.get(executed.get(kernel, -1))
        if match is None:
            continue
        score = match.score
        if len(shared[name, op_type]) > 1:
            score = BY_ORDER
        elif not trace.optimized.names[executed[kernel]]:
            # If the kernel's generated name does not identify the node, the pairing is based on order.
            score = BY_MANGLED_NAME if by_generated_name(name, op_type, original) in match.covered else BY_ORDER
        found[kernel] = Match(match.node, score, match.covered)
    return found


def _by_names_alone(names: Sequence[tuple[int, str, str]], original: Graph) -> dict[int, Match]:
    """Match without the optimized graph; any other nodes that a kernel covers are then unknown."""
    found = {}
    kernels = grouped(((name, op_type), kernel) for kernel, name, op_type in names)
    for (name, op_type), same in kernels.items():
        nodes = [node for node in original.by_name.get(name, ()) if fits(op_type, original.op_types[node])]
        if len(nodes) == len(same):
            score = BY_NAME if len(nodes) == 1 else BY_ORDER
            ordered = sorted(nodes, key=lambda node: _end_order(original, node))
            found.update({kernel: Match(node, score) for kernel, node in zip(same, ordered, strict=True)})
        elif len(same) == 1 and not is_inserted(name, op_type):
            node = by_mangled_name(name, original, TOP)
            node = by_generated_name(name, op_type, original) if node is None else node
            if node is not None:
                found[same[0]] = Match(node, BY_MANGLED_NAME)
    return found


def _by_order(
    names: Sequence[tuple[int, str, str]], inserted: Collection[int], found: dict[int, Match], original: Graph
) -> None:
    """Assign a kernel the only unmatched node of a matching type between its neighbours' nodes."""
    done = {node for match in found.values() for node in (match.node, *match.covered)} | original.constant
    free = grouped((op_type, node) for node, op_type in enumerate(original.op_types) if node not in done)
    fitting: dict[str, list[int]] = {}
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for order, bounds in ((names, before), (names[::-1], after)):
        last = None
        for kernel, _, _ in order:
            if kernel in found:
                last = found[kernel].node
            elif last is not None:
                bounds[kernel] = last
    for kernel, _, op_type in names:
        if kernel in found or kernel in inserted:
            continue
        if op_type not in fitting:
            fitting[op_type] = sorted(node for kind, nodes in free.items() if fits(op_type, kind) for node in nodes)
        ends = sorted((before.get(kernel, -1), after.get(kernel, len(original.op_types))))
        first, past = bisect_right(fitting[op_type], ends[0]), bisect_left(fitting[op_type], ends[1])
        if past - first == 1:
            node = fitting[op_type][first]
            found[kernel] = Match(node, BY_ORDER)
            for nodes in (*free.values(), *fitting.values()):
                place = bisect_left(nodes, node)
                if place < len(nodes) and nodes[place] == node:
                    del nodes[place]
