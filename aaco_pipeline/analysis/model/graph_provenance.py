"""Trace nodes of a graph that a runtime rewrote back to the original graph, using surviving names and tensors.

`aaco_pipeline.analysis.model.node_mapping` attributes kernels and their time.

The rules are based on ONNX Runtime 1.31. Up to the extended optimizations, every remaining node writes a tensor of the
original graph. The blocked layout for convolutions renames both nodes and tensors, naming nodes after the tensor that
they wrote before.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeVar

import polars as pl

_Key = TypeVar("_Key")

#: Confidence in an attribution by its basis. Kernel and original node share a name, and the node's type fits the
#: kernel.
BY_NAME: Final = 1.0
#: The optimized node writes a tensor that an original node writes, or has an original node's type and inputs: the
#: tensors survived, the name did not.
BY_TENSORS: Final = 0.9
#: The name is that of an original node or tensor plus a suffix or prefix that the runtime is known to add.
BY_MANGLED_NAME: Final = 0.8
#: It is the only remaining node of a matching type between the neighbours' nodes, or has the same position among equal
#: names.
BY_ORDER: Final = 0.5

#: Nodes that the runtime inserts for layouts, devices and types; the model does not contain them.
_INSERTED_TYPES: Final = frozenset({"ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"})
_INSERTED_NAMES: Final = re.compile(r"^(InsertedPrecisionFreeCast_|InsertedCast_|Memcpy(From|To)Host)")
_LAYOUT_CHANGES: Final = frozenset({"ReorderInput", "ReorderOutput"})
_BLOCKED_SUFFIX: Final = "_nchwc"
#: Name additions, outermost first: uniqueness, blocked layout and operators turned into a convolution for it, fusions
#: at the end, fusion with an activation at the start, an inlined branch.
_ADDITIONS: Final = (
    re.compile(r"_token_\d+$"),
    re.compile(r"_nchwc$"),
    re.compile(r"_(bn|mul)$"),
    re.compile(r"/?[A-Za-z]*Fusion/?$"),
    re.compile(r"^fused "),
    re.compile(r"^\w*?_\d+_(then|else)_branch__Inline_\d+__"),
    re.compile(r"^_inlfunc_"),
)
_MOST_ADDITIONS: Final = 12
_BLOCKED: Final = re.compile(r"_nchwc(_token_\d+)?$")
#: An unnamed node is named by its type and its index among its graph's nodes, not counting constants.
GENERATED: Final = re.compile(r"^(?P<op_type>\w+)_(?P<position>\d+)$")
#: Original types that a runtime's type may represent, besides itself and its name without these prefixes.
_PREFIXES: Final = ("Fused", "Nhwc", "QLinear", "Skip", "Bias", "Fast", "Quick")
_FAMILIES: Final = (
    frozenset({"MatMul", "Gemm", "MatMulNBits", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}),
    frozenset({"Conv", "ConvInteger"}),
    frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"}),
    frozenset({"Squeeze", "Unsqueeze", "Reshape", "Flatten"}),
)
_ACTIVATIONS: Final = frozenset({"Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish"})
_SUMS: Final = frozenset({"Add", "Sum"})
#: Types that usually dominate: a kernel is named after the first one if no fused node has the kernel's type.
_HEAVIEST_FIRST: Final = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Einsum")
TOP: Final[tuple[int | None, str | None]] = (None, None)


@dataclass(frozen=True)
class Match:
    """The original node to which a kernel's time goes, the confidence, and all nodes that the kernel executed."""

    node: int
    score: float
    covered: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Graph:
    """A graph's nodes as columns, with the look-ups for tracing. A scope is (parent node, attribute)."""

    names: Sequence[str]
    op_types: Sequence[str]
    domains: Sequence[str]
    inputs: Sequence[Sequence[str]]
    outputs: Sequence[Sequence[str]]
    scopes: Sequence[tuple[int | None, str | None]]
    initializers: frozenset[str]

    @classmethod
    def of(cls, nodes: pl.DataFrame, initializers: Collection[str]) -> "Graph":
        """Build a graph from the frame of a `ModelGraph`; node ids are the positions."""
        ordered = nodes.sort("node_id")
        columns = {name: ordered.get_column(name).to_list() for name in ordered.columns}
        return cls(
            names=[name or "" for name in columns["name"]],
            op_types=columns["op_type"],
            domains=columns["domain"],
            inputs=columns["inputs"],
            outputs=columns["outputs"],
            scopes=list(zip(columns["parent_node_id"], columns["body"], strict=True)),
            initializers=frozenset(initializers),
        )

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[int]]:
        """Nodes by name; names may be ambiguous."""
        return grouped((name, node) for node, name in enumerate(self.names) if name)

    @cached_property
    def writers(self) -> Mapping[str, Sequence[int]]:
        """Nodes by each tensor that they write; bodies may reuse a name."""
        return grouped((name, node) for node, names in enumerate(self.outputs) for name in names if name)

    @cached_property
    def readers(self) -> Mapping[str, Sequence[int]]:
        """Nodes by each tensor that they read."""
        return grouped((name, node) for node, names in enumerate(self.inputs) for name in dict.fromkeys(names) if name)

    @cached_property
    def by_reading(self) -> Mapping[tuple[str, tuple[str, ...]], Sequence[int]]:
        """Nodes by their type and all their inputs."""
        keys = zip(self.op_types, map(tuple, self.inputs), strict=True)
        return grouped((key, node) for node, key in enumerate(keys))

    @cached_property
    def positions(self) -> Mapping[tuple[str, int], Sequence[int]]:
        """Unnamed nodes by type and index among their graph's nodes, not counting constants."""
        count: dict[tuple[int | None, str | None], int] = defaultdict(int)
        places = []
        for node, (op_type, scope) in enumerate(zip(self.op_types, self.scopes, strict=True)):
            if op_type != "Constant":
                if not self.names[node]:
                    places.append(((op_type, count[scope]), node))
                count[scope] += 1
        return grouped(places)

    @cached_property
    def constant(self) -> frozenset[int]:
        """Nodes without a body that depend only on weights and constants: a runtime computes them beforehand."""
        parents = {parent for parent, _ in self.scopes if parent is not None}
        fixed = set(self.initializers)
        found = set()
        for node, names in enumerate(self.inputs):
            random = self.op_types[node].startswith("Random")
            if node not in parents and not random and all(name in fixed for name in names if name):
                found.add(node)
                fixed.update(name for name in self.outputs[node] if name)
        return frozenset(found)

    def one(self, nodes: Sequence[int], scope: tuple[int | None, str | None]) -> int | None:
        """Return the only node, or the only one in `scope`; None if neither is unique."""
        if len(nodes) == 1:
            return nodes[0]
        inside = [node for node in nodes if self.scopes[node] == scope]
        return inside[0] if len(inside) == 1 else None

    def writer(self, tensor: str, scope: tuple[int | None, str | None]) -> int | None:
        """The node that writes a tensor."""
        return self.one(self.writers.get(tensor, ()), scope)


@dataclass
class Trace:
    """The optimized graph traced back: the match of each node and the original of each tensor."""

    original: Graph
    optimized: Graph
    original_tensor: dict[str, str] = field(default_factory=dict)
    matches: dict[int, Match] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._follow_layout_changes()
        anchors: dict[int, tuple[int, float] | None] = {}
        for node in range(len(self.optimized.op_types)):
            anchors[node] = self._anchor(node, self._scope(node, anchors))
            self._name_outputs(node, anchors[node])
        # Everything between two tensors that exist in the optimized run was fused.
        existing = {self._original(name) for names in self.optimized.outputs for name in names if name}
        for node, anchor in anchors.items():
            if anchor is not None:
                self.matches[node] = self._match(node, anchor, existing)

    def _original(self, tensor: str) -> str:
        return self.original_tensor.get(tensor, tensor)

    def _follow_layout_changes(self) -> None:
        """Map tensors that are converted back to the plain layout under an original name to that tensor."""
        for node, op_type in enumerate(self.optimized.op_types):
            for before, after in self._rearranged(node) if op_type == "ReorderOutput" else ():
                if after in self.original.writers:
                    self.original_tensor.setdefault(before, after)

    def _rearranged(self, node: int) -> Iterator[tuple[str, str]]:
        """Input and output of a layout change."""
        return zip(self.optimized.inputs[node][:1], self.optimized.outputs[node][:1], strict=False)

    def _scope(self, node: int, anchors: Mapping[int, tuple[int, float] | None]) -> tuple[int | None, str | None]:
        """Return the scope of the original graph from which the optimized node's scope came."""
        parent, body = self.optimized.scopes[node]
        if parent is None:
            return TOP
        anchor = anchors.get(parent)
        return (anchor[0], body) if anchor is not None else TOP

    def _anchor(self, node: int, scope: tuple[int | None, str | None]) -> tuple[int, float] | None:
        """Return the original node found by the first matching rule, and the rule's score."""
        name, op_type = self.optimized.names[node], self.optimized.op_types[node]
        by_name = by_own_name(name, op_type, self.original, scope)
        if by_name is not None:
            return by_name, BY_NAME
        if is_inserted(name, op_type):
            return None
        for output in self.optimized.outputs[node]:
            writer = self.original.writer(output, scope) if output else None
            if writer is not None:
                return writer, BY_TENSORS
        read = tuple([self._original(name) for name in self.optimized.inputs[node]])
        same = self.original.one(self.original.by_reading.get((op_type, read), ()), scope)
        if same is not None and any(read):
            return same, BY_TENSORS
        mangled = by_mangled_name(name, self.original, scope)
        return None if mangled is None else (mangled, BY_MANGLED_NAME)

    def _name_outputs(self, node: int, anchor: tuple[int, float] | None) -> None:
        """Record which original tensors the node's outputs are if their names do not show it."""
        graph, original = self.optimized, self.original
        outputs = graph.outputs[node]
        if graph.op_types[node] in _LAYOUT_CHANGES:
            for before, after in self._rearranged(node):
                self.original_tensor.setdefault(after, self._original(before))
        if anchor is None or not outputs or outputs[0] in original.writers or outputs[0] in self.original_tensor:
            return
        tensor = _blocked_tensor(graph.names[node], original)
        if tensor is not None:
            self.original_tensor[outputs[0]] = self._after_fusion(node, tensor)
        elif original.op_types[anchor[0]] == graph.op_types[node]:
            for own, theirs in zip(outputs, original.outputs[anchor[0]], strict=False):
                if own and theirs:
                    self.original_tensor.setdefault(own, theirs)

    def _after_fusion(self, node: int, tensor: str) -> str:
        """Return the output of a blocked-layout convolution into which a sum and an activation were fused.

        It is named after the tensor before them. A fourth input is the addend. An activation was fused if it is the
        only reader of the sum and is missing from the optimized graph.
        """
        graph, original = self.optimized, self.original
        inputs = graph.inputs[node]
        if graph.op_types[node] != "Conv":
            return tensor
        if len(inputs) > 3 and inputs[3]:
            added = self._original(inputs[3])
            sums = [
                reader
                for reader in original.readers.get(tensor, ())
                if original.op_types[reader] in _SUMS and added in original.inputs[reader]
            ]
            if len(sums) == 1:
                tensor = original.outputs[sums[0]][0]
        readers = original.readers.get(tensor, ())
        if len(readers) == 1 and original.op_types[readers[0]] in _ACTIVATIONS:
            active = original.outputs[readers[0]][0]
            name = original.names[readers[0]]
            alone = {active, active + _BLOCKED_SUFFIX}
            if not (name and name in graph.by_name) and not alone & (graph.writers.keys() | graph.by_name.keys()):
                return active
        return tensor

    def _match(self, node: int, anchor: tuple[int, float], existing: set[str]) -> Match:
        results = {self._original(name) for name in self.optimized.outputs[node] if name}
        given = {self._original(name) for name in self.optimized.inputs[node] if name}
        covered = self._between(existing, given, results, self.original.scopes[anchor[0]])
        chosen, score = anchor
        if score != BY_NAME and covered:
            chosen = self._heaviest(covered, self.optimized.op_types[node], chosen)
        return Match(chosen, score, frozenset({*covered, chosen}))

    def _between(
        self, existing: set[str], given: set[str], results: set[str], scope: tuple[int | None, str | None]
    ) -> set[int]:
        """Original nodes between given or otherwise existing tensors and the results, without constants."""
        covered: set[int] = set()
        waiting = list(results)
        while waiting:
            writer = self.original.writer(waiting.pop(), scope)
            if writer is None or writer in covered or writer in self.original.constant:
                continue
            covered.add(writer)
            waiting += [
                name
                for name in self.original.inputs[writer]
                if name and (name in results or not (name in existing or name in given))
            ]
        return covered

    def _heaviest(self, covered: set[int], op_type: str, otherwise: int) -> int:
        types = self.original.op_types
        same = [node for node in covered if fits(op_type, types[node])]
        if same:
            return max(same)
        heavy = [node for node in covered if types[node] in _HEAVIEST_FIRST]
        return min(heavy, key=lambda node: (_HEAVIEST_FIRST.index(types[node]), -node)) if heavy else otherwise


def grouped(pairs: Iterator[tuple[_Key, int]] | Sequence[tuple[_Key, int]]) -> dict[_Key, list[int]]:
    groups: dict[_Key, list[int]] = defaultdict(list)
    for key, node in pairs:
        groups[key].append(node)
    return dict(groups)


def by_own_name(name: str, op_type: str, original: Graph, scope: tuple[int | None, str | None]) -> int | None:
    fitting = [node for node in original.by_name.get(name, ()) if fits(op_type, original.op_types[node])]
    return original.one(fitting, scope) if fitting else None


def by_mangled_name(name: str, original: Graph, scope: tuple[int | None, str | None]) -> int | None:
    """Return the node whose name, or whose output's name, is `name` without the runtime's additions.

    A node in the blocked layout is named after a tensor, and some models give that name to an unrelated node.
    """
    after_tensor = _BLOCKED.search(name) is not None
    for shorter in _without_additions(name):
        nodes = original.by_name.get(shorter, ())
        by_name, by_tensor = original.one(nodes, scope), original.writer(shorter, scope)
        node = by_tensor if by_name is None or (after_tensor and by_tensor is not None) else by_name
        if node is not None:
            return node
    return None


def _without_additions(name: str) -> Iterator[str]:
    """Yield the name with its additions removed one by one, outermost first."""
    for _ in range(_MOST_ADDITIONS):
        shorter = name
        for addition in _ADDITIONS:
            shorter = addition.sub("", name)
            if shorter != name:
                break
        if shorter in (name, ""):
            return
        name = shorter
        yield name


def by_generated_name(name: str, op_type: str, original: Graph) -> int | None:
    """Return the unnamed node whose type and index appear in the kernel's name, if only one graph has it there."""
    generated = GENERATED.match(name)
    if generated is None or generated["op_type"] != op_type:
        return None
    nodes = original.positions.get((op_type, int(generated["position"])), ())
    return nodes[0] if len(nodes) == 1 else None


def _blocked_tensor(name: str, original: Graph) -> str | None:
    """Return the original tensor after which a node in the blocked layout is named."""
    if _BLOCKED.search(name) is None:
        return None
    return next((shorter for shorter in _without_additions(name) if shorter in original.writers), None)


def is_inserted(name: str, op_type: str) -> bool:
    return op_type in _INSERTED_TYPES or _INSERTED_NAMES.match(name) is not None


def fits(op_type: str, original_type: str) -> bool:
    """Return whether a kernel of one type can come from a node of the other."""
    if op_type == original_type:
        return True
    plain = op_type
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    return plain == original_type or any({plain, original_type} <= family for family in _FAMILIES)
