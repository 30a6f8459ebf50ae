"""What launching costs where it is exposed, and the predecessors' scores beside it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.analysis.launch_cost import launch_cost

SHARED = Path(os.environ.get("AACO_SHARED") or Path(__file__).parents[3] / "shared")


def row(found: Any, nodes: int | None = None) -> dict[str, Any]:
    cost = launch_cost(found.activities, found.timeline, nodes)
    return dict(cost.devices.row(0, named=True))


def test_only_a_launch_that_the_device_waits_for_is_exposed(session: Callable[..., Any]) -> None:
    kernels = [
        {"start_ns": 100, "end_ns": 200, "correlation_id": 1},
        {"start_ns": 200, "end_ns": 300, "correlation_id": 2},
        {"start_ns": 340, "end_ns": 400, "correlation_id": 3},
    ]
    launches = [(50, 60), (70, 80), (310, 320)]
    calls = [
        {"start_ns": start, "end_ns": end, "name": "hipLaunchKernel", "correlation_id": number + 1}
        for number, (start, end) in enumerate(launches)
    ]
    cost = row(session(kernels, calls=calls), nodes=2)
    assert (cost["api_ns"], cost["launches"]) == (30, 3)
    assert cost["launch_latency_ns"] == 50 + 30
    # The first launch lies before the window; the second one queued behind the first kernel.
    assert cost["exposed_launch_ns"] == 30
    assert cost["exposed_launch_ratio"] == 30 / 300
    assert cost["micro_kernel_ratio"] == 1.0
    assert cost["dispatch_rate_per_s"] == pytest.approx(3 / 300e-9)
    assert cost["launch_tax_score"] == pytest.approx(3 / 300e-9 / 1000)
    assert cost["kernel_amplification_ratio"] == 1.5


def test_without_dispatches_or_nodes_there_are_no_scores(session: Callable[..., Any]) -> None:
    cost = row(session([], copies=[{"start_ns": 0, "end_ns": 9}]))
    assert (cost["launch_tax_score"], cost["kernel_amplification_ratio"], cost["exposed_launch_ns"]) == (None, None, 0)


def test_several_kernels_of_one_call_count_it_once(session: Callable[..., Any]) -> None:
    kernels = [{"start_ns": 30 + 10 * n, "end_ns": 35 + 10 * n, "correlation_id": 1} for n in range(3)]
    call = {"start_ns": 10, "end_ns": 20, "name": "hipGraphLaunch", "correlation_id": 1}
    cost = row(session(kernels, calls=[call]))
    assert (cost["api_ns"], cost["launches"], cost["launch_latency_ns"]) == (10, 1, 20)


@pytest.mark.parametrize("name", ["mi300x_qwen1.5_0.5b", "mi300x_resnet_train_ddp", "mi300x_sglang_qwen3_8b"])
def test_time_in_launching_calls_is_the_references(name: str, analysed: Callable[[str], Any]) -> None:
    found = analysed(f"kineto/{name}.json.gz")
    reference = json.loads((SHARED / "kineto" / "oracle" / f"reference_{name}.json").read_text())
    assert row(found)["api_ns"] == reference["launch_api_dur_ns"]["sum_over_linked"]


def test_a_graph_hides_what_the_score_calls_launch_tax(analysed: Callable[[str], Any]) -> None:
    graph, tiny = (
        row(analysed(f"gpu_sessions/traces/{name}.json.gz")) for name in ("graph_replay", "tiny_kernels_500")
    )
    assert graph["launch_tax_score"] > tiny["launch_tax_score"]
    assert graph["exposed_launch_ratio"] < 0.05
    assert tiny["exposed_launch_ratio"] > 0.4
