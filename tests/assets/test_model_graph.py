"""Where kernel time goes: to a framework's operators, to a model's nodes, and to those of a model compiled for a GPU.

The last is no capture: its kernels are made up here, with names as MIGraphX is documented to give them.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from aaco_pipeline import capture
from aaco_pipeline.analysis.kernels.names import classify_names
from aaco_pipeline.assets.stage import Session, materialize
from aaco_pipeline.capture import measured
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.resources.confinement import client
from tests.places import CONFIGS, SHARED
from tests.sessions import made_by, replayed, republished, said, tables_of, taken_in


def metrics(lake: TraceLake, session: str) -> dict[str, dict[str, Any]]:
    traced = lake.read("session_metrics", session).filter(pl.col("pass") == "trace")
    return {row["metric"]: row for row in traced.iter_rows(named=True)}


@pytest.fixture
def ingested(empty_lake: TraceLake) -> tuple[TraceLake, str]:
    """A real trace of a framework's operators, through the stages before the model's graph."""
    session = taken_in(empty_lake, SHARED / "gpu_sessions/traces/tiny_kernels_500.json.gz")
    replayed(empty_lake, session, "timeline")
    return empty_lake, session


def test_a_frameworks_operators_get_the_time_of_what_they_launched(ingested: tuple[TraceLake, str]) -> None:
    lake, session = ingested
    outcome = made_by(lake, session, "model_graph")
    rows = outcome.tables["operator_kernels"]
    stats = lake.read("kernel_stats", session)
    assert rows.get_column("total_ns").sum() == stats.get_column("total_ns").sum() > 0
    assert outcome.headline["mapped_kernel_time_ratio"] == 1.0
    assert set(rows.get_column("match")) == {"correlation"}
    assert [(item, status) for item, (status, _) in said(outcome).items()] == [
        ("model graph", "absent"),
        ("operators", "present"),
    ]
    assert outcome.tables["session_metrics"].is_empty()


def test_without_recorded_operators_the_time_is_unattributed_and_the_evidence_says_why(
    ingested: tuple[TraceLake, str],
) -> None:
    lake, session = ingested
    calls = tables_of(lake, session, "kernel_trace")["api_calls"].filter(pl.col("domain") != "operator")
    republished(lake, session, "kernel_trace", api_calls=calls)
    outcome = made_by(lake, session, "model_graph")
    assert set(outcome.tables["operator_kernels"].get_column("match")) == {"unattributed"}
    assert outcome.headline["mapped_kernel_time_ratio"] == 0.0
    assert said(outcome)["operators"][0] == "absent"


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
    trace = tables_of(lake, session, "kernel_trace")
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
    materialize(Session(lake, session, CONFIGS), ["timeline"])
    folder = tmp_path / "base"
    folder.mkdir()
    # The capture as if it had a base pass under rocprofv3: opened with that setting, and forgotten afterwards.
    monkeypatch.setattr(capture, "_OPENED", {})
    monkeypatch.setattr(client, "open_capture", capture.open_capture)
    monkeypatch.setattr(measured, "base_pass", lambda documents: SimpleNamespace(folder=folder))
    monkeypatch.setattr(measured.ProfiledCapture, "_trace", CaptureTables({}, ()))
    return lake, session, folder


def test_a_compiled_models_kernels_are_traced_to_its_nodes(compiled: tuple[TraceLake, str, Path]) -> None:
    lake, session, _ = compiled
    outcome = made_by(lake, session, "model_graph")
    rows = outcome.tables["operator_kernels"].drop_nulls("node_id")
    nodes = lake.read("model_nodes", session).filter(pl.col("op_type") == "Conv").get_column("node_id")
    assert rows.get_column("node_id").to_list() == nodes.to_list()
    assert set(rows.select("dispatch_count", "total_ns", "match").rows()) == {(5, 50, "order")}
    told = {row["metric"]: row["value"] for row in outcome.tables["session_metrics"].iter_rows(named=True)}
    assert told["nodes_per_kernel"] == 2.0
    status, reason = said(outcome)["kernels to nodes"]
    assert (status, str(reason)[:4]) == ("partial", "5 of")


def test_a_dumped_partition_beside_the_base_pass_is_used(compiled: tuple[TraceLake, str, Path]) -> None:
    lake, session, folder = compiled
    (folder / "MGXKernel_graph_0.onnx").write_bytes((lake.raw(session) / "model.onnx").read_bytes())
    assert made_by(lake, session, "model_graph").headline["mapped_kernel_time_ratio"] == pytest.approx(26 / 27)
