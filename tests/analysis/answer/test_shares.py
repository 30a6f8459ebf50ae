"""Every nanosecond of the window is in exactly one share, whatever was recorded and however the window cuts it."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.answer.idle import LAUNCH_PACE_NS, LAUNCHES_TO_RUN_AHEAD
from aaco_pipeline.analysis.answer.shares import (
    SHARES,
    device_shares,
    host_shares,
    largest,
    on_cpu_ratio,
)
from aaco_pipeline.analysis.sessions.iteration_gaps import Usage
from tests.analysis.answer.made_up import activities, gap, pieces, recordings, rows

NO_CALLS = rows("api_calls")
Recording = tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]


def length(window: pl.DataFrame) -> int:
    return sum(end - start for start, end in window.iter_rows())


@given(recordings())
def test_shares_of_a_device_add_up_to_the_window_to_the_nanosecond(recorded: Recording) -> None:
    ran, idle, window = recorded
    found = device_shares(ran, idle, NO_CALLS, window)
    assert sum(found.values()) == length(window)
    assert not found or tuple(found) == SHARES
    assert min(found.values(), default=0) >= 0


@given(recordings(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_no_share(recorded: Recording, random: st.DataObject) -> None:
    ran, idle, window = recorded
    mixed, mixed_idle = (frame.sample(fraction=1, shuffle=True, seed=random.randrange(99)) for frame in (ran, idle))  # type: ignore[attr-defined]
    assert device_shares(mixed, mixed_idle, NO_CALLS, window) == device_shares(ran, idle, NO_CALLS, window)


@given(recordings(), st.integers(-(10**15), 10**15))
def test_when_the_recording_began_changes_no_share(recorded: Recording, shift: int) -> None:
    ran, idle, window = (frame.with_columns(pl.col("start_ns", "end_ns") + shift) for frame in recorded)
    assert device_shares(ran, idle, NO_CALLS, window) == device_shares(recorded[0], recorded[1], NO_CALLS, recorded[2])


@given(recordings())
def test_pieces_that_touch_are_one_window(recorded: Recording) -> None:
    ran, idle, _ = recorded
    low, high = int(ran.get_column("start_ns").to_numpy().min()), int(ran.get_column("end_ns").to_numpy().max())
    whole, middle = device_shares(ran, idle, NO_CALLS, pieces((low, high))), (low + high) // 2
    if low < middle < high:
        busy = ("device", "copy", "communication")
        cut = device_shares(ran, idle, NO_CALLS, pieces((low, middle), (middle, high)))
        assert [cut[name] for name in busy] == [whole[name] for name in busy]


def test_a_kernel_goes_before_a_copy_and_a_copy_before_a_collective() -> None:
    ran = activities((0, 40, "compute"), (30, 60, "copy"), (50, 100, "communication"))
    found = device_shares(ran, rows("gaps"), NO_CALLS, pieces((0, 100)))
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
    found = device_shares(ran, rows("gaps", [gap(10, 100_010, cause, **more)]), NO_CALLS, pieces((0, 100_020)))
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
    found = device_shares(ran, rows("gaps", [gap(0, 141_000_000, "sync", **idle)]), calls, pieces((-10, 141_000_010)))
    assert {name: time for name, time in found.items() if time} == {"device": 20, **expected}


def test_a_gap_that_the_window_cuts_gives_its_part() -> None:
    ran = activities((0, 10, "compute"), (110, 120, "compute"))
    idle = rows("gaps", [gap(10, 110, "sync")])
    assert device_shares(ran, idle, NO_CALLS, pieces((0, 60))) | {} == dict.fromkeys(SHARES, 0) | {
        "device": 10,
        "sync": 50,
    }
    assert device_shares(ran, idle, NO_CALLS, pieces((60, 60))) == {}


def test_of_equal_shares_the_order_is_always_the_same() -> None:
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
