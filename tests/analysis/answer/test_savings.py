"""What must remain of a window once a cause is gone, and what that leaves to be saved: never less than is gained."""

from dataclasses import replace
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.analysis.answer.idle import PARTS, Host
from aaco_pipeline.analysis.answer.savings import (
    DIFFERS,
    PAGE_BYTES,
    PAGE_NS,
    STAMPING_NS,
    Held,
    Unprofiled,
    busy_by_copies,
    saved,
    saved_unprofiled,
)
from tests.analysis.answer.made_up import pieces, rows

#: A window of 1 ms: 300 µs of kernels, 100 µs of copies, of which 40 µs read back, and 600 µs idle.
_BUSY: Final = {"all": 400_000, "but read-backs": 360_000, "none": 300_000}


def idle(**parts: int) -> dict[str, Any]:
    return {**dict.fromkeys(PARTS, 0), "after_copy": False, "after_work": False, **parts}


def held(*gaps: dict[str, Any], working: int = 0, pace: int = 0, kernels: int = 0, fresh: int = 0) -> Held:
    listed = pl.DataFrame([*gaps, idle()])
    return Held(1_000_000, _BUSY, kernels, listed, Host(30_000, working, pace), fresh)


def stays(busy: int) -> int:
    return round((1 - DIFFERS) * busy)


def test_a_graph_does_away_with_launching_and_not_with_a_wait_or_the_work_behind_it() -> None:
    window = held(idle(pace=300_000), idle(restart=50_000), idle(wait=100_000, waited_work=150_000))
    assert saved("launch", 0, 0, window) == 1_000_000 - stays(400_000) - 250_000


def test_work_beside_launches_is_hidden_up_to_its_own_length() -> None:
    """Without a wait the host's work runs beside the device once launching is done: the longer of the two remains."""
    short, long = (held(idle(pace=400_000, work=200_000), working=length) for length in (200_000, 500_000))
    assert saved("launch", 0, 0, short) == 1_000_000 - stays(400_000)
    assert saved("launch", 0, 0, long) == 500_000


def test_without_waits_their_copies_go_and_the_host_runs_ahead() -> None:
    window = held(idle(wait=300_000), idle(restart=100_000, pace=200_000))
    assert saved("sync", 400_000, 0, window) == 1_000_000 - stays(360_000)
    assert saved("sync", 400_000, 0, replace(window, host=Host(30_000, 0, 700_000))) == 300_000
    assert saved("sync", 400_000, 0, replace(window, host=Host(30_000, 800_000, 0))) == 200_000


def test_work_off_the_path_takes_its_own_wait_along_and_no_other() -> None:
    own = [idle(wait=50_000, waited_work=300_000, after_work=True), idle(restart=50_000, after_work=True)]
    other = [idle(wait=150_000), idle(restart=50_000)]
    # The work itself does not hold it back, whatever its length.
    window = held(*own, *other, working=900_000)
    assert saved("host", 300_000, 0, window) == 1_000_000 - stays(400_000) - 200_000
    launching = replace(window, host=Host(30_000, 900_000, 700_000))
    assert saved("host", 300_000, 0, launching) == 300_000


def test_a_copys_wait_goes_with_it_and_others_stay() -> None:
    window = held(idle(wait=100_000, after_copy=True), idle(restart=50_000, after_copy=True), idle(wait=200_000))
    assert saved("copy", 100_000, 0, window) == 1_000_000 - stays(300_000) - 200_000


def test_allocating_takes_the_fresh_pages_along_and_no_wait_but_what_it_fills_of_one() -> None:
    window = held(idle(work=200_000), idle(wait=200_000), fresh=10 * PAGE_BYTES + 1)
    assert saved("allocation", 200_000, 0, window) == 1_000_000 - (stays(400_000) - 11 * PAGE_NS) - 200_000
    assert saved("allocation", 200_000, 150_000, window) == 1_000_000 - (stays(400_000) - 11 * PAGE_NS) - 50_000
    # Of no other cause the memory is new.
    assert saved("launch", 0, 0, replace(window, fresh_bytes=0)) == saved("launch", 0, 0, window)


def test_a_record_holds_its_stamping() -> None:
    assert saved("launch", 0, 0, held(kernels=100)) == 1_000_000 - stays(400_000) + 100 * STAMPING_NS
    assert saved("launch", 0, 0, held(kernels=10**6)) == 1_000_000


@pytest.mark.parametrize("name", ["communication", "imbalance", "throttling", "contention", "compilation"])
def test_other_classes_go_alone(name: str) -> None:
    window = held(idle(pace=300_000))
    assert saved(name, 70_000, 0, window) == 70_000
    assert saved_unprofiled(name, 70_000, 0, window, Unprofiled(10, 90_000.0, 100_000.0)) == 7_000


# ---- without a profiler ----------------------------------------------------------------------------------------------


def test_what_the_tracer_added_is_not_saved() -> None:
    """Ten repetitions of 100 µs under the tracer that take 60 µs without it: the device still needs its own."""
    window = held(idle(pace=600_000))
    found = saved_unprofiled("launch", 600_000, 0, window, Unprofiled(10, 60_000.0, 100_000.0))
    assert found == 60_000 - stays(40_000)
    # Device work is not slowed, so a wait that stays is shorter as launching is: half of 300 µs each in 200 of 600.
    waits = held(idle(pace=300_000), idle(wait=300_000))
    found = saved_unprofiled("launch", 300_000, 0, waits, Unprofiled(10, 60_000.0, 100_000.0))
    assert found == 60_000 - stays(40_000) - 10_000
    # The host's own long work is not.
    works = held(idle(pace=300_000), idle(waited_work=150_000, wait=150_000))
    found = saved_unprofiled("launch", 300_000, 0, works, Unprofiled(10, 60_000.0, 100_000.0))
    assert found == 60_000 - stays(40_000) - 15_000 - 1_667


def test_launching_that_goes_on_is_as_slow_as_without_the_tracer() -> None:
    """A sleep of 40 µs beside launching of 60 µs, of which the tracer adds 20: it saves the sleep and nothing more."""
    window = held(idle(work=400_000), working=400_000, pace=600_000)
    window = replace(window, busy_ns=dict.fromkeys(_BUSY, 100_000))
    found = saved_unprofiled("host", 400_000, 0, window, Unprofiled(10, 80_000.0, 100_000.0))
    assert found == 40_000
    assert saved_unprofiled("host", 400_000, 0, window, Unprofiled(10, 200_000.0, 100_000.0)) == 140_000


def test_marks_that_close_before_the_device_is_done_say_nothing() -> None:
    window = held(idle(pace=600_000))
    assert saved_unprofiled("launch", 0, 0, window, Unprofiled(10, stays(40_000) + 1.0, 100_000.0)) == 1
    # Copies are paced by the host and differ between processes: what kernels need decides.
    assert saved_unprofiled("launch", 0, 0, window, Unprofiled(10, stays(30_000) + 1.0, 100_000.0)) == 0
    assert saved_unprofiled("launch", 0, 0, window, Unprofiled(10, stays(30_000) - 1.0, 100_000.0)) is None
    assert saved_unprofiled("device", 9, 0, window, Unprofiled(10, stays(30_000) - 1.0, 100_000.0)) is None


def test_copies_that_read_back_and_all_copies_are_told_apart() -> None:
    ran = pl.DataFrame(
        [
            {"start_ns": 0, "end_ns": 40, "category": "compute", "activity_kind": "dispatch", "activity_id": 1},
            {"start_ns": 30, "end_ns": 60, "category": "copy", "activity_kind": "memory_copy", "activity_id": 1},
            {"start_ns": 60, "end_ns": 90, "category": "copy", "activity_kind": "memory_copy", "activity_id": 2},
            {"start_ns": 90, "end_ns": 95, "category": "communication", "activity_kind": "dispatch", "activity_id": 2},
        ]
    ).with_columns(pl.col("activity_id").cast(pl.Int32))
    copies = rows("memory_copies", [{"copy_id": 1, "direction": "device_to_host"}, {"copy_id": 2, "direction": "fill"}])
    assert busy_by_copies(ran, copies, pieces((0, 100))) == {"all": 95, "but read-backs": 75, "none": 45}
