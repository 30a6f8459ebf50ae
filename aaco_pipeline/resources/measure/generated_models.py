"""Build the generated models: their graphs and their seeded weights.

`aaco_pipeline.resources.measure.models` defines their names, sizes and location, and imports this module only to build
a model, because importing onnx is slow.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

_OPSET: Final = 17
_IR_VERSION: Final = 8
_MASKED: Final = -1.0e4
"""Added to the scores of positions that must not be seen; large enough for a weight of 0, and float16 can hold it."""

_Shape = Sequence[int | str]
"""A tensor's dimensions: sizes, and the names of those that a run chooses."""


def gpt(*, layers: int, width: int, heads: int, vocabulary: int, positions: int, seed: int) -> bytes:
    """Return a decoder-only transformer with pre-normalization and a key-value cache, as ONNX bytes.

    One graph serves prefill (many tokens, empty cache) and decode (one token, the cache so far). Inputs are `input_ids`
    [batch, sequence] and, for each layer, `past_key_i` and `past_value_i` [batch, heads, past, head width]; outputs are
    `logits` and the caches extended by the sequence. Past and sequence together may not exceed `positions`.
    """
    if width % heads:
        raise ValueError(f"a width of {width} cannot be shared by {heads} heads")
    cache: _Shape = ["batch", heads, "past", width // heads]
    grown_cache: _Shape = ["batch", heads, "past + sequence", width // heads]
    graph = _Graph(seed)
    inputs = [_tensor("input_ids", TensorProto.INT64, ["batch", "sequence"])]
    outputs = [_tensor("logits", TensorProto.FLOAT, ["batch", "sequence", vocabulary])]

    first = graph.node("Shape", ["past_key_0"], "position/past_length", start=2, end=3)
    count = graph.node("Shape", ["input_ids"], "position/sequence_length", start=1, end=2)
    end = graph.node("Add", [first, count], "position/total_length")
    zero, one = graph.constant("zero", np.int64(0)), graph.constant("one", np.int64(1))
    first = graph.node("Squeeze", [first], "position/first")
    end = graph.node("Squeeze", [end], "position/end")
    queried = graph.node("Range", [first, end, one], "position/queried")
    attended = graph.node("Range", [zero, end, one], "position/attended")

    queried_column = graph.node("Unsqueeze", [queried, graph.constant("axis_1", np.array([1]))], "mask/queried_column")
    visible = graph.node("LessOrEqual", [attended, queried_column], "mask/visible")
    unmasked, masked = graph.constant("unmasked", np.float32(0)), graph.constant("masked", np.float32(_MASKED))
    mask = graph.node("Where", [visible, unmasked, masked], "mask/added_to_scores")

    tokens = graph.node(
        "Gather", [graph.weight("token_table", vocabulary, width, spread=0.3), "input_ids"], "embed/token"
    )
    places = graph.node(
        "Gather", [graph.weight("position_table", positions, width, spread=0.3), queried], "embed/position"
    )
    hidden = graph.node("Add", [tokens, places], "embed/add")
    for layer in range(layers):
        past = (f"past_key_{layer}", f"past_value_{layer}")
        present = (f"present_key_{layer}", f"present_value_{layer}")
        inputs += [_tensor(name, TensorProto.FLOAT, cache) for name in past]
        outputs += [_tensor(name, TensorProto.FLOAT, grown_cache) for name in present]
        hidden = _attention(
            graph, f"layer_{layer}/attention", hidden, mask=mask, past=past, present=present, width=width, heads=heads
        )
        hidden = _feed_forward(graph, f"layer_{layer}/feed_forward", hidden, width=width)
    hidden = graph.normalized("head/normalization", hidden, width)
    graph.node("MatMul", [hidden, graph.weight("head/weight", width, vocabulary)], "head/matmul", output="logits")
    return graph.model("gpt", inputs, outputs)


def _attention(
    graph: "_Graph",
    name: str,
    hidden: str,
    *,
    mask: str,
    past: tuple[str, str],
    present: tuple[str, str],
    width: int,
    heads: int,
) -> str:
    """Add causal attention over the cache and the new tokens to `hidden`; write the extended cache to `present`."""
    normalized = graph.normalized(f"{name}/normalization", hidden, width)
    mixed = graph.linear(f"{name}/query_key_value", normalized, width, 3 * width)
    parts = graph.nodes(
        "Split",
        [mixed, graph.constant("query_key_value_widths", np.array([width] * 3))],
        f"{name}/split",
        [f"{name}/{part}" for part in ("query", "key", "value")],
        axis=-1,
    )
    split_shape = graph.constant("split_into_heads", np.array([0, 0, heads, width // heads]))
    query, key, value = (
        graph.node(
            "Transpose",
            [graph.node("Reshape", [part, split_shape], f"{part}_heads")],
            f"{part}_by_head",
            perm=[0, 2, 1, 3],
        )
        for part in parts
    )
    key = graph.node("Concat", [past[0], key], f"{name}/grow_key_cache", output=present[0], axis=2)
    value = graph.node("Concat", [past[1], value], f"{name}/grow_value_cache", output=present[1], axis=2)
    turned = graph.node("Transpose", [key], f"{name}/turn_key", perm=[0, 1, 3, 2])
    scores = graph.node("MatMul", [query, turned], f"{name}/scores")
    scale = graph.constant("score_scale", np.float32(1 / math.sqrt(width // heads)))
    scores = graph.node("Mul", [scores, scale], f"{name}/scale_scores")
    scores = graph.node("Add", [scores, mask], f"{name}/mask_scores")
    shares = graph.node("Softmax", [scores], f"{name}/softmax", axis=-1)
    context = graph.node("MatMul", [shares, value], f"{name}/context")
    context = graph.node("Transpose", [context], f"{name}/context_by_token", perm=[0, 2, 1, 3])
    context = graph.node(
        "Reshape", [context, graph.constant("join_heads", np.array([0, 0, width]))], f"{name}/join_heads"
    )
    return graph.node("Add", [hidden, graph.linear(f"{name}/output", context, width, width)], f"{name}/residual")


def _feed_forward(graph: "_Graph", name: str, hidden: str, *, width: int) -> str:
    """Add two matrix products around the exact GELU, written with Erf as exporters for this opset do, to `hidden`."""
    normalized = graph.normalized(f"{name}/normalization", hidden, width)
    wide = graph.linear(f"{name}/expand", normalized, width, 4 * width)
    scaled = graph.node("Div", [wide, graph.constant("root_of_two", np.float32(math.sqrt(2)))], f"{name}/gelu_divide")
    error = graph.node("Erf", [scaled], f"{name}/gelu_erf")
    shifted = graph.node("Add", [error, graph.constant("one_float", np.float32(1))], f"{name}/gelu_add")
    product = graph.node("Mul", [wide, shifted], f"{name}/gelu_multiply")
    active = graph.node("Mul", [product, graph.constant("half", np.float32(0.5))], f"{name}/gelu_halve")
    return graph.node("Add", [hidden, graph.linear(f"{name}/contract", active, 4 * width, width)], f"{name}/residual")


def control_flow(*, width: int, trips: int, seed: int) -> bytes:
    """Return matrix products before, inside and after control flow, from `x` to `y`, both [rows, width], as ONNX bytes.

    A top-level branch depends on the sum of `x`. A loop of `trips` iterations contains a branch on whether the
    iteration number is even; its odd side contains another branch on whether the loop is past its first half.
    """
    graph, shape = _Graph(seed), _rows_of(width)
    hidden = graph.node("Relu", [graph.linear("before", "x", width, width)], "before/relu")
    total = graph.node("ReduceSum", ["x"], "choose/sum", keepdims=0)
    positive = graph.node("Greater", [total, graph.constant("zero_float", np.float32(0))], "choose/is_positive")
    then = graph.inner()
    then_output = then.node("Tanh", [then.linear("choose/then", hidden, width, width)], "choose/then/tanh")
    otherwise = graph.inner()
    otherwise_output = otherwise.node(
        "Sigmoid", [otherwise.linear("choose/else", hidden, width, width)], "choose/else/sigmoid"
    )
    hidden = graph.branch("choose/if", positive, (then, then_output), (otherwise, otherwise_output), shape)

    hidden = graph.node(
        "Loop",
        [graph.constant("trips", np.int64(trips)), graph.constant("true", np.bool_(True)), hidden],
        "repeat/loop",
        body=_loop_body(graph.inner(), width=width, trips=trips),
    )
    hidden = graph.linear("after", hidden, width, width)
    graph.node("Softmax", [hidden], "after/softmax", output="y", axis=-1)
    tensors = [_tensor(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    return graph.model("control_flow", tensors[:1], tensors[1:])


def _loop_body(body: "_Graph", *, width: int, trips: int) -> GraphProto:
    iteration, going_on, carried = "repeat/iteration", "repeat/going_on", "repeat/carried"
    hidden = body.node("Relu", [body.linear("repeat", carried, width, width)], "repeat/relu")
    remainder = body.node("Mod", [iteration, body.constant("two", np.int64(2))], "repeat/remainder")
    even = body.node("Equal", [remainder, body.constant("zero", np.int64(0))], "repeat/is_even")

    on_even = body.inner()
    even_output = on_even.node("Tanh", [on_even.linear("repeat/even", hidden, width, width)], "repeat/even/tanh")

    on_odd = body.inner()
    middle = on_odd.constant("middle", np.int64(trips // 2))
    late = on_odd.node("Greater", [iteration, middle], "repeat/odd/is_late")
    on_late, on_early = on_odd.inner(), on_odd.inner()
    late_output = on_late.linear("repeat/odd/late", hidden, width, width)
    early_output = on_early.node("Mul", [hidden, on_early.constant("half", np.float32(0.5))], "repeat/odd/early/halve")
    shape = _rows_of(width)
    odd_output = on_odd.branch("repeat/odd/if", late, (on_late, late_output), (on_early, early_output), shape)

    changed = body.branch("repeat/if", even, (on_even, even_output), (on_odd, odd_output), shape)
    body.node("Add", [carried, changed], "repeat/add", output="repeat/carried_on")
    body.node("Identity", [going_on], "repeat/keep_going", output="repeat/still_going_on")
    return body.graph(
        "repeat",
        [
            _tensor(iteration, TensorProto.INT64, []),
            _tensor(going_on, TensorProto.BOOL, []),
            _tensor(carried, TensorProto.FLOAT, shape),
        ],
        [
            _tensor("repeat/still_going_on", TensorProto.BOOL, []),
            _tensor("repeat/carried_on", TensorProto.FLOAT, shape),
        ],
    )


class _Graph:
    """Collects the named nodes and initializers of one graph; its subgraphs draw weights from the same stream."""

    def __init__(self, seed: int) -> None:
        # The legacy generator's stream, and a uniform draw from it, give the same bits in every NumPy and on every
        # host.
        self._random = np.random.RandomState(seed)
        self._outer: _Graph | None = None
        self._nodes: list[NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}

    def inner(self) -> "_Graph":
        """Return a graph for a branch or a loop body inside this one; it can use this graph's tensors and constants."""
        graph = _Graph(0)
        graph._random, graph._outer = self._random, self
        return graph

    def node(self, kind: str, inputs: Sequence[str], name: str, *, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output and return that output's name."""
        return self.nodes(kind, inputs, name, [output or f"{name}/output"], **attributes)[0]

    def nodes(self, kind: str, inputs: Sequence[str], name: str, outputs: list[str], **attributes: Any) -> list[str]:
        """Add a node with the named outputs and return their names."""
        self._nodes.append(helper.make_node(kind, inputs, outputs, name=name, **attributes))
        return outputs

    def branch(
        self, name: str, condition: str, then: "tuple[_Graph, str]", otherwise: "tuple[_Graph, str]", shape: _Shape
    ) -> str:
        """Add an If whose sides are graphs without inputs, each with its output name."""
        (then_graph, then_output), (else_graph, else_output) = then, otherwise
        return self.node(
            "If",
            [condition],
            name,
            then_branch=then_graph.graph(f"{name}/then", [], [_tensor(then_output, TensorProto.FLOAT, shape)]),
            else_branch=else_graph.graph(f"{name}/else", [], [_tensor(else_output, TensorProto.FLOAT, shape)]),
        )

    def linear(self, name: str, value: str, fan_in: int, fan_out: int) -> str:
        """Add a matrix product and a bias."""
        product = self.node("MatMul", [value, self.weight(f"{name}/weight", fan_in, fan_out)], f"{name}/matmul")
        bias = self._initializer(f"{name}/bias", np.zeros(fan_out, dtype=np.float32))
        return self.node("Add", [product, bias], f"{name}/add_bias")

    def normalized(self, name: str, value: str, width: int) -> str:
        """Add layer normalization over the last axis in its untrained state: scale 1, shift 0."""
        scale = self._initializer(f"{name}/scale", np.ones(width, dtype=np.float32))
        shift = self._initializer(f"{name}/shift", np.zeros(width, dtype=np.float32))
        return self.node("LayerNormalization", [value, scale, shift], name, axis=-1)

    def weight(self, name: str, rows: int, columns: int, *, spread: float | None = None) -> str:
        """Add a random matrix of mean 0; its standard deviation preserves a product's scale unless `spread` is set."""
        deviation = 1 / math.sqrt(rows) if spread is None else spread
        uniform = self._random.random_sample((rows, columns)) * 2 - 1
        return self._initializer(name, (uniform * (deviation * math.sqrt(3))).astype(np.float32))

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        """Add a small constant, stored once under its name in the outermost graph that requested it."""
        graph: _Graph | None = self
        while graph is not None:
            if name in graph._initializers:
                return name
            graph = graph._outer
        return self._initializer(name, np.asarray(value))

    def graph(self, name: str, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> GraphProto:
        """Return everything collected so far as a graph."""
        return helper.make_graph(self._nodes, name, inputs, outputs, list(self._initializers.values()))

    def model(self, name: str, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> bytes:
        """Return everything collected so far as the bytes of a model; always the same bytes."""
        model = helper.make_model(
            self.graph(name, inputs, outputs),
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            producer_name="aaco",
        )
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def _initializer(self, name: str, value: npt.NDArray[Any]) -> str:
        self._initializers[name] = numpy_helper.from_array(value, name)
        return name


def _tensor(name: str, element_type: int, shape: _Shape) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type, shape)


def _rows_of(width: int) -> _Shape:
    return ["rows", width]
