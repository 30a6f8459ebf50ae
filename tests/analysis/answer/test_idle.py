"""Which part of idle time is which, and from which length on the host's work between two launches is its own."""

from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.analysis.answer.idle import LAUNCH_PACE_NS, Host, host_in, idle_parts
from aaco_pipeline.analysis.timeline.device_timeline import Coverage, covered_by
from tests.analysis.answer.made_up import gap, pieces, rows

_THREAD: Final = {"process_id": 0, "thread_id": 1}
_NONE: Final = pl.DataFrame(schema={"call_id": pl.Int32})
#: Launches of 1 µs every 10 µs.
PACE: Final = 10_000


def launched(*at: int, **more: Any) -> pl.DataFrame:
    """Activities of one device by the beginnings of their launches, which take 1 µs; call_id is their place."""
    listed = [
        {"activity_kind": "dispatch", "call_id": i, "call_start_ns": start, "call_end_ns": start + 1_000}
        | {"process_id": 0, "call_thread_id": 1, **more}
        for i, start in enumerate(at)
    ]
    types = {"call_id": pl.Int32, "process_id": pl.Int32, "call_thread_id": pl.Int64}
    return pl.DataFrame(listed).cast(types)  # type: ignore[arg-type]


def called(*at: int) -> list[dict[str, Any]]:
    return [{**_THREAD, "call_id": i, "start_ns": start, "end_ns": start + 1_000} for i, start in enumerate(at)]


def whole(until: int) -> Coverage:
    return covered_by(pl.Series([0]).to_numpy(), pl.Series([until]).to_numpy())


def test_host_work_is_long_by_the_threads_own_pace_and_never_where_all_of_it_is() -> None:
    quick = [*range(0, 20 * PACE, PACE), 20 * PACE + 200_000]
    own = host_in(launched(*quick), rows("api_calls", called(*quick)), _NONE, pieces((0, 10**9)))
    # The last launch of a burst costs its call.
    assert (own.long_ns, own.pace_ns) == (160_000, 20 * PACE - PACE + 2 * 1_000)
    assert own.working_ns == quick[-1] - quick[-2] - 1_000
    # A thread that takes longer than a framework's way to the next launch each time works each time.
    slow = list(range(0, 10 * LAUNCH_PACE_NS * 2, LAUNCH_PACE_NS * 2))
    own = host_in(launched(*slow), rows("api_calls", called(*slow)), _NONE, pieces((0, 10**9)))
    assert (own.long_ns, own.working_ns, own.pace_ns) == (LAUNCH_PACE_NS, 9 * (LAUNCH_PACE_NS * 2 - 1_000), 10 * 1_000)


def test_a_launch_that_a_wait_or_an_allocation_holds_up_is_no_pace() -> None:
    at = list(range(0, 10 * PACE, PACE))
    calls = [*called(*at), {**_THREAD, "call_id": 99, "start_ns": 4 * PACE + 2_000, "end_ns": 5 * PACE - 1_000}]
    held = pl.DataFrame({"call_id": pl.Series([99], dtype=pl.Int32)})
    own = host_in(launched(*at), rows("api_calls", calls), held, pieces((0, 10**9)))
    assert own.pace_ns == 8 * PACE + 2 * 1_000
    assert host_in(launched(*at), rows("api_calls", calls), _NONE, pieces((0, 10**9))).pace_ns == 9 * PACE + 1_000


def test_the_way_to_a_copy_is_the_copys() -> None:
    """A result that is read back: what the framework does from the kernel's launch to the copy's goes with it."""
    at = list(range(0, 10 * PACE, PACE))
    copies = launched(*at).with_columns(activity_kind=pl.Series(["dispatch", "memory_copy"] * 5))
    own = host_in(copies, rows("api_calls", called(*at)), _NONE, pieces((0, 10**9)))
    assert own.pace_ns == 5 * 1_000


def test_of_several_threads_one_that_waits_for_another_does_not_work() -> None:
    """The first launches, then the second for long, as a framework's backward pass does from a thread of its own."""
    at = list(range(0, 100 * PACE, PACE))
    two = launched(*at).with_columns(call_thread_id=pl.Series([1] * 10 + [2] * 80 + [1] * 10))
    calls = [{**one, "thread_id": 2 if 10 <= i < 90 else 1} for i, one in enumerate(called(*at))]
    assert host_in(two, rows("api_calls", calls), _NONE, pieces((0, 10**9))).working_ns == 0


def test_what_an_operator_does_behind_its_last_call_is_no_pause() -> None:
    at = [*range(0, 10 * PACE, PACE), 20 * PACE + 200_000]
    around = {**_THREAD, "call_id": 99, "start_ns": 0, "end_ns": at[-1]}
    calls = rows("api_calls", [around, *called(*at)])
    assert host_in(launched(*at), calls, _NONE, pieces((0, 10**9))).working_ns == 0


def test_what_lies_outside_the_window_counts_for_nothing() -> None:
    at = [0, PACE, 2 * PACE, 500_000, 500_000 + PACE]
    own = host_in(launched(*at), rows("api_calls", called(*at)), _NONE, pieces((0, 300_000)))
    assert own.working_ns == 0  # The work ends beyond the window, in a call of no launch in it.
    assert own.pace_ns == 2 * PACE
    nothing = host_in(launched(*at).clear(), rows("api_calls"), _NONE, pieces((0, 300_000)))
    assert nothing == Host(LAUNCH_PACE_NS, 0, 0)


@pytest.mark.parametrize(
    ("cause", "more", "expected"),
    [
        ("sync", {}, {"wait": 100_000}),
        ("dependency", {}, {"wait": 100_000}),
        ("launch_latency", {"launches_since_wait": 3}, {"restart": 100_000}),
        ("kernel_kernel", {"launches_since_wait": 3}, {"pace": 100_000}),
        ("host_wait", {"outside_ns": 40_000}, {"pace": 100_000}),
        ("host_wait", {"outside_ns": 60_000}, {"pace": 40_000, "work": 60_000}),
        ("unknown", {}, {}),
        ("sync", {"doubt": "stream_missing"}, {}),
    ],
)
def test_each_gap_has_its_part(cause: str, more: dict[str, Any], expected: dict[str, int]) -> None:
    found = idle_parts(rows("gaps", [gap(0, 100_000, cause, **more)]), rows("api_calls"), whole(100_000), 50_000)
    own = found.drop("after_copy", "after_work").row(0, named=True)
    assert {name: time for name, time in own.items() if time} == expected


def test_what_restarts_belongs_to_the_last_wait() -> None:
    """A wait for a copy, one behind which the host works for long, and one of neither, each with a restart."""
    worked = {"host_call_id": 7, "in_launch_calls_ns": 0, "in_launching_operators_ns": 0}
    restart = {"launches_since_wait": 2}
    idle = [
        gap(0, 10, "launch_latency", **restart),
        gap(100, 110, "sync", previous_activity_kind="memory_copy"),
        gap(200, 210, "launch_latency", **restart),
        gap(1_000, 5_001_000, "sync", previous_activity_kind="dispatch", **worked),
        gap(5_002_000, 5_002_010, "launch_latency", **restart),
        gap(6_000_000, 6_000_010, "sync", previous_activity_kind="dispatch"),
        gap(6_001_000, 6_001_010, "launch_latency", **restart),
    ]
    calls = rows("api_calls", [{"call_id": 7, "start_ns": 0, "end_ns": 2_000}])
    found = idle_parts(rows("gaps", idle).reverse(), calls, whole(10**9), LAUNCH_PACE_NS)
    assert found.get_column("after_copy").to_list() == [False, True, True, False, False, False, False]
    assert found.get_column("after_work").to_list() == [False, False, False, True, True, False, False]
    assert found.row(3, named=True)["waited_work"] == 4_999_000
