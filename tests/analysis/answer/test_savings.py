"""The rest of a window without a cause, and the saving, which is never less than the gain.

Like is compared with like: the traced repetitions are those that runs without a profiler mark.
"""

from dataclasses import replace
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.answer.savings import (
    DIFFERS,
    HOST_DIFFERS,
    PAGE_BYTES,
    PAGE_NS,
    STAMPING_NS,
    Held,
    Unprofiled,
    busy_by_copies,
    saved,
    saved_unprofiled,
    unprofiled,
)
from aaco_pipeline.analysis.answer.shares import PARTS, Host
from aaco_pipeline.analysis.answer.window import Window
from aaco_pipeline.analysis.steady.parts import CUT_OFF
from tests.analysis.answer.made_up import pieces, rows

_CLASSES: Final = ("launch", "sync", "host", "copy", "allocation")
#: A window of 1 ms: 300 µs of kernels, 100 µs of copies, of which 40 µs read back, and 600 µs idle.
_BUSY: Final = {"all": 400_000, "but read-backs": 360_000, "none": 300_000}


def idle(**parts: int) -> dict[str, Any]:
    return {**dict.fromkeys(PARTS, 0), "allocating": 0, "after_copy": False, "after_work": False, **parts}


def held(*gaps: dict[str, Any], working: int = 0, pace: int = 0, kernels: int = 0, fresh: int = 0) -> Held:
    listed = pl.DataFrame([*gaps, idle()])
    return Held(1_000_000, _BUSY, kernels, listed, Host(30_000, working, pace), fresh)


def stays(busy: int) -> int:
    return round((1 - DIFFERS) * busy)


def of_host(time: int) -> int:
    """The least that the host takes in another process for what takes so long in this one."""
    return round((1 - HOST_DIFFERS) * time)


def test_a_graph_does_away_with_launching_and_not_with_a_wait_or_the_work_behind_it() -> None:
    window = held(idle(pace=300_000), idle(restart=50_000), idle(wait=100_000, waited_work=150_000))
    assert saved("launch", 0, window) == 1_000_000 - stays(400_000) - 250_000


def test_work_beside_launches_is_hidden_up_to_its_own_length() -> None:
    """Without a wait the host's work runs beside the device once launching is done: the longer of the two remains."""
    short, long = (held(idle(pace=400_000, work=200_000), working=length) for length in (200_000, 500_000))
    assert saved("launch", 0, short) == 1_000_000 - stays(400_000)
    assert saved("launch", 0, long) == 1_000_000 - of_host(500_000)


def test_without_waits_their_copies_go_and_the_host_runs_ahead() -> None:
    window = held(idle(wait=300_000), idle(restart=100_000, pace=200_000))
    assert saved("sync", 400_000, window) == 1_000_000 - stays(360_000)
    launching, working = (replace(window, host=Host(30_000, *one)) for one in ((0, 700_000), (900_000, 0)))
    assert saved("sync", 100_000, launching) == 1_000_000 - of_host(700_000)
    assert saved("sync", 100_000, working) == 1_000_000 - of_host(900_000)
    # But never less than its own share.
    assert saved("sync", 400_000, working) == 400_000


def test_work_off_the_path_takes_its_own_wait_along_and_no_other() -> None:
    own = [idle(wait=50_000, waited_work=300_000, after_work=True), idle(restart=50_000, after_work=True)]
    other = [idle(wait=150_000), idle(restart=50_000)]
    # The work itself does not hold it back, whatever its length.
    window = held(*own, *other, working=900_000)
    assert saved("host", 300_000, window) == 1_000_000 - stays(400_000) - 200_000
    launching = replace(window, host=Host(30_000, 900_000, 700_000))
    assert saved("host", 300_000, launching) == 1_000_000 - of_host(700_000)


def test_a_copys_wait_goes_with_it_and_others_stay() -> None:
    window = held(idle(wait=100_000, after_copy=True), idle(restart=50_000, after_copy=True), idle(wait=200_000))
    assert saved("copy", 100_000, window) == 1_000_000 - stays(300_000) - 200_000


def test_allocating_takes_the_fresh_pages_along_and_no_wait_but_what_it_fills_of_one() -> None:
    window = held(idle(work=200_000), idle(wait=200_000), fresh=10 * PAGE_BYTES + 1)
    remains = stays(400_000) - 11 * PAGE_NS
    assert saved("allocation", 200_000, window) == 1_000_000 - remains - 200_000
    in_part = held(idle(wait=200_000, allocating=100_000), fresh=10 * PAGE_BYTES + 1)
    assert saved("allocation", 200_000, in_part) == 1_000_000 - remains - 100_000
    # What allocating fills for the most part is there for its sake: the wait, and what looks like long work behind it.
    filled = held(idle(wait=20_000, waited_work=180_000, allocating=150_000), fresh=10 * PAGE_BYTES + 1)
    assert saved("allocation", 200_000, filled) == 1_000_000 - remains
    # Of no other cause the memory is new.
    assert saved("launch", 0, replace(window, fresh_bytes=0)) == saved("launch", 0, window)


def test_a_record_holds_its_stamping() -> None:
    assert saved("launch", 0, held(kernels=100)) == 1_000_000 - stays(400_000) + 100 * STAMPING_NS
    assert saved("launch", 0, held(kernels=10**6)) == 1_000_000


@pytest.mark.parametrize("name", ["communication", "imbalance", "throttling", "contention", "compilation"])
def test_other_classes_go_alone(name: str) -> None:
    window = held(idle(pace=300_000))
    assert saved(name, 70_000, window) == 70_000
    assert saved_unprofiled(name, 70_000, window, Unprofiled(10, 90_000.0, 100_000.0)) == 7_000


# ---- without a profiler ----------------------------------------------------------------------------------------------


def test_the_overhead_of_the_tracer_is_not_saved() -> None:
    """Ten repetitions of 100 µs under the tracer that take 60 µs without it: the device still needs its own."""
    window = held(idle(pace=600_000))
    found = saved_unprofiled("launch", 600_000, window, Unprofiled(10, 60_000.0, 100_000.0))
    assert found == 60_000 - stays(40_000)
    # Device work is not slowed, so a wait that stays is shorter as launching is: half of 300 µs each in 200 of 600.
    waits = held(idle(pace=300_000), idle(wait=300_000))
    found = saved_unprofiled("launch", 300_000, waits, Unprofiled(10, 60_000.0, 100_000.0))
    assert found == 60_000 - stays(40_000) - 10_000
    # The host's own long work is not.
    works = held(idle(pace=300_000), idle(waited_work=150_000, wait=150_000))
    found = saved_unprofiled("launch", 300_000, works, Unprofiled(10, 60_000.0, 100_000.0))
    assert found == 60_000 - stays(40_000) - 15_000 - 1_667


def test_launching_that_goes_on_is_as_slow_as_without_the_tracer() -> None:
    """A sleep of 40 µs beside launching of 60 µs, of which the tracer adds 20: launching in another process stays."""
    window = held(idle(work=400_000), working=400_000, pace=600_000)
    window = replace(window, busy_ns=dict.fromkeys(_BUSY, 100_000))
    found = saved_unprofiled("host", 400_000, window, Unprofiled(10, 80_000.0, 100_000.0))
    assert found == 80_000 - of_host(40_000)
    assert saved_unprofiled("host", 400_000, window, Unprofiled(10, 200_000.0, 100_000.0)) == 200_000 - of_host(60_000)


def test_marks_that_close_before_the_device_is_done_say_nothing() -> None:
    window = held(idle(pace=600_000))
    assert saved_unprofiled("launch", 0, window, Unprofiled(10, stays(40_000) + 1.0, 100_000.0)) == 1
    # Copies are paced by the host and differ between processes: what kernels need decides.
    assert saved_unprofiled("launch", 0, window, Unprofiled(10, stays(30_000) + 1.0, 100_000.0)) == 0
    assert saved_unprofiled("launch", 0, window, Unprofiled(10, stays(30_000) - 1.0, 100_000.0)) is None
    assert saved_unprofiled("device", 9, window, Unprofiled(10, stays(30_000) - 1.0, 100_000.0)) is None


def test_copies_back_to_the_host_are_distinguished_from_all_copies() -> None:
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


def test_calls_that_allocate_are_slowed_as_all_calls_are() -> None:
    """Ten repetitions of 100 µs that take 60 without the tracer: of 60 µs idle, all in such calls, 20 are left."""
    window = held(idle(waited_work=500_000, allocating=500_000), idle(wait=100_000))
    found = saved_unprofiled("allocation", 500_000, window, Unprofiled(10, 60_000.0, 100_000.0))
    assert found == 60_000 - stays(40_000) - round(10_000 * 20 / 60)


def test_no_less_than_the_causes_share_is_saved_but_what_the_tracer_added() -> None:
    """Waits of 60 µs in 100 that take 90 without the tracer, beside a host that launches all the time."""
    window = held(idle(wait=600_000), pace=1_000_000)
    assert saved("sync", 600_000, window) == 600_000
    assert saved_unprofiled("sync", 600_000, window, Unprofiled(10, 90_000.0, 100_000.0)) == 50_000
    assert saved_unprofiled("sync", 600_000, window, Unprofiled(10, 40_000.0, 100_000.0)) == 40_000 - of_host(40_000)


TIMES: Final = st.integers(0, 10**9)


@st.composite
def windows(draw: st.DrawFn) -> Held:
    """Any window: parts of idle time in any gaps, with any part of each in calls that allocate."""
    gaps = []
    for _ in range(draw(st.integers(0, 5))):
        parts = {name: draw(TIMES) for name in draw(st.sets(st.sampled_from(PARTS)))}
        marks = {name: draw(st.booleans()) for name in ("after_copy", "after_work")}
        gaps.append({**idle(**parts), **marks, "allocating": draw(st.integers(0, sum(parts.values())))})
    kernels, moved, back = draw(TIMES), draw(TIMES), draw(TIMES)
    busy = {"all": kernels + moved + back, "but read-backs": kernels + moved, "none": kernels}
    whole = busy["all"] + sum(one[name] for one in gaps for name in PARTS)
    host = Host(30_000, *(draw(st.integers(0, whole) | st.just(whole)) for _ in range(2)))
    return Held(whole, busy, draw(st.integers(0, 1000)), pl.DataFrame([*gaps, idle()]), host, draw(TIMES))


@given(windows(), st.sampled_from([*_CLASSES, "communication"]), st.data())
def test_a_cause_saves_no_less_than_its_share_and_no_more_than_there_is(
    window: Held, name: str, data: st.DataObject
) -> None:
    own = data.draw(st.integers(0, window.whole_ns))
    assert own <= saved(name, own, window) <= window.whole_ns
    number = data.draw(st.integers(1, 100))
    traced = window.whole_ns / number
    without = Unprofiled(number, data.draw(st.floats(0, 2 * traced + 1)), traced)
    found = saved_unprofiled(name, own, window, without)
    if found is not None:
        added = max(0.0, traced - without.period_ns)
        # What it holds of an unprofiled repetition, less only what the tracer added, as far as there is one.
        assert min(own / number - added, without.period_ns) - 1 <= found <= without.period_ns + 1


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.floats(0, 1))
def test_memory_that_fills_most_of_the_time_behind_a_wait_is_not_kept_as_the_hosts_work(
    work: int, kernels: int, part: float
) -> None:
    """Pinned in each step, most of the window: no floor by the cause's own share is needed for it to go."""
    allocating_ns = work // 2 + 1 + int(part * (work - work // 2 - 1))
    one = idle(waited_work=work, allocating=min(work, allocating_ns))
    busy = dict.fromkeys(_BUSY, kernels)
    window = Held(work + kernels, busy, 0, pl.DataFrame([one]), Host(30_000, 0, 0))
    assert saved("allocation", 0, window) >= work


def run(number: int | None, name: str, step: int, count: int = 5, **more: Any) -> list[dict[str, Any]]:
    """Iterations of one run, one every `step` ns, of which each takes half."""
    return [
        {"pass": name, "run": number, "phase": "measure", "start_ns": i * step, "end_ns": i * step + step // 2, **more}
        for i in range(count)
    ]


def found(*runs: list[dict[str, Any]], rule: str = "5 marked iterations of 2 activities") -> Unprofiled | None:
    listed = [one for each in runs for one in each]
    return unprofiled(rows("iterations", listed), Window(0, pieces((0, 500)), rule, 0, 5, 100))


def test_it_is_the_median_of_runs_from_one_beginning_to_the_next() -> None:
    plain = [run(number, "latency", step) for number, step in enumerate((60, 50, 90))]
    assert found(*plain, run(3, "trace", 100)) == Unprofiled(5, 60.0, 100.0)


def test_runs_that_mark_something_else_do_not_compare() -> None:
    traced = run(3, "trace", 100)
    assert found(run(0, "latency", 60, count=4), traced) is None
    assert found(run(0, "latency", 60, count=1), run(1, "latency", 60, count=1), traced) is None
    assert found(run(0, "latency", 60, count=4), run(1, "latency", 70), traced) == Unprofiled(5, 70.0, 100.0)
    assert found(run(0, "latency", 60, count=1), run(1, "trace", 100, count=1)) is None
    assert found(run(0, "latency", 60)) is None
    assert found(traced) is None


def test_warm_up_is_no_iteration() -> None:
    warm = run(0, "latency", 1000, count=1, phase="warmup")
    assert found(warm, run(0, "latency", 60), run(1, "trace", 100)) == Unprofiled(5, 60.0, 100.0)


def test_a_models_passes_are_of_one_loop_however_many_iterations_each_has() -> None:
    assert found(run(None, "latency", 60, count=50), run(None, "trace", 100)) == Unprofiled(5, 60.0, 100.0)


@pytest.mark.parametrize(
    "rule", ["5 repetitions of 2 activities", f"5 marked iterations of 2 activities, {CUT_OFF}", "all"]
)
def test_a_window_of_something_else_does_not_compare(rule: str) -> None:
    assert found(run(0, "latency", 60), run(1, "trace", 100), rule=rule) is None


def test_iterations_without_times_say_nothing() -> None:
    bare = rows("iterations", [*run(0, "latency", 60), *run(1, "trace", 100)])
    window = Window(0, pieces((0, 500)), "5 marked iterations of 2 activities", 0, 5, 100)
    assert unprofiled(bare.with_columns(start_ns=pl.lit(None, pl.Int64)), window) is None
