"""Our own threads are called in the kernel what they are, give way, and wake together."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.resources.telemetry.own_threads import give_way, name_this_thread, next_instant

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system has no /proc")


def test_the_kernel_calls_the_thread_by_its_name_and_no_other() -> None:
    before = Path(f"/proc/self/task/{os.getpid()}/comm").read_text()
    told: list[str] = []

    def run() -> None:
        name_this_thread("aaco sampler, whose name is cut")
        told.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert told == ["aaco sampler, w\n"]
    assert Path(f"/proc/self/task/{os.getpid()}/comm").read_text() == before


def test_what_gives_way_is_a_thread_that_the_kernel_wakes_into_no_ones_place_and_no_other() -> None:
    told: list[int] = []

    def run() -> None:
        give_way()
        told.append(os.sched_getscheduler(threading.get_native_id()))

    before = os.sched_getscheduler(0)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert told == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == before


@given(now=st.integers(0, 2**62), period=st.integers(1, 10**10), times=st.integers(1, 50))
def test_periods_that_divide_one_another_meet_at_the_same_instants(now: int, period: int, times: int) -> None:
    instant = next_instant(now, period * times)
    assert now < instant <= now + period * times
    assert instant == next_instant(instant - 1, period)
