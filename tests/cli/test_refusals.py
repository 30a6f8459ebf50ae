"""Whatever cannot be done ends with its documented exit code, one line that names the thing, and nothing changed."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco, Refused

Untouched = Callable[[Project], AbstractContextManager[None]]
QUICK: Final = ("--iterations", "2", "--warmup", "0")


def _model(
    nodes: list[onnx.NodeProto], weights: dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One sound model, and the ways in which a file can fail to be one."""
    folder = tmp_path_factory.mktemp("models")
    product = _model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": np.ones((64, 64), np.float32)})
    onnx.save(product, folder / "sound.onnx")
    whole = (folder / "sound.onnx").read_bytes()
    (folder / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    (folder / "text.onnx").write_text("This is not a model.\n")
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "folder.onnx").mkdir()
    onnx.save(product, folder / "external.onnx", save_as_external_data=True, location="gone.data", size_threshold=0)
    (folder / "gone.data").unlink()
    onnx.save(_model([helper.make_node("NoSuchOperator", ["x"], ["y"])], {}), folder / "unknown_operator.onnx")
    return folder


@pytest.fixture
def refused_run(refused: Refused, untouched: Untouched) -> Refused:
    """`aaco run` that ends with the exit code, one line, and everything as it was; that line."""

    def call(code: int, *arguments: str, project: Project) -> str:
        with untouched(project):
            return refused(code, "run", *arguments, project=project)

    return call


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("missing.onnx", ("no such file",)),
        ("truncated.onnx", ("cannot be loaded",)),
        ("text.onnx", ("cannot be loaded",)),
        ("empty.onnx", ("empty file",)),
        ("folder.onnx", ("a folder",)),
        ("external.onnx", ("cannot be loaded", "gone.data")),
        ("unknown_operator.onnx", ("cannot be loaded", "NoSuchOperator")),
    ],
)
def test_a_file_that_is_no_usable_model_exits_with_3_and_is_named(
    refused_run: Refused, copied: Project, models: Path, name: str, parts: tuple[str, ...]
) -> None:
    line = refused_run(3, "--model", str(models / name), *QUICK, project=copied)
    for part in (str(models / name), *parts):
        assert part in line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--shape", "x=3x63"), ("'x'", "axis 1", "64", "63")),
        (("--shape", "x=64"), ("'x'", "2 dimensions", "1 were given")),
        (("--shape", "z=3x64"), ("no input 'z'", "inputs are x")),
        (("--shape", "x=3xsixty"), ("'x=3xsixty'", "--shape")),
        (("--shape", "x=3x64", "--batch", "2"), ("'x'", "3", "2")),
        (("--iterations", "0"), ("--iterations",)),
        (("--timeout", "0"), ("timeout",)),
        (("--timeout", "nan"), ("timeout",)),
        (("--timeout", "inf"), ("timeout",)),
        (("--seed", str(2**63)), ("seed",)),
        (("--precision", "fp3"), ("--precision", "fp3")),
        (("--backend", "cpuu"), ("'cpuu'", "cpu", "migraphx")),
        (("--no-such-option",), ("--no-such-option",)),
    ],
)
def test_a_wrong_option_exits_with_2_and_is_named(
    refused_run: Refused, copied: Project, models: Path, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    line = refused_run(2, "--model", str(models / "sound.onnx"), *QUICK, *arguments, project=copied)
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, ("--model", "squeezenett")),
        (3, ("--model", "/nowhere/model.onnx")),
        (2, ("--model", "squeezenet", "--backend", "cpuu")),
        (2, ("--model", "squeezenet", "--precision", "fp64")),
        (4, ("--model", "squeezenet", "--precision", "fp16")),
        (2, ("--model", "squeezenet", "--profile")),
        (2, ("--model", "squeezenet", "--backend", "migraphx", "--counters", "basic,mots")),
        (2, ("--model", "squeezenet", "--backend", "migraphx", "--thread-trace", "gemm\n")),
        (2, ("--model", "squeezenet", "--tokens", "4")),
        (2, ("--model", "squeezenet", "--shape", "data_0=1,3,x")),
        (2, ("--model", "squeezenet", "--shape", "data=1x3x224x224")),
        (2, ("--model", "squeezenet", "--shape", "data_0=1x3x224")),
        (2, ("--model", "squeezenet", "--batch", "2")),
        (2, ("--model", "squeezenet", "--iterations", "10000001")),
    ],
)
def test_a_mistyped_request_leaves_no_session_and_no_request(
    refused_run: Refused, copied: Project, code: int, arguments: tuple[str, ...]
) -> None:
    lake = TraceLake(copied.lake)
    before = lake.sessions()
    refused_run(code, *arguments, project=copied)
    assert (lake.sessions(), lake.requests()) == (before, [])


def test_a_fixed_batch_dimension_cannot_be_changed(refused_run: Refused, copied: Project) -> None:
    line = refused_run(2, "--model", "squeezenet", "--batch", "2", *QUICK, project=copied)
    for part in ("'data_0'", "batch dimension 1", "batch of 2"):
        assert part in line


def test_an_unknown_model_exits_with_2_and_the_nearest_name(refused_run: Refused, copied: Project) -> None:
    line = refused_run(2, "--model", "squeeznet", project=copied)
    assert "'squeeznet'" in line
    assert "did you mean squeezenet?" in line


def test_a_dtype_that_the_model_does_not_have_exits_with_2(
    refused_run: Refused, elsewhere: Project, models: Path
) -> None:
    assert elsewhere.root is not None
    registry = elsewhere.root / "configs" / "models.yaml"
    registry.write_text(f"models: {{half: {{path: {models / 'sound.onnx'}, dtype: float16}}}}\n")
    line = refused_run(2, "--model", "half", *QUICK, project=elsewhere)
    for part in ("'x'", "float32", "float16"):
        assert part in line


@pytest.mark.parametrize(
    ("file", "text", "parts"),
    [
        ("models.yaml", "models: {mine: {pth: x.onnx}}\n", ("models.mine.pth", "unknown key", "did you mean path?")),
        ("models.yaml", "models: [\n", ("models.yaml",)),
        ("backends.yaml", "backends: {cpu: {provider: 7}}\n", ("backends.cpu.provider", "7")),
    ],
)
def test_a_wrong_registry_exits_with_2_and_names_file_and_key(
    refused_run: Refused, elsewhere: Project, file: str, text: str, parts: tuple[str, ...]
) -> None:
    assert elsewhere.root is not None
    registry = elsewhere.root / "configs" / file
    registry.write_text(text)
    line = refused_run(2, "--model", "squeezenet", *QUICK, project=elsewhere)
    for part in (str(registry), *parts):
        assert part in line


@pytest.mark.skipif(
    "MIGraphXExecutionProvider" in onnxruntime.get_available_providers(), reason="this host has MIGraphX"
)
def test_a_backend_that_this_host_lacks_exits_with_4_and_points_to_info(refused_run: Refused, copied: Project) -> None:
    line = refused_run(4, "--model", "squeezenet", "--backend", "migraphx", *QUICK, project=copied)
    assert "MIGraphXExecutionProvider" in line
    assert "`aaco info`" in line


def test_a_precision_that_the_provider_cannot_convert_to_exits_with_4(refused_run: Refused, copied: Project) -> None:
    line = refused_run(4, "--model", "squeezenet", "--precision", "fp16", *QUICK, project=copied)
    assert "CPUExecutionProvider cannot convert a model to fp16" in line


@pytest.mark.parametrize("command", [("show",), ("sql", "SELECT * FROM sessions")])
def test_a_table_of_a_newer_contract_exits_with_8_and_names_the_session(
    refused: Refused, copied: Project, command: tuple[str, ...]
) -> None:
    session = TraceLake(copied.lake).sessions()[-1]
    written = TraceLake(copied.lake).manifest(session)
    newer = replace(written, entries=tuple(entry._replace(contract_version=99) for entry in written.entries))
    (copied.lake / "manifests" / f"{session}.json").write_bytes(newer.to_bytes())
    line = refused(8, *command, project=copied)
    for part in (session, "99", "upgrade aaco_pipeline"):
        assert part in line


def test_a_lake_that_cannot_be_made_exits_with_8_and_is_named(
    aaco: Aaco, refused: Refused, copied: Project, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    below = Project(copied.root, tmp_path / "file" / "lake", copied.dagster_home)
    before = aaco("doctor", "--json", project=copied).stdout
    assert str(below.lake.parent) in refused(8, "run", "--model", "control_flow", *QUICK, project=below)
    assert aaco("doctor", "--json", project=copied).stdout == before


@pytest.mark.parametrize("command", [("ls",), ("sql", "SELECT * FROM sessions")])
def test_a_lake_that_is_a_file_exits_with_8_and_is_named(
    refused: Refused, measured: Project, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert str(tmp_path / "file") in refused(
        8, *command, project=Project(measured.root, tmp_path / "file", tmp_path / "home")
    )
