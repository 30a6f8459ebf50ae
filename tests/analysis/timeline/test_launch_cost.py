"""What launching costs where it is exposed, and the predecessors' scores beside it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from aaco_pipeline.analysis.timeline.launch_cost import launch_cost
from tests.places import SHARED


def row(found: Any) -> dict[str, Any]:
    cost = launch_cost(found.activities, found.timeline)
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
    cost = row(session(kernels, calls=calls))
    assert (cost["api_ns"], cost["launches"]) == (30, 3)
    assert cost["launch_latency_ns"] == 50 + 30
    # The first launch lies before the window; the second one queued behind the first kernel.
    assert cost["exposed_launch_ns"] == 30
    assert cost["exposed_launch_ratio"] == 30 / 300
    assert cost["micro_kernel_ratio"] == 1.0
    assert cost["dispatch_rate_per_s"] == pytest.approx(3 / 300e-9)
    assert cost["launch_tax_score"] == pytest.approx(3 / 300e-9 / 1000)
    assert (cost["dispatches"], cost["busy_ns"]) == (3, 260)


def test_without_dispatches_or_known_launches_nothing_is_told_of_launching(session: Callable[..., Any]) -> None:
    told = ("api_ns", "launch_latency_ns", "exposed_launch_ns", "exposed_launch_ratio", "launch_tax_score")
    copied = row(session([], copies=[{"start_ns": 0, "end_ns": 9}]))
    unlinked = row(session([{"start_ns": 0, "end_ns": 9, "correlation_id": 7}]))
    for cost, dispatches in ((copied, 0), (unlinked, 1)):
        assert [cost[name] for name in told] == [None] * len(told)
        assert (cost["launches"], cost["dispatches"], cost["unlinked"]) == (0, dispatches, 1)
    assert unlinked["micro_kernel_ratio"] == 1.0


def test_a_launch_into_a_busy_stream_costs_nothing_and_is_known(session: Callable[..., Any]) -> None:
    kernels = [{"start_ns": 0, "end_ns": 90}, {"start_ns": 90, "end_ns": 100, "correlation_id": 1}]
    call = {"start_ns": 10, "end_ns": 20, "name": "hipLaunchKernel", "correlation_id": 1}
    cost = row(session(kernels, calls=[call]))
    assert (cost["exposed_launch_ns"], cost["launch_latency_ns"], cost["exposed_launch_ratio"]) == (0, 0, 0.0)
    assert cost["unlinked"] == 1


def test_the_busiest_device_speaks_for_the_session(session: Callable[..., Any]) -> None:
    kernels = [{"start_ns": 0, "end_ns": 10}, {"device_id": 1, "start_ns": 0, "end_ns": 30}]
    found = session([*kernels, {"device_id": 2, "start_ns": 50, "end_ns": 80}])
    busiest = launch_cost(found.activities, found.timeline).busiest
    assert busiest is not None
    assert (busiest["device_id"], busiest["busy_ns"]) == (1, 30)
    assert launch_cost(found.activities.clear(), found.timeline.clear()).busiest is None


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
