"""ONNX models read without their weights: what is kept, what the frames say of odd graphs, and shapes for a run."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from aaco_pipeline.errors import ModelError
from aaco_pipeline.formats.onnx import ModelGraph, graph_only, inferred_shapes, read, typed_edges
from aaco_pipeline.formats.onnx.weightless import KEPT_BYTES
from aaco_pipeline.resources.measure.models import resolve_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Save = Callable[[onnx.ModelProto], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(model: onnx.ModelProto) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return write


def value(name: str, shape: Sequence[int | str | None] | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[TensorProto] = (),
    **parts: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("custom", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **parts)


def array(name: str, values: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


def linear(weight: TensorProto) -> onnx.ModelProto:
    """y = x · w."""
    return model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], [value("x", [1, 64])], [value("y", [1, 64])], [weight]
    )


def graph_of(model: onnx.ModelProto) -> ModelGraph:
    return read(model.SerializeToString(), "test")


def edge_set(graph: ModelGraph) -> set[tuple[int | None, int | None, str]]:
    return set(graph.edges.select("from_node_id", "to_node_id", "tensor").iter_rows())


# ---- without weights -------------------------------------------------------------------------------------------------


def test_weights_go_and_their_names_types_and_extents_stay(save: Save) -> None:
    stored = graph_only(save(linear(array("w", np.full((64, 64), 0.12345, np.float32)))))
    assert struct.pack("<f", 0.12345) not in stored
    (weight,) = onnx.ModelProto.FromString(stored).graph.initializer
    assert (weight.name, list(weight.dims), weight.data_type) == ("w", [64, 64], FLOAT)
    assert not weight.HasField("raw_data")
    assert read(stored, "test").initializers.row(0) == ("w", "float32", [64, 64], None)


@pytest.mark.parametrize("name", ["raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"])
@pytest.mark.parametrize("count", [4, 4000])
def test_every_way_to_store_a_weight_is_left_out(save: Save, name: str, count: int) -> None:
    weight = TensorProto(name="w", data_type=FLOAT, dims=[count])
    if name == "raw_data":
        weight.raw_data = b"\1" * 4 * count
    else:
        getattr(weight, name).extend([1] * count)
    (kept,) = onnx.ModelProto.FromString(graph_only(save(linear(weight)))).graph.initializer
    assert {field.name for field, _ in kept.ListFields()} == {"dims", "data_type", "name"}


def test_external_data_is_never_opened_and_leaves_no_trace(save: Save, tmp_path: Path) -> None:
    weight = array("w", np.ones((64, 64), np.float32))
    inline = graph_only(save(linear(weight)))
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="nowhere/at/all.bin")
    assert graph_only(save(linear(weight))) == inline
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_the_same_model_gives_the_same_bytes_and_stripping_again_changes_nothing(save: Save) -> None:
    path = resolve_model("gpt_tiny", {}).path
    first = graph_only(path)
    assert graph_only(path) == first
    assert len(first) < path.stat().st_size / 100
    assert graph_only(save(onnx.ModelProto.FromString(first))) == first


def test_small_integer_weights_stay_for_they_are_shapes(save: Save) -> None:
    model = model_of(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [value("x", [2, 6])],
        [value("y", None)],
        [array("shape", np.array([3, 4])), array("large", np.arange(KEPT_BYTES))],
    )
    stored = graph_only(save(model))
    kept, large = onnx.ModelProto.FromString(stored).graph.initializer
    assert numpy_helper.to_array(kept).tolist() == [3, 4]
    assert not large.raw_data
    assert inferred_shapes(stored, {}).types["y"] == ("float32", (3, 4))


def test_large_constants_lose_their_values_and_keep_their_extents(save: Save) -> None:
    nodes = [
        helper.make_node("Constant", [], ["small"], value=array("", np.arange(8))),
        helper.make_node("Constant", [], ["large"], value=array("", np.ones((50, 50), np.float32))),
        helper.make_node("Constant", [], ["floats"], value_floats=[0.5] * 1000),
        helper.make_node("Constant", [], ["ints"], value_ints=[7] * 1000),
        helper.make_node("Constant", [], ["few"], value_ints=[7, 8]),
    ]
    stored = graph_only(save(model_of(nodes, [], [value("large", None)])))
    assert len(stored) < 1000
    small, large, *_, few = onnx.ModelProto.FromString(stored).graph.node
    assert numpy_helper.to_array(small.attribute[0].t).tolist() == list(range(8))
    assert list(large.attribute[0].t.dims) == [50, 50]
    assert list(few.attribute[0].ints) == [7, 8]
    types = inferred_shapes(stored, {}).types
    assert types["large"] == ("float32", (50, 50))
    assert types["floats"] == ("float32", (1000,))
    assert types["ints"] == ("int64", (1000,))


def test_weights_inside_bodies_functions_and_other_attributes_go_too(save: Save) -> None:
    big = np.full(1000, 0.12345, np.float32)
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=array("", big)), helper.make_node("Add", ["c", "w"], ["r"])],
        "body",
        [],
        [value("r", [1000])],
        [array("w", big)],
    )
    nodes = [
        helper.make_node("If", ["flag"], ["y"], then_branch=inner, else_branch=inner),
        helper.make_node("Trees", ["y"], ["z"], domain="custom", weights=big.tolist(), blob=b"0.12345" * 1000),
    ]
    model = model_of(nodes, [value("flag", [], TensorProto.BOOL)], [value("z", None)])
    constant = helper.make_node("Constant", [], ["r"], value=array("", big))
    model.functions.append(helper.make_function("custom", "f", [], ["r"], [constant], [helper.make_opsetid("", 17)]))
    sparse = helper.make_sparse_tensor(array("s", big), array("", np.arange(1000)), [10_000])
    model.graph.sparse_initializer.append(sparse)
    stored = graph_only(save(model))
    assert struct.pack("<f", 0.12345) not in stored
    assert b"0.12345" not in stored
    assert len(stored) < 1500
    assert ("s", "float32", [10_000], None) in read(stored, "test").initializers.rows()


def test_doc_strings_go(save: Save) -> None:
    model = linear(array("w", np.ones((64, 64), np.float32)))
    for holder in (model, model.graph, model.graph.node[0], model.graph.input[0], model.graph.initializer[0]):
        holder.doc_string = "written by somebody"
    assert b"somebody" in save(model).read_bytes()
    assert b"somebody" not in graph_only(save(model))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 100,
        b"name: model\n" * 50,
        b"\x08",
        b"\x3a\x05\x0a",
        b"\x3a\xff\xff\xff\xff\x7f\x00",
    ],
    ids=["empty", "image", "text", "cut number", "cut graph", "too long a graph"],
)
def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.onnx: not an ONNX model") as refusal:
        graph_only(path)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ModelError, match="not an ONNX model"):
        read(content, "model.onnx")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.onnx"):
        with pytest.raises(ModelError, match="cannot be read"):
            graph_only(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_model_is_read_or_refused_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(linear(array("w", np.ones((64, 64), np.float32))).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 80) | st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) if data.draw(st.booleans()) else len(content) :]
    path = tmp_path / "damaged.onnx"
    path.write_bytes(content)
    try:
        stored = graph_only(path)
        read(stored, "damaged")
    except ModelError:
        return
    inferred_shapes(stored, {"x": (1, 64)})


def test_names_that_are_no_text_are_refused(save: Save) -> None:
    path = save(linear(array("w", np.ones((64, 64), np.float32))))
    path.write_bytes(path.read_bytes().replace(b"MatMul", b"Mat\xfful"))
    with pytest.raises(ModelError, match="not UTF-8"):
        read(graph_only(path), "model")


def test_names_of_bodies_that_are_no_text_are_refused() -> None:
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "body", [], [])
    node = helper.make_node("If", ["c"], ["o"], then_branch=body)
    content = helper.make_model(helper.make_graph([node], "graph", [], [])).SerializeToString()
    with pytest.raises(ModelError, match="not UTF-8"):
        read(content.replace(b"then_branch", b"th\xffn_branch"), "model")


# ---- the graph as frames -----------------------------------------------------------------------------------------


def test_bodies_follow_their_node_and_see_the_tensors_around_them() -> None:
    graph = read(graph_only(resolve_model("control_flow", {}).path), "control_flow")
    nodes = graph.nodes
    assert nodes.get_column("node_id").to_list() == list(range(nodes.height))
    by_name = {row["name"]: row for row in nodes.iter_rows(named=True)}
    inner = by_name["repeat/odd/late/matmul"]
    chain = []
    while inner["parent_node_id"] is not None:
        parent = nodes.row(inner["parent_node_id"], named=True)
        assert parent["node_id"] < inner["node_id"]
        chain.append((parent["name"], inner["body"]))
        inner = parent
    assert chain == [("repeat/odd/if", "then_branch"), ("repeat/if", "else_branch"), ("repeat/loop", "body")]
    # The branch reads a tensor of the loop's body, and the loop's own output leaves the graph of the body.
    captured = (by_name["repeat/relu"]["node_id"], by_name["repeat/odd/late/matmul"]["node_id"], "repeat/relu/output")
    assert captured in edge_set(graph)
    assert (by_name["repeat/add"]["node_id"], None, "repeat/carried_on") in edge_set(graph)
    assert (None, by_name["repeat/matmul"]["node_id"], "repeat/carried") in edge_set(graph)


def test_edges_join_writer_and_reader_once_and_show_the_border() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Mul", ["a", "a"], ["b"]),
        helper.make_node("Clip", ["b", "", "w"], ["y"]),
    ]
    initializer = array("w", np.float32(6))
    graph = graph_of(
        model_of(nodes, [value("x", ["n", 3])], [value("y", [None, 3]), value("x", ["n", 3])], [initializer])
    )
    assert edge_set(graph) == {
        (None, 0, "x"),
        (0, 1, "a"),
        (1, 2, "b"),
        (None, 2, "w"),
        (2, None, "y"),
        (None, None, "x"),
    }
    assert graph.edges.height == 6
    types = {row[2]: row[3:] for row in graph.edges.iter_rows()}
    assert types == {
        "x": ("float32", [None, 3]),
        "a": (None, None),
        "b": (None, None),
        "w": ("float32", []),
        "y": ("float32", [None, 3]),
    }
    known = typed_edges(graph.edges, {"a": ("float32", (2, 3)), "x": ("float32", (2, 3))})
    assert {row[2]: row[4] for row in known.iter_rows()}["a"] == [2, 3]
    assert {row[2]: row[4] for row in known.iter_rows()}["x"] == [2, 3]
    assert known.schema == graph.edges.schema


def test_nodes_without_names_with_equal_names_and_of_unknown_domains_are_rows_like_others() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"], name="same"),
        helper.make_node("Magic", ["b"], ["c", ""], name="same", domain="some.vendor", power=9, of=[1.5], by="love"),
    ]
    graph = graph_of(model_of(nodes, [value("x", [2])], [value("c", None)]))
    assert graph.nodes.select("name", "op_type", "domain", "inputs", "outputs").rows() == [
        (None, "Relu", "ai.onnx", ["x"], ["a"]),
        ("same", "Relu", "ai.onnx", ["a"], ["b"]),
        ("same", "Magic", "some.vendor", ["b"], ["c", ""]),
    ]
    assert graph.attributes[2] == {"power": 9, "of": (1.5,), "by": "love"}
    assert 0 not in graph.attributes
    assert graph.opsets == {"ai.onnx": 17, "custom": 1}


def test_sequences_optionals_symbols_scalars_and_empty_tensors_are_told_apart() -> None:
    tensor = helper.make_tensor_type_proto(FLOAT, [2])
    inputs = [
        helper.make_value_info("sequence", helper.make_sequence_type_proto(tensor)),
        helper.make_value_info("optional", helper.make_optional_type_proto(tensor)),
        value("symbolic", ["batch", None, 4], TensorProto.FLOAT16),
        value("unranked", None, TensorProto.BFLOAT16),
        value("scalar", [], INT64),
        value("empty", [0, 4], TensorProto.INT4),
        onnx.ValueInfoProto(name="untyped"),
    ]
    nodes = [helper.make_node("Magic", [i.name for i in inputs], ["y"], domain="custom")]
    graph = graph_of(model_of(nodes, inputs, [value("y", None)]))
    declared = {tensor.name: (tensor.kind, tensor.dtype, tensor.dims) for tensor in graph.inputs}
    assert declared == {
        "sequence": ("sequence", None, None),
        "optional": ("optional", None, None),
        "symbolic": ("tensor", "float16", ("batch", None, 4)),
        "unranked": ("tensor", "bfloat16", None),
        "scalar": ("tensor", "int64", ()),
        "empty": ("tensor", "int4", (0, 4)),
        "untyped": (None, None, None),
    }
    rows = {row[2]: row[3:] for row in graph.edges.iter_rows()}
    assert rows["sequence"] == (None, None)
    assert rows["symbolic"] == ("float16", [None, None, 4])
    assert rows["scalar"] == ("int64", [])
    assert rows["empty"] == ("int4", [0, 4])


def test_an_initializer_listed_as_an_input_is_a_weight() -> None:
    model = linear(array("w", np.ones((64, 64), np.float32)))
    model.graph.input.append(value("w", [64, 64]))
    assert [tensor.name for tensor in graph_of(model).inputs] == ["x"]


def test_sibling_bodies_may_use_a_name_for_different_tensors() -> None:
    def branch(size: int) -> onnx.GraphProto:
        node = helper.make_node("ConstantOfShape", ["shape"], ["r"])
        return helper.make_graph([node], "branch", [], [value("r", [size])], [array("shape", np.array([size]))])

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch(2), else_branch=branch(3))
    graph = graph_of(model_of([node], [value("flag", [], TensorProto.BOOL)], [value("y", [None])]))
    assert edge_set(graph) == {
        (None, 0, "flag"),
        (None, 1, "shape"),
        (None, 2, "shape"),
        (1, None, "r"),
        (2, None, "r"),
        (0, None, "y"),
    }
    assert graph.nodes.select("parent_node_id", "body").rows() == [(None, None), (0, "else_branch"), (0, "then_branch")]
    assert "r" not in graph.types


def test_equal_attributes_are_one_object() -> None:
    nodes = [helper.make_node("Softmax", [a], [b], axis=1) for a, b in ("xa", "ab", "by")]
    attributes = graph_of(model_of(nodes, [value("x", [1])], [value("y", [1])])).attributes
    assert attributes[0] is attributes[1] is attributes[2]


def test_a_model_with_functions_of_its_own_is_read_as_it_is_called() -> None:
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("custom", "Active", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    call = helper.make_node("Active", ["x"], ["y"], domain="custom")
    model = model_of([call], [value("x", ["n", 3])], [value("y", None)], functions=[function])
    graph = graph_of(model)
    assert graph.nodes.select("op_type", "domain").rows() == [("Active", "custom")]
    assert inferred_shapes(model.SerializeToString(), {"x": (2, 3)}).types["y"] == ("float32", (2, 3))


# ---- shapes for a run --------------------------------------------------------------------------------------------


def test_symbols_are_bound_to_the_shapes_of_the_run() -> None:
    nodes = [helper.make_node("Add", ["x", "z"], ["a"]), helper.make_node("Transpose", ["a"], ["y"])]
    inputs = [value("x", ["batch", "length"]), value("z", ["batch", 1])]
    content = model_of(nodes, inputs, [value("y", ["length", "batch"])]).SerializeToString()
    found = inferred_shapes(content, {"x": (4, 7)})
    assert found.reason is None
    assert found.types["z"] == ("float32", (4, 1))
    assert found.types["a"] == ("float32", (4, 7))
    assert found.types["y"] == ("float32", (7, 4))
    assert inferred_shapes(content, {}).types["y"] == ("float32", (None, None))


def test_shapes_that_clash_are_used_and_told() -> None:
    node = helper.make_node("Add", ["x", "z"], ["y"])
    content = model_of([node], [value("x", ["n"]), value("z", ["n"])], [value("y", None)]).SerializeToString()
    found = inferred_shapes(content, {"x": (4,), "z": (1,)})
    assert found.reason == "the inputs give dimension 'n' both 4 and 1"
    ranks = inferred_shapes(content, {"x": (4, 2)})
    assert ranks.reason == "input 'x' has 1 dimensions in the model and 2 in the run"
    assert ranks.types["x"] == ("float32", (4, 2))


def test_values_of_small_tensors_are_followed() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["all"]),
        helper.make_node("Gather", ["all", "zero"], ["first"]),
        helper.make_node("Concat", ["first", "minus_one"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = [array("zero", np.array([0])), array("minus_one", np.array([-1]))]
    content = model_of(nodes, [value("x", ["n", 2, 3])], [value("y", None)], weights).SerializeToString()
    assert inferred_shapes(content, {"x": (5, 2, 3)}).types["y"] == ("float32", (5, 6))


@pytest.mark.parametrize(("extents", "followed"), [([12_000_000], False), ([3_000_000, 4], True), ([1000], True)])
def test_values_of_data_are_not_followed(extents: list[int], followed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    content = model_of([node], [value("x", extents)], [value("y", None)]).SerializeToString()
    asked: list[bool] = []

    def infer(model: onnx.ModelProto, *, strict_mode: bool, data_prop: bool) -> onnx.ModelProto:
        asked.append(data_prop)
        return model

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", infer)
    inferred_shapes(content, {})
    assert asked == [followed]


def test_inference_goes_on_from_what_was_seen_at_run_time() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Cast", ["places"], ["y"], to=FLOAT)]
    content = model_of(nodes, [value("x", [4])], [value("y", None)]).SerializeToString()
    assert inferred_shapes(content, {}).types["y"] == ("float32", (1, None))
    known = inferred_shapes(content, {}, {"places": ("int64", (1, 3)), "nobody": ("int64", (1,))})
    assert known.types["y"] == ("float32", (1, 3))
    assert known.types["places"] == ("int64", (1, 3))
    assert "nobody" not in known.types


def test_an_impossible_graph_gives_what_it_declares_and_a_reason() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    model = model_of([node], [value("x", ["n"])], [value("y", ["n"])])
    del model.opset_import[:]
    found = inferred_shapes(model.SerializeToString(), {"x": (3,)})
    assert found.reason is not None
    assert found.reason.startswith("shape inference failed: ")
    assert "\n" not in found.reason
    assert found.types == {"x": ("float32", (3,)), "y": ("float32", (3,))}


def test_the_built_in_models_of_fixed_shape_are_inferred_whole() -> None:
    for name in ("squeezenet", "resnet50", "densenet121"):
        choice = resolve_model(name, {})
        stored = graph_only(choice.path)
        types = inferred_shapes(stored, choice.input_shapes).types
        outputs = [tensor for names in read(stored, name).nodes.get_column("outputs") for tensor in names]
        shapes = [types.get(tensor, (None, None))[1] for tensor in outputs]
        # The mask of squeezenet's Dropout has no type in its operator set.
        assert sum(shape is None or None in shape for shape in shapes) == (name == "squeezenet")


def test_frames_have_their_types_even_when_empty() -> None:
    model = model_of([], [value("x", [1])], [value("x", [1])])
    graph = graph_of(model)
    assert graph.nodes.schema["inputs"] == pl.List(pl.String)
    assert graph.nodes.schema["parent_node_id"] == pl.Int32
    assert edge_set(graph) == {(None, None, "x")}
    assert graph.initializers.schema["shape"] == pl.List(pl.Int64)
