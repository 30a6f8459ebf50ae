"""States from switches and wake-ups: what a thread was kept by, who was in the way, and what is not known.

Overlapping pairs of intervals, and unions, against a plain loop.
"""

from typing import Any

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.delays.thread_states import meetings, thread_states, union
from tests.analysis.delays.recorded import MAIN, OTHER, POOL, events, table, threads

NO_LOSS = table("kernel_losses", [])
NEVER = pl.DataFrame(schema={"time_ns": pl.Int64, "throttled": pl.Int64, "throttled_ns": pl.Int64})


def switch(at: int, previous: int, following: int, state: str = "runnable", cpu: int = 0) -> dict[str, Any]:
    return {
        **{"at": at, "kind": "switch", "thread_id": previous, "other_thread_id": following, "cpu": cpu},
        "state": "idle" if previous == 0 else state,
    }


def waking(at: int, thread: int, by: int | None) -> dict[str, Any]:
    name = "interrupt" if by is None else None
    return {"at": at, "kind": "waking", "thread_id": thread, "other_thread_id": by, "name": name}


def call(name: str, long: int) -> dict[str, Any]:
    return {"at": 50, "long": long, "kind": "syscall", "name": name, "thread_id": MAIN}


def states(*seen: dict[str, Any], losses: pl.DataFrame = NO_LOSS, throttling: pl.DataFrame = NEVER) -> pl.DataFrame:
    ordered = events(*sorted(seen, key=lambda one: int(one["at"])))
    known = pl.concat([threads(MAIN, POOL), table("kernel_threads", [{"thread_id": OTHER, "name": "hog"}])])
    return thread_states(ordered, known, losses, throttling)


def rows_of(found: pl.DataFrame, thread: int = MAIN) -> list[tuple[int, int, str]]:
    """From, to (microseconds) and state."""
    rows = found.filter(pl.col("thread_id") == thread).select("start_ns", "end_ns", "state").rows()
    return [(start // 1000, end // 1000, state) for start, end, state in rows]


def test_the_thread_on_the_cpu_is_the_one_that_preempted() -> None:
    found = states(
        *(switch(0, 0, MAIN), switch(100, MAIN, OTHER), switch(180, OTHER, POOL)),
        *(switch(190, POOL, MAIN), switch(300, MAIN, 0)),
    )
    assert rows_of(found) == [(0, 100, "running"), (100, 190, "preempted"), (190, 300, "running")]
    row = found.filter(pl.col("state") == "preempted").row(0, named=True)
    assert (row["by_thread_id"], row["by_name"], row["cpu"]) == (OTHER, "hog", 0)


def test_a_runnable_thread_beside_an_idle_cpu_is_throttled_where_the_group_counts_that() -> None:
    seen = (switch(0, 0, MAIN), switch(100, MAIN, 0), switch(900, 0, MAIN), switch(1000, MAIN, 0))
    rising = pl.DataFrame({"time_ns": [0, 2_000_000], "throttled": [3, 4], "throttled_ns": [0, 1]})
    assert rows_of(states(*seen, throttling=rising))[1] == (100, 900, "throttled")
    assert rows_of(states(*seen, throttling=rising.with_columns(throttled=pl.lit(3))))[1] == (100, 900, "queued")
    assert rows_of(states(*seen))[1] == (100, 900, "queued")


def test_the_throttling_of_a_group_is_attributed_to_the_longest_waits() -> None:
    """A thread is not throttled more often or for longer than its group; what is beside an idle CPU is taken first."""
    seen = [switch(0, 0, MAIN), switch(1_000, MAIN, 0), switch(4_000, 0, MAIN), switch(90_000, MAIN, 0)]
    for start, end in ((10_000, 30_000), (40_000, 44_000), (50_000, 50_100), (60_000, 68_000)):
        seen += [switch(start, MAIN, OTHER), switch(end, OTHER, MAIN)]
    for times, length, expected in (
        (4, 35_000_000, [1_000, 10_000, 40_000, 60_000]),
        (3, 35_000_000, [1_000, 10_000, 60_000]),
        (4, 30_000_000, [1_000, 10_000, 60_000]),
        (4, 12_000_000, [1_000, 60_000]),
        (1, 30_000_000, [1_000]),
        (0, 0, []),
    ):
        counted = pl.DataFrame({"time_ns": [0, 80_000_000], "throttled": [3, 3 + times]})
        found = states(*seen, throttling=counted.with_columns(throttled_ns=pl.Series([50, 50 + length])))
        used_up = found.filter(pl.col("state") == "throttled")
        assert [start // 1_000 for start in used_up.get_column("start_ns")] == expected, (times, length)
        assert used_up.get_column("by_thread_id").null_count() == len(expected)


def test_every_thread_of_a_throttled_group_waits_for_its_quota() -> None:
    seen = [switch(0, 0, MAIN), switch(1_000, MAIN, OTHER), switch(9_000, OTHER, MAIN), switch(9_500, MAIN, 0)]
    seen += [{**one, "cpu": 1, **_as(one, POOL)} for one in seen]
    counted = pl.DataFrame({"time_ns": [0, 12_000_000], "throttled": [3, 4], "throttled_ns": [0, 8_000_000]})
    found = states(*seen, throttling=counted)
    assert rows_of(found)[1] == rows_of(found, POOL)[1] == (1_000, 9_000, "throttled")


def _as(one: dict[str, Any], thread: int) -> dict[str, int]:
    sides = ("thread_id", "other_thread_id")
    return {side: thread if one[side] == MAIN else one[side] for side in sides}


def test_a_wait_ends_when_it_is_woken_and_what_follows_is_the_queue() -> None:
    seen = (
        *(switch(0, 0, MAIN), call("futex", 500), switch(100, MAIN, OTHER, "sleeping"), waking(400, MAIN, POOL)),
        *(switch(450, OTHER, MAIN), switch(600, MAIN, 0)),
    )
    found = states(*seen)
    assert rows_of(found)[1:3] == [(100, 400, "blocked"), (400, 450, "queued")]
    blocked, queued = found.filter(pl.col("state").is_in(["blocked", "queued"])).rows(named=True)
    assert (blocked["wait"], blocked["by_thread_id"]) == ("lock", POOL)
    assert queued["by_thread_id"] == OTHER


def test_the_event_before_a_wait_gives_its_reason() -> None:
    def wait(before: dict[str, Any], state: str) -> str:
        seen = (switch(0, 0, MAIN), before, switch(100, MAIN, 0, state), waking(200, MAIN, None), switch(210, 0, MAIN))
        later = ({**call("read", 1), "at": 250}, switch(300, MAIN, 0))
        return str(states(*seen, *later).filter(pl.col("state") == "blocked").item(0, "wait"))

    fault = {"at": 90, "kind": "page_fault", "name": "user", "thread_id": MAIN}
    assert wait(fault, "disk_sleep") == "page_fault"
    assert wait(call("fsync", 300), "disk_sleep") == "disk"
    assert wait(call("nanosleep", 300), "sleeping") == "sleep"
    assert wait(call("futex", 20), "disk_sleep") == "disk"
    assert wait(call("futex", 20), "sleeping") == "other"


def test_a_wake_up_from_an_interrupt_says_so() -> None:
    found = states(switch(0, 0, MAIN), switch(100, MAIN, 0, "sleeping"), waking(200, MAIN, None), switch(210, 0, MAIN))
    assert found.filter(pl.col("state") == "blocked").item(0, "by_name") == "interrupt"


def test_a_thread_waits_for_a_cpu_from_its_beginning() -> None:
    born = {"at": 40, "kind": "fork", "thread_id": MAIN, "other_thread_id": POOL}
    found = states(
        *(switch(0, 0, MAIN), born, switch(10, 0, OTHER, cpu=1), switch(300, OTHER, POOL, cpu=1)),
        *(switch(400, POOL, 0, "dead", cpu=1), switch(500, MAIN, 0)),
    )
    assert rows_of(found, POOL) == [(40, 300, "queued"), (300, 400, "running")]
    queued = found.filter((pl.col("thread_id") == POOL) & (pl.col("state") == "queued")).row(0, named=True)
    assert (queued["by_thread_id"], queued["by_name"], queued["cpu"]) == (OTHER, "hog", 1)
    assert rows_of(found) == [(0, 500, "running")]


def test_without_records_the_waker_is_unknown() -> None:
    unnamed = {**waking(500, MAIN, None), "name": None}
    found = states(switch(0, 0, MAIN), switch(100, MAIN, 0, "sleeping"), unnamed, switch(510, 0, MAIN))
    blocked = found.filter(pl.col("state") == "blocked").row(0, named=True)
    assert (blocked["end_ns"], blocked["by_thread_id"], blocked["by_name"]) == (500_000, None, None)


def test_a_stop_is_no_wait() -> None:
    found = states(
        *(switch(0, 0, MAIN), switch(100, MAIN, 0, "stopped"), waking(500, MAIN, OTHER)),
        *(switch(510, 0, MAIN), switch(600, MAIN, 0)),
    )
    assert rows_of(found)[1:3] == [(100, 500, "stopped"), (500, 510, "queued")]


def test_a_switch_that_was_not_recorded_leaves_unknown_until_the_thread_is_seen() -> None:
    lost = (switch(0, 0, MAIN), switch(100, MAIN, 0), switch(900, MAIN, 0))
    assert rows_of(states(*lost))[1] == (100, 900, "unknown")
    fault = {"at": 700, "kind": "page_fault", "name": "user", "thread_id": MAIN}
    assert rows_of(states(*lost, fault))[1:] == [(100, 700, "unknown"), (700, 900, "running")]


def test_the_account_of_its_time_tells_exactly_when_an_unrecorded_switch_was() -> None:
    lost = (switch(0, 0, MAIN), switch(100, MAIN, OTHER), switch(900, MAIN, 0))
    account = {"at": 650, "long": 120, "kind": "ran", "thread_id": MAIN}
    assert rows_of(states(*lost, account))[1:] == [(100, 650, "preempted"), (650, 900, "running")]


def test_a_thread_that_runs_by_its_account_has_the_cpu() -> None:
    lost = (switch(0, 0, MAIN), switch(100, MAIN, 0, "sleeping"), switch(900, MAIN, POOL), switch(950, POOL, 0))
    account = {"at": 310, "long": 100, "kind": "ran", "thread_id": MAIN}
    found = states(*lost, account, {**switch(50, POOL, 0, "sleeping", cpu=1)}, waking(300, POOL, None))
    queued = found.filter((pl.col("thread_id") == POOL) & (pl.col("state") == "queued"))
    assert queued.select("start_ns", "end_ns", "by_thread_id").row(0) == (300_000, 900_000, MAIN)


def test_lost_events_are_unknown_on_their_cpu_alone() -> None:
    losses = table("kernel_losses", [{"cpu": 0, "buffer": "switches", "start_ns": 40_000, "end_ns": 60_000}])
    seen = (switch(0, 0, MAIN), switch(100, MAIN, 0), switch(0, 0, POOL, cpu=1), switch(100, POOL, 0, cpu=1))
    found = states(*seen, losses=losses)
    assert rows_of(found)[:3] == [(0, 40, "running"), (40, 60, "unknown"), (60, 100, "running")]
    assert rows_of(found, POOL)[0] == (0, 100, "running")


def test_a_fault_is_what_a_thread_waits_for_where_calls_were_recorded_as_one_may_have_followed_it() -> None:
    seen = (
        *(switch(0, 0, MAIN), {"at": 90, "kind": "page_fault", "thread_id": MAIN}),
        *(switch(100, MAIN, 0, "disk_sleep"), switch(300, 0, MAIN), switch(400, MAIN, 0)),
    )
    waits = [
        found.filter(pl.col("state") == "blocked").get_column("wait").to_list()
        for found in (states(*seen), states(*seen, call("read", 10)))
    ]
    assert waits == [["disk"], ["page_fault"]]


def loss(cpu: int, start: int, end: int, buffer: str = "switches") -> pl.DataFrame:
    row = {"cpu": cpu, "buffer": buffer, "start_ns": start * 1000, "end_ns": end * 1000}
    return table("kernel_losses", [row])


def test_a_thread_off_its_cpu_may_have_run_on_any_whose_switches_were_lost() -> None:
    seen = (
        *(switch(0, 0, MAIN), switch(20, MAIN, OTHER), switch(100, OTHER, MAIN), switch(150, MAIN, OTHER, "sleeping")),
        *(waking(180, MAIN, OTHER), switch(200, OTHER, MAIN), switch(300, MAIN, 0)),
    )
    known = [
        *((0, 20, "running"), (20, 100, "preempted"), (100, 150, "running")),
        *((150, 180, "blocked"), (180, 200, "queued"), (200, 300, "running")),
    ]
    assert rows_of(states(*seen)) == known
    # It may have gone to sleep on the other CPU, so a preemption is not certain until it is seen again.
    away = rows_of(states(*seen, losses=loss(1, 40, 60)))
    assert away == [known[0], (20, 40, "preempted"), (40, 100, "unknown"), *known[2:]]
    assert rows_of(states(*seen, losses=loss(1, 110, 140))) == known, "it ran on a CPU of which everything is known"
    asleep = rows_of(states(*seen, losses=loss(1, 160, 170)))
    assert asleep == [*known[:3], (150, 160, "blocked"), (160, 180, "unknown"), *known[4:]]


def test_a_lost_wake_up_says_nothing_of_whoever_was_not_asleep() -> None:
    seen = (switch(0, 0, MAIN), switch(20, MAIN, OTHER), switch(100, OTHER, MAIN), switch(150, MAIN, 0, "sleeping"))
    ended = switch(300, 0, MAIN), switch(400, MAIN, 0)
    without = rows_of(states(*seen, *ended, losses=loss(1, 30, 60, "threads")))
    assert without[1] == (20, 100, "preempted")
    asleep = rows_of(states(*seen, *ended, losses=loss(1, 200, 210, "threads")))
    assert asleep[3:5] == [(150, 200, "blocked"), (200, 300, "unknown")]


LEFT = st.sampled_from(["runnable", "sleeping", "disk_sleep", "stopped", "lost"])
STEPS = st.lists(st.tuples(st.integers(1, 50), LEFT, st.booleans()), min_size=1, max_size=10)


@given(STEPS, st.booleans())
def test_states_follow_one_another_whatever_was_lost(steps: list[tuple[int, str, bool]], with_other: bool) -> None:
    seen, at = [switch(0, 0, MAIN)], 0
    for length, state, woken in steps:
        at += length
        seen.append(switch(at, MAIN, OTHER if with_other else 0, "runnable" if state == "lost" else state))
        if woken and state != "runnable":
            seen.append(waking(at + 1, MAIN, None))
        at += length + 2
        if state != "lost":
            seen.append(switch(at, OTHER if with_other else 0, MAIN))
    seen.append(switch(at + 5, MAIN, 0))
    found = states(*seen).filter(pl.col("thread_id") == MAIN)
    assert (found.get_column("start_ns")[1:] == found.get_column("end_ns")[:-1]).all()
    assert (found.get_column("end_ns") > found.get_column("start_ns")).all()
    assert (found.item(0, "start_ns"), found.item(-1, "end_ns")) == (0, (at + 5) * 1000)


def test_no_events_are_no_states() -> None:
    assert states().height == 0


SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda one: (one[0], one[0] + one[1])), max_size=8
)


def columns(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(spans, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


@given(SPANS)
def test_a_union_holds_the_same_instants_in_order(spans: list[tuple[int, int]]) -> None:
    start, end = union(*columns(spans))
    covered = {at for first, last in zip(start.tolist(), end.tolist(), strict=True) for at in range(first, last)}
    assert covered == {at for first, last in spans for at in range(first, last)}
    assert (start[1:] > end[:-1]).all()
    assert (end > start).all()


@given(SPANS, SPANS)
def test_every_pair_that_shares_time_is_found_once(spans: list[tuple[int, int]], pieces: list[tuple[int, int]]) -> None:
    ordered = list(zip(*(side.tolist() for side in union(*columns(pieces))), strict=True))
    met = meetings(*columns(spans), *columns(ordered))
    found = sorted(zip(*(side.tolist() for side in met), strict=True))
    wanted = [
        (i, j, max(a, c), min(b, d))
        for i, (a, b) in enumerate(spans)
        for j, (c, d) in enumerate(ordered)
        if a < b and max(a, c) < min(b, d)
    ]
    assert [one for one in found if one[2] < one[3]] == sorted(wanted)
