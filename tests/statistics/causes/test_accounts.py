"""Accounts of a session's steps add up to the nanosecond."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.statistics.causes.accounts import WHOLE, Account, account
from tests.statistics.causes.made import ADD, GEMM, NORM, STEP, Tables, session


def accounted(tables: Tables) -> Account:
    made = account(tables)
    assert isinstance(made, Account), made
    return made


def idle_by_cause(one: Account) -> dict[str, int]:
    return dict(one.idle.group_by("cause").agg(pl.col("idle_ns").sum()).iter_rows())


def test_counts_times_and_idle_time_of_a_plain_session() -> None:
    one = accounted(session(STEP))
    assert (one.steps, one.rule, one.time_ns, one.overlap_ns) == (3, "measured iterations", 3 * 2_100, 0)
    assert dict(one.groups.select("name", "count").iter_rows()) == {"sgemm": 3, "add": 3, "norm": 3}
    assert dict(one.groups.select("name", "busy_ns").iter_rows()) == {"sgemm": 2_700, "add": 1_200, "norm": 1_500}
    # The first gap lies before the first activity: it is no gap between two.
    assert idle_by_cause(one) == {"launch_latency": 800, "ends_of_steps": 100}
    assert one.order == 3 * (("sgemm", "add", "norm"),)


intervals = st.lists(
    st.tuples(st.integers(0, 5_000), st.integers(0, 900), st.sampled_from(["a", "b", "c"])), min_size=1, max_size=30
)


@given(intervals, st.integers(500, 2_500), st.integers(1, 3))
def test_the_identity_holds_exactly_for_any_overlap_and_any_steps(
    ran: list[tuple[int, int, str]], length: int, steps: int
) -> None:
    tables = session(STEP, steps=1)
    rows = [(at, 0, 0, "abc".index(k), s, s + d, d, False) for at, (s, d, k) in enumerate(ran)]
    columns = (
        "dispatch_id",
        "process_id",
        "device_id",
        "kernel_id",
        "start_ns",
        "end_ns",
        "self_ns",
        "below_resolution",
    )
    tables["dispatches"] = to_contract("dispatches", pl.DataFrame(rows, schema=list(columns), orient="row"))
    names = [(at, k, k, "main", "none") for at, k in enumerate("abc")]
    named = ("kernel_id", "name", "short_name", "role", "family_source")
    tables["kernels"] = to_contract("kernels", pl.DataFrame(names, schema=list(named), orient="row"))
    tables["gaps"] = tables["gaps"].clear()
    times = [("trace", at, "measure", at * (length + 200), at * (length + 200) + length, length) for at in range(steps)]
    stepped = ("pass", "iteration", "phase", "start_ns", "end_ns", "latency_ns")
    tables["iterations"] = to_contract("iterations", pl.DataFrame(times, schema=list(stepped), orient="row"))
    made = account(tables)
    if isinstance(made, str):
        assert not any(s < b and s + d > a for s, d, _ in ran for *_, a, b, _ in times if d)
        return
    # Without the first step where it holds the recorder's own beginning.
    assert made.steps in (steps, steps - 1)
    kept = times[steps - made.steps :]
    assert made.busy_ns == len(
        {ns for s, d, _ in ran for ns in range(s, s + d) if any(a <= ns < b for *_, a, b, _ in kept)}
    )
    assert made.time_ns == made.steps * length
    idle = int(made.idle.get_column("idle_ns").sum())
    assert made.time_ns == int(made.groups.get_column("busy_ns").sum()) + idle - made.overlap_ns


def test_a_wait_explains_a_gap_until_it_returned_and_the_host_the_rest() -> None:
    waiting = (GEMM, ADD, replace(NORM, gap_ns=100_000, cause="sync"))
    tables = session(waiting, steps=1)
    gap = tables["gaps"].filter(pl.col("cause").cast(pl.String) == "sync").row(0, named=True)
    call = {
        "call_id": 7, "process_id": 0, "domain": "hip_runtime", "name": "hipDeviceSynchronize",
        "start_ns": gap["start_ns"] - 10, "end_ns": gap["start_ns"] + 20_000,
    }  # fmt: skip
    tables["api_calls"] = to_contract("api_calls", pl.DataFrame([call]))
    found = pl.when(pl.col("cause").cast(pl.String) == "sync").then(7).cast(pl.Int32)
    tables["gaps"] = tables["gaps"].with_columns(host_call_id=found)
    idle = idle_by_cause(accounted(tables))
    assert idle["sync"] == 50_000
    assert idle["host_wait"] == 50_000


def test_a_gap_in_doubt_is_unknown() -> None:
    tables = session(STEP)
    tables["gaps"] = tables["gaps"].with_columns(doubt=pl.lit("records_lost"))
    assert set(idle_by_cause(accounted(tables))) == {"unknown", "ends_of_steps"}


def test_set_up_before_the_steady_part_is_no_step() -> None:
    tables = session(STEP)
    part = {"device_id": 0, "part": "steady", "start_ns": 2_100, "end_ns": 7_300, "reason": "made up"}
    tables["session_parts"] = to_contract("session_parts", pl.DataFrame([part]))
    assert accounted(tables).time_ns == 3 * 2_100 - 1_100


def test_the_way_to_the_first_kernel_is_a_part_of_the_first_step() -> None:
    """A steady part begins with its first kernel; the host had begun the step before."""
    tables = session(STEP)
    part = {"device_id": 0, "part": "steady", "start_ns": 1_100, "end_ns": 7_300, "reason": "made up"}
    tables["session_parts"] = to_contract("session_parts", pl.DataFrame([part]))
    assert accounted(tables).time_ns == 3 * 2_100


def later_in_the_first_step(ns: int, steps: int) -> Account:
    """Steps whose first one waits for its first kernel so much longer."""
    tables = session(STEP, steps=steps)
    early = pl.col("start_ns") == 1_000
    tables["iterations"] = tables["iterations"].with_columns(
        pl.when(early).then(1_000 - ns).otherwise("start_ns").alias("start_ns")
    )
    part = {"device_id": 0, "part": "steady", "start_ns": 1_100, "end_ns": 7_300, "reason": "made up"}
    tables["session_parts"] = to_contract("session_parts", pl.DataFrame([part]))
    return accounted(tables)


def test_a_first_step_that_holds_the_recorders_beginning_is_none() -> None:
    assert (later_in_the_first_step(101, 3).steps, later_in_the_first_step(101, 3).time_ns) == (2, 2 * 2_100)
    assert (later_in_the_first_step(99, 3).steps, later_in_the_first_step(99, 3).time_ns) == (3, 3 * 2_100 + 99)


def test_none_of_two_steps_is_omitted() -> None:
    assert later_in_the_first_step(5_000, 2).time_ns == 2 * 2_100 + 5_000


def test_calls_of_the_runtime_are_counted_on_every_thread() -> None:
    tables = session(STEP)
    calls = [
        (0, "hipLaunchKernel", 1_000, 1_010, 1), (1, "hipMalloc", 1_100, 1_400, 1), (2, "hipMalloc", 3_150, 3_250, 1),
        (3, "aten::empty", 1_500, 1_600, 1), (4, "hipMalloc", 1_500, 1_600, 2), (5, "hipMalloc", 90_000, 90_100, 1),
    ]  # fmt: skip
    made = pl.DataFrame(calls, schema=["call_id", "name", "start_ns", "end_ns", "thread_id"], orient="row")
    tables["api_calls"] = to_contract("api_calls", made.with_columns(process_id=0, domain=pl.lit("hip")))
    assert accounted(tables).calls.rows() == [("hipLaunchKernel", 1, 10), ("hipMalloc", 3, 500)]


def test_iterations_that_all_lie_before_the_steady_part_are_refused() -> None:
    tables = session(STEP)
    part = {"device_id": 0, "part": "steady", "start_ns": 8_000, "end_ns": 9_000, "reason": "made up"}
    tables["session_parts"] = to_contract("session_parts", pl.DataFrame([part]))
    assert account(tables) == "no measured iteration lies in the steady part"


def test_without_steps_the_whole_recording_is_one() -> None:
    tables = session(STEP)
    tables["iterations"] = tables["iterations"].clear()
    one = accounted(tables)
    assert (one.steps, one.rule, one.time_ns) == (1, WHOLE, 3 * 2_100 - 100)


def test_an_interval_of_several_repetitions_is_divided_among_them() -> None:
    tables = session(STEP)
    tables["iterations"] = tables["iterations"].clear()
    part = {"device_id": 0, "part": "steady", "start_ns": 1_000, "end_ns": 7_300, "repetitions": 3, "reason": "made up"}
    tables["session_parts"] = to_contract("session_parts", pl.DataFrame([part]))
    one = accounted(tables)
    assert (one.steps, one.time_ns, one.order) == (3, 6_300, 3 * (("sgemm", "add", "norm"),))


def test_without_any_activity_it_says_so() -> None:
    tables = session(STEP)
    tables["dispatches"] = tables["dispatches"].clear()
    assert account(tables) == "no kernel or copy with times was recorded"


def test_overlapping_iterations_are_refused() -> None:
    tables = session(STEP)
    tables["iterations"] = tables["iterations"].with_columns(pl.col("end_ns") + 500)
    assert "overlap" in str(account(tables))


@pytest.mark.parametrize(("clock", "mean"), [(None, None), (1_500.0, 1_500.0)])
def test_the_clock_is_known_only_where_it_was_sampled(clock: float | None, mean: float | None) -> None:
    assert accounted(session(STEP, clock_mhz=clock)).clock_mhz == mean
