"""Each iteration's parts: whose states they are taken from, what lies within the time on a CPU, and their sum.

The system call in which an iteration's time went by, where that is not what it usually does.
"""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.delays.decomposition import iteration_delays
from aaco_pipeline.analysis.delays.grades import iteration_grades
from aaco_pipeline.analysis.delays.interference import Costs
from tests.analysis.delays.recorded import MAIN, OTHER, POOL, events, iterations, states, threads


def parts(delays: pl.DataFrame, iteration: int = 0) -> dict[str, int]:
    """The time of each cause in an iteration, in microseconds."""
    some = delays.filter((pl.col("iteration") == iteration) & (pl.col("duration_ns") > 0))
    return {cause: ns // 1000 for cause, ns in some.select("cause", "duration_ns").iter_rows()}


def delays(spans: pl.DataFrame, known: pl.DataFrame, *seen: dict[str, Any], costs: Costs | None = None) -> pl.DataFrame:
    numbers = sorted(known.get_column("thread_id").unique().to_list())
    return iteration_delays(spans, known, threads(*numbers), events(*seen), costs or Costs())


def test_parts_are_cut_to_the_iteration_and_name_who_was_in_the_way() -> None:
    known = states(
        (MAIN, 0, 120, "running"),
        (MAIN, 120, 150, "preempted", {"by_thread_id": OTHER, "by_name": "hog"}),
        (MAIN, 150, 400, "running"),
    )
    found = delays(iterations((100, 200), (200, 300)), known)
    assert parts(found) == {"preempted": 30, "on_cpu": 70}
    assert parts(found, 1) == {"on_cpu": 100}
    row = found.filter(pl.col("cause") == "preempted").row(0, named=True)
    assert (row["by_kind"], row["by_thread_id"], row["by_name"], row["grade"]) == ("thread", OTHER, "hog", "observed")


def test_time_without_a_state_is_unknown() -> None:
    found = delays(iterations((100, 200)), states((MAIN, 100, 160, "running")))
    assert parts(found) == {"on_cpu": 60, "unknown": 40}
    lost = delays(iterations((100, 200)), states((MAIN, 100, 160, "running"), (MAIN, 160, 200, "unknown")))
    assert parts(lost) == parts(found)
    assert lost.select("cause", "grade", "occurrences").rows() == [("on_cpu", "rest", None), ("unknown", "rest", 1)]


def test_an_interrupt_does_not_cause_a_wait_for_storage_but_a_lock_holder_causes_one() -> None:
    by_handler, by_peer = {"by_name": "interrupt"}, {"by_thread_id": OTHER, "by_name": "peer"}
    known = states(
        (MAIN, 0, 40, "blocked", {"wait": "disk", **by_handler}),
        (MAIN, 40, 60, "blocked", {"wait": "page_fault", "by_thread_id": OTHER, "by_name": "kworker/0:1"}),
        (MAIN, 60, 90, "blocked", {"wait": "lock", **by_peer}),
        (MAIN, 90, 100, "blocked", {"wait": "io", **by_handler}),
    )
    found = delays(iterations((0, 100)), known).select("cause", "by_kind", "by_thread_id", "by_name")
    assert {cause: by for cause, *by in found.filter(pl.col("cause") != "on_cpu").iter_rows()} == {
        **{"disk": [None] * 3, "major_fault": [None] * 3, "lock": ["thread", OTHER, "peer"]},
        "blocked": ["interrupt", None, "interrupt"],
    }


def test_a_spinning_main_thread_does_not_hide_that_its_peer_was_kept_from_a_cpu() -> None:
    known = states(
        (MAIN, 0, 1000, "running"),
        (POOL, 0, 100, "running"),
        (POOL, 100, 900, "preempted", {"by_thread_id": OTHER, "by_name": "hog"}),
        (POOL, 900, 1000, "running"),
    )
    found = delays(iterations((0, 1000)), known)
    assert parts(found) == {"preempted": 800, "on_cpu": 200}
    assert found.get_column("thread_id").unique().to_list() == [POOL]


def test_lost_events_of_a_peer_leave_the_cause_unknown() -> None:
    known = states(
        *((MAIN, 0, 1_000, "running"), (POOL, 0, 300, "running"), (POOL, 300, 700, "unknown")),
        (POOL, 700, 1_000, "running"),
    )
    spans = iterations((0, 1_000), (800, 900))
    found = delays(spans, known)
    assert parts(found) == {"on_cpu": 600, "unknown": 400}
    assert parts(found, 1) == {"on_cpu": 100}
    assert iteration_grades(spans, found).get_column("grade").to_list() == ["unknown", "clean"]


def test_a_thread_that_ends_within_an_iteration_decides_as_long_as_there_was_one() -> None:
    """A wait for a thread's end has the causes of that thread, as far as they are known."""
    by_pool = {"wait": "lock", "by_thread_id": POOL}
    known = states(
        *((MAIN, 0, 10, "running"), (MAIN, 10, 400, "blocked", by_pool), (MAIN, 400, 500, "running")),
        *(
            (POOL, 5, 100, "running"),
            (POOL, 100, 380, "preempted", {"by_thread_id": OTHER}),
            (POOL, 380, 400, "running"),
        ),
    )
    found = delays(iterations((0, 500), (500, 600)), known)
    assert parts(found) == {"on_cpu": 220, "preempted": 280}
    assert parts(found, 1) == {"unknown": 100}
    gone = known.filter((pl.col("thread_id") == MAIN) | (pl.col("end_ns") <= 100_000))
    assert parts(delays(iterations((0, 500)), gone)) == {"on_cpu": 110, "lock": 390}


def test_threads_without_a_state_have_no_parts() -> None:
    nothing = states((MAIN, 0, 10, "running")).clear()
    assert iteration_delays(iterations((0, 10)), nothing, threads(MAIN), events(), Costs()).height == 0


def test_a_peer_that_was_kept_from_a_cpu_throughout_is_missed_while_the_main_thread_does_its_work_too() -> None:
    known = states(
        (MAIN, 0, 2000, "running"),
        (POOL, 0, 400, "running"),
        (POOL, 400, 500, "blocked", {"wait": "lock"}),
        (POOL, 500, 1900, "preempted", {"by_thread_id": OTHER, "by_name": "hog"}),
        (POOL, 1900, 2000, "running"),
    )
    usual, alone, rest = (0, 500), (500, 1500), (1500, 2000)
    found = delays(iterations(usual, alone, rest), known)
    assert parts(found, 1) == {"preempted": 1000}
    assert found.filter(pl.col("iteration") == 1).get_column("thread_id").unique().to_list() == [POOL]


def test_a_thread_that_is_idle_as_ever_is_not_missed() -> None:
    known = states(
        (MAIN, 0, 2000, "running"), (POOL, 0, 100, "running"), (POOL, 100, 2000, "preempted", {"by_thread_id": OTHER})
    )
    found = delays(iterations((0, 500), (500, 1500), (1500, 2000)), known)
    assert parts(found, 1) == {"on_cpu": 1000}


def test_a_wait_for_a_peer_is_what_the_peer_did_meanwhile() -> None:
    known = states(
        (MAIN, 0, 200, "running"),
        (MAIN, 200, 900, "blocked", {"wait": "lock", "by_thread_id": POOL}),
        (MAIN, 900, 1000, "running"),
        (POOL, 0, 300, "running"),
        (POOL, 300, 310, "preempted", {"by_thread_id": OTHER}),
        (POOL, 310, 1000, "running"),
    )
    assert parts(delays(iterations((0, 1000)), known)) == {"preempted": 10, "on_cpu": 990}


@pytest.mark.parametrize("slept", [{}, {"wait": "sleep", "by_name": "interrupt"}, {"wait": "disk"}])
def test_causes_name_the_thread_of_the_process_that_was_waited_for(slept: dict[str, str]) -> None:
    """Not to look for a sleep, or for work, in the thread whose iteration it was."""
    known = states(
        (MAIN, 0, 200, "running"),
        (MAIN, 200, 900, "blocked", {"wait": "lock", "by_thread_id": POOL}),
        (MAIN, 900, 1000, "running"),
        (POOL, 0, 250, "running"),
        (POOL, 250, 900, "blocked" if slept else "running", slept),
        (POOL, 900, 1000, "running"),
    )
    named = threads(MAIN, POOL).with_columns(name=pl.Series(["main", "pool"]))
    found = iteration_delays(iterations((0, 1000)), known, named, events(), Costs())
    row = found.sort("duration_ns").row(-1, named=True)
    assert row["cause"] == slept.get("wait", "on_cpu")
    assert (row["by_kind"], row["by_thread_id"], row["by_name"]) == ("thread", POOL, "pool")
    if row["cause"] == "sleep":
        assert found.filter(pl.col("cause") == "on_cpu").item(0, "by_name") is None, "most of it was the main thread's"


def test_two_that_wait_for_one_another_stay_waiting() -> None:
    known = states(
        (MAIN, 0, 100, "blocked", {"wait": "lock", "by_thread_id": POOL}),
        (POOL, 0, 100, "blocked", {"wait": "lock", "by_thread_id": MAIN}),
    )
    assert parts(delays(iterations((0, 100)), known)) == {"lock": 100}


def test_interrupts_count_once_where_they_nest_and_only_on_a_cpu() -> None:
    known = states(
        (MAIN, 0, 500, "running"), (MAIN, 500, 600, "blocked", {"wait": "sleep"}), (MAIN, 600, 1000, "running")
    )
    seen = (
        {"at": 100, "long": 50, "kind": "interrupt", "name": "local_timer", "thread_id": MAIN},
        {"at": 120, "long": 10, "kind": "softirq", "name": "NET_RX", "thread_id": MAIN},
        {"at": 520, "long": 40, "kind": "interrupt", "name": "local_timer", "thread_id": MAIN},
    )
    found = delays(iterations((0, 1000)), known, *seen)
    assert parts(found) == {"timer": 50, "on_cpu": 850, "sleep": 100}
    dear = delays(iterations((0, 1000)), known, *seen, costs=Costs(interrupt_ns=20_000))
    assert parts(dear) == {"timer": 70, "on_cpu": 830, "sleep": 100}
    assert dear.filter(pl.col("cause") == "timer").item(0, "grade") == "estimated"


def test_timer_handlers_are_separate_and_so_is_an_interrupt_during_a_softirq() -> None:
    known = states((MAIN, 0, 1000, "running"))
    of = {"thread_id": MAIN}
    seen = (
        {"at": 100, "long": 30, "kind": "interrupt", "name": "local_timer", **of},
        {"at": 140, "long": 60, "kind": "softirq", "name": "RCU", **of},
        {"at": 150, "long": 20, "kind": "interrupt", "name": "irq 36 disk", **of},
        {"at": 300, "long": 90, "kind": "softirq", "name": "BLOCK", **of},
        {"at": 310, "long": 25, "kind": "interrupt", "name": "local_timer", **of},
    )
    found = delays(iterations((0, 1000)), known, *seen)
    assert parts(found) == {"timer": 30 + 40 + 25, "interrupts": 20 + 65, "on_cpu": 820}
    dear = delays(iterations((0, 1000)), known, *seen, costs=Costs(interrupt_ns=10_000))
    assert parts(dear) == {"timer": 95 + 2 * 10, "interrupts": 85 + 10, "on_cpu": 790}
    by_cause = {row["cause"]: (row["by_name"], row["occurrences"]) for row in dear.iter_rows(named=True)}
    assert by_cause["timer"] == ("softirq RCU", 2)
    assert by_cause["interrupts"] == ("softirq BLOCK", 1), "a softirq after its interrupt is no second one"


def test_faults_are_counted_and_cost_what_was_calibrated_but_no_more_than_there_was() -> None:
    known = states((MAIN, 0, 100, "running"))
    seen = [{"at": at, "kind": "page_fault", "name": "user", "thread_id": MAIN} for at in range(10, 40)]
    assert parts(delays(iterations((0, 100)), known, *seen)) == {"on_cpu": 100}
    assert parts(delays(iterations((0, 100)), known, *seen, costs=Costs(2_000))) == {"minor_faults": 60, "on_cpu": 40}
    assert parts(delays(iterations((0, 100)), known, *seen, costs=Costs(5_000))) == {"minor_faults": 100}


def test_a_fault_whose_end_was_seen_later_costs_as_long_while_its_thread_ran() -> None:
    known = states((MAIN, 0, 60, "running"), (MAIN, 60, 80, "preempted"), (MAIN, 80, 100, "running"))
    fault: dict[str, Any] = {"kind": "page_fault", "name": "user", "thread_id": MAIN}
    seen = [
        fault | {"at": 10},
        fault | {"at": 20, "long": 1},
        fault | {"at": 30, "long": 9},
        fault | {"at": 50, "long": 35},
    ]
    found = delays(iterations((0, 100)), known, *seen, costs=Costs(2_000))
    assert parts(found) == {"minor_faults": 2 + 2 + 9 + 10, "preempted": 20, "on_cpu": 57}
    assert found.filter(pl.col("cause") == "minor_faults").select("occurrences", "grade").row(0) == (4, "estimated")
    found = delays(iterations((0, 100)), known, *seen)
    assert parts(found) == {"minor_faults": 1 + 9 + 10, "preempted": 20, "on_cpu": 60}
    assert found.filter(pl.col("cause") == "minor_faults").select("occurrences", "grade").row(0) == (4, "observed")


def test_a_thread_that_lost_more_to_slow_faults_decides() -> None:
    known = states((MAIN, 0, 500, "running"), (POOL, 0, 500, "running"))
    fault = {"at": 100, "long": 300, "kind": "page_fault", "name": "user", "thread_id": POOL}
    assert parts(delays(iterations((0, 500)), known, fault, costs=Costs(2_000))) == {"minor_faults": 300, "on_cpu": 200}


def test_a_fault_that_waits_for_the_disk_has_its_own_work_with_it() -> None:
    known = states(
        (MAIN, 0, 40, "running"), (MAIN, 40, 90, "blocked", {"wait": "page_fault"}), (MAIN, 90, 100, "running")
    )
    seen = {"at": 30, "kind": "page_fault", "name": "user", "thread_id": MAIN}
    assert parts(delays(iterations((0, 100)), known, seen, costs=Costs(1_000))) == {"major_fault": 60, "on_cpu": 40}
    whole = seen | {"long": 66}
    assert parts(delays(iterations((0, 100)), known, whole, costs=Costs(1_000))) == {"major_fault": 66, "on_cpu": 34}


def test_a_flush_is_the_disk_from_its_call_to_its_return() -> None:
    known = states((MAIN, 0, 40, "running"), (MAIN, 40, 90, "blocked", {"wait": "disk"}), (MAIN, 90, 100, "running"))
    seen = {"at": 30, "long": 65, "kind": "syscall", "name": "fsync", "thread_id": MAIN}
    assert parts(delays(iterations((0, 100)), known, seen)) == {"disk": 65, "on_cpu": 35}


def test_how_long_an_idle_cpu_takes_to_wake_up_is_part_of_the_wait_for_the_disk_and_no_second_one() -> None:
    queue = (MAIN, 90, 97, "queued")
    known = states((MAIN, 0, 40, "running"), (MAIN, 40, 90, "blocked", {"wait": "disk"}), queue)
    found = delays(iterations((0, 97)), known)
    assert parts(found) == {"disk": 57, "on_cpu": 40}
    assert found.filter(pl.col("cause") == "disk").get_column("occurrences").item() == 1
    behind = states(
        *((MAIN, 0, 40, "running"), (MAIN, 40, 90, "blocked", {"wait": "disk"})), (*queue, {"by_thread_id": OTHER})
    )
    assert parts(delays(iterations((0, 97)), behind)) == {"disk": 50, "queued": 7, "on_cpu": 40}


def test_threads_that_wait_for_the_main_thread_do_not_decide() -> None:
    known = states(
        (MAIN, 0, 1000, "running"),
        *((POOL, 0, 100, "running"), (POOL, 100, 900, "queued", {"by_thread_id": MAIN}), (POOL, 900, 1000, "running")),
    )
    assert parts(delays(iterations((0, 1000)), known)) == {"on_cpu": 1000}


def test_softirqs_that_a_kernel_thread_runs_are_interrupts() -> None:
    known = states(
        (MAIN, 0, 40, "running"), (MAIN, 40, 90, "preempted", {"by_name": "ksoftirqd/1", "by_thread_id": 22})
    )
    assert parts(delays(iterations((0, 90)), known)) == {"interrupts": 50, "on_cpu": 40}
    seen = {"at": 10, "long": 20, "kind": "softirq", "name": "NET_RX", "thread_id": MAIN}
    both = delays(iterations((0, 90)), known, seen, costs=Costs(interrupt_ns=5_000))
    assert parts(both) == {"interrupts": 70, "on_cpu": 20}
    row = both.filter(pl.col("cause") == "interrupts").row(0, named=True)
    assert (row["by_name"], row["occurrences"]) == ("ksoftirqd/1", 2), "named by the longer of the two"
    assert row["grade"] == "estimated", "as one of the two is"


STATES = st.sampled_from(["running", "preempted", "throttled", "queued", "blocked", "stopped", "unknown"])
LENGTHS = st.lists(st.tuples(STATES, st.integers(1, 40)), min_size=1, max_size=8)


@given(LENGTHS, LENGTHS, st.lists(st.integers(1, 30), min_size=1, max_size=5), st.data())
def test_the_parts_are_the_latency_and_none_is_negative(
    main: list[tuple[str, int]], pool: list[tuple[str, int]], lengths: list[int], data: st.DataObject
) -> None:
    rows = []
    for thread, other, some in ((MAIN, POOL, main), (POOL, MAIN, pool)):
        at = 0
        for state, length in some:
            wait = data.draw(st.sampled_from(["lock", "disk", "page_fault", "other"])) if state == "blocked" else None
            by = data.draw(st.sampled_from([None, other, OTHER]))
            rows.append((thread, at, at + length, state, {"wait": wait, "by_thread_id": by}))
            at += length
    at, spans = 0, []
    for length in lengths:
        spans.append((at, at + length))
        at += length
    kinds = st.sampled_from(["interrupt", "softirq", "page_fault", "syscall"])
    names = st.sampled_from(["local_timer", "irq 36 disk", "RCU", "NET_RX"])
    one = st.tuples(kinds, st.integers(0, 100), st.integers(0, 20), st.sampled_from([MAIN, POOL]), names)
    seen = [
        {"at": when, "long": long, "kind": kind, "name": "fsync" if kind == "syscall" else name, "thread_id": who}
        for kind, when, long, who, name in data.draw(st.lists(one, max_size=6))
    ]
    asked = iterations(*spans)
    found = delays(asked, states(*rows), *seen, costs=Costs(3_000.5, 7_000.25))
    assert (found.get_column("duration_ns") >= 0).all()
    summed = dict(found.group_by("iteration").agg(pl.col("duration_ns").sum()).iter_rows())
    assert summed == dict(asked.select("iteration", "latency_ns").iter_rows())
    assert found.select("iteration", "cause").is_duplicated().sum() == 0


def call(at: int, long: int | None, name: str = "pread64") -> dict[str, Any]:
    return {"at": at, "long": long, "kind": "syscall", "name": name, "thread_id": MAIN}


def by(*calls: dict[str, Any], known: pl.DataFrame | None = None) -> dict[tuple[int, str], tuple[str | None, ...]]:
    """The causes of each part of three iterations of 100 µs."""
    running = states((MAIN, 0, 300, "running"))
    asked = iterations((0, 100), (100, 200), (200, 300))
    found = iteration_delays(asked, running if known is None else known, threads(MAIN), events(*calls), Costs())
    rows = found.select("iteration", "cause", "by_kind", "by_name").rows()
    return {(number, cause): (kind, name) for number, cause, kind, name in rows}


def test_a_call_that_took_most_of_the_work_is_named_and_no_short_one() -> None:
    found = by(call(10, 20, "write"), call(110, 70), call(210, 20))
    assert [found[number, "on_cpu"] for number in range(3)] == [(None, None), ("call", "pread64"), (None, None)]


def test_a_call_that_always_takes_most_of_the_work_makes_no_iteration_longer() -> None:
    found = by(call(10, 70), call(110, 75), call(210, 70))
    assert {found[number, "on_cpu"] for number in range(3)} == {(None, None)}


def test_a_call_whose_return_was_not_seen_is_not_named() -> None:
    assert by(call(110, None))[1, "on_cpu"] == (None, None)


def test_a_wait_that_an_interrupt_ends_is_named_by_its_call_and_one_that_a_thread_ends_by_that() -> None:
    for ended, expected in (
        ({"by_name": "interrupt"}, ("call", "select")),
        ({"by_name": "server", "by_thread_id": OTHER}, ("thread", "server")),
    ):
        known = states(
            (MAIN, 0, 110, "running"), (MAIN, 110, 190, "blocked", {"wait": "io", **ended}), (MAIN, 190, 300, "running")
        )
        found = by(call(105, 86, "select"), known=known)
        assert found[1, "blocked"] == expected
        assert found[1, "on_cpu"] == (None, None)
