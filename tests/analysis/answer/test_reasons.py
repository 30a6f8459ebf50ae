"""What explains a part of a share: never more than the share, and only where something recorded says so."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.answer import reasons
from aaco_pipeline.analysis.answer.shares import SHARES
from aaco_pipeline.analysis.sessions.iteration_gaps import Usage
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


def test_what_recurs_between_the_windows_pieces_explains_nothing_of_it() -> None:
    """A gap that a piece cuts counts as far as it lies in one; calls may overlap one another and the pieces' edges."""
    idle = pl.DataFrame({"share": ["sync", "sync", "launch"], "start_ns": [0, 300, 900], "end_ns": [200, 400, 1000]})
    calls = [("allocation", 50, 150), ("allocation", 100, 180), ("allocation", 250, 600), ("page_faults", 300, 400)]
    first = rows("first_calls", [{"kind": kind, "start_ns": start, "end_ns": end} for kind, start, end in calls])
    assert reasons.recurring(idle, first, pieces((0, 120), (900, 1000))) == {("sync", "allocation"): 70}
