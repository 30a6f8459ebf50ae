"""How a session's time is shared out: nothing lost, nothing counted twice, and each cause where it belongs."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.bottlenecks.session_signals import (
    LAUNCH_PACE_NS,
    LAUNCHES_TO_RUN_AHEAD,
    clock_signals,
    device_shares,
    host_shares,
    on_cpu_ratio,
    shares_of_busy_time,
    steadiness_signals,
)
from aaco_pipeline.analysis.sessions.iteration_gaps import Usage
from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST
from aaco_pipeline.lake.contracts import contract, polars_schema

CAUSES = ("sync", "host_wait", "launch_latency", "dependency", "kernel_kernel", "unknown")


def rows(table: str, *given_rows: dict[str, object]) -> pl.DataFrame:
    schema = polars_schema(contract(table))
    return pl.DataFrame(list(given_rows), schema=schema).drop("session_id")


def used(length: int, cpu: int | None, delay: int | None) -> Usage:
    """What a process used over four iterations, each as long."""
    return Usage(4, *(None if one is None else 4 * one for one in (length, cpu, delay)))  # type: ignore[arg-type]


def window(length: int, busy: int, copying: int = 0, talking: int = 0) -> pl.DataFrame:
    times = {"window_start_ns": 0, "window_end_ns": length, "window_rule": FIRST_TO_LAST, "busy_ns": busy}
    exposed = {"exposed_copy_ns": copying, "exposed_communication_ns": talking}
    return rows("timeline", {"device_id": 0, "activity_count": 1, **times, **exposed})


def idle(*gaps: tuple[str, int, int, int | None]) -> pl.DataFrame:
    """Gaps of (cause, length, host's time outside of launches, launches since the last wait)."""
    schema = {"cause": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64, "outside_ns": pl.Int64}
    listed = [(cause, 0, length, outside, launches) for cause, length, outside, launches in gaps]
    found = pl.DataFrame(listed, schema={**schema, "launches_since_wait": pl.Int64}, orient="row")
    return found.with_columns(doubt=pl.lit(None, pl.String))


NOTHING = Usage(0, 0, None, None)


@given(
    st.integers(1, 10**9),
    st.lists(
        st.tuples(st.sampled_from(CAUSES), st.integers(1, 10**8), st.integers(0, 10**8), st.none() | st.integers(1, 99))
    ),
    st.integers(0, 10**9),
)
def test_the_shares_of_a_device_are_the_whole_window(
    busy: int, gaps: list[tuple[str, int, int, int | None]], delay: int
) -> None:
    own = [(cause, length, min(outside, length), launches) for cause, length, outside, launches in gaps]
    length = busy + sum(gap[1] for gap in own)
    shares = device_shares(
        window(length, busy, copying=busy // 3, talking=busy // 5),
        idle(*own),
        used(10**9, 10**8, delay),
        {"memory_dram": 0.25, "latency": 0.75},
    )
    assert sum(shares.values()) == pytest.approx(1)
    assert all(share >= -1e-12 for share in shares.values())


@pytest.mark.parametrize(
    ("gap", "cause"),
    [
        (("sync", 500, 0, None), "sync"),
        (("dependency", 500, 0, 90), "sync"),
        (("kernel_kernel", 500, 0, 90), "launch"),
        (("launch_latency", 500, 0, 90), "launch"),
        (("launch_latency", 500, 0, LAUNCHES_TO_RUN_AHEAD), "sync"),
        (("host_wait", 500, 0, LAUNCHES_TO_RUN_AHEAD), "sync"),
        (("host_wait", 500, 500, 90), "launch"),
        (("host_wait", LAUNCH_PACE_NS + 1, LAUNCH_PACE_NS + 1, 90), "host"),
        (("unknown", 500, 0, None), "idle_unexplained"),
    ],
)
def test_a_gaps_cause_is_a_sessions(gap: tuple[str, int, int, int | None], cause: str) -> None:
    shares = device_shares(window(4 * gap[1], 3 * gap[1]), idle(gap), NOTHING, {})
    assert shares[cause] == pytest.approx(0.25)
    assert shares["busy_unexplained"] == pytest.approx(0.75)


def test_a_gap_in_which_work_may_have_run_unrecorded_is_not_called_idle_without_a_cause() -> None:
    gaps = idle(("unknown", 500, 0, None)).with_columns(doubt=pl.lit("wait_for_unrecorded_work"))
    shares = device_shares(window(2_000, 1_500), gaps, NOTHING, {})
    assert [shares["idle_unrecorded"], shares["idle_unexplained"]] == pytest.approx([0.25, 0])


def test_host_time_in_a_gap_is_the_hosts_and_the_rest_of_it_the_launchs() -> None:
    shares = device_shares(window(200_000, 100_000), idle(("host_wait", 100_000, 60_000, 90)), NOTHING, {})
    assert [shares["host"], shares["launch"]] == pytest.approx([0.3, 0.2])


def test_waiting_for_a_cpu_is_taken_from_what_the_host_caused_and_from_nothing_else() -> None:
    gaps = idle(("host_wait", 200_000, 200_000, 90), ("unknown", 200_000, 0, None))
    shares = device_shares(window(1_000_000, 600_000), gaps, used(1_000_000, 500_000, 500_000), {"latency": 1.0})
    assert shares["host_contention"] == pytest.approx(0.2)
    assert shares["host"] == pytest.approx(0)
    assert shares["idle_unexplained"] == pytest.approx(0.2)


def test_without_a_window_there_are_no_shares() -> None:
    assert device_shares(rows("timeline"), idle(), NOTHING, {"latency": 1.0}) == {}


@pytest.mark.parametrize(
    ("latency", "cpu", "delay", "expected"),
    [
        (1000, 1000, 0, {"compute_vector": 0.8, "launch": 0.2}),
        (1000, 250, 0, {"host": 0.75, "compute_vector": 0.25}),
        (1000, 250, 750, {"host_contention": 0.75, "compute_vector": 0.25}),
        (1000, 500, 250, {"host": 0.25, "host_contention": 0.25, "compute_vector": 0.5}),
    ],
)
def test_a_cpus_iteration_is_shared_out(latency: int, cpu: int, delay: int, expected: dict[str, float]) -> None:
    shares = host_shares(used(latency, cpu, delay), used(900, 900, 0), self_ns=4 * 800, busy={"compute_vector": 1.0})
    assert sum(shares.values()) == pytest.approx(1)
    assert {name: share for name, share in shares.items() if share > 1e-9} == pytest.approx(expected)


def test_an_operators_wait_for_a_cpu_is_not_its_own_time() -> None:
    # The traced pass was contended, the unprofiled one was not: 400 of the 800 ns in operators were on a CPU.
    traced = used(900, 450, 450)
    assert on_cpu_ratio(traced) == pytest.approx(0.5)
    shares = host_shares(used(1000, 1000, 0), traced, self_ns=4 * 800, busy={"latency": 1.0})
    assert shares["latency"] == pytest.approx(0.4)


def test_several_threads_that_wait_do_not_make_more_than_the_whole() -> None:
    shares = host_shares(used(1000, 2000, 6000), NOTHING, 0, {})
    assert shares["host_contention"] == pytest.approx(0.75)
    assert shares["busy_unexplained"] == pytest.approx(0.25)


def test_without_cpu_time_nothing_is_concluded() -> None:
    assert host_shares(used(1000, None, 0), used(900, 900, 0), 4, {"latency": 1.0}) == {}


def test_kernels_without_a_label_are_time_without_a_cause() -> None:
    kernels = pl.DataFrame({"label": ["latency", None, "latency"], "total_ns": [1, 2, 1]})
    assert shares_of_busy_time(kernels) == {"busy_unexplained": 0.5, "latency": 0.5}


def samples(*reasons: list[str] | None, hot: float = 60.0, clock: float = 1000.0) -> pl.DataFrame:
    one: dict[str, object] = {"device_id": 0, "temperature_hotspot_c": hot, "gfx_clock_mhz": clock}
    one["gfx_activity_ratio"] = 1.0
    return rows("gpu_samples", *({**one, "time_ns": i, "throttle_reasons": r} for i, r in enumerate(reasons)))


DEVICE = rows("devices", {"device_id": 0, "max_clock_mhz": 2000.0})


def test_throttling_is_by_the_drivers_reasons() -> None:
    found = clock_signals(samples(["PPT0"], ["ppt"], ["socket_thm"], []), DEVICE, 0.8)
    assert found["power_throttled"].value == pytest.approx(0.4)
    assert found["thermally_throttled"].value == pytest.approx(0.2)
    assert found["clock_below_highest"].value == pytest.approx(0.5)


def test_a_temperature_alone_throttles_nothing() -> None:
    cool, hot = (clock_signals(samples([], [], hot=at), DEVICE, 1.0) for at in (40.0, 115.0))
    assert cool == hot
    assert hot["thermally_throttled"].value == 0


def test_unreported_reasons_are_missing_and_not_zero() -> None:
    for frame in (samples(None, None), samples()):
        signal = clock_signals(frame, DEVICE, 1.0)["power_throttled"]
        assert signal.value is None
        assert signal.reason


def test_time_above_the_last_level_is_instability() -> None:
    metric = {"metric": "steady_state", "pass": "latency", "phase": "measure", "value": 0.0, "unit": "flag"}
    one: dict[str, object] = {"pass": "latency", "phase": "measure"}
    both = rows("iterations", *({**one, "iteration": i, "latency_ns": 300 if i < 10 else 100} for i in range(30)))
    found = steadiness_signals(rows("session_metrics", metric), both)
    assert found["share_warmup_instability"].value == pytest.approx(10 * 200 / 5000)
    unjudged = steadiness_signals(rows("session_metrics"), both)
    assert (unjudged["steady_state"].value, unjudged["share_warmup_instability"].value) == (None, None)
