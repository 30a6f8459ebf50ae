"""Models meant by names and paths, and the models made here, which compute what they claim.

Reading `models.yaml` is tested in `test_configuration`.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from aaco_pipeline.errors import ModelError, UsageError
from aaco_pipeline.resources.configuration import ModelEntry
from aaco_pipeline.resources.measure import generated_models
from aaco_pipeline.resources.measure.models import ModelChoice, check_model_file, describe_models, resolve_model
from tests.places import ROOT

Tensors = dict[str, npt.NDArray[Any]]
BUILT_IN = ("squeezenet", "resnet50", "densenet121", "gpt_tiny", "control_flow")
GENERATED = ("gpt_tiny", "control_flow")


def opened(model: Path | bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def random_inputs(session: Any, choice: ModelChoice) -> Tensors:
    random = np.random.default_rng(7)
    tensors: Tensors = {}
    for tensor in session.get_inputs():
        shape = choice.input_shapes[tensor.name]
        if tensor.type == "tensor(int64)":
            tensors[tensor.name] = random.integers(0, choice.integer_upper_bound[tensor.name], shape)
        else:
            tensors[tensor.name] = random.standard_normal(shape).astype(np.float32)
    return tensors


# Models meant by names.


def a_file(folder: Path, name: str = "own.onnx") -> Path:
    path = folder / name
    path.write_bytes(b"content")
    return path


def test_a_registered_model_comes_with_all_that_its_entry_says(tmp_path: Path) -> None:
    path = a_file(tmp_path)
    entry = ModelEntry(path=path, input_shapes={"x": [1, 2]}, dtype="float16", warmup=3, iterations=4)
    assert resolve_model("own", {"own": entry}) == ModelChoice(
        "own", path, "registry", "as in the file", {"x": [1, 2]}, {}, "float16", 3, 4
    )


def test_a_registered_name_hides_the_built_in_one_and_a_built_in_one_hides_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_file(tmp_path, "squeezenet")
    entry = ModelEntry(path=a_file(tmp_path))
    assert resolve_model("squeezenet", {"squeezenet": entry}).origin == "registry"
    assert resolve_model("squeezenet", {}).origin == "built-in"


@pytest.mark.parametrize("text", ["own.onnx", "./own.onnx", "folder/model", "bare"])
def test_a_path_is_what_ends_in_onnx_or_holds_a_separator_or_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    a_file(tmp_path, text)
    choice = resolve_model(text, {})
    assert choice == ModelChoice(Path(text).stem, Path(text), "path", "as in the file")


def test_an_unknown_name_is_answered_with_the_nearest_and_all_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_model("resnet5", {"mine": ModelEntry(path=tmp_path)})
    message = str(caught.value)
    assert "'resnet5': no model has this name; did you mean resnet50?" in message
    assert f"known are mine, {', '.join(BUILT_IN)}" in message


@pytest.mark.parametrize("name", ["", "x" * 10_000, "a\nb", "a\0b"])
def test_an_impossible_name_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_model(name, {})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("registered", [False, True])
def test_a_missing_file_is_a_model_error_that_names_the_path(tmp_path: Path, registered: bool) -> None:
    path = tmp_path / "gone.onnx"
    registry = {"gone": ModelEntry(path=path)} if registered else {}
    with pytest.raises(ModelError) as caught:
        resolve_model("gone" if registered else str(path), registry)
    assert str(caught.value).startswith(f"{path}: no such file; ")


def test_what_cannot_be_a_model_file_is_refused_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty.onnx"
    empty.touch()
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    cases = {
        tmp_path: "a folder",
        empty: "an empty file",
        pipe: "not a regular file",
        a_file(tmp_path) / "below": "cannot be read",
        tmp_path / ("x" * 5000): "cannot be read",
    }
    for path, problem in cases.items():
        with pytest.raises(ModelError, match=problem) as caught:
            check_model_file(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="not a path"):
        check_model_file(Path("a\0/b.onnx"))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = a_file(tmp_path)
    path.chmod(0)
    with pytest.raises(ModelError, match="cannot be read"):
        check_model_file(path)


def test_the_description_lists_each_name_once_with_its_weights(tmp_path: Path) -> None:
    rows = describe_models({"resnet50": ModelEntry(path=tmp_path / "r.onnx")})
    assert Counter(row.name for row in rows) == Counter(BUILT_IN)
    weights = {row.name: row.weights for row in rows}
    assert weights["resnet50"] == "as in the file"
    assert weights["squeezenet"].startswith("constants")
    assert weights["gpt_tiny"] == "random, seeded"
    assert all(row.description.endswith(".") for row in rows)


# The built-in models.


def test_the_built_in_names_are_those_documented() -> None:
    assert tuple(row.name for row in describe_models({})) == BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_model_runs_with_the_inputs_it_describes(name: str) -> None:
    choice = resolve_model(name, {})
    session = opened(choice.path)
    assert {tensor.name for tensor in session.get_inputs()} == set(choice.input_shapes)
    assert all(np.isfinite(output).all() for output in session.run(None, random_inputs(session, choice)))


def test_finding_a_model_does_not_import_onnx() -> None:
    resolve_model("gpt_tiny", {})
    program = (
        "import sys;"
        "from aaco_pipeline.resources.measure.models import describe_models, resolve_model;"
        "describe_models({}); [resolve_model(name, {}) for name in ('squeezenet', 'gpt_tiny')];"
        "assert not {'onnx', 'numpy', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_an_onnx_package_without_its_light_models_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"resnet50: the installed onnx package carries no light_resnet50\.onnx"):
        resolve_model("resnet50", {})


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_model_is_valid_and_each_of_its_nodes_has_a_name_of_its_own(name: str) -> None:
    model = onnx.load(resolve_model(name, {}).path)
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)
    names = [node.name for graph in graphs_of(model.graph) for node in graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_model_is_the_same_bytes_every_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve_model(name, {}).path.read_bytes()
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "new" / "folder"))
    assert resolve_model(name, {}).path.read_bytes() == first


def test_a_generated_model_is_built_once_and_nothing_unfinished_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AACO_CACHE", str(tmp_path))
    path = resolve_model("control_flow", {}).path
    monkeypatch.setattr(generated_models, "control_flow", lambda **_: pytest.fail("built a second time"))
    assert resolve_model("control_flow", {}).path == path
    assert sorted(tmp_path.iterdir()) == [path, path.with_name("control_flow-1.onnx.sha256")]


# gpt_tiny: the cache, the mask and the positions.


@pytest.fixture(scope="module")
def gpt() -> Any:
    return opened(resolve_model("gpt_tiny", {}).path)


def empty_cache(batch: int) -> Tensors:
    return {
        f"past_{kind}_{layer}": np.zeros((batch, 4, 0, 64), np.float32)
        for layer in range(4)
        for kind in ("key", "value")
    }


def run_gpt(session: Any, tokens: npt.NDArray[np.int64], past: Mapping[str, npt.NDArray[Any]]) -> tuple[Any, Tensors]:
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, {"input_ids": tokens, **past}), strict=True))
    return outputs.pop("logits"), {name.replace("present", "past"): tensor for name, tensor in outputs.items()}


@pytest.mark.parametrize("batch", [1, 2])
def test_prefill_of_many_tokens_gives_the_logits_of_as_many_decode_steps(gpt: Any, batch: int) -> None:
    tokens = np.random.default_rng(1).integers(0, 4096, (batch, 24))
    at_once, cache_at_once = run_gpt(gpt, tokens, empty_cache(batch))
    past = empty_cache(batch)
    for step in range(tokens.shape[1]):
        logits, past = run_gpt(gpt, tokens[:, step : step + 1], past)
        np.testing.assert_allclose(logits[:, 0], at_once[:, step], rtol=0, atol=1e-4)
    for name, tensor in past.items():
        np.testing.assert_allclose(tensor, cache_at_once[name], rtol=0, atol=1e-4)


def test_a_prompt_may_be_taken_in_in_two_parts(gpt: Any) -> None:
    tokens = np.random.default_rng(2).integers(0, 4096, (1, 24))
    at_once, _ = run_gpt(gpt, tokens, empty_cache(1))
    _, past = run_gpt(gpt, tokens[:, :10], empty_cache(1))
    rest, _ = run_gpt(gpt, tokens[:, 10:], past)
    np.testing.assert_allclose(rest, at_once[:, 10:], rtol=0, atol=1e-4)


def test_logits_depend_on_the_past_and_on_the_position_but_not_on_the_future(gpt: Any) -> None:
    tokens = np.random.default_rng(3).integers(0, 4096, (1, 12))
    logits, _ = run_gpt(gpt, tokens, empty_cache(1))
    changed = tokens.copy()
    changed[0, 6] = (changed[0, 6] + 1) % 4096
    others, _ = run_gpt(gpt, changed, empty_cache(1))
    np.testing.assert_allclose(others[:, :6], logits[:, :6], rtol=0, atol=1e-5)
    assert (np.abs(others[:, 6:] - logits[:, 6:]).max(axis=-1) > 1e-2).all()
    repeated, _ = run_gpt(gpt, np.full((1, 2), 5), empty_cache(1))
    assert np.abs(repeated[0, 0] - repeated[0, 1]).max() > 1e-2


def test_greedy_output_is_the_same_at_every_repeat_and_is_not_one_token(gpt: Any) -> None:
    def generated() -> Iterator[int]:
        tokens, past = np.arange(1, 17)[None, :], empty_cache(1)
        for _ in range(32):
            logits, past = run_gpt(gpt, tokens, past)
            tokens = logits[:, -1:].argmax(axis=-1)
            yield int(tokens[0, 0])

    first = list(generated())
    assert list(generated()) == first == list(generated())
    assert len(set(first)) > 3


def test_a_width_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be shared by 3 heads"):
        generated_models.gpt(layers=1, width=64, heads=3, vocabulary=16, positions=8, seed=0)


def test_another_seed_gives_other_weights() -> None:
    assert generated_models.control_flow(width=8, trips=2, seed=1) != generated_models.control_flow(
        width=8, trips=2, seed=2
    )


# control_flow: each branch is taken when it should be.


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs_of(attribute.g)


def test_control_flow_nests_a_branch_in_a_branch_in_a_loop() -> None:
    model = onnx.load(resolve_model("control_flow", {}).path)
    kinds = [Counter(node.op_type for node in graph.node) for graph in graphs_of(model.graph)]
    assert (kinds[0]["If"], kinds[0]["Loop"], kinds[0]["MatMul"]) == (1, 1, 2)
    assert sum((kind["If"] for kind in kinds), 0) == 3
    assert len(kinds) == 1 + 2 + 1 + 2 + 2


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_control_flow_computes_what_its_branches_say(sign: int, trips: int) -> None:
    content = generated_models.control_flow(width=16, trips=trips, seed=3)
    weights = {
        tensor.name.removesuffix("/weight"): onnx.numpy_helper.to_array(tensor)
        for graph in graphs_of(onnx.load_from_string(content).graph)
        for tensor in graph.initializer
    }
    x = sign * np.random.default_rng(4).random((5, 16)).astype(np.float32)
    h = np.maximum(x @ weights["before"], 0)
    h = np.tanh(h @ weights["choose/then"]) if sign > 0 else 1 / (1 + np.exp(-(h @ weights["choose/else"])))
    for iteration in range(trips):
        inside = np.maximum(h @ weights["repeat"], 0)
        if iteration % 2 == 0:
            h = h + np.tanh(inside @ weights["repeat/even"])
        elif iteration > trips // 2:
            h = h + inside @ weights["repeat/odd/late"]
        else:
            h = h + inside * np.float32(0.5)
    exponentials = np.exp(h @ weights["after"])
    (y,) = opened(content).run(None, {"x": x})
    np.testing.assert_allclose(y, exponentials / exponentials.sum(axis=-1, keepdims=True), rtol=1e-4, atol=1e-6)
