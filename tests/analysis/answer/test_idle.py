"""Which part of idle time is which, and from which length on the host's work between two launches is its own."""

from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.analysis.answer.idle import LAUNCH_PACE_NS, PARTS, Host, host_in, idle_parts
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
    # The way from the wait's end is there, and the call before the wait.
    assert own.pace_ns == 8 * PACE + 1_000 + 2 * 1_000
    assert host_in(launched(*at), rows("api_calls", calls), _NONE, pieces((0, 10**9))).pace_ns == 9 * PACE + 1_000


def test_the_way_to_a_copy_is_the_copys() -> None:
    """What the framework does from a kernel's launch to the copy's goes with it; what it does behind it does not."""
    at = list(range(0, 10 * PACE, PACE))
    copies = launched(*at).with_columns(activity_kind=pl.Series(["dispatch", "memory_copy"] * 5))
    own = host_in(copies, rows("api_calls", called(*at)), _NONE, pieces((0, 10**9)))
    assert own.pace_ns == 5 * 1_000 + 4 * (PACE - 1_000)
    # Nor does it tell how long the way to a launch usually is.
    assert own.long_ns == LAUNCH_PACE_NS


def test_a_way_behind_a_wait_is_no_longer_than_a_usual_one_and_copies_over_the_link_have_none() -> None:
    """What a program does behind a wait may be there for its sake; so may a copy that it waits for."""
    at = [*range(0, 10 * PACE, PACE), 9 * PACE + 50_000]
    calls = [*called(*at), {**_THREAD, "call_id": 99, "start_ns": 9 * PACE + 2_000, "end_ns": 9 * PACE + 4_000}]
    held = pl.DataFrame({"call_id": pl.Series([99], dtype=pl.Int32)})
    own = host_in(launched(*at), rows("api_calls", calls), held, pieces((0, 10**9)))
    assert own.pace_ns == 9 * PACE + 1_000 + PACE + 1_000
    kinds = pl.Series(["dispatch"] * 4 + ["memory_copy"] * 3 + ["dispatch"] * 4)
    moved = launched(*at).with_columns(activity_kind=kinds, activity_id=pl.Series(range(11), dtype=pl.Int32))
    copies = [
        {"copy_id": 4, "direction": "host_to_device"},
        {"copy_id": 5, "direction": "device_to_host"},
        {"copy_id": 6, "direction": "fill"},
    ]
    found = host_in(moved, rows("api_calls", calls), held, pieces((0, 10**9)), rows("memory_copies", copies))
    # Two ways less, and of what follows them the way from where they return.
    assert own.pace_ns - found.pace_ns == 2 * PACE + 1_000 - 1_000


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
    assert own.pace_ns == 2 * PACE + 1_000
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
    own = found.drop("after_copy", "after_work", "allocating").row(0, named=True)
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


#: A copy from the host, one to it, one within the device and a kernel, by the kind and number that a gap names.
COPIES: Final = ("host_to_device", "device_to_host", "device_to_device")


@pytest.mark.parametrize(
    ("cause", "around", "more", "expected"),
    [
        # From one copy over the link to the next, whatever the host does in it but for long work of its own.
        ("host_wait", (0, 1), {}, {"copying": 100}),
        ("launch_latency", (0, 0), {"launches_since_wait": 2}, {"copying": 100}),
        ("host_wait", (0, 0), {"outside_ns": 60}, {"copying": 40, "work": 60}),
        # A wait within the copy's own call is its cost where it is longer than the copy; one in another call is a wait.
        ("sync", (0, 0), {"host_call_id": 1}, {"copying": 100}),
        ("sync", (1, 0), {"host_call_id": 1}, {"wait": 100}),
        ("sync", (1, 1), {"host_call_id": 2}, {"wait": 100}),
        # From a kernel to a copy only its call, which begins at 70.
        ("host_wait", (None, 0), {"host_call_id": 3}, {"copying": 30, "pace": 70}),
        ("host_wait", (0, None), {"host_call_id": 3}, {"pace": 100}),
        # Copies within the device are launched as kernels are, and behind a wait a copy is the restart's.
        ("host_wait", (2, 2), {"host_call_id": 3}, {"pace": 100}),
        ("host_wait", (None, 0), {"host_call_id": 3, "launches_since_wait": 2}, {"restart": 100}),
        ("unknown", (0, 0), {}, {}),
        ("host_wait", (0, 0), {"doubt": "stream_missing"}, {}),
    ],
)
def test_the_way_from_one_copy_to_the_next_is_what_copying_costs(
    cause: str, around: tuple[int | None, int | None], more: dict[str, Any], expected: dict[str, int]
) -> None:
    sides = {
        f"{side}_activity_{what}": value
        for side, copy in zip(("previous", "next"), around, strict=True)
        for what, value in (("kind", "dispatch" if copy is None else "memory_copy"), ("id", copy or 0))
    }
    calls = [
        {"call_id": 1, "name": "hipMemcpy", "start_ns": -5, "end_ns": 90},
        {"call_id": 2, "name": "hipStreamSynchronize", "start_ns": -5, "end_ns": 90},
        {"call_id": 3, "name": "hipMemcpy", "start_ns": 70, "end_ns": 200},
    ]
    lengths = (99, 100, 100)
    listed = [
        {"copy_id": i, "direction": one, "start_ns": -length, "end_ns": 0}
        for i, (one, length) in enumerate(zip(COPIES, lengths, strict=True))
    ]
    copies = rows("memory_copies", listed)
    own = {"in_launch_calls_ns": 0, "in_launching_operators_ns": 0, "outside_ns": 0, **sides, **more}
    found = idle_parts(rows("gaps", [gap(0, 100, cause, **own)]), rows("api_calls", calls), whole(100), 50, copies)
    assert {name: found.item(0, name) for name in PARTS if found.item(0, name)} == expected
    # Without the copies' directions there is no telling.
    bare = idle_parts(rows("gaps", [gap(0, 100, cause, **own)]), rows("api_calls", calls), whole(100), 50)
    assert bare.get_column("copying").sum() == 0


def test_time_in_calls_that_allocate_is_told_of_each_gap() -> None:
    calls = [
        {"call_id": 1, "name": "hipHostMalloc", "start_ns": 20, "end_ns": 50},
        {"call_id": 2, "name": "hipMallocAsync", "start_ns": 50, "end_ns": 90},
    ]
    gaps = rows("gaps", [gap(0, 40, "host_wait"), gap(60, 100, "host_wait")])
    found = idle_parts(gaps, rows("api_calls", calls), whole(100), LAUNCH_PACE_NS)
    assert found.get_column("allocating").to_list() == [20, 0]
