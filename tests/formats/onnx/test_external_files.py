"""The files beside a model that hold its weights: found wherever a tensor may stand, refused outside the folder."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from aaco_pipeline.errors import ModelError
from aaco_pipeline.formats.onnx.weightless import external_files

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1, max_size=8)
LOCATIONS = st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join), max_size=4)


def outside(location: str) -> TensorProto:
    """A tensor whose data lies in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def constant(location: str) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=outside(location))


def initializer(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(outside("w.bin"))


def sparse_initializer(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add(values=outside("w.bin"))


def attribute(model: onnx.ModelProto) -> None:
    model.graph.node.append(constant("w.bin"))


def list_of_tensors(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="all", type=onnx.AttributeProto.TENSORS, tensors=[outside("w.bin")])


def sparse_attribute(model: onnx.ModelProto) -> None:
    sparse = onnx.SparseTensorProto(values=outside("w.bin"))
    model.graph.node[0].attribute.add(name="few", type=onnx.AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)


def subgraph(model: onnx.ModelProto) -> None:
    inner = helper.make_graph([constant("w.bin")], "inner", [], [])
    deeper = helper.make_graph([helper.make_node("If", ["x"], ["y"], then_branch=inner)], "deeper", [], [])
    model.graph.node.append(helper.make_node("If", ["x"], ["y"], then_branch=deeper))


def function(model: onnx.ModelProto) -> None:
    model.functions.add(name="f", domain="d", output=["c"], node=[constant("w.bin")])


def saved(path: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "graph", [value], [])
    model = helper.make_model(graph)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    "place",
    [initializer, sparse_initializer, attribute, list_of_tensors, sparse_attribute, subgraph, function],
    ids=lambda place: place.__name__,
)
def test_a_file_is_found_wherever_a_tensor_names_it(place: Callable[[onnx.ModelProto], None], tmp_path: Path) -> None:
    assert external_files(saved(tmp_path / "m.onnx", place)) == [tmp_path / "w.bin"]


def test_a_model_that_is_one_file_has_none_beside_it(tmp_path: Path) -> None:
    assert external_files(saved(tmp_path / "m.onnx", lambda model: None)) == []


@given(locations=LOCATIONS)
def test_each_file_once_in_order_below_the_models_folder(locations: list[str]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "m.onnx")
        saved(path, lambda model: model.graph.initializer.extend([outside(one) for one in locations]))
        found = external_files(path)
    assert found == sorted({path.parent / one for one in locations})
    assert all(one.is_relative_to(path.parent) for one in found)


@pytest.mark.parametrize("location", ["/etc/passwd", "../w.bin", "deep/../../w.bin", "", "."])
def test_what_is_no_file_below_the_models_folder_is_refused_in_one_line(location: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", lambda model: model.graph.initializer.append(outside(location)))
    with pytest.raises(
        ModelError, match=r"m\.onnx: keeps weights outside its folder .*; export the model again"
    ) as raised:
        external_files(path)
    assert "\n" not in str(raised.value)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"m\.onnx: not an ONNX model"):
        external_files(path)
