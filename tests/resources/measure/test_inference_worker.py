"""Inside the measured process, called here in this one: inputs, placement, readings and their limits.

That the process is started, stopped and its refusals become errors is tested in `test_inference`.
"""

import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.resources.configuration import BackendEntry
from aaco_pipeline.resources.measure import inference, inference_worker
from aaco_pipeline.resources.measure.inference_worker import NUMPY_TYPES, Refusal, measure
from aaco_pipeline.resources.measure.models import ModelChoice

WORKER: Final = Path(inference_worker.__file__)


def job(model: Path = Path("unused.onnx"), **settings: Any) -> dict[str, Any]:
    """The measured process's job for one unprofiled iteration on the processor, with `settings` over it."""
    request = MeasurementRequest(model=str(model), warmup=0, iterations=1)
    choice = ModelChoice("made_by_a_test", model, "path", "none")
    told = inference._job(request, choice, BackendEntry(provider="CPUExecutionProvider"))
    assert set(settings) <= {"pass", *told}
    return {**told, "pass": "latency", **settings}


@pytest.fixture
def adding(tmp_path: Path) -> Path:
    """A model of two nodes."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    nodes = [helper.make_node("Add", ["x", "x"], ["z"], name="a"), helper.make_node("Exp", ["z"], ["y"], name="b")]
    graph = helper.make_graph(nodes, "adding", [x], [y])
    path = tmp_path / "adding.onnx"
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())
    return path


# Number of iterations.


@pytest.mark.parametrize("counts", [(0, 50, 10), (4, 50, 6), (4, 6, 6), (4, 5, 5), (20, 50, 1)])
def test_the_profiled_pass_is_cut_to_stay_below_the_runtimes_cap_on_events(
    counts: tuple[int, int, int], adding: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes and two events of the run itself: ten runs fit into forty events."""
    warmup, asked, run = counts
    monkeypatch.setattr(inference_worker, "PROFILE_EVENT_BUDGET", 40)
    said = measure(job(adding, **{"pass": "trace", "warmup": warmup, "iterations": asked}), tmp_path)
    assert (said["iterations"], said["iterations_asked"], said["warmup"]) == (run, asked, warmup)
    assert len(said["start_monotonic_ns"]) == warmup + run


def test_the_unprofiled_pass_is_never_cut(adding: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_worker, "PROFILE_EVENT_BUDGET", 4)
    assert measure(job(adding, iterations=50), tmp_path)["iterations"] == 50


def test_the_budget_lies_below_the_cap_at_which_the_runtime_stops_recording() -> None:
    from aaco_pipeline.formats.ort_profile import EVENT_CAP

    assert inference_worker.PROFILE_EVENT_BUDGET < EVENT_CAP


# Readings.


class Clocked:
    """Stands for a model; knows when it was called and when it returned."""

    def __init__(self) -> None:
        self.called: list[tuple[int, int]] = []

    def run(self, outputs: None, inputs: object) -> None:
        begun = time.perf_counter_ns()
        time.sleep(0.002)
        self.called.append((begun, time.perf_counter_ns()))


def test_only_the_models_call_lies_between_the_clock_readings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Telling progress and reading counters after every iteration does not make any of them longer."""
    monkeypatch.setattr(inference_worker, "_PROGRESS_INTERVAL_NS", 0)
    monkeypatch.setattr(inference_worker, "_BLOCK_ITERATIONS", 1)
    monkeypatch.setattr(inference_worker, "_BLOCK_NS", 0)
    monkeypatch.setattr(inference_worker._Account, "run_delay_ns", lambda self: time.sleep(0.05))
    session, readings = Clocked(), inference_worker._Readings(0, 4)
    inference_worker._run_all(session, None, {}, readings)
    for (begun, ended), start, end in zip(session.called, readings.start, readings.end, strict=True):
        assert start <= begun < ended <= end
        assert (end - start) - (ended - begun) < 20_000_000
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"done": done, "total": 4} for done in (1, 2, 3, 4)
    ]
    assert [(one["iterations"], one["run_delay_ns"]) for one in readings.blocks()] == [(1, None)] * 4


def calls_of(readings: inference_worker._Readings, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of the loop while it runs a model, in order: the model itself, and each reading but the clock's."""
    called: list[str] = []
    real = time.process_time_ns

    def counted() -> int:
        called.append("cpu")
        return real()

    monkeypatch.setattr(time, "process_time_ns", counted)
    monkeypatch.setattr(inference_worker._Account, "run_delay_ns", lambda self: called.append("delay"))

    class Called:
        def run(self, outputs: None, inputs: object) -> None:
            called.append("model")

    inference_worker._run_all(Called(), None, {}, readings)
    return called


def test_between_iterations_nothing_is_read_but_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading CPU time lets preemption and throttling strike there, where no latency shows them."""
    readings = inference_worker._Readings(20, 1020)
    border = ["cpu", "delay"]
    called = calls_of(readings, monkeypatch)
    assert called == [*border, *["model"] * 20, *border, *["model"] * 1000, *border]
    assert [one["iterations"] for one in readings.blocks()] == [20, 1000]


def test_a_block_is_a_hundred_iterations_and_a_second_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_worker, "_BLOCK_NS", 0)
    many, few = inference_worker._Readings(0, 350), inference_worker._Readings(0, 99)
    calls_of(many, monkeypatch)
    calls_of(few, monkeypatch)
    assert [one["iterations"] for one in many.blocks()] == [100, 100, 100, 50]
    assert [one["iterations"] for one in few.blocks()] == [99]
    monkeypatch.undo()
    monkeypatch.setattr(inference_worker, "_BLOCK_ITERATIONS", 1)
    monkeypatch.setattr(inference_worker, "_BLOCK_NS", 10_000_000)
    slow = inference_worker._Readings(0, 20)  # each takes 2 ms
    inference_worker._run_all(Clocked(), None, {}, slow)
    assert min(one["end_monotonic_ns"] - one["start_monotonic_ns"] for one in slow.blocks()[:-1]) >= 10_000_000


def test_blocks_follow_one_another_and_what_they_used_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_worker, "_BLOCK_NS", 0)
    readings = inference_worker._Readings(3, 210)
    before = time.process_time_ns()
    calls_of(readings, monkeypatch)
    blocks = readings.blocks()
    assert [one["iterations"] for one in blocks] == [3, 100, 100, 7]
    assert all(a["end_monotonic_ns"] == b["start_monotonic_ns"] for a, b in itertools.pairwise(blocks))
    assert blocks[0]["start_monotonic_ns"] <= readings.start[0]
    assert readings.end[-1] <= blocks[-1]["end_monotonic_ns"]
    assert 0 < sum(one["cpu_time_ns"] for one in blocks) <= time.process_time_ns() - before


def test_readings_follow_one_another_and_processor_time_is_spent(adding: Path, tmp_path: Path) -> None:
    said = measure(job(adding, warmup=3, iterations=20), tmp_path)
    start, end = said["start_monotonic_ns"], said["end_monotonic_ns"]
    assert all(a < b for a, b in zip(start, end, strict=True))
    assert all(a <= b for a, b in zip(end, start[1:], strict=False))
    assert [one["iterations"] for one in said["blocks"]] == [3, 20]
    assert sum(one["cpu_time_ns"] for one in said["blocks"]) > 0
    assert said["clocks_before"]["monotonic_ns"] < start[0] < end[-1] < said["clocks_after"]["monotonic_ns"]


def test_the_clocks_are_bracketed() -> None:
    before, pair, after = time.perf_counter_ns(), inference_worker._clock_pair(), time.perf_counter_ns()
    assert before <= pair["monotonic_ns"] <= after
    assert 0 < pair["uncertainty_ns"] <= after - before
    earlier, real, later = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
    slack = pair["uncertainty_ns"] + 100_000_000  # as far as the wall clock is set meanwhile
    assert real - later - slack <= pair["realtime_ns"] - pair["monotonic_ns"] <= real - earlier + slack


def test_a_kernel_without_scheduler_statistics_leaves_the_waits_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", refuse)
    assert inference_worker._Account().run_delay_ns() is None


def test_each_threads_own_clock_is_read_before_the_process_s(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        account = inference_worker._Account()
        before, own = time.thread_time_ns(), [time.clock_gettime_ns(c) for c in account._clocks]
        after = time.thread_time_ns()
        assert len(own) >= 2
        assert any(before <= one <= after for one in own), "this very thread's clock is among them"
        asked: list[int] = []
        monkeypatch.setattr(time, "clock_gettime_ns", asked.append)
        monkeypatch.setattr(time, "process_time_ns", lambda: len(asked))
        assert account.cpu_time_ns() == len(account._clocks), "asked for after all of them"
        assert asked == account._clocks
    finally:
        over.set()
        other.join()


def test_a_thread_that_has_ended_is_no_fault() -> None:
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    account = inference_worker._Account()
    over.set()
    other.join()
    assert account.cpu_time_ns() > 0


# Inputs.


@dataclass
class Declared:
    name: str
    type: str
    shape: list[Any]


@dataclass
class Model:
    """Stands for a session: only what it declares is looked at."""

    inputs: list[Declared] = field(default_factory=list)
    providers: Sequence[str] = ("CPUExecutionProvider",)
    assigned: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()

    def get_inputs(self) -> list[Declared]:
        return self.inputs

    def get_providers(self) -> Sequence[str]:
        return self.providers

    def get_provider_graph_assignment_info(self) -> list["Part"]:
        return [Part(name, [Node(*node) for node in nodes]) for name, nodes in self.assigned]


@dataclass
class Node:
    name: str
    op_type: str


@dataclass
class Part:
    ep_name: str
    nodes: list[Node]

    def get_nodes(self) -> list[Node]:
        return self.nodes


def inputs_of(*declared: Declared, **settings: Any) -> dict[str, "np.ndarray[Any, Any]"]:
    return inference_worker._make_inputs(Model(list(declared)), job(**settings))


@pytest.mark.parametrize(("declared", "dtype"), NUMPY_TYPES.items())
def test_every_dense_element_type_is_generated(declared: str, dtype: str) -> None:
    array = inputs_of(Declared("x", declared, [2, 3]))["x"]
    assert (array.dtype, array.shape) == (np.dtype(dtype), (2, 3))


def test_integers_stay_below_their_bound_and_reach_it() -> None:
    array = inputs_of(Declared("ids", "tensor(int64)", [1, 500]), integer_upper_bound={"ids": 7})["ids"]
    assert (array.min(), array.max()) == (0, 6)


def test_integers_of_unknown_meaning_are_zero_or_one() -> None:
    """The safest of guesses: an index, a mask or a type of token."""
    array = inputs_of(Declared("mask", "tensor(int32)", [200]))["mask"]
    assert set(array.tolist()) == {0, 1}


def test_booleans_are_fair_and_floats_standard_normal() -> None:
    made = inputs_of(Declared("flag", "tensor(bool)", [2000]), Declared("x", "tensor(float)", [20000]))
    assert 0.4 < made["flag"].mean() < 0.6
    assert abs(made["x"].mean()) < 0.05
    assert abs(made["x"].std() - 1) < 0.05


def test_a_scalar_has_one_value_whatever_the_batch() -> None:
    assert inputs_of(Declared("s", "tensor(float)", []), batch_size=4)["s"].shape == ()


def test_the_seed_decides_every_byte() -> None:
    declared = [Declared("a", "tensor(float16)", [9]), Declared("b", "tensor(int8)", [9])]

    def digests(seed: int) -> list[str]:
        return [hashlib.sha256(array.tobytes()).hexdigest() for array in inputs_of(*declared, seed=seed).values()]

    assert digests(5) == digests(5) != digests(6)


def test_an_open_first_dimension_is_one_unless_something_else_is_asked() -> None:
    declared = Declared("x", "tensor(float)", ["batch", 3])
    assert inputs_of(declared)["x"].shape == (1, 3)
    assert inputs_of(declared, batch_size=4)["x"].shape == (4, 3)
    assert inputs_of(declared, input_shapes={"x": [2, 3]})["x"].shape == (2, 3)


def test_a_batch_replaces_the_first_dimension_of_a_registered_shape_but_not_of_a_given_one() -> None:
    declared = Declared("x", "tensor(float)", ["batch", "width"])
    assert inputs_of(declared, input_shapes={"x": [1, 3]}, batch_size=4)["x"].shape == (4, 3)
    with pytest.raises(Refusal, match="starts with 1, the batch is 4"):
        inputs_of(declared, input_shapes={"x": [1, 3]}, shapes_asked=["x"], batch_size=4)


# Nodes by provider.


def placed(model: Model, **settings: Any) -> dict[str, Any]:
    return inference_worker._placement(model, job(**settings))


def test_nodes_that_a_provider_leaves_to_the_cpu_are_named_up_to_five() -> None:
    left = [(f"n{i}", "Conv") for i in range(6)] + [("", "Add")]
    partly = Model(
        providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
        assigned=[("CUDAExecutionProvider", [("m", "MatMul")]), ("CPUExecutionProvider", left)],
    )
    with pytest.raises(Refusal) as caught:
        placed(partly, provider="CUDAExecutionProvider")
    assert caught.value.kind == "unavailable"
    assert "7 of 8 nodes would run on CPUExecutionProvider: n0 (Conv), " in str(caught.value)
    assert "n4 (Conv) and 2 more; run with --allow-fallback" in str(caught.value)
    said = placed(partly, provider="CUDAExecutionProvider", allow_fallback=True)
    assert said["node_counts"] == {"CUDAExecutionProvider": 1, "CPUExecutionProvider": 7}
    assert said["node_count"] == 8


def test_a_provider_that_could_not_be_created_is_unavailable() -> None:
    with pytest.raises(Refusal, match=r"cannot be created here; the runtime would use CPUExecutionProvider") as caught:
        placed(Model(), provider="CUDAExecutionProvider")
    assert caught.value.kind == "unavailable"


def test_a_runtime_that_does_not_record_placement_leaves_the_counts_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_worker, "_records_placement", lambda: False)
    said = placed(Model())
    assert (said["node_counts"], said["node_count"]) == ({}, None)


def test_a_runtime_that_does_not_record_placement_is_set_to_refuse_fallback(
    adding: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_worker, "_records_placement", lambda: False)
    with pytest.raises(Refusal, match="cannot be loaded") as caught:
        measure(job(adding, provider="AzureExecutionProvider"), tmp_path)
    assert "fallback" in str(caught.value).lower()


def test_this_runtime_records_placement() -> None:
    assert hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info")
    assert inference_worker._records_placement()


# The process itself.


def started(folder: Path, task: dict[str, Any], parent: int) -> subprocess.CompletedProcess[str]:
    (folder / "job.json").write_text(json.dumps(task))
    command = [sys.executable, "-P", str(WORKER), str(folder / "job.json"), str(folder), str(parent)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_process_leaves_one_document_and_tells_progress_in_json(adding: Path, tmp_path: Path) -> None:
    done = started(tmp_path, job(adding, iterations=3), os.getpid())
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[-1]) == {"done": 3, "total": 3}
    assert json.loads((tmp_path / "pass.json").read_text())["iterations"] == 3
    assert not (tmp_path / "error.json").exists()


def test_a_refusal_is_a_document_with_its_kind(tmp_path: Path) -> None:
    done = started(tmp_path, job(tmp_path / "nowhere.onnx"), os.getpid())
    assert done.returncode == 1
    assert json.loads((tmp_path / "error.json").read_text())["kind"] == "model"
    assert not (tmp_path / "pass.json").exists()


def test_a_process_whose_parent_is_already_gone_measures_nothing(adding: Path, tmp_path: Path) -> None:
    done = started(tmp_path, job(adding), os.getppid())
    assert done.returncode == 1
    assert {path.name for path in tmp_path.iterdir()} == {"adding.onnx", "job.json"}


def test_a_page_that_a_host_had_to_make_first_is_no_usual_fault() -> None:
    assert inference_worker._usual([2_000] * 90 + [4_000] * 5 + [150_000] * 5) == pytest.approx(200_000 / 95)
