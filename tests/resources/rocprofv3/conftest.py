"""Shared by the tests of rocprofv3: a small model."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = [1, 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"], name="double")],
        "made_by_a_test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    path = tmp_path / "double.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path
