"""Chains of a graph's nodes that a list of fused operators stands for, on graphs written down here."""

from collections.abc import Sequence

import pytest

from aaco_pipeline.analysis.model.graph_provenance import TOP, Graph
from aaco_pipeline.analysis.model.node_mapping import Chains, operators_of

#: A node: its type, inputs and output.
Node = tuple[str, tuple[str, ...], str]
CONV: tuple[Node, ...] = (("Conv", ("x", "w", "b"), "c"), ("Add", ("c", "x"), "s"), ("Relu", ("s",), "y"))
#: x / sqrt(2) -> erf -> + 1 -> x * -> * 0.5, after a product and its bias.
GELU: tuple[Node, ...] = (
    ("MatMul", ("x", "w"), "m"),
    ("Add", ("m", "b"), "a"),
    ("Div", ("a", "k"), "d"),
    ("Erf", ("d",), "e"),
    ("Add", ("e", "one"), "f"),
    ("Mul", ("a", "f"), "g"),
)
NORM: tuple[Node, ...] = (
    ("Add", ("x", "r"), "a"),
    ("ReduceMean", ("a",), "m"),
    ("Sub", ("a", "m"), "d"),
    ("Pow", ("d", "two"), "p"),
    ("ReduceMean", ("p",), "v"),
    ("Add", ("v", "eps"), "e"),
    ("Sqrt", ("e",), "s"),
    ("Div", ("d", "s"), "n"),
    ("Mul", ("n", "g"), "y"),
)


def chains(nodes: Sequence[Node]) -> Chains:
    types, inputs, outputs = zip(*nodes, strict=True)
    count = len(nodes)
    return Chains(
        Graph([""] * count, types, ["ai.onnx"] * count, inputs, [[one] for one in outputs], [TOP] * count, frozenset())
    )


def found(nodes: Sequence[Node], *operators: str) -> list[tuple[int, ...]]:
    one = chains(nodes)
    return one.disjoint(one.needed(operators), range(len(nodes)), ())


@pytest.mark.parametrize(
    ("nodes", "operators", "expected"),
    [
        (CONV, "convolution add add relu", [(0, 1, 2)]),
        # The one sum is the residual's, since the other way leads to no activation.
        (CONV, "convolution add relu", [(0, 1, 2)]),
        (CONV, "convolution add", [(0,)]),
        (CONV, "convolution relu", []),
        (CONV, "transpose convolution add add relu", [(0, 1, 2)]),
        (CONV, "contiguous", []),
        (GELU, "dot add mul erf add mul", [(0, 1, 2, 3, 4, 5)]),
        (GELU, "dot add erf", []),
        (NORM, "add layernorm mul", [tuple(range(9))]),
        ((("LayerNormalization", ("x", "g", "b"), "y"),), "layernorm mul add", [(0,)]),
        ((("LayerNormalization", ("x", "g"), "y"),), "layernorm mul add", []),
        ((("MatMul", ("x", "w"), "m"), ("Reshape", ("m", "z"), "r"), ("Add", ("r", "b"), "y")), "dot add", [(0, 2)]),
        ((("MatMul", ("x", "w"), "m"), ("Add", ("u", "v"), "y")), "dot add", []),
    ],
)
def test_a_list_of_operators_stands_for_a_chain(
    nodes: Sequence[Node], operators: str, expected: list[tuple[int, ...]]
) -> None:
    assert found(nodes, *operators.split()) == expected


def test_chains_share_no_node_and_leave_what_is_taken() -> None:
    nodes = (("Relu", ("x",), "a"), ("Relu", ("a",), "b"), ("Relu", ("b",), "c"), ("Relu", ("c",), "d"))
    one = chains(nodes)
    assert one.disjoint(("relu", "relu"), range(4), ()) == [(0, 1), (2, 3)]
    assert one.disjoint(("relu", "relu"), range(4), {0}) == [(1, 2)]
    assert one.disjoint(("relu",), [3, 1], ()) == [(3,), (1,)]


def test_the_time_is_the_products_or_the_results() -> None:
    assert chains(CONV).main_node((0, 1, 2)) == 0
    assert chains(GELU).main_node((2, 3, 4)) == 4


def test_a_search_without_end_ends() -> None:
    """Every node reads all before it, so that ways multiply, and the last operator is nowhere."""
    nodes = [("Add", ("x", *(f"t{i}" for i in range(n))), f"t{n}") for n in range(40)] + [("Erf", ("q",), "r")]
    assert found(nodes, *["add"] * 20, "erf") == []


def test_types_have_their_operators() -> None:
    assert (operators_of("Relu"), operators_of("Div"), operators_of("Unheard")) == (("relu",), ("div", "mul"), ())
