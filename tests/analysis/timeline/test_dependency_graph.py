"""The edges of a session's network, their least costs, and edges that timestamps contradict."""

from collections.abc import Callable
from typing import Any

import pytest

from aaco_pipeline.analysis.timeline.dependency_graph import KINDS

Row = dict[str, Any]


def kernel(start: int, end: int, correlation: int | None = None, **rest: Any) -> Row:
    return {"start_ns": start, "end_ns": end, "correlation_id": correlation, **rest}


def call(start: int, end: int, name: str = "hipLaunchKernel", correlation: int | None = None, **rest: Any) -> Row:
    return {"start_ns": start, "end_ns": end, "name": name, "correlation_id": correlation, **rest}


def edges(found: Any) -> set[tuple[str, str, str, bool, int]]:
    """Edges as (source, target, kind, from the start, lag), nodes by kind, number and part."""
    net = found.network
    names = [
        f"{kind}{number}" + ("" if part == "whole" else f" {part}")
        for kind, number, part in net.nodes.select("activity_kind", "activity_id", "part").iter_rows()
    ]
    columns = (net.source, net.target, net.kind, net.from_start, net.lag_ns)
    return {(names[s], names[t], KINDS[k], bool(f), int(lag)) for s, t, k, f, lag in zip(*columns, strict=True)}


def test_a_launch_on_an_empty_stream_is_explained_up_to_a_start_within_the_call(session: Callable[..., Any]) -> None:
    found = session([kernel(15, 40, 1)], calls=[call(10, 20, correlation=1)])
    assert edges(found) == {("api_call0", "dispatch0", "launch", True, 5)}


def test_a_launch_leaves_the_calls_end_when_its_kernel_began_after_it(session: Callable[..., Any]) -> None:
    kernels = [kernel(25, 40, 1), kernel(107, 120, 2)]
    found = session(kernels, calls=[call(10, 20, correlation=1), call(90, 100, correlation=2)])
    assert edges(found) == {
        ("api_call0", "dispatch0", "launch", False, 5),
        ("api_call1", "dispatch1", "launch", False, 5),
        ("dispatch0", "dispatch1", "stream", False, 0),
        ("api_call0", "api_call1", "program", False, 70),
    }


def test_a_blocking_call_is_an_entry_and_a_return(session: Callable[..., Any]) -> None:
    calls = [call(10, 20, correlation=1), call(22, 50, "hipDeviceSynchronize"), call(60, 61, "hipGetDevice")]
    found = session([kernel(15, 40, 1)], calls=calls)
    assert edges(found) == {
        ("api_call0", "dispatch0", "launch", True, 5),
        ("api_call0", "api_call1 entry", "program", False, 2),
        ("api_call1 entry", "api_call1 return", "program", False, 0),
        ("dispatch0", "api_call1 return", "sync", False, 0),
        ("api_call1 return", "api_call2", "program", False, 10),
    }


def test_streams_that_share_a_queue_wait_for_each_other(session: Callable[..., Any]) -> None:
    kernels = [kernel(0, 10, stream_id=0, queue_id=7), kernel(12, 20, stream_id=1, queue_id=7)]
    assert edges(session(kernels)) == {("dispatch0", "dispatch1", "queue", False, 0)}


def test_overlaps_on_a_stream_follow_the_start_and_are_counted(session: Callable[..., Any]) -> None:
    found = session([kernel(0, 10), kernel(8, 20)])
    assert edges(found) == {("dispatch0", "dispatch1", "stream", True, 0)}
    assert found.network.left_out["edges"].to_list() == [1]


def test_a_kernel_before_its_launch_is_left_out_and_counted(session: Callable[..., Any]) -> None:
    found = session([kernel(5, 8, 1)], calls=[call(10, 20, correlation=1)])
    assert edges(found) == set()
    assert found.network.left_out.rows() == [("left out: starts before its launch", 1)]


def test_work_on_the_host_itself_follows_its_thread(session: Callable[..., Any]) -> None:
    rows = [kernel(0, 10, stream_id=None), kernel(3, 9, stream_id=None, thread_id=2), kernel(12, 20, stream_id=None)]
    assert edges(session(rows)) == {("dispatch0", "dispatch2", "program", False, 0)}


def test_a_graph_launch_owns_many_kernels(session: Callable[..., Any]) -> None:
    kernels = [kernel(30 + 10 * n, 38 + 10 * n, 1) for n in range(4)]
    found = session(kernels, calls=[call(10, 20, "hipGraphLaunch", 1)])
    assert sum(kind == "launch" for _, _, kind, _, _ in edges(found)) == 4
    assert [lag for _, _, kind, _, lag in edges(found) if kind == "stream"] == [2, 2, 2]


def test_inner_calls_are_part_of_the_outermost(session: Callable[..., Any]) -> None:
    calls = [call(0, 50, "ncclAllReduce"), call(10, 20, correlation=1)]
    found = session([kernel(15, 40, 1)], calls=calls)
    assert edges(found) == {("api_call0", "dispatch0", "launch", True, 15)}


def test_events_between_streams_are_edges(session: Callable[..., Any]) -> None:
    calls = [call(1, 2, correlation=1), call(3, 4, "hipStreamWaitEvent"), call(5, 6, correlation=2)]
    found = session([kernel(10, 20, 1), kernel(25, 30, 2, stream_id=1)], calls=calls)
    assert ("dispatch0", "dispatch1", "event", False, 0) in edges(found)
    assert found.network.inferred.sum() == 1


@pytest.mark.parametrize("capture", ["kineto/mi300x_qwen1.5_0.5b.json.gz", "gpu_sessions/traces/graph_replay.json.gz"])
def test_lags_are_never_negative_on_real_captures(capture: str, analysed: Callable[[str], Any]) -> None:
    assert analysed(capture).network.lag_ns.min() >= 0
