"""Where kernel time goes in sessions of a GPU: a real capture of a framework, and a generated case of a compiled model.

The second is not a capture: its kernels are made up here, with names as MIGraphX is documented to give them.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.kernels.names import classify_names
from aaco_pipeline.assets.capture import describe_capture
from aaco_pipeline.assets.inference_run import read_inference_run
from aaco_pipeline.assets.kernel_trace import read_kernel_trace
from aaco_pipeline.assets.model_graph import read_model_graph
from aaco_pipeline.assets.timeline import read_timeline
from aaco_pipeline.capture import profiled as profiled_capture
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import conform, to_contract
from aaco_pipeline.resources.ingestion import copy_capture
from tests.places import SHARED

#: What the timeline tells of launching, with units.
OF_LAUNCHING = {
    "exposed_launch": "ns",
    "exposed_launch_ratio": "ratio",
    "launch_tax_score": "kHz",
    "micro_kernel_ratio": "ratio",
    "dispatch_rate": "dispatch/s",
}


def metrics(lake: TraceLake, session: str) -> dict[str, dict[str, Any]]:
    traced = lake.read("session_metrics", session).filter(pl.col("pass") == "trace")
    return {row["metric"]: row for row in traced.iter_rows(named=True)}


@pytest.fixture
def ingested(lake_path: Path) -> tuple[TraceLake, str]:
    """A real trace of a framework's operators, through the stages before the model's graph."""
    path = SHARED / "gpu_sessions/traces/tiny_kernels_500.json.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there: the shared captures are not part of the repository")
    lake, session = TraceLake(lake_path), new_session_id()
    with lake.receive_raw(session) as folder:
        copy_capture(discover_runs(path).runs[0], folder, None)
    for name, stage in (
        ("capture", describe_capture),
        ("inference_run", read_inference_run),
        ("kernel_trace", read_kernel_trace),
        ("timeline", read_timeline),
    ):
        lake.publish(session, name, stage(lake, session).tables)
    return lake, session


def test_a_frameworks_operators_get_the_time_of_what_they_launched(ingested: tuple[TraceLake, str]) -> None:
    lake, session = ingested
    outcome = read_model_graph(lake, session)
    rows = outcome.tables["operator_kernels"]
    conform(contract("operator_kernels"), rows, session)
    stats = lake.read("kernel_stats", session)
    assert rows.get_column("total_ns").sum() == stats.get_column("total_ns").sum() > 0
    assert outcome.headline["mapped_kernel_time_ratio"] == 1.0
    assert set(rows.get_column("match")) == {"correlation"}
    told = outcome.tables["evidence"].select("item", "status").rows()
    assert told == [("model graph", "absent"), ("operators", "present")]
    assert outcome.tables["session_metrics"].is_empty()


def test_without_recorded_operators_the_time_is_unattributed_and_the_evidence_says_why(
    ingested: tuple[TraceLake, str],
) -> None:
    lake, session = ingested
    trace = {entry.table: lake.read_entry(entry) for entry in lake.manifest(session).of_stage("kernel_trace")}
    calls = trace["api_calls"].filter(pl.col("domain") != "operator")
    lake.publish(session, "kernel_trace", {**trace, "api_calls": calls})
    outcome = read_model_graph(lake, session)
    assert set(outcome.tables["operator_kernels"].get_column("match")) == {"unattributed"}
    assert outcome.headline["mapped_kernel_time_ratio"] == 0.0
    assert outcome.tables["evidence"].select("item", "status").rows()[1] == ("operators", "absent")


def test_launch_cost_is_among_the_figures_of_a_session(ingested: tuple[TraceLake, str]) -> None:
    lake, session = ingested
    told = metrics(lake, session)
    assert {name: told[name]["unit"] for name in OF_LAUNCHING} == OF_LAUNCHING
    timeline = lake.read("timeline", session).filter(pl.col("window_rule") == "first_to_last_activity")
    window = timeline.item(0, "window_end_ns") - timeline.item(0, "window_start_ns")
    assert 0.4 < told["exposed_launch_ratio"]["value"] == told["exposed_launch"]["value"] / window < 1
    assert told["exposed_launch"]["value"] <= window - timeline.item(0, "busy_ns")
    assert told["launch_tax_score"]["value"] == pytest.approx(
        told["micro_kernel_ratio"]["value"] * told["dispatch_rate"]["value"] / 1000
    )
    assert told["dispatch_rate"]["n"] == lake.read("dispatches", session).height
    evidence = read_timeline(lake, session).tables["evidence"].filter(pl.col("item") == "launch cost")
    assert evidence.get_column("status").to_list() == ["present"]


def test_figures_of_one_of_several_devices_and_lower_bounds_are_told_as_such(ingested: tuple[TraceLake, str]) -> None:
    lake, session = ingested
    trace = {entry.table: lake.read_entry(entry) for entry in lake.manifest(session).of_stage("kernel_trace")}
    first = pl.col("dispatch_id") == 0
    changed = trace["dispatches"].with_columns(
        correlation_id=pl.when(~first).then("correlation_id"),
        device_id=pl.when(pl.col("dispatch_id") == 1).then(pl.lit(7, pl.Int32)).otherwise("device_id"),
    )
    lake.publish(session, "kernel_trace", {**trace, "dispatches": changed})
    evidence = read_timeline(lake, session).tables["evidence"].filter(pl.col("item") == "launch cost")
    (item,) = evidence.rows(named=True)
    assert item["status"] == "partial"
    for words in ("the busiest of 2", "1 activities have no known launch"):
        assert words in item["reason"]


def test_where_no_launch_is_known_its_cost_is_unknown(captured: Any) -> None:
    lake, session = captured.lake, captured.sessions["squeezenet"]
    told = metrics(lake, session)
    assert [told[name]["value"] for name in ("exposed_launch", "exposed_launch_ratio", "launch_tax_score")] == [
        None
    ] * 3
    evidence = read_timeline(lake, session).tables["evidence"].filter(pl.col("item") == "launch cost")
    assert evidence.get_column("status").to_list() == ["absent"]


def test_kernels_for_each_node_of_three_graphs(captured: Any) -> None:
    lake, session = captured.lake, captured.sessions["squeezenet"]
    told = metrics(lake, session)
    each = told["kernels_per_iteration"]["value"]
    nodes = lake.read("model_nodes", session).height
    ran, model, undivided = (told[f"kernel_amplification_ratio{of}"] for of in ("", "_of_model", "_undivided"))
    # On the processor every node of the graph that ran is one kernel, and the model had more of them.
    assert (ran["value"], ran["n"]) == (1.0, each)
    assert ran["n"] < model["n"] < undivided["n"] == nodes
    assert model["value"] == each / model["n"]
    assert undivided["value"] == 5 * each / nodes


# A compiled model: generated.


@pytest.fixture
def compiled(
    captured: Any, lake_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[TraceLake, str, Path]:
    """The session as if a GPU had run it: one made-up kernel for each convolution with its activation."""
    lake, session = captured.copy(lake_path), captured.sessions["squeezenet"]
    convolutions = lake.read("model_nodes", session).filter(pl.col("op_type") == "Conv").height
    trace = {entry.table: lake.read_entry(entry) for entry in lake.manifest(session).of_stage("kernel_trace")}
    iterations = lake.read("iterations", session).filter(pl.col("pass") == "trace").get_column("iteration").to_list()
    names = pl.Series("name", ["mlir_convolution_add_relu", "__amd_rocclr_copyBuffer"])
    kernels = (
        classify_names(names)
        .select("short_name", "family", "role")
        .with_columns(names, kernel_id=pl.Series([0, 1]), fingerprint=pl.lit("f"), family_source=pl.lit("name"))
    )
    run = [0] * convolutions + [1]
    count = len(run) * len(iterations)
    dispatches = {
        "dispatch_id": range(count),
        "process_id": 1,
        "device_id": 0,
        "kernel_id": run * len(iterations),
        "start_ns": [20 * n for n in range(count)],
        "end_ns": [20 * n + 10 for n in range(count)],
        "iteration": [iteration for iteration in iterations for _ in run],
        "self_ns": 10,
        "below_resolution": False,
    }
    made = {
        "kernels": to_contract("kernels", kernels),
        "dispatches": to_contract("dispatches", pl.DataFrame(dispatches)),
        "api_calls": trace["api_calls"].clear(),
    }
    lake.publish(session, "kernel_trace", {**trace, **made})
    lake.publish(session, "timeline", read_timeline(lake, session).tables)
    folder = tmp_path / "base"
    folder.mkdir()
    monkeypatch.setattr(profiled_capture, "base_pass", lambda raw: SimpleNamespace(folder=folder))
    return lake, session, folder


def test_a_compiled_models_kernels_are_traced_to_its_nodes(compiled: tuple[TraceLake, str, Path]) -> None:
    lake, session, _ = compiled
    outcome = read_model_graph(lake, session)
    rows = outcome.tables["operator_kernels"].drop_nulls("node_id")
    nodes = lake.read("model_nodes", session).filter(pl.col("op_type") == "Conv").get_column("node_id")
    assert rows.get_column("node_id").to_list() == nodes.to_list()
    assert set(rows.select("dispatch_count", "total_ns", "match").rows()) == {(5, 50, "order")}
    told = {row["metric"]: row["value"] for row in outcome.tables["session_metrics"].iter_rows(named=True)}
    assert told["nodes_per_kernel"] == 2.0
    (item,) = outcome.tables["evidence"].filter(pl.col("item") == "kernels to nodes").rows(named=True)
    assert (item["status"], item["reason"][:4]) == ("partial", "5 of")


def test_a_dumped_partition_beside_the_base_pass_is_used(compiled: tuple[TraceLake, str, Path]) -> None:
    lake, session, folder = compiled
    (folder / "MGXKernel_graph_0.onnx").write_bytes((lake.raw(session) / "model.onnx").read_bytes())
    assert read_model_graph(lake, session).headline["mapped_kernel_time_ratio"] == pytest.approx(26 / 27)
