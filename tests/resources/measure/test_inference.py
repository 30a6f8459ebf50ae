"""Measuring a request from end to end, and every way in which it cannot be measured: which error, in which words.

What happens within the measured process is tested in `test_inference_worker`.
"""

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import polars as pl
import pytest
from onnx import TensorProto, helper

from aaco_pipeline.analysis.sessions.environment import environment, fingerprint
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import AacoError, LakeError, ModelError, UnavailableError, UsageError
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.resources.measure import inference
from aaco_pipeline.resources.measure.inference import capture_inference, plan
from aaco_pipeline.resources.measure.inference_worker import LOOP
from aaco_pipeline.resources.measure.measurement_slot import slot_is_free, slot_path
from aaco_pipeline.resources.measure.models import resolve_model
from aaco_pipeline.resources.progress import progress_listener
from tests.places import CONFIGS

CAPTURE_FILES: Final = {
    "capture.json",
    "model.onnx",
    "optimized_model.onnx",
    "telemetry.json",
    "host.json",
    "latency.json",
    "trace.json",
    "onnxruntime_profile.json.gz",
}
_MICROSECOND: Final = 1_000


def tensor(name: str, shape: Sequence[int | str | None], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def saved(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    *,
    initializers: Sequence[onnx.TensorProto] = (),
    domains: Sequence[str] = (),
) -> Path:
    """A model of these parts in the file `path`."""
    graph = helper.make_graph(list(nodes), "made_by_a_test", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    path.write_bytes(helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString())
    return path


def doubling(path: Path, shape: Sequence[int | str | None], kind: int = TensorProto.FLOAT) -> Path:
    """y = x + x."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"], name="double")]
    return saved(path, nodes, [tensor("x", shape, kind)], [tensor("y", shape, kind)])


def endless(path: Path) -> Path:
    """A loop that would take longer than anybody lives."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still_going"]),
            helper.make_node("Add", ["carried", "one"], ["carried_on"]),
        ],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("going", [], TensorProto.BOOL), tensor("carried", [1])],
        [tensor("still_going", [], TensorProto.BOOL), tensor("carried_on", [1])],
    )
    constants = [
        helper.make_tensor("trips", TensorProto.INT64, [], [2**62]),
        helper.make_tensor("true", TensorProto.BOOL, [], [True]),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
    ]
    nodes = [helper.make_node("Loop", ["trips", "true", "x"], ["y"], name="for_ever", body=body)]
    return saved(path, nodes, [tensor("x", [1])], [tensor("y", [1])], initializers=constants)


def measure(folder: Path, configs: Path = CONFIGS, **settings: Any) -> Path:
    """A raw capture of a request with two iterations unless `settings` say otherwise."""
    folder.mkdir()
    request = MeasurementRequest(**{"iterations": 2, "warmup": 1, "timeout_seconds": 60.0, **settings})
    capture_inference(request, folder, configs, lambda line: None)
    return folder


def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def children(pid: int) -> list[int]:
    """The measured processes that the process `pid` has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"inference_worker" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, IndexError):
            continue  # it ended while we looked
    return found


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def within(seconds: float, condition: Callable[[], Any]) -> Any:
    """Wait until `condition` is true and return its value; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s")


# A measurement from end to end.


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Path:
    return measure(tmp_path_factory.mktemp("raw") / "capture", model="control_flow", iterations=4, warmup=2, seed=3)


def test_a_capture_is_exactly_its_files_and_says_what_was_run(raw: Path) -> None:
    assert {path.name for path in raw.iterdir()} == CAPTURE_FILES
    assert inference_capture.read(raw).capture["format"] == "aaco-inference"
    said = document(raw / "capture.json")
    assert said["launch"]["model"] == "control_flow"
    assert said["model"]["origin"] == "built-in"
    assert said["provider"] == "CPUExecutionProvider"
    assert said["threads"] == 1
    assert MeasurementRequest.from_json(json.dumps(said["launch"]), "capture.json").seed == 3


def test_the_passes_are_fresh_processes_with_the_same_inputs_and_latency_has_no_profiler(raw: Path) -> None:
    latency, trace = document(raw / "latency.json"), document(raw / "trace.json")
    assert len({latency["process_id"], trace["process_id"], os.getpid()}) == 3
    assert latency["end_monotonic_ns"][-1] < trace["start_monotonic_ns"][0]
    assert document(raw / "latency.json")["profile"] is None
    assert document(raw / "trace.json")["profile"]["file"].startswith("onnxruntime_profile")
    assert document(raw / "latency.json")["inputs"] == document(raw / "trace.json")["inputs"]


def test_every_iteration_is_kept_and_warm_up_is_counted_apart(raw: Path) -> None:
    for name in ("latency", "trace"):
        one = document(raw / f"{name}.json")
        assert (one["warmup"], one["iterations"], one["iterations_asked"]) == (2, 4, 4)
        assert len(one["start_monotonic_ns"]) == len(one["end_monotonic_ns"]) == 6
        assert [block["iterations"] for block in one["blocks"]] == [2, 4]
    phases = inference_capture.read(raw).iterations().group_by("pass", "phase").len().sort("pass", "phase").rows()
    assert phases == [
        ("latency", "measure", 4),
        ("latency", "warmup", 2),
        ("trace", "measure", 4),
        ("trace", "warmup", 2),
    ]
    events = json.loads(gzip.decompress((raw / "onnxruntime_profile.json.gz").read_bytes()))
    assert sum(event["name"] == "model_run" for event in events) == 6


def test_the_loop_enters_the_fingerprint(raw: Path) -> None:
    (fact,) = (one for one in document(raw / "host.json")["facts"] if one["category"] == "measurement")
    assert (fact["key"], fact["value"], fact["volatile"]) == ("loop", LOOP, False)
    kept = environment(document(raw / "host.json")["facts"])
    assert fingerprint(kept) != fingerprint(kept.filter(pl.col("category") != "measurement"))


def test_progress_is_reported_up_to_the_last_iteration(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with progress_listener(lambda doing, done, total: told.append((doing, done, total))):
        measure(tmp_path / "raw", model=str(doubling(tmp_path / "double.onnx", [1, 4])))
    assert ("latency pass", 3, 3) in told
    assert told[-1] == ("trace pass", 3, 3)


def test_what_the_runtime_writes_to_standard_output_does_not_disturb_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling providers print there; here the interpreter itself does, before the first line of progress."""
    (tmp_path / "sitecustomize.py").write_text("print('Model Compile: Begin', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    raw = measure(tmp_path / "raw", model=str(doubling(tmp_path / "double.onnx", [1, 4])))
    assert {path.name for path in raw.iterdir()} == CAPTURE_FILES


# Inputs.


def test_a_batch_becomes_the_first_dimension_and_a_shape_all_of_them(tmp_path: Path) -> None:
    model = str(doubling(tmp_path / "open.onnx", ["batch", "width"]))
    raw = measure(tmp_path / "raw", model=model, batch_size=3, input_shapes={"x": [3, 5]})
    assert document(raw / "trace.json")["inputs"]["x"]["shape"] == [3, 5]
    assert inference_capture.read(raw).sessions("f", "d").item(0, "batch_size") == 3


def test_a_model_with_a_sequence_for_output_runs_without_binding(tmp_path: Path) -> None:
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["both"])]
    outputs = [helper.make_tensor_sequence_value_info("both", TensorProto.FLOAT, [2])]
    model = saved(tmp_path / "m.onnx", nodes, [tensor("x", [2])], outputs)
    raw = measure(tmp_path / "raw", model=str(model))
    assert "not used: output both" in document(raw / "latency.json")["io_binding"]


# Models that cannot be loaded or run.


def missing_model(folder: Path) -> Path:
    return folder / "nowhere.onnx"


def truncated_model(folder: Path) -> Path:
    whole = doubling(folder / "whole.onnx", [1, 4]).read_bytes()
    path = folder / "cut.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    return path


def garbage_model(folder: Path) -> Path:
    path = folder / "garbage.onnx"
    path.write_bytes(bytes(range(256)) * 16)
    return path


def model_of_unknown_operators(folder: Path) -> Path:
    nodes = [helper.make_node("Transmogrify", ["x"], ["y"], domain="test.unknown")]
    return saved(folder / "unknown.onnx", nodes, [tensor("x", [1])], [tensor("y", [1])], domains=["test.unknown"])


def model_without_its_weights(folder: Path) -> Path:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.0] * 16)
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights.bin")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return saved(folder / "external.onnx", nodes, [tensor("x", [1, 4])], [tensor("y", [1, 4])], initializers=[weight])


def model_that_fails_when_it_runs(folder: Path) -> Path:
    """Reads past the end of its input."""
    nodes = [helper.make_node("Gather", ["x", "far"], ["y"])]
    far = helper.make_tensor("far", TensorProto.INT64, [1], [99])
    return saved(folder / "failing.onnx", nodes, [tensor("x", ["n"])], [tensor("y", [1])], initializers=[far])


def model_with_text_for_input(folder: Path) -> Path:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    kind = TensorProto.STRING
    return saved(folder / "text.onnx", nodes, [tensor("x", [1], kind)], [tensor("y", [1], kind)])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (missing_model, "no such file"),
        (truncated_model, "cannot be loaded"),
        (garbage_model, "cannot be loaded"),
        (model_of_unknown_operators, "Transmogrify"),
        (model_without_its_weights, r"weights\.bin"),
        (model_that_fails_when_it_runs, "failed in iteration 0"),
        (model_with_text_for_input, r"input 'x' has type tensor\(string\)"),
    ],
)
def test_a_model_that_cannot_be_loaded_or_run_is_a_model_error_in_one_line(
    make: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        measure(tmp_path / "raw", model=str(make(tmp_path)))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "raw" / "capture.json").exists()


# Requests that the model does not allow.


@pytest.mark.parametrize(
    ("shape", "settings", "words"),
    [
        (["batch", 4], {"input_shapes": {"x": [1, 4, 4]}}, r"input 'x' has 2 dimensions .* 3 were given"),
        (["batch", 4], {"input_shapes": {"x": [1, 5]}}, r"input 'x': axis 1 is 4 in the model, not 5"),
        (["batch", 4], {"input_shapes": {"z": [1, 4]}}, r"no input 'z'; its inputs are x"),
        ([1, 4], {"batch_size": 2}, r"input 'x' has the fixed batch dimension 1"),
        (["batch", 4], {"batch_size": 2, "input_shapes": {"x": [3, 4]}}, r"input 'x': .* 3, the batch is 2"),
        (["batch", "width"], {}, r"input 'x' has the dynamic dimension 'width' \(axis 1\).*--shape x=\?x\?"),
        (["batch", None], {}, r"input 'x' has the dynamic dimension 'unnamed' \(axis 1\)"),
    ],
)
def test_shapes_that_do_not_fit_are_usage_errors_naming_the_input(
    shape: list[int | str | None], settings: Mapping[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        measure(tmp_path / "raw", model=str(doubling(tmp_path / "m.onnx", shape)), **settings)


def test_an_element_type_other_than_the_registered_one_is_a_usage_error(tmp_path: Path) -> None:
    doubling(tmp_path / "m.onnx", [1, 4])
    (tmp_path / "models.yaml").write_text("models:\n  halves:\n    path: m.onnx\n    dtype: float16\n")
    with pytest.raises(UsageError, match="input 'x' is float32, and float16 was asked for"):
        measure(tmp_path / "raw", tmp_path, model="halves")


def test_a_registered_models_settings_hold_unless_the_request_gives_others(tmp_path: Path) -> None:
    doubling(tmp_path / "m.onnx", ["batch", "width"])
    (tmp_path / "models.yaml").write_text(
        "models:\n  mine:\n    path: m.onnx\n    input_shapes: {x: [2, 3]}\n    warmup: 0\n    iterations: 3\n"
    )
    raw = measure(tmp_path / "raw", tmp_path, model="mine", iterations=None, warmup=1)
    one = document(raw / "latency.json")
    assert (one["warmup"], one["iterations"], one["inputs"]["x"]["shape"]) == (1, 3, [2, 3])


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"model": "squeezenett"}, UsageError, "did you mean squeezenet"),
        ({"model": "squeezenet", "backend": "abacus"}, UsageError, "unknown backend 'abacus'; known: cpu, cuda"),
        ({"model": "squeezenet", "precision": "fp16"}, UnavailableError, "CPUExecutionProvider cannot convert .* fp16"),
    ],
)
def test_a_request_that_names_nothing_known_is_refused_before_anything_is_started(
    settings: dict[str, Any], kind: type[AacoError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(kind, match=words):
        plan(MeasurementRequest(**settings), CONFIGS)


def test_a_precision_that_the_provider_offers_is_accepted() -> None:
    model, backend = plan(MeasurementRequest(model="squeezenet", backend="migraphx", precision="fp16"), CONFIGS)
    assert (model.name, backend.provider) == ("squeezenet", "MIGraphXExecutionProvider")


# Providers that are not there, or do not run all of the model.


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    """A registry with a provider that the CPU wheel lists and that runs no node of an ordinary model."""
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "backends.yaml").write_text("backends:\n  azure:\n    provider: AzureExecutionProvider\n")
    return configs


def test_a_provider_that_this_runtime_lacks_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="has no MIGraphXExecutionProvider"):
        measure(tmp_path / "raw", model="control_flow", backend="migraphx")


def test_nodes_that_would_fall_back_are_named_with_the_provider_that_would_run_them(
    tmp_path: Path, azure: Path
) -> None:
    model = str(doubling(tmp_path / "m.onnx", [1, 4]))
    with pytest.raises(UnavailableError) as caught:
        measure(tmp_path / "raw", azure, model=model, backend="azure")
    assert str(caught.value) == (
        "AzureExecutionProvider was asked for, and 1 of 1 nodes would run on CPUExecutionProvider: double (Add); "
        "run with --allow-fallback to measure it as it is"
    )


def test_an_allowed_fallback_is_measured_and_said_to_be_partial(tmp_path: Path, azure: Path) -> None:
    model = str(doubling(tmp_path / "m.onnx", [1, 4]))
    raw = inference_capture.read(measure(tmp_path / "raw", azure, model=model, backend="azure", allow_fallback=True))
    (said,) = [item for item in raw.inference_evidence() if item.item == "execution provider"]
    assert said.status == "partial"
    assert said.reason == "AzureExecutionProvider was asked for; fallback was allowed: 1 nodes on CPUExecutionProvider"
    assert raw.sessions("f", "d").item(0, "allow_fallback") is True


def test_an_allowed_fallback_from_a_provider_that_is_not_there_is_partial_too(tmp_path: Path) -> None:
    model = str(doubling(tmp_path / "m.onnx", [1, 4]))
    raw = inference_capture.read(measure(tmp_path / "raw", model=model, backend="migraphx", allow_fallback=True))
    assert [i.status for i in raw.inference_evidence() if i.item == "execution provider"] == ["partial"]


# Processes that hang, are killed, or lose whoever started them.


def test_a_model_that_hangs_is_stopped_at_the_time_limit(tmp_path: Path) -> None:
    model = endless(tmp_path / "endless.onnx")
    with pytest.raises(ModelError, match=r"the latency pass did not end within the time limit of 3 s") as caught:
        measure(tmp_path / "raw", model=str(model), timeout_seconds=3.0)
    for part in (str(model), "--timeout"):
        assert part in str(caught.value)
    assert children(os.getpid()) == []
    assert slot_is_free()


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSEGV])
def test_a_measured_process_that_is_killed_is_a_model_error_naming_the_signal(
    stop: signal.Signals, tmp_path: Path
) -> None:
    """As when the host is out of memory, or a native library crashes."""

    def kill() -> None:
        (child,) = within(20, lambda: children(os.getpid()))
        time.sleep(0.2)
        os.kill(child, stop)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ModelError, match=rf"ended with signal {stop.name} in the latency pass"):
        measure(tmp_path / "raw", model=str(endless(tmp_path / "endless.onnx")))
    killer.join()
    assert not (tmp_path / "raw" / "capture.json").exists()


#: Polars is loaded, as in every command that measures: its own handler of interrupts has system calls start again.
MEASURE_ENDLESSLY: Final = """
import sys
from pathlib import Path
import polars
from aaco_pipeline.resources.measure import measurement_slot
from aaco_pipeline.resources.measure.inference import capture_inference
from aaco_pipeline.capture.request import MeasurementRequest
measurement_slot.PLACES = [Path(sys.argv[4])]
folder = Path(sys.argv[2])
folder.mkdir()
try:
    capture_inference(MeasurementRequest(model=sys.argv[1]), folder, Path(sys.argv[3]), print)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def endless_measurement(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that measures a model which never ends."""
    arguments = [endless(tmp_path / "endless.onnx"), tmp_path / "raw", CONFIGS, slot_path().parent]
    with subprocess.Popen([sys.executable, "-c", MEASURE_ENDLESSLY, *map(str, arguments)]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_measured_process_does_not_outlive_whoever_asked_for_it(
    stop: signal.Signals, endless_measurement: subprocess.Popen[bytes]
) -> None:
    (worker,) = within(20, lambda: children(endless_measurement.pid))
    within(
        20, lambda: Path(f"/proc/{worker}/maps").exists() and "onnxruntime" in Path(f"/proc/{worker}/maps").read_text()
    )
    # The worker holds the slot itself. realpath, for files that it closes while we look are not an error.
    within(5, lambda: str(slot_path()) in map(os.path.realpath, Path(f"/proc/{worker}/fd").iterdir()))
    assert not slot_is_free()
    endless_measurement.send_signal(stop)
    assert endless_measurement.wait(timeout=10) == (130 if stop == signal.SIGINT else -stop)
    within(5, lambda: ended(worker))
    within(5, slot_is_free)


def test_a_measurement_says_that_it_waits_while_another_is_running(
    endless_measurement: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (worker,) = within(20, lambda: children(endless_measurement.pid))
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        os.kill(worker, signal.SIGKILL)

    (tmp_path / "second").mkdir()
    request = MeasurementRequest(model=str(doubling(tmp_path / "m.onnx", [1, 4])), iterations=1, warmup=0)
    capture_inference(request, tmp_path / "second", CONFIGS, log)
    (line,) = lines
    assert line.startswith(f"waiting for the measurement slot: process {endless_measurement.pid} of ")
    assert (tmp_path / "second" / "capture.json").is_file()


# Generating tokens.


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("generated") / "raw"
    settings: dict[str, Any] = {"prompt_tokens": 7, "output_tokens": 5, "batch_size": 2}
    return measure(folder, model="gpt_tiny", iterations=3, warmup=1, seed=5, **settings)


def test_a_request_is_one_entry_for_each_token(generated: Path) -> None:
    for name in ("latency", "trace"):
        one = document(generated / f"{name}.json")
        assert (one["warmup"], one["iterations"], one["iterations_asked"]) == (5, 15, 15)
        assert len(one["start_monotonic_ns"]) == 20
        assert one["inputs"]["input_ids"]["shape"] == [2, 7]
        assert one["inputs"]["past_key_0"]["shape"] == [2, 4, 0, 64]
    rows = inference_capture.read(generated).iterations().filter(pl.col("pass") == "latency")
    assert rows.get_column("token_index").to_list() == [0, 1, 2, 3, 4] * 4
    what = inference_capture.read(generated).sessions("fingerprint", "digest").row(0, named=True)
    assert (what["workload"], what["batch_size"]) == ("generation", 2)
    assert (what["prompt_tokens"], what["output_tokens"]) == (7, 5)


def test_the_cache_gives_the_tokens_that_reading_everything_anew_gives(generated: Path) -> None:
    import onnxruntime as ort

    one = document(generated / "latency.json")
    job = document(generated / "capture.json")
    session = ort.InferenceSession(
        str(resolve_model(job["model"]["name"], {}).path), providers=["CPUExecutionProvider"]
    )
    tokens = np.random.default_rng(5).integers(0, 4096, (4, 2, 7))[0]
    empty = {i.name: np.zeros((2, 4, 0, 64), np.float32) for i in session.get_inputs() if i.name != "input_ids"}
    for _ in range(5):
        logits = session.run(["logits"], {"input_ids": tokens, **empty})[0]
        tokens = np.concatenate([tokens, logits[:, -1].argmax(-1).reshape(2, 1)], axis=1)
    assert one["first_generated"] == tokens[:, 7:].tolist()
    assert document(generated / "trace.json")["first_generated"] == one["first_generated"]


def test_a_model_without_a_cache_cannot_generate(tmp_path: Path) -> None:
    model = doubling(tmp_path / "double.onnx", [1, 4])
    with pytest.raises(UsageError, match="cannot generate tokens: expected the inputs input_ids and past"):
        measure(tmp_path / "raw", model=str(model), prompt_tokens=4, output_tokens=4)


def test_generating_past_the_model_s_positions_is_the_model_s_failure(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="failed at token 1 after a prompt of 2048"):
        measure(tmp_path / "raw", model="gpt_tiny", prompt_tokens=2048, output_tokens=3)


# The acceptance of the whole: kernel time fits into wall time, at night for every model that comes with the package.


@pytest.mark.parametrize(
    "model",
    [
        *("squeezenet", "gpt_tiny", "control_flow"),
        *(pytest.param(model, marks=pytest.mark.nightly) for model in ("resnet50", "densenet121")),
    ],
)
def test_kernel_self_times_sum_to_no_more_than_each_iterations_wall_time(model: str, tmp_path: Path) -> None:
    from aaco_pipeline.formats import ort_profile

    capture = inference_capture.read(measure(tmp_path / "raw", model=model, iterations=2, warmup=1))
    profile = capture.folder / inference_capture.PROFILE_FILE
    reading = ort_profile.read(profile, axis_start_ns=capture.profile_axis_start_ns(), process_id=1)
    dispatches, iterations = reading.tables["dispatches"], capture.iterations()
    traced = {row["iteration"]: row for row in iterations.rows(named=True) if row["pass"] == "trace"}
    assert len(traced) == 3
    for number, iteration in traced.items():
        own = [row for row in dispatches.rows(named=True) if row["iteration"] == number]
        assert own
        assert sum(row["self_ns"] for row in own) <= iteration["latency_ns"] + _MICROSECOND * len(own)
        assert min(row["self_ns"] for row in own) >= 0


def test_what_ends_on_a_full_disk_says_nothing_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the measured process get its own words written there."""
    write_bytes = Path.write_bytes

    def ends_without_room(command: Sequence[str], slot: int, errors: Path, *_: Any, **__: Any) -> int:
        (errors.parent / "error.json").touch()
        return 1

    def no_room(path: Path, content: bytes) -> int:
        if path.name == "room":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write_bytes(path, content)

    monkeypatch.setattr(inference, "run_measured", ends_without_room)
    monkeypatch.setattr(Path, "write_bytes", no_room)
    with pytest.raises(LakeError, match="No space left on device"):
        measure(tmp_path / "raw", model="control_flow")
