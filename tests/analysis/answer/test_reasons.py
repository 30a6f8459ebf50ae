"""Reasons for a part of a share: never more than the share, and only with a record.

The late rank of a job, and what makes it late: jobs written down with one cause each.
"""

from dataclasses import replace
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.answer import reasons
from aaco_pipeline.analysis.answer.reasons import LateRank, in_words, late_rank
from aaco_pipeline.analysis.answer.shares import SHARES
from aaco_pipeline.analysis.sessions.metrics import Usage
from aaco_pipeline.lake.contracts import contract, polars_schema
from aaco_pipeline.lake.validation import empty_table
from tests.analysis.answer.made_up import pieces, rows

times = st.integers(0, 10**12)
made_shares = st.fixed_dictionaries(dict.fromkeys(SHARES, times))


@given(made_shares, st.none() | times, st.integers(0, 10**12))
def test_contention_is_part_of_what_the_hosts_threads_cause(
    shares: dict[str, int], delay: int | None, length: int
) -> None:
    found = reasons.contention(shares, Usage(1, length, None, delay))
    assert set(found) <= {"sync", "launch", "host"}
    assert all(time <= shares[name] for name, time in found.items())


def test_contention_is_the_part_of_the_window_in_which_threads_waited_for_a_cpu() -> None:
    shares = dict.fromkeys(SHARES, 0) | {"device": 500, "launch": 400, "host": 100}
    # A quarter of each iteration: 250 of 1,000, which 500 of idle time can hold.
    assert reasons.contention(shares, Usage(4, 400, None, 100)) == {"launch": 200, "host": 50}
    assert reasons.contention(shares, Usage(0, 0, None, None)) == {}


def test_a_late_rank_explains_no_more_than_its_part_of_the_collectives_time() -> None:
    shares = dict.fromkeys(SHARES, 0) | {"communication": 1000}
    ran = rows("dispatches", [{"dispatch_id": i, "start_ns": 0, "end_ns": 1000} for i in range(2)])
    parts = rows("collectives", [{"dispatch_id": 0, "wait_ns": 900}, {"dispatch_id": 1, "wait_ns": 300}])
    assert reasons.imbalance(shares, parts, ran) == {"communication": 600}
    elsewhere = rows("collectives", [{"dispatch_id": 9, "wait_ns": 900}])
    assert reasons.imbalance(shares, elsewhere, ran) == {}
    assert reasons.imbalance(shares | {"communication": 0}, parts, ran) == {}


def sample(clock: float | None, *held: str, busy: float | None = 1.0) -> dict[str, object]:
    return {"device_id": 0, "gfx_clock_mhz": clock, "gfx_activity_ratio": busy, "throttle_reasons": list(held)}


@pytest.mark.parametrize(
    ("samples", "cost"),
    [
        ([sample(1000, "ppt0")], 500),
        ([sample(1000, "temp_hotspot")], 500),
        ([sample(1000, "sw_power_cap")], 500),
        ([sample(1000, "sw_thermal_slowdown")], 500),
        # Clocks that somebody has set are no limit of power or temperature.
        ([sample(1000, "applications_clocks_setting")], 0),
        # Half of the loaded samples name a limit.
        ([sample(1000, "ppt0"), sample(2000)], 250),
        # An idle device's clock says nothing, a clock within the scatter neither, and a low clock alone is no limit.
        ([sample(1000, "ppt0", busy=0.1)], 0),
        ([sample(1950, "ppt0")], 0),
        ([sample(1000)], 0),
        ([sample(1000, "some_other_word")], 0),
        ([], 0),
    ],
)
def test_throttling_costs_what_the_clock_lost_where_a_limit_is_named(
    samples: list[dict[str, object]], cost: int
) -> None:
    devices = rows("devices", [{"device_id": 0, "max_clock_mhz": 2000.0}])
    found = reasons.throttling(dict.fromkeys(SHARES, 0) | {"device": 1000}, rows("gpu_samples", samples), devices)
    assert found == ({"device": cost} if cost else {})


def test_work_of_first_calls_that_recurs_explains_the_idle_time_that_it_fills() -> None:
    idle = pl.DataFrame({"share": ["sync", "launch"], "start_ns": [0, 200], "end_ns": [100, 300]})
    calls = [("allocation", 50, 250), ("compilation", 290, 400), ("initialization", 0, 300)]
    first = rows("first_calls", [{"kind": kind, "start_ns": start, "end_ns": end} for kind, start, end in calls])
    assert reasons.recurring(idle, first, pieces((0, 500))) == {
        ("sync", "allocation"): 50,
        ("launch", "allocation"): 50,
        ("launch", "compilation"): 10,
    }


def test_records_between_the_windows_pieces_explain_nothing() -> None:
    """A gap that a piece cuts counts as far as it lies in one; calls may overlap one another and the pieces' edges."""
    idle = pl.DataFrame({"share": ["sync", "sync", "launch"], "start_ns": [0, 300, 900], "end_ns": [200, 400, 1000]})
    calls = [("allocation", 50, 150), ("allocation", 100, 180), ("allocation", 250, 600), ("page_faults", 300, 400)]
    first = rows("first_calls", [{"kind": kind, "start_ns": start, "end_ns": end} for kind, start, end in calls])
    assert reasons.recurring(idle, first, pieces((0, 120), (900, 1000))) == {("sync", "allocation"): 70}


STEPS: Final = 12
RANKS: Final = 4
KERNEL_NS: Final = 40_000
LATE_NS: Final = 80_000
COLLECTIVE_NS: Final = 50_000


def _frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = polars_schema(contract(name))
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema)


def job(cause: str | None, late: int = 2, offset: int = 10**9) -> dict[str, pl.DataFrame]:
    """Ranks that run four kernels and meet in a collective; one is late by LATE_NS each time, for one cause.

    Every rank reads a clock of its own.
    """
    dispatches: list[dict[str, Any]] = []
    collectives: list[dict[str, Any]] = []

    def run(rank: int, kernel: int, start: int, end: int, grid: int = 64) -> None:
        grids = {"grid_x": grid, "grid_y": 1, "grid_z": 1, "workgroup_x": 64, "workgroup_y": 1, "workgroup_z": 1}
        row = {"process_id": rank, "device_id": rank, "kernel_id": kernel, "dispatch_id": len(dispatches)}
        dispatches.append({**row, **grids, "start_ns": start + rank * offset, "end_ns": end + rank * offset})

    begin = 0
    for step in range(STEPS):
        arrivals = {}
        for rank in range(RANKS):
            at, is_late = begin, rank == late and cause is not None
            at += LATE_NS if is_late and cause == "host" else 0
            for _ in range(4):
                longer = LATE_NS // 4 if is_late and cause in ("device", "data") else 0
                run(rank, 1, at, at + KERNEL_NS + longer, 96 if is_late and cause == "data" else 64)
                at += KERNEL_NS + longer
            if is_late and cause == "work":
                run(rank, 2, at, at + LATE_NS)
                at += LATE_NS
            arrivals[rank] = at
        end = max(arrivals.values()) + COLLECTIVE_NS
        for rank, arrival in arrivals.items():
            last = max(arrivals.values())
            known = {"collective_id": step, "process_id": rank, "dispatch_id": len(dispatches)}
            waited = {"wait_ns": last - arrival, "is_straggler": cause is not None and arrival == last}
            collectives.append({**known, **waited})
            run(rank, 0, arrival, end)
        begin = end
    kernels = [{"kernel_id": number, "family": family} for number, family in enumerate(["comm", "gemm", "elementwise"])]
    return {
        "dispatches": _frame("dispatches", dispatches),
        "collectives": _frame("collectives", collectives),
        "kernels": _frame("kernels", kernels),
        "processes": _frame("processes", [{"process_id": rank, "rank": rank + 8} for rank in range(RANKS)]),
    }


@pytest.mark.parametrize("cause", ["work", "device", "data", "host"])
@given(late=st.integers(0, RANKS - 1), offset=st.integers(-(10**12), 10**12))
def test_the_late_rank_is_named_with_what_makes_it_late(cause: str, late: int, offset: int) -> None:
    found = late_rank(job(cause, late, offset))
    assert found is not None
    assert (found.process_id, found.rank, found.cause, found.late_ns) == (late, late + 8, cause, LATE_NS)
    assert found.times == (pytest.approx(1.5) if cause == "device" else None)


def test_no_rank_is_late_when_all_arrive_together_or_in_turn() -> None:
    assert late_rank(job(None)) is None
    tables = job("host")
    turns = pl.col("collective_id") % RANKS == pl.col("process_id")
    assert late_rank({**tables, "collectives": tables["collectives"].with_columns(is_straggler=turns)}) is None


def test_a_rank_that_two_processes_state_names_neither() -> None:
    tables = job("work")
    processes = tables["processes"].with_columns(rank=pl.lit(0, pl.Int32))
    found = late_rank({**tables, "processes": processes})
    assert found is not None
    assert (found.process_id, found.rank) == (2, None)
    # One that takes no part, as a rank's own child, is no other rank.
    child = processes.head(1).with_columns(process_id=pl.lit(9, pl.Int32), rank=pl.lit(10, pl.Int32))
    found = late_rank({**tables, "processes": pl.concat([tables["processes"], child])})
    assert found is not None
    assert found.rank == 10


def test_a_rank_that_is_last_by_less_than_anybody_minds_is_not_late() -> None:
    tables = job("work")
    whole = 4 * KERNEL_NS + LATE_NS + COLLECTIVE_NS
    for part, is_reported in ((0.02, True), (0.005, False)):
        waits = pl.when(pl.col("wait_ns") > 0).then(round(part * whole)).otherwise(0)
        assert (
            late_rank({**tables, "collectives": tables["collectives"].with_columns(wait_ns=waits)}) is not None
        ) is (is_reported)


def test_one_rank_alone_cannot_tell() -> None:
    tables = job("device")
    alone = tables["collectives"].filter(pl.col("process_id") == 0)
    unknown = alone.with_columns(wait_ns=pl.lit(None, pl.Int64), is_straggler=pl.lit(None, pl.Boolean))
    assert late_rank({**tables, "collectives": unknown}) is None
    assert late_rank({**tables, "collectives": empty_table("collectives")}) is None


def test_time_shared_by_two_causes_has_none() -> None:
    tables = job("device")
    # Half of what the kernels took longer is gone from the records: it looks idle.
    shorter = pl.when((pl.col("process_id") == 2) & (pl.col("kernel_id") == 1)).then(LATE_NS // 8).otherwise(0)
    dispatches = tables["dispatches"].with_columns(end_ns=pl.col("end_ns") - shorter - (shorter > 0).cast(pl.Int64))
    found = late_rank({**tables, "dispatches": dispatches})
    assert found is not None
    assert found.cause in ("host", None)


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("work", "because it runs more kernels"),
        ("device", "because its same kernels take 1.5 times as long"),
        ("data", "because its kernels run on other grids"),
        ("host", "because its device waits for its host"),
        (None, "and nothing recorded says why"),
    ],
)
def test_a_late_rank_in_words(cause: Any, words: str) -> None:
    late = LateRank(5, 3, 80_000, cause, 1.5 if cause == "device" else None)
    assert in_words(late) == f"rank 3 is late by 80 µs a collective (median), {words}: the others wait for it"
    assert in_words(replace(late, rank=None)).startswith("process 5 is late by 80 µs a collective")
    if cause == "device":
        assert "its same kernels take 4 % longer:" in in_words(replace(late, times=1.042))
    known = replace(late, late_ns=2_104_000, in_iterations=True, operation="all_reduce")
    assert in_words(known) == (
        f"rank 3 is late by 2.1 ms an iteration (median), {words}: the others wait for it in all_reduce"
    )


def test_lateness_is_of_an_iteration_where_there_are_any() -> None:
    """Two collectives a step, to both of which the rank is late, and one before the first step without a late rank."""
    tables = job("work")
    named = pl.when(pl.col("collective_id") % 2 == 0).then(pl.lit("all_reduce")).otherwise(pl.lit("barrier"))
    # Of the two the barrier's wait is half as long.
    shorter = pl.when(pl.col("collective_id") % 2 == 0).then("wait_ns").otherwise(pl.col("wait_ns") // 2)
    collectives = tables["collectives"].with_columns(name=named.cast(pl.Categorical), wait_ns=shorter)
    own = tables["dispatches"].join(collectives.select("dispatch_id", "collective_id"), on="dispatch_id", how="left")
    numbered = own.with_columns(
        iteration=pl.when(pl.col("collective_id") >= 2).then(pl.col("collective_id") // 2).cast(pl.Int32)
    ).drop("collective_id")
    found = late_rank({**tables, "collectives": collectives, "dispatches": numbered})
    assert found is not None
    assert (found.late_ns, found.in_iterations, found.operation) == (LATE_NS + LATE_NS // 2, True, "all_reduce")
