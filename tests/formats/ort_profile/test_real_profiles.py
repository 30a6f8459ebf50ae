"""Real profiles of ONNX Runtime, read a second way."""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
import polars as pl
import pytest
from onnx import TensorProto, helper

from aaco_pipeline.formats import ort_profile
from aaco_pipeline.formats.ort_profile import reading as profile_events
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import conform
from tests.formats.ort_profile.made_up import (
    AXIS,
    CPU,
    REAL,
    Profiled,
    conserved,
    events_of,
    is_node,
    items,
    read,
    rows,
    same,
    written,
)


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_every_node_event_of_a_real_profile_is_one_dispatch(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    reading = read(real.path)
    expected = Counter(
        (e["name"].removesuffix("_kernel_time"), e["args"]["op_name"], AXIS + e["ts"] * 1000, e["tid"])
        for e in events_of(real.path)
        if is_node(e)
    )
    assert expected
    assert Counter(rows(reading, "name", "short_name", "start_ns", "thread_id")) == expected
    assert items(reading)["kernel events"] == Evidence(
        "kernel events", "present", None, real.path.name, expected.total()
    )


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_a_dispatch_without_children_lasts_as_long_as_its_event(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    dispatches = read(real.path).tables["dispatches"]
    parents = set(dispatches["parent_dispatch_id"].drop_nulls())
    measured = Counter((AXIS + e["ts"] * 1000, e["dur"] * 1000) for e in events_of(real.path) if is_node(e))
    for number, start, end, own in dispatches.select("dispatch_id", "start_ns", "end_ns", "self_ns").iter_rows():
        if number not in parents:
            assert measured[start, end - start] > 0
            assert own == end - start


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_the_kth_model_run_of_a_real_profile_is_iteration_k(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    expected: Counter[tuple[str, int, int]] = Counter()
    run = 0
    for one in events_of(real.path):
        if is_node(one):
            expected[one["name"].removesuffix("_kernel_time"), AXIS + one["ts"] * 1000, run] += 1
        run += one["name"] == "model_run"
    assert run == real.runs
    reading = read(real.path)
    assert Counter(rows(reading, "name", "start_ns", "iteration")) == expected
    assert "iteration of kernels" not in items(reading)


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_the_self_times_of_a_run_fit_in_its_model_run(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    lengths = [e["dur"] * 1000 for e in events_of(real.path) if e["name"] == "model_run"]
    sums = read(real.path).tables["dispatches"].group_by("iteration").agg(pl.col("self_ns").sum()).sort("iteration")
    assert sums["iteration"].to_list() == list(range(real.runs))
    assert all(0 < own <= length for own, length in zip(sums["self_ns"], lengths, strict=True))


def expected_parent(name: str) -> str | None:
    """Find the operator of the built-in model `control_flow` that the node belongs to, by the names of its bodies."""
    name = name.removeprefix("fused ")
    for body, owner in (
        ("choose/then/", "choose/if"),
        ("choose/else/", "choose/if"),
        ("repeat/odd/early/", "repeat/odd/if"),
        ("repeat/odd/late/", "repeat/odd/if"),
        ("repeat/odd/", "repeat/if"),
        ("repeat/even/", "repeat/if"),
    ):
        if name.startswith(body):
            return owner
    return "repeat/loop" if name.startswith("repeat/") and name != "repeat/loop" else None


def test_nodes_inside_if_and_loop_have_that_operator_as_their_parent(profiled: Profiled) -> None:
    reading = read(profiled("control_flow", 1).path)
    names = dict(rows(reading, "dispatch_id", "name"))
    parents = [(name, names.get(parent)) for name, parent in rows(reading, "name", "parent_dispatch_id")]
    assert Counter(parents) == Counter((name, expected_parent(name)) for name in names.values())
    assert {parent for _, parent in parents} == {None, "choose/if", "repeat/loop", "repeat/if", "repeat/odd/if"}


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_the_self_times_of_a_tree_sum_to_its_root(profiled: Profiled, model: str, threads: int) -> None:
    assert conserved(read(profiled(model, threads).path).tables["dispatches"])


def test_a_real_parent_encloses_its_children(profiled: Profiled) -> None:
    dispatches = read(profiled("control_flow", 1).path).tables["dispatches"]
    pairs = dispatches.join(dispatches, left_on="parent_dispatch_id", right_on="dispatch_id", suffix="_parent")
    assert pairs.height > 0
    assert pairs.filter(
        (pl.col("start_ns") < pl.col("start_ns_parent")) | (pl.col("end_ns") > pl.col("end_ns_parent"))
    ).is_empty()


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_every_session_event_of_a_real_profile_is_one_api_call(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    expected = [
        (e["name"], AXIS + e["ts"] * 1000, AXIS + (e["ts"] + e["dur"]) * 1000, e["tid"])
        for e in events_of(real.path)
        if e["cat"] == "Session"
    ]
    calls = read(real.path).tables["api_calls"]
    assert calls.select("name", "start_ns", "end_ns", "thread_id").rows() == expected
    assert calls["call_id"].to_list() == list(range(len(expected)))
    assert set(calls["domain"]) == {"onnxruntime"}
    assert {"model_run", "session_initialization", "SequentialExecutor::Execute"} <= set(calls["name"])


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_the_tables_of_a_real_profile_fit_the_lake(profiled: Profiled, model: str, threads: int) -> None:
    for name, frame in read(profiled(model, threads).path).tables.items():
        assert conform(contract(name), frame, "session").height == frame.height > 0


def test_a_kernel_is_the_same_one_in_another_session(profiled: Profiled) -> None:
    one, two = (read(profiled("squeezenet", threads).path).tables["kernels"] for threads in (1, 2))
    assert one["fingerprint"].n_unique() == one.height
    assert set(one["fingerprint"]) == set(two["fingerprint"])


@pytest.mark.parametrize("chunk", [512, 4096])
def test_a_real_profile_reads_the_same_in_small_pieces(
    profiled: Profiled, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    path = profiled("control_flow", 1).path
    whole = read(path)
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", chunk)
    pieces = read(path)
    assert same(whole, pieces)
    assert pieces.evidence == whole.evidence


def test_a_real_profile_is_recognized_plain_and_packed(profiled: Profiled, tmp_path: Path) -> None:
    path = profiled("squeezenet", 1).path
    packed = written(tmp_path, gzip.compress(path.read_bytes(), mtime=0), "profile.json.gz")
    for one in (path, packed):
        recognition = ort_profile.probe(one)
        assert recognition is not None
        assert recognition.format == "onnxruntime-profile"
    assert same(read(packed), read(path))


def test_names_the_runtime_has_to_escape_come_back_as_they_were(tmp_path: Path) -> None:
    names = ['a "quoted"', "back\\slash", "new\nline", "tab\t", "é中😀", "},", "]"]
    nodes = [helper.make_node("Abs", [f"t{i}"], [f"t{i + 1}"], name=name) for i, name in enumerate(names)]
    ends = [helper.make_tensor_value_info(f"t{i}", TensorProto.FLOAT, [4]) for i in (0, len(names))]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.intra_op_num_threads = 1
    options.profile_file_prefix = str(tmp_path / "names")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU])
    session.run(None, {"t0": np.zeros(4, np.float32)})
    assert read(Path(session.end_profiling())).tables["kernels"]["name"].to_list() == names
