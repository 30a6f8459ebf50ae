"""Each gap's one cause: on sessions written down by hand, and on captures whose cause is known by construction.

What launching costs where it is exposed, and the predecessors' scores beside it.
"""

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.timeline.gap_causes import launch_cost
from aaco_pipeline.lake.contracts import contract, polars_schema
from tests.places import SHARED

LENGTH = pl.col("end_ns") - pl.col("start_ns")
Row = dict[str, Any]
#: A kernel that ran from 100 to 200, launched at 50.
KERNEL: Row = {"start_ns": 100, "end_ns": 200, "correlation_id": 1}
LAUNCH: Row = {"start_ns": 50, "end_ns": 60, "name": "hipLaunchKernel", "correlation_id": 1}


def causes(found: Any) -> list[str]:
    return list(found.gaps["cause"])


def launched(start: int, end: int) -> Row:
    return {**LAUNCH, "start_ns": start, "end_ns": end, "correlation_id": 2}


def next_kernel(start: int, **rest: Any) -> Row:
    return {"start_ns": start, "end_ns": start + 100, "correlation_id": 2, **rest}


def test_a_blocking_call_open_when_the_device_fell_idle(session: Callable[..., Any]) -> None:
    waited = {"start_ns": 70, "end_ns": 220, "name": "hipDeviceSynchronize"}
    found = session([KERNEL, next_kernel(300)], calls=[LAUNCH, waited, launched(250, 260)])
    assert causes(found) == ["sync"]
    assert found.gaps["host_call_id"].to_list() == [1]


def test_a_launch_after_the_device_fell_idle(session: Callable[..., Any]) -> None:
    operators = {"start_ns": 230, "end_ns": 270, "name": "aten::mm", "domain": "operator"}
    found = session([KERNEL, next_kernel(300)], calls=[LAUNCH, launched(250, 260), operators])
    assert causes(found) == ["host_wait"]
    row = found.gaps.row(0, named=True)
    assert [row[name] for name in ("in_launch_calls_ns", "in_launching_operators_ns", "outside_ns")] == [10, 30, 60]
    assert row["host_call_id"] == 1


def test_a_launch_under_way_when_the_device_fell_idle(session: Callable[..., Any]) -> None:
    found = session([KERNEL, next_kernel(300)], calls=[LAUNCH, launched(195, 220)])
    assert causes(found) == ["launch_latency"]


def test_an_event_of_another_stream(session: Callable[..., Any]) -> None:
    calls = [LAUNCH, {"start_ns": 70, "end_ns": 71, "name": "hipStreamWaitEvent"}, launched(80, 90)]
    found = session([KERNEL, next_kernel(300, stream_id=1)], calls=calls)
    assert causes(found) == ["dependency"]


def test_a_queue_that_two_streams_share(session: Callable[..., Any]) -> None:
    found = session(
        [{**KERNEL, "queue_id": 4}, next_kernel(300, stream_id=1, queue_id=4)], calls=[LAUNCH, launched(80, 90)]
    )
    assert causes(found) == ["dependency"]


def test_short_gaps_are_ordinary_and_long_ones_unknown(session: Callable[..., Any]) -> None:
    starts = [100, 205, 310, 415, 520, 625, 1_000]
    kernels = [{"start_ns": s, "end_ns": s + 100, "correlation_id": n} for n, s in enumerate(starts)]
    calls = [{**LAUNCH, "start_ns": n, "end_ns": n + 1, "correlation_id": n} for n in range(len(starts))]
    found = session(kernels, calls=calls)
    assert causes(found) == [*["kernel_kernel"] * 5, "unknown"]


def test_without_a_launch_the_cause_is_unknown(session: Callable[..., Any]) -> None:
    found = session([KERNEL, {"start_ns": 201, "end_ns": 300}], calls=[LAUNCH])
    assert causes(found) == ["unknown"]
    assert found.gaps["outside_ns"].to_list() == [None]


def test_both_sides_are_named_by_what_ended_last_and_came_next(session: Callable[..., Any]) -> None:
    found = session(
        [
            {"start_ns": 0, "end_ns": 90},
            {"start_ns": 10, "end_ns": 20, "stream_id": 1},
            {"start_ns": 100, "end_ns": 110},
        ],
        copies=[{"start_ns": 120, "end_ns": 130}],
    )
    rows = found.gaps.select(pl.col("^(previous|next)_.*$")).rows()
    assert rows == [("dispatch", 0, "dispatch", 2), ("dispatch", 2, "memory_copy", 0)]


def test_rows_have_the_columns_of_the_table(session: Callable[..., Any]) -> None:
    found = session([KERNEL, next_kernel(300)], calls=[LAUNCH, launched(250, 260)]).gaps
    own = {name: dtype for name, dtype in polars_schema(contract("gaps")).items() if name != "session_id"}
    del own["doubt"]  # by the findings on the recording alone
    assert dict(found.select(*own).schema) == own


def test_a_session_without_device_work_has_no_gaps(session: Callable[..., Any]) -> None:
    assert session([]).gaps.is_empty()


def by_cause(found: Any) -> dict[str, int]:
    return dict(found.gaps.group_by("cause").agg(LENGTH.sum()).iter_rows())


def where_the_host_was(found: Any) -> tuple[int, int]:
    """Time of late launches inside calls and operators that launch, and outside of them."""
    late = found.gaps.filter(pl.col("cause").is_in(["host_wait", "launch_latency"]))
    inside, within, outside = (
        late[name].sum() for name in ("in_launch_calls_ns", "in_launching_operators_ns", "outside_ns")
    )
    return inside + within, outside


@pytest.mark.parametrize("name", ["tiny_kernels_500", "transformer_b1"])
def test_a_launch_bound_device_waits_for_launches(name: str, analysed: Callable[[str], Any]) -> None:
    found = analysed(f"gpu_sessions/traces/{name}.json.gz")
    times = by_cause(found)
    late = times.get("host_wait", 0) + times.get("launch_latency", 0)
    assert late > 0.9 * sum(times.values())
    inside, outside = where_the_host_was(found)
    assert inside > outside


def test_a_host_bound_device_waits_for_what_is_no_launch(analysed: Callable[[str], Any]) -> None:
    found = analysed("gpu_sessions/traces/host_work_between.json.gz")
    times = by_cause(found)
    assert times["host_wait"] > 0.9 * sum(times.values())
    inside, outside = where_the_host_was(found)
    assert outside > 9 * inside


def test_a_device_read_after_every_kernel_waits_for_synchronization(analysed: Callable[[str], Any]) -> None:
    times = by_cause(analysed("gpu_sessions/traces/item_each_kernel.json.gz"))
    assert max(times, key=lambda cause: times[cause]) == "sync"


@pytest.mark.parametrize("name", ["gemm_bf16_4096", "elementwise_256mib", "pageable_copies", "graph_replay"])
def test_a_busy_device_has_few_gaps(name: str, analysed: Callable[[str], Any]) -> None:
    found = analysed(f"gpu_sessions/traces/{name}.json.gz")
    assert found.timeline.filter(pl.col("window_rule") == "first_to_last_activity")["active_ratio"][0] > 0.9


def test_kernels_of_a_graph_belong_to_its_launches(analysed: Callable[[str], Any]) -> None:
    found = analysed("gpu_sessions/traces/graph_replay.json.gz")
    owners = found.activities.join(found.calls.select("call_id", "name"), on="call_id")
    assert owners.height == found.activities.height
    assert owners["name"].unique().to_list() == ["cudaGraphLaunch"]


def test_launches_are_counted_between_the_waits_around_them(session: Callable[..., Any]) -> None:
    launches = [{**LAUNCH, "start_ns": at, "end_ns": at + 1, "correlation_id": at} for at in (10, 20, 30, 50, 60)]
    kernels = [{"start_ns": 10 * row["correlation_id"], "end_ns": 10 * row["correlation_id"] + 5} for row in launches]
    linked = [
        {**kernel, "correlation_id": row["correlation_id"]} for kernel, row in zip(kernels, launches, strict=True)
    ]
    wait = {"start_ns": 40, "end_ns": 45, "name": "hipDeviceSynchronize"}
    found = session(linked, calls=[*launches, wait]).gaps
    assert found["launches_since_wait"].to_list() == [3, 3, 2, 2]
    elsewhere = session(linked, calls=[*launches, {**wait, "thread_id": 8}]).gaps
    assert elsewhere["launches_since_wait"].to_list() == [None] * 4
    unlinked = session([{**row, "correlation_id": None} for row in linked], calls=[*launches, wait]).gaps
    assert unlinked["launches_since_wait"].to_list() == [None] * 4


def row(found: Any) -> dict[str, Any]:
    cost = launch_cost(found.activities, found.timeline)
    return dict(cost.devices.row(0, named=True))


def test_only_a_launch_that_the_device_waits_for_is_exposed(session: Callable[..., Any]) -> None:
    kernels = [
        {"start_ns": 100, "end_ns": 200, "correlation_id": 1},
        {"start_ns": 200, "end_ns": 300, "correlation_id": 2},
        {"start_ns": 340, "end_ns": 400, "correlation_id": 3},
    ]
    launches = [(50, 60), (70, 80), (310, 320)]
    calls = [
        {"start_ns": start, "end_ns": end, "name": "hipLaunchKernel", "correlation_id": number + 1}
        for number, (start, end) in enumerate(launches)
    ]
    cost = row(session(kernels, calls=calls))
    assert (cost["api_ns"], cost["launches"]) == (30, 3)
    assert cost["launch_latency_ns"] == 50 + 30
    # The first launch lies before the window; the second one queued behind the first kernel.
    assert cost["exposed_launch_ns"] == 30
    assert cost["exposed_launch_ratio"] == 30 / 300
    assert cost["micro_kernel_ratio"] == 1.0
    assert cost["dispatch_rate_per_s"] == pytest.approx(3 / 300e-9)
    assert cost["launch_tax_score"] == pytest.approx(3 / 300e-9 / 1000)
    assert (cost["dispatches"], cost["busy_ns"]) == (3, 260)


def test_without_dispatches_or_known_launches_there_is_no_launch_cost(session: Callable[..., Any]) -> None:
    unknown = ("api_ns", "launch_latency_ns", "exposed_launch_ns", "exposed_launch_ratio", "launch_tax_score")
    copied = row(session([], copies=[{"start_ns": 0, "end_ns": 9}]))
    unlinked = row(session([{"start_ns": 0, "end_ns": 9, "correlation_id": 7}]))
    for cost, dispatches in ((copied, 0), (unlinked, 1)):
        assert [cost[name] for name in unknown] == [None] * len(unknown)
        assert (cost["launches"], cost["dispatches"], cost["unlinked"]) == (0, dispatches, 1)
    assert unlinked["micro_kernel_ratio"] == 1.0


def test_a_launch_into_a_busy_stream_costs_nothing_and_is_known(session: Callable[..., Any]) -> None:
    kernels = [{"start_ns": 0, "end_ns": 90}, {"start_ns": 90, "end_ns": 100, "correlation_id": 1}]
    call = {"start_ns": 10, "end_ns": 20, "name": "hipLaunchKernel", "correlation_id": 1}
    cost = row(session(kernels, calls=[call]))
    assert (cost["exposed_launch_ns"], cost["launch_latency_ns"], cost["exposed_launch_ratio"]) == (0, 0, 0.0)
    assert cost["unlinked"] == 1


def test_the_busiest_device_speaks_for_the_session(session: Callable[..., Any]) -> None:
    kernels = [{"start_ns": 0, "end_ns": 10}, {"device_id": 1, "start_ns": 0, "end_ns": 30}]
    found = session([*kernels, {"device_id": 2, "start_ns": 50, "end_ns": 80}])
    busiest = launch_cost(found.activities, found.timeline).busiest
    assert busiest is not None
    assert (busiest["device_id"], busiest["busy_ns"]) == (1, 30)
    assert launch_cost(found.activities.clear(), found.timeline.clear()).busiest is None


def test_several_kernels_of_one_call_count_it_once(session: Callable[..., Any]) -> None:
    kernels = [{"start_ns": 30 + 10 * n, "end_ns": 35 + 10 * n, "correlation_id": 1} for n in range(3)]
    call = {"start_ns": 10, "end_ns": 20, "name": "hipGraphLaunch", "correlation_id": 1}
    cost = row(session(kernels, calls=[call]))
    assert (cost["api_ns"], cost["launches"], cost["launch_latency_ns"]) == (10, 1, 20)


@pytest.mark.parametrize("name", ["mi300x_qwen1.5_0.5b", "mi300x_resnet_train_ddp", "mi300x_sglang_qwen3_8b"])
def test_time_in_launching_calls_is_the_references(name: str, analysed: Callable[[str], Any]) -> None:
    found = analysed(f"kineto/{name}.json.gz")
    reference = json.loads((SHARED / "kineto" / "oracle" / f"reference_{name}.json").read_text())
    assert row(found)["api_ns"] == reference["launch_api_dur_ns"]["sum_over_linked"]


def test_a_graph_hides_what_the_score_calls_launch_tax(analysed: Callable[[str], Any]) -> None:
    graph, tiny = (
        row(analysed(f"gpu_sessions/traces/{name}.json.gz")) for name in ("graph_replay", "tiny_kernels_500")
    )
    assert graph["launch_tax_score"] > tiny["launch_tax_score"]
    assert graph["exposed_launch_ratio"] < 0.05
    assert tiny["exposed_launch_ratio"] > 0.4
