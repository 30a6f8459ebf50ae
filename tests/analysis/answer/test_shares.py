"""Every nanosecond of the window is in exactly one share, whatever was recorded and however the window cuts it.

Which part of idle time is which, and from which length on the host's work between two launches is its own.
"""

from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.answer.shares import (
    LAUNCH_PACE_NS,
    LAUNCHES_TO_RUN_AHEAD,
    PARTS,
    SHARES,
    Host,
    device_shares,
    host_in,
    host_shares,
    idle_parts,
    largest,
    on_cpu_ratio,
)
from aaco_pipeline.analysis.sessions.metrics import Usage
from aaco_pipeline.analysis.timeline.device_timeline import Coverage, covered_by
from tests.analysis.answer.made_up import activities, gap, pieces, recordings, rows

NO_CALLS, NO_COPIES = rows("api_calls"), rows("memory_copies")
Recording = tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]


def shares(
    ran: pl.DataFrame, idle: pl.DataFrame, window: pl.DataFrame, calls: pl.DataFrame = NO_CALLS
) -> dict[str, int]:
    return device_shares(ran, idle, calls, window, NO_COPIES, long_ns=LAUNCH_PACE_NS)


def length(window: pl.DataFrame) -> int:
    return sum(end - start for start, end in window.iter_rows())


@given(recordings())
def test_shares_of_a_device_add_up_to_the_window_to_the_nanosecond(recorded: Recording) -> None:
    ran, idle, window = recorded
    found = shares(ran, idle, window)
    assert sum(found.values()) == length(window)
    assert not found or tuple(found) == SHARES
    assert min(found.values(), default=0) >= 0


@given(recordings(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_no_share(recorded: Recording, random: st.DataObject) -> None:
    ran, idle, window = recorded
    mixed, mixed_idle = (frame.sample(fraction=1, shuffle=True, seed=random.randrange(99)) for frame in (ran, idle))  # type: ignore[attr-defined]
    assert shares(mixed, mixed_idle, window) == shares(ran, idle, window)


@given(recordings(), st.integers(-(10**15), 10**15))
def test_when_the_recording_began_changes_no_share(recorded: Recording, shift: int) -> None:
    ran, idle, window = (frame.with_columns(pl.col("start_ns", "end_ns") + shift) for frame in recorded)
    assert shares(ran, idle, window) == shares(recorded[0], recorded[1], recorded[2])


@given(recordings())
def test_pieces_that_touch_are_one_window(recorded: Recording) -> None:
    ran, idle, _ = recorded
    low, high = int(ran.get_column("start_ns").to_numpy().min()), int(ran.get_column("end_ns").to_numpy().max())
    whole, middle = shares(ran, idle, pieces((low, high))), (low + high) // 2
    if low < middle < high:
        busy = ("device", "copy", "communication")
        cut = shares(ran, idle, pieces((low, middle), (middle, high)))
        assert [cut[name] for name in busy] == [whole[name] for name in busy]


def test_a_kernel_goes_before_a_copy_and_a_copy_before_a_collective() -> None:
    ran = activities((0, 40, "compute"), (30, 60, "copy"), (50, 100, "communication"))
    found = shares(ran, rows("gaps"), pieces((0, 100)))
    assert {name: time for name, time in found.items() if time} == {"device": 40, "copy": 20, "communication": 40}


@pytest.mark.parametrize(
    ("cause", "more", "expected"),
    [
        ("sync", {}, "sync"),
        ("dependency", {}, "sync"),
        ("launch_latency", {}, "launch"),
        ("kernel_kernel", {}, "launch"),
        ("unknown", {}, "unknown"),
        # The launches right after a wait cannot be ahead of the device.
        ("host_wait", {"launches_since_wait": LAUNCHES_TO_RUN_AHEAD}, "sync"),
        ("launch_latency", {"launches_since_wait": 1}, "sync"),
        ("host_wait", {"launches_since_wait": LAUNCHES_TO_RUN_AHEAD + 1, "outside_ns": 0}, "launch"),
        # A framework on its way to the next launch is no work of the host's own; for longer it is.
        ("host_wait", {"outside_ns": LAUNCH_PACE_NS}, "launch"),
        ("host_wait", {"outside_ns": LAUNCH_PACE_NS + 1}, "both"),
        ("host_wait", {}, "host"),
        # Work may have run there that was not recorded.
        ("sync", {"doubt": "stream_missing"}, "unknown"),
    ],
)
def test_idle_time_goes_to_what_binds_the_next_activity(cause: str, more: dict[str, object], expected: str) -> None:
    ran = activities((0, 10, "compute"), (100_010, 100_020, "compute"))
    found = shares(ran, rows("gaps", [gap(10, 100_010, cause, **more)]), pieces((0, 100_020)))
    assert found["device"] == 20
    own = {name: time for name, time in found.items() if time and name != "device"}
    away = LAUNCH_PACE_NS + 1
    assert own == ({"host": away, "launch": 100_000 - away} if expected == "both" else {expected: 100_000})


@pytest.mark.parametrize(
    ("waited_until", "more", "expected"),
    [
        # The wait ends with the device's work, and the thread loads data for 140 ms before it launches again.
        (60_000, {"outside_ns": 141_000_000}, {"host": 140_940_000, "sync": 60_000}),
        # The device stands still while the wait goes on: nothing of it is the host's own work.
        (141_000_000, {"outside_ns": 141_000_000}, {"sync": 141_000_000}),
        # Launching calls and their operators after the wait are the way to the next launch.
        (0, {"in_launching_operators_ns": 140_500_000, "outside_ns": 500_000}, {"sync": 141_000_000}),
    ],
)
def test_a_wait_binds_until_it_ends_and_not_through_the_hosts_own_long_work(
    waited_until: int, more: dict[str, int], expected: dict[str, int]
) -> None:
    ran = activities((-10, 0, "compute"), (141_000_000, 141_000_010, "compute"))
    calls = rows("api_calls", [{"call_id": 7, "start_ns": -5, "end_ns": waited_until}])
    idle = {"host_call_id": 7, "in_launch_calls_ns": 0, "in_launching_operators_ns": 0, **more}
    found = shares(ran, rows("gaps", [gap(0, 141_000_000, "sync", **idle)]), pieces((-10, 141_000_010)), calls)
    assert {name: time for name, time in found.items() if time} == {"device": 20, **expected}


def test_a_gap_that_the_window_cuts_gives_its_part() -> None:
    ran = activities((0, 10, "compute"), (110, 120, "compute"))
    idle = rows("gaps", [gap(10, 110, "sync")])
    assert shares(ran, idle, pieces((0, 60))) | {} == dict.fromkeys(SHARES, 0) | {"device": 10, "sync": 50}
    assert shares(ran, idle, pieces((60, 60))) == {}


def test_the_order_of_equal_shares_is_always_the_same() -> None:
    assert largest({"host": 5, "sync": 5, "device": 1, "copy": 0}) == ["sync", "host", "device"]


# ---- the processor ---------------------------------------------------------------------------------------------------

counts = st.integers(1, 10**13)


@given(counts, st.none() | counts, st.none() | counts, st.none() | counts, counts)
def test_shares_on_the_processor_add_up_and_contention_is_within_them(
    window: int, cpu: int | None, delay: int | None, traced: int | None, operators: int
) -> None:
    iterations = 3
    unprofiled = Usage(iterations, window, cpu, delay)
    found, contended = host_shares(unprofiled, Usage(iterations if traced else 0, traced or 0, cpu, delay), operators)
    assert sum(found.values()) == (0 if cpu is None else window)
    assert all(time >= 0 for time in found.values())
    assert all(0 <= time <= found[name] for name, time in contended.items())


def test_threads_that_wait_for_a_cpu_are_contended_and_those_that_sleep_are_the_hosts() -> None:
    usage = Usage(2, 1000, 300, 300)
    found, contended = host_shares(usage, usage, 600)
    assert found["host"] == 400
    assert (found["device"], found["launch"]) == (600, 0)
    assert contended == {"device": 300}
    assert on_cpu_ratio(usage) == 0.5


def test_operators_no_longer_than_their_start_leave_all_to_the_runtime() -> None:
    usage = Usage(2, 1000, 700, 0)
    found, _ = host_shares(usage, usage, 0)
    assert (found["launch"], found["device"], found["unknown"]) == (700, 0, 0)


def test_without_a_traced_pass_nothing_tells_operators_from_the_runtime() -> None:
    for traced, operators in ((Usage(0, 0, None, None), 0), (Usage(2, 1000, 700, 0), None)):
        found, contended = host_shares(Usage(2, 1000, 700, 0), traced, operators)
        assert (found["unknown"], found["host"], contended) == (700, 300, {})
    assert on_cpu_ratio(Usage(0, 0, None, None)) == 1


_THREAD: Final = {"process_id": 0, "thread_id": 1}
_NONE: Final = pl.DataFrame(schema={"call_id": pl.Int32})
#: Launches of 1 µs every 10 µs.
PACE: Final = 10_000


def launched(*at: int, **more: Any) -> pl.DataFrame:
    """Activities of one device by the beginnings of their launches, which take 1 µs; call_id is their place."""
    listed = [
        {
            "activity_kind": "dispatch",
            "activity_id": i,
            "call_id": i,
            "call_start_ns": start,
            "call_end_ns": start + 1_000,
        }
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
    own = host_in(launched(*quick), rows("api_calls", called(*quick)), _NONE, pieces((0, 10**9)), NO_COPIES)
    # The last launch of a burst costs its call.
    assert (own.long_ns, own.pace_ns) == (160_000, 20 * PACE - PACE + 2 * 1_000)
    assert own.working_ns == quick[-1] - quick[-2] - 1_000
    # A thread that takes longer than a framework's way to the next launch each time works each time.
    slow = list(range(0, 10 * LAUNCH_PACE_NS * 2, LAUNCH_PACE_NS * 2))
    own = host_in(launched(*slow), rows("api_calls", called(*slow)), _NONE, pieces((0, 10**9)), NO_COPIES)
    assert (own.long_ns, own.working_ns, own.pace_ns) == (LAUNCH_PACE_NS, 9 * (LAUNCH_PACE_NS * 2 - 1_000), 10 * 1_000)


def test_a_launch_that_a_wait_or_an_allocation_holds_up_is_no_pace() -> None:
    at = list(range(0, 10 * PACE, PACE))
    calls = [*called(*at), {**_THREAD, "call_id": 99, "start_ns": 4 * PACE + 2_000, "end_ns": 5 * PACE - 1_000}]
    held = pl.DataFrame({"call_id": pl.Series([99], dtype=pl.Int32)})
    own = host_in(launched(*at), rows("api_calls", calls), held, pieces((0, 10**9)), NO_COPIES)
    # The way from the wait's end is there, and the call before the wait.
    assert own.pace_ns == 8 * PACE + 1_000 + 2 * 1_000
    assert (
        host_in(launched(*at), rows("api_calls", calls), _NONE, pieces((0, 10**9)), NO_COPIES).pace_ns
        == 9 * PACE + 1_000
    )


def test_the_way_to_a_copy_is_the_copys() -> None:
    """Framework work between a kernel's launch and the copy's belongs to the copy; later work does not."""
    at = list(range(0, 10 * PACE, PACE))
    moved = launched(*at).with_columns(
        activity_kind=pl.Series(["dispatch", "memory_copy"] * 5), activity_id=pl.Series(range(10), dtype=pl.Int32)
    )
    copies = rows("memory_copies", [{"copy_id": i, "direction": "host_to_device"} for i in range(1, 10, 2)])
    own = host_in(moved, rows("api_calls", called(*at)), _NONE, pieces((0, 10**9)), copies)
    assert own.pace_ns == 5 * 1_000 + 4 * (PACE - 1_000)
    # Nor does it tell how long the way to a launch usually is.
    assert own.long_ns == LAUNCH_PACE_NS


def test_a_way_behind_a_wait_is_no_longer_than_a_usual_one_and_copies_over_the_link_have_none() -> None:
    """Work after a wait may depend on it; so may a copy that the program waits for."""
    at = [*range(0, 10 * PACE, PACE), 9 * PACE + 50_000]
    calls = [*called(*at), {**_THREAD, "call_id": 99, "start_ns": 9 * PACE + 2_000, "end_ns": 9 * PACE + 4_000}]
    held = pl.DataFrame({"call_id": pl.Series([99], dtype=pl.Int32)})
    own = host_in(launched(*at), rows("api_calls", calls), held, pieces((0, 10**9)), NO_COPIES)
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


def test_a_thread_that_waits_for_another_does_not_work() -> None:
    """The first launches, then the second for long, as a framework's backward pass does from a thread of its own."""
    at = list(range(0, 100 * PACE, PACE))
    two = launched(*at).with_columns(call_thread_id=pl.Series([1] * 10 + [2] * 80 + [1] * 10))
    calls = [{**one, "thread_id": 2 if 10 <= i < 90 else 1} for i, one in enumerate(called(*at))]
    assert host_in(two, rows("api_calls", calls), _NONE, pieces((0, 10**9)), NO_COPIES).working_ns == 0


def test_work_of_an_operator_after_its_last_call_is_no_pause() -> None:
    at = [*range(0, 10 * PACE, PACE), 20 * PACE + 200_000]
    around = {**_THREAD, "call_id": 99, "start_ns": 0, "end_ns": at[-1]}
    calls = rows("api_calls", [around, *called(*at)])
    assert host_in(launched(*at), calls, _NONE, pieces((0, 10**9)), NO_COPIES).working_ns == 0


def test_time_outside_the_window_is_ignored() -> None:
    at = [0, PACE, 2 * PACE, 500_000, 500_000 + PACE]
    own = host_in(launched(*at), rows("api_calls", called(*at)), _NONE, pieces((0, 300_000)), NO_COPIES)
    assert own.working_ns == 0  # The work ends beyond the window, in a call of no launch in it.
    assert own.pace_ns == 2 * PACE + 1_000
    nothing = host_in(launched(*at).clear(), rows("api_calls"), _NONE, pieces((0, 300_000)), NO_COPIES)
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
    found = idle_parts(
        rows("gaps", [gap(0, 100_000, cause, **more)]), rows("api_calls"), whole(100_000), 50_000, NO_COPIES
    )
    own = found.drop("after_copy", "after_work", "allocating").row(0, named=True)
    assert {name: time for name, time in own.items() if time} == expected


def test_a_restart_belongs_to_the_last_wait() -> None:
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
    found = idle_parts(rows("gaps", idle).reverse(), calls, whole(10**9), LAUNCH_PACE_NS, NO_COPIES)
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
    bare = idle_parts(rows("gaps", [gap(0, 100, cause, **own)]), rows("api_calls", calls), whole(100), 50, NO_COPIES)
    assert bare.get_column("copying").sum() == 0


def test_each_gap_has_its_time_in_allocating_calls() -> None:
    calls = [
        {"call_id": 1, "name": "hipHostMalloc", "start_ns": 20, "end_ns": 50},
        {"call_id": 2, "name": "hipMallocAsync", "start_ns": 50, "end_ns": 90},
    ]
    gaps = rows("gaps", [gap(0, 40, "host_wait"), gap(60, 100, "host_wait")])
    found = idle_parts(gaps, rows("api_calls", calls), whole(100), LAUNCH_PACE_NS, NO_COPIES)
    assert found.get_column("allocating").to_list() == [20, 0]
