"""Namespaces in which threads or clocks differ from the kernel's events are reported with the remedy.

Our own threads are called in the kernel what they are, give way, and wake together.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.resources.telemetry import clocks
from aaco_pipeline.resources.telemetry.clocks import give_way, name_this_thread, next_instant, why_apart

_ASK = "from aaco_pipeline.resources.telemetry.clocks import why_apart; print(why_apart())"


@pytest.mark.parametrize(
    ("apart", "what", "fix"),
    [("pid", "numbers its threads", "--pid=host"), ("time", "clocks are set otherwise", "without a time namespace")],
)
def test_a_namespace_of_its_own_is_reported(
    apart: str, what: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("pid", "time"):
        (tmp_path / kind).touch()
    numbers = {kind: (tmp_path / kind).stat().st_ino for kind in ("pid", "time")}
    monkeypatch.setattr(clocks, "_NAMESPACES", tmp_path)
    monkeypatch.setattr(clocks, "_FIRST", numbers)
    assert why_apart() is None
    monkeypatch.setattr(clocks, "_FIRST", {**numbers, apart: 1})
    told = why_apart()
    assert told is not None
    assert (what in told[0], fix in told[1]) == (True, True)


def test_a_kernel_without_a_kind_of_namespace_has_one_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "_NAMESPACES", tmp_path)
    assert why_apart() is None


@pytest.mark.parametrize(
    ("unshare", "what"),
    [
        (("--pid", "--fork", "--mount-proc"), "numbers its threads"),
        (("--time", "--monotonic", "1000"), "clocks are set otherwise"),
    ],
)
def test_a_real_namespace_is_reported(unshare: tuple[str, ...], what: str) -> None:
    asked = ["unshare", *unshare, sys.executable, "-c", _ASK]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode != 0 and "unshare:" in done.stderr:
        pytest.skip(f"no namespace can be made here: {done.stderr.strip()}")
    assert what in done.stdout


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
