"""Waits of the host: from the tracer's records, or else inferred and labelled."""

from collections.abc import Callable
from typing import Any

import pytest

Row = dict[str, Any]


def kernel(start: int, end: int, correlation: int, stream: int = 0) -> Row:
    return {"start_ns": start, "end_ns": end, "correlation_id": correlation, "stream_id": stream}


def call(start: int, end: int, name: str, correlation: int | None = None, thread: int = 1) -> Row:
    return {"start_ns": start, "end_ns": end, "name": name, "correlation_id": correlation, "thread_id": thread}


KERNELS = [kernel(100, 200, 1), kernel(150, 300, 2, stream=1)]
LAUNCHES = [call(10, 20, "hipLaunchKernel", 1), call(30, 40, "hipLaunchKernel", 2)]


def awaited(found: Any) -> list[tuple[int, int, bool]]:
    return sorted(found.waits.awaited.select("call_id", "activity", "inferred").rows())


def test_a_device_wait_is_for_the_last_work_of_every_stream(session: Callable[..., Any]) -> None:
    found = session(KERNELS, calls=[*LAUNCHES, call(50, 310, "hipDeviceSynchronize")])
    assert awaited(found) == [(2, 0, False), (2, 1, False)]


def test_without_calls_nothing_is_waited_for_in_the_same_columns(session: Callable[..., Any]) -> None:
    without, beside = session(KERNELS, calls=[]).waits, session(KERNELS, calls=LAUNCHES).waits
    for name in ("calls", "awaited", "handed_over"):
        assert getattr(without, name).is_empty()
        assert getattr(without, name).schema == getattr(beside, name).schema


def test_work_that_ended_after_the_call_was_not_waited_for(session: Callable[..., Any]) -> None:
    found = session(KERNELS, calls=[*LAUNCHES, call(50, 210, "cudaDeviceSynchronize")])
    assert awaited(found) == [(2, 0, False)]


def test_work_issued_after_the_call_began_was_not_waited_for(session: Callable[..., Any]) -> None:
    found = session(KERNELS, calls=[*LAUNCHES, call(25, 310, "cuCtxSynchronize", thread=2)])
    assert awaited(found) == [(2, 0, False)]


def test_a_later_wait_of_the_thread_for_the_same_work_explains_nothing(session: Callable[..., Any]) -> None:
    waits = [call(50, 310, "hipDeviceSynchronize"), call(320, 330, "hipDeviceSynchronize")]
    assert awaited(session(KERNELS, calls=[*LAUNCHES, *waits])) == [(2, 0, False), (2, 1, False)]


def test_a_stream_wait_is_for_the_stream_that_the_tracer_names(session: Callable[..., Any]) -> None:
    stated = {"kind": "stream_synchronize", "stream_id": 0, "correlation_id": 9, "start_ns": 50, "end_ns": 310}
    found = session(KERNELS, calls=[*LAUNCHES, call(50, 310, "cudaStreamSynchronize", 9)], synchronizations=[stated])
    assert awaited(found) == [(2, 0, False)]


def test_a_stream_wait_without_a_stream_is_for_the_threads_last_launch(session: Callable[..., Any]) -> None:
    found = session(KERNELS, calls=[*LAUNCHES, call(50, 310, "hipStreamSynchronize")])
    assert awaited(found) == [(2, 1, True)]


def test_an_event_wait_is_for_the_work_before_its_record(session: Callable[..., Any]) -> None:
    stated = {
        "kind": "event_synchronize",
        "stream_id": None,
        "correlation_id": 9,
        "waited_stream_id": 0,
        "waited_correlation_id": 8,
        "start_ns": 60,
        "end_ns": 310,
    }
    calls = [*LAUNCHES, call(25, 26, "cudaEventRecord", 8), call(60, 310, "cudaEventSynchronize", 9)]
    found = session([*KERNELS, kernel(200, 250, 3)], [*calls, call(45, 46, "cudaLaunchKernel", 3)], None, [stated])
    assert awaited(found) == [(3, 0, False)]


@pytest.mark.parametrize(("ends", "expected"), [(90, [(0, 0, False)]), (70, [])])
def test_a_copy_blocks_when_its_call_returns_after_it(
    ends: int, expected: list[Any], session: Callable[..., Any]
) -> None:
    copy = {"start_ns": 60, "end_ns": 80, "correlation_id": 1}
    found = session([], calls=[call(50, ends, "hipMemcpyAsync", 1)], copies=[copy])
    assert awaited(found) == expected
    assert found.waits.calls.height == len(expected)


def test_events_between_streams_are_taken_from_the_tracer(session: Callable[..., Any]) -> None:
    stated = {
        "kind": "stream_wait_event",
        "stream_id": 1,
        "correlation_id": 9,
        "waited_stream_id": 0,
        "waited_correlation_id": 8,
        "start_ns": 27,
        "end_ns": 28,
    }
    calls = [*LAUNCHES, call(25, 26, "cudaEventRecord", 8), call(27, 28, "cudaStreamWaitEvent", 9)]
    found = session(KERNELS, calls=calls, synchronizations=[stated])
    assert found.waits.handed_over.rows() == [(0, 1, False)]


def test_events_that_the_tracer_leaves_out_are_inferred(session: Callable[..., Any]) -> None:
    found = session(KERNELS, calls=[*LAUNCHES, call(27, 28, "hipStreamWaitEvent")])
    assert found.waits.handed_over.rows() == [(0, 1, True)]


def test_an_event_within_one_stream_is_no_handover(session: Callable[..., Any]) -> None:
    found = session([KERNELS[0], kernel(300, 310, 2)], calls=[*LAUNCHES, call(27, 28, "hipStreamWaitEvent")])
    assert found.waits.handed_over.is_empty()
