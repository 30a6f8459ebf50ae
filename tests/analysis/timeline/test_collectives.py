"""Collectives of several processes: what they are called, which parts belong together, who waited, what was exposed.

Bandwidths of collectives by nccl-tests' factors, and what a rate far below the links' says.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.timeline import collectives
from aaco_pipeline.analysis.timeline.activities import CATEGORIES, device_activities
from aaco_pipeline.analysis.timeline.collectives import LATE_OR_BROKEN, with_rates
from aaco_pipeline.analysis.timeline.dependency_graph import KINDS
from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import empty_table, to_contract

RESNET: Final = "kineto/mi300x_resnet_train_ddp.json.gz"
Row = tuple[int, int, int, int]
_PART: Final[dict[str, type[pl.DataType]]] = {
    "dispatch_id": pl.Int32,
    "process_id": pl.Int32,
    "device_id": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "name": pl.String,
    "communicator": pl.String,
    "group_size": pl.Int64,
    "sequence": pl.Int64,
    "size_bytes": pl.Int64,
}
_ACTIVITY: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "process_id": pl.Int32,
    "device_id": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "category": CATEGORIES,
}
SPANS: Final = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=8)


def part(process: int, start: int, end: int, **facts: object) -> dict[str, object]:
    """An all_reduce of a group of two, by default."""
    known = {"name": "all_reduce", "communicator": "world", "group_size": 2, "sequence": None, "size_bytes": 64}
    return {"process_id": process, "device_id": process, "start_ns": start, "end_ns": end, **known, **facts}


def parts(*rows: dict[str, object]) -> pl.DataFrame:
    return pl.DataFrame([{"dispatch_id": i, **row} for i, row in enumerate(rows)], schema=_PART)


def clocks(*known: tuple[int, int | None, int | None], drift: float | None = None) -> pl.DataFrame:
    """The clock, offset and uncertainty of each process."""
    return pl.DataFrame(
        [(process, *row, drift, None if drift is None else 0) for process, row in enumerate(known)],
        schema={
            "process_id": pl.Int32,
            "clock": pl.Int32,
            "offset_ns": pl.Int64,
            "uncertainty_ns": pl.Int64,
            "drift_ratio": pl.Float64,
            "anchor_ns": pl.Int64,
        },
        orient="row",
    )


def computing(*rows: Row) -> pl.DataFrame:
    """Compute by process, device, start and end."""
    return pl.DataFrame([(*row, "compute") for row in rows], schema=_ACTIVITY, orient="row")


ALIGNED: Final = clocks((0, 0, 0), (0, 0, 0))


def judged(*rows: dict[str, object], known: pl.DataFrame = ALIGNED) -> pl.DataFrame:
    return collectives.collectives(collectives.matched(parts(*rows)), known, computing())


def together(matched: collectives.Matched) -> list[list[int]]:
    """The dispatches of each collective."""
    groups = matched.parts.group_by("collective_id", maintain_order=True).agg("dispatch_id")
    return [sorted(row) for row in groups.get_column("dispatch_id").to_list()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("allreduce", "all_reduce"),
        ("nccl:all_reduce", "all_reduce"),
        ("ncclAllReduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("ncclReduce", "reduce"),
        ("_broadcast_oop", "broadcast"),
        ("all_to_allv", "all_to_all"),
        ("nccl:recv 1<-0", "recv"),
        ("ncclGroupEnd", None),
        ("wait", None),
        ("ncclCommInitRank", None),
        ("", None),
    ],
)
def test_operations_by_what_libraries_call_them(text: str, expected: str | None) -> None:
    assert collectives.operation(text) == expected


def launched(*starts: int | None) -> pl.DataFrame:
    """Communication kernels on thread 5 by the start of their launch, None for one without."""
    return pl.DataFrame(
        [
            {
                "activity_id": i,
                "activity_kind": "dispatch",
                "category": "communication",
                "process_id": 0,
                "device_id": 0,
                "start_ns": 1000 + i,
                "end_ns": 1001 + i,
                "call_thread_id": None if start is None else 5,
                "call_start_ns": start,
            }
            for i, start in enumerate(starts)
        ],
        schema_overrides={"activity_id": pl.Int32, "process_id": pl.Int32, "device_id": pl.Int32},
    ).cast({"call_thread_id": pl.Int64, "call_start_ns": pl.Int64})


def marker(thread: int, start: int, end: int, name: str, **facts: object) -> dict[str, object]:
    return {
        "marker_id": 0,
        "process_id": 0,
        "thread_id": thread,
        "name": name,
        "start_ns": start,
        "end_ns": end,
    } | facts


def test_a_kernel_is_what_the_range_around_its_launch_states() -> None:
    stated = {"collective": "allreduce", "communicator": "0 [0, 1]", "group_size": 2, "sequence": 9, "size_bytes": 48}
    markers = pl.DataFrame(
        [
            marker(5, 10, 20, "record_param_comms", **stated),
            marker(5, 11, 19, "nccl:broadcast"),  # what the arguments state outranks the name
            marker(6, 30, 40, "record_param_comms", **stated),  # another thread
            marker(5, 50, 60, "nccl:_allgather_base"),
            marker(5, 70, 80, "step"),
            marker(5, 130, 140, "record_param_comms", **{**stated, "collective": "coalesced"}),
        ]
    ).with_columns(marker_id=pl.int_range(pl.len()))
    calls = pl.DataFrame(
        {"process_id": 0, "thread_id": 5, "domain": ["rccl", "hip_runtime"], "name": ["ncclBroadcast", "ncclSend"]}
        | {"call_id": [0, 1], "start_ns": [90, 110], "end_ns": [100, 120]}
    )
    found = collectives.parts(
        launched(15, 20, 21, 35, 55, 75, 95, 115, None, 135),
        to_contract("markers", markers),
        to_contract("api_calls", calls),
    )
    assert found.get_column("name").to_list() == [
        *("all_reduce", "all_reduce", None, None, "all_gather", None, "broadcast", None, None, "coalesced")
    ]
    facts = found.select("communicator", "group_size", "sequence", "size_bytes").rows()
    assert facts == [("0 [0, 1]", 2, 9, 48)] * 2 + [(None, None, None, None)] * 7 + [("0 [0, 1]", 2, 9, 48)]


def test_parts_belong_together_by_order_of_issue() -> None:
    matched = collectives.matched(parts(part(0, 0, 9), part(0, 20, 29), part(1, 25, 30), part(1, 5, 9)))
    assert together(matched) == [[0, 3], [1, 2]]
    assert matched.unmatched.height == 0
    assert matched.parts.get_column("participants").to_list() == [2] * 4


def test_a_stated_number_outranks_the_order_and_allows_missing_parts() -> None:
    rows = [part(0, i * 10, i * 10 + 5, sequence=i) for i in range(4)] + [part(1, 23, 29, sequence=2)]
    matched = collectives.matched(parts(*rows))
    assert together(matched) == [[0], [1], [2, 4], [3]]
    assert matched.unmatched.height == 0


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": "broadcast"}, "processes disagree on name, size or group at the same number"),
        ({"size_bytes": 128}, "processes disagree on name, size or group at the same number"),
        ({"group_size": 3}, "processes disagree on name, size or group at the same number"),
        (None, "processes have from 1 to 2 collectives, and nothing numbers them"),
    ],
)
def test_disagreement_leaves_a_whole_communicator_apart(changed: dict[str, object] | None, reason: str) -> None:
    rows = [part(0, 0, 9), part(0, 20, 29), part(1, 0, 9)]
    rows += [] if changed is None else [part(1, 20, 29, **changed)]
    # Another communicator is not concerned.
    rows += [part(0, 50, 59, communicator="other"), part(1, 50, 59, communicator="other")]
    matched = collectives.matched(parts(*rows))
    count = len(rows) - 2
    assert sorted(together(matched)) == [*([i] for i in range(count)), [count, count + 1]]
    assert matched.unmatched.rows() == [("world", reason, count)]
    found = collectives.collectives(matched, ALIGNED, computing())
    assert found.filter(pl.col("communicator") == "world").get_column("wait_ns").is_null().all()
    assert found.filter(pl.col("communicator") == "other").get_column("wait_ns").to_list() == [0, 0]


def test_with_stated_numbers_only_the_disagreeing_collective_is_left_apart() -> None:
    rows = [part(p, i * 10, i * 10 + 5, sequence=i) for p in range(2) for i in range(3)]
    rows[4]["size_bytes"] = 1
    matched = collectives.matched(parts(*rows))
    assert sorted(together(matched)) == [[0, 3], [1], [2, 5], [4]]


def test_sizes_may_differ_where_ranks_put_in_what_they_like() -> None:
    rows = [part(0, 0, 9, name="all_to_all", size_bytes=1), part(1, 0, 9, name="all_to_all", size_bytes=2)]
    assert together(collectives.matched(parts(*rows))) == [[0, 1]]


def test_more_processes_than_ranks_are_not_one_group() -> None:
    rows = [part(process, 0, 9) for process in range(3)]
    matched = collectives.matched(parts(*rows))
    assert together(matched) == [[0], [1], [2]]
    assert matched.unmatched.rows() == [("world", "more processes have the communicator than its group has ranks", 3)]


def test_a_group_of_one_that_two_processes_name_is_no_collective_of_theirs() -> None:
    found = judged(part(0, 0, 9, group_size=1), part(1, 0, 9, group_size=1))
    assert found.select("participants", "wait_ns").rows() == [(1, None)] * 2


def test_operations_without_communicator_and_between_two_ranks_stay_apart() -> None:
    rows = [part(process, 0, 9, communicator=None) for process in range(2)]
    rows += [part(0, 20, 29, name="send"), part(1, 20, 29, name="recv")]
    rows += [part(process, 40, 49) for process in range(2)]
    matched = collectives.matched(parts(*rows))
    assert sorted(together(matched)) == [[0], [1], [2], [3], [4, 5]]
    reason = "nothing states which communicator they used, or their launch is not in the capture"
    assert matched.unmatched.rows() == [(None, reason, 2)]


def test_collectives_are_numbered_in_order_of_time() -> None:
    rows = [part(0, 90, 99, communicator="b"), part(0, 10, 19, communicator="c"), part(0, 50, 59, communicator="a")]
    found = judged(*rows, known=clocks((0, 0, 0)))
    assert found.select("collective_id", "communicator").rows() == [(0, "c"), (1, "a"), (2, "b")]


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(1, 20))
def test_waits_spread_and_stragglers_are_exact_on_one_clock(seed: int, processes: int, count: int) -> None:
    random = np.random.default_rng(seed)
    starts = np.arange(count) * 1000 + random.integers(0, 12, (processes, count))
    rows = [
        part(p, int(starts[p, i]), int(starts[:, i].max()) + 50, group_size=processes)
        for p in range(processes)
        for i in range(count)
    ]
    found = judged(*rows, known=clocks(*[(0, 0, 0)] * processes))
    for (number,), own in found.group_by("collective_id"):
        arrived = starts[:, int(str(number))]
        last = arrived == arrived.max()
        ordered = own.sort("process_id")
        assert ordered.get_column("wait_ns").to_list() == (arrived.max() - arrived).tolist()
        assert set(ordered.get_column("arrival_spread_ns")) == {int(np.ptp(arrived))}
        assert ordered.get_column("is_straggler").to_list() == (last & (last.sum() == 1)).tolist()
        assert set(ordered.get_column("participants")) == {processes}
    assert not found.get_column("contradicted").any()


def test_arrivals_are_moved_by_offset_and_drift() -> None:
    known = clocks((0, 0, 0), (1, 1_000, 0)).with_columns(
        drift_ratio=pl.Series([None, 0.5]), anchor_ns=pl.Series([None, 100])
    )
    found = judged(part(0, 5_000, 6_000), part(1, 140, 4_000), known=known)
    assert found.select("arrival_ns", "wait_ns").rows() == [(5_000, 0), (1_160, 3_840)]


@pytest.mark.parametrize(("doubt", "expected"), [(4, [False, True]), (5, [False, False])])
def test_a_straggler_is_later_than_the_clocks_are_uncertain(doubt: int, expected: list[bool]) -> None:
    known = clocks((0, 0, 5), (1, 0, doubt))
    found = judged(part(0, 0, 100), part(1, 10, 100), known=known)
    assert found.get_column("is_straggler").to_list() == expected
    assert found.get_column("wait_ns").to_list() == [10, 0]


def test_uncertainty_does_not_hide_a_straggler_of_the_same_clock() -> None:
    known = clocks((0, 0, 0), (1, 0, 500), (1, 0, 500))
    rows = [part(1, 10, 2_000, group_size=3), part(2, 20, 2_000, group_size=3), part(0, 0, 2_000, group_size=3)]
    assert judged(*rows, known=known).sort("process_id").get_column("is_straggler").to_list() == [False] * 3
    rows[2] = part(0, 0, 2_000, group_size=2, communicator="else")
    rows[:2] = [{**row, "group_size": 2} for row in rows[:2]]
    found = judged(*rows, known=known).filter(pl.col("communicator") == "world").sort("process_id")
    assert found.get_column("is_straggler").to_list() == [False, True]


@pytest.mark.parametrize(
    ("rows", "known"),
    [
        ([part(0, 0, 9), part(1, 5, 9)], clocks((0, 0, 0), (1, None, None))),  # not aligned
        ([part(0, 0, 9, group_size=3), part(1, 5, 9, group_size=3)], ALIGNED),  # one is missing
        ([part(0, 0, 9, group_size=None), part(1, 5, 9, group_size=None)], ALIGNED),  # how many there are is unknown
        ([part(0, 0, 9), part(1, 10, 19)], ALIGNED),  # one left before the other arrived
    ],
)
def test_waits_are_unknown_without_the_evidence(rows: list[dict[str, Any]], known: pl.DataFrame) -> None:
    found = judged(*rows, known=known)
    assert found.select("wait_ns", "arrival_spread_ns", "is_straggler").rows() == [(None, None, None)] * 2
    assert found.get_column("contradicted").all() == (rows[1]["start_ns"] == 10)
    assert found.get_column("arrival_ns").to_list() == [row["start_ns"] for row in rows]


def test_a_broadcast_may_be_left_before_all_have_arrived() -> None:
    found = judged(part(0, 0, 9, name="broadcast"), part(1, 10, 19, name="broadcast"))
    assert found.get_column("wait_ns").to_list() == [10, 0]
    assert not found.get_column("contradicted").any()


@given(SPANS, SPANS.filter(len))
def test_exposed_time_is_what_no_compute_of_the_device_covers(
    compute: list[tuple[int, int]], kernels: list[tuple[int, int]]
) -> None:
    rows = [
        part(0, start, start + length, group_size=1, communicator=str(i)) for i, (start, length) in enumerate(kernels)
    ]
    # What runs on another device, or under the same number on another clock, hides nothing.
    hiding = [(0, 0, start, start + length) for start, length in compute]
    elsewhere = [(0, 1, 0, 100), (1, 0, 0, 100)]
    known = clocks((0, 0, 0), (1, None, None))
    matched = collectives.matched(parts(*rows))
    found = collectives.collectives(matched, known, computing(*hiding, *elsewhere)).sort("dispatch_id")
    covered = {instant for start, length in compute for instant in range(start, start + length)}
    expected = [len(set(range(start, start + length)) - covered) for start, length in kernels]
    assert found.get_column("exposed_ns").to_list() == expected


def test_compute_of_another_process_on_the_same_device_and_clock_hides() -> None:
    matched = collectives.matched(parts(part(0, 0, 100), part(1, 0, 100)))
    found = collectives.collectives(matched, ALIGNED, computing((1, 0, 20, 50)))
    assert found.get_column("exposed_ns").to_list() == [70, 100]


def test_rows_are_those_of_the_table_and_none_without_communication() -> None:
    found = judged(part(0, 0, 9), part(1, 5, 9)).drop("contradicted")
    rates = {"duration_ns", "algorithm_bytes_per_s", "bus_bytes_per_s", "share_ratio", "remark"}
    assert {*found.columns, *rates} == {column.name for column in contract("collectives").columns}
    assert not rates & {*found.columns}
    nothing = device_activities(
        empty_table("dispatches"), empty_table("memory_copies"), empty_table("kernels"), no_calls()
    )
    none = collectives.parts(nothing, empty_table("markers"), empty_table("api_calls"))
    empty = collectives.collectives(collectives.matched(none), clocks((0, 0, 0)), nothing)
    assert empty.height == 0
    to_contract("collectives", empty.drop("contradicted"))


def no_calls() -> pl.DataFrame:
    return empty_table("api_calls").with_columns(outermost_call_id="call_id")


def test_a_real_rank_alone_has_names_sizes_and_exposed_time(analysed: Callable[[str], Any]) -> None:
    run = analysed(RESNET)
    known = collectives.parts(run.activities, run.tables["markers"], run.tables["api_calls"])
    names = known.group_by("name", "size_bytes").len().sort("name", "size_bytes").rows()
    # Five were launched before the capture began; the others are the buffers' broadcasts and the gradients' sums.
    assert names == [
        *((None, None, 5), ("all_reduce", 5_746_640, 3), ("all_reduce", 17_632_384, 3)),
        *(("broadcast", 160, 3), ("broadcast", 19_200, 3)),
    ]
    found = collectives.collectives(collectives.matched(known), clocks((0, 0, 0)), run.activities)
    assert found.get_column("wait_ns").is_null().all()
    assert found.get_column("expected_participants").drop_nulls().unique().to_list() == [8]
    whole = run.timeline.filter(pl.col("window_rule") == FIRST_TO_LAST).item(0, "exposed_communication_ns")
    assert found.get_column("exposed_ns").sum() == whole


def test_no_dependency_of_the_network_joins_two_processes(session: Callable[..., Any]) -> None:
    """Two processes that share device, stream and correlation numbers, and wait for events and devices."""
    kernels, calls = [], []
    for process, later in ((0, 0), (1, 5)):
        for i in range(4):
            kernel = {"start_ns": 100 * i + 20 + later, "end_ns": 100 * i + 60 + later, "correlation_id": i + 1}
            kernels.append({**kernel, "process_id": process, "stream_id": i % 2, "queue_id": 0})
            names = ("hipLaunchKernel", "hipEventRecord", "hipStreamWaitEvent", "hipDeviceSynchronize")
            for step, name in enumerate(names):
                begun = 100 * i + 10 + 20 * step + later
                number = i + 1 if step == 0 else 100 * (i + 1) + step
                calls.append(
                    {"process_id": process, "name": name, "start_ns": begun, "end_ns": begun + 6}
                    | {"correlation_id": number}
                )
    found = session(kernels, calls=calls)
    tables = {
        "dispatch": (found.tables["dispatches"], "dispatch_id"),
        "api_call": (found.tables["api_calls"], "call_id"),
    }
    owners = {
        (kind, number): owner
        for kind, (frame, key) in tables.items()
        for number, owner in frame.select(key, "process_id").iter_rows()
    }
    nodes = [owners[row] for row in found.network.nodes.select("activity_kind", "activity_id").iter_rows()]
    edges = [(nodes[s], nodes[t]) for s, t in zip(found.network.source, found.network.target, strict=True)]
    kinds = {KINDS[kind] for kind in found.network.kind}
    assert kinds == {"launch", "event", "stream", "queue", "sync", "program"}
    assert set(edges) == {(0, 0), (1, 1)}


LINKS: Final = pl.DataFrame(
    {"device_id": [0], "links": [7], "link_bytes_per_s": [64e9]}, schema_overrides={"device_id": pl.Int32}
)


def rated(
    name: str | None, size: int | None, ranks: int | None, took_ns: int, links: pl.DataFrame = LINKS
) -> tuple[float | None, float | None, float | None, str | None]:
    """Algorithm bandwidth, bus bandwidth, share of the links, remark."""
    part = pl.DataFrame(
        {"dispatch_id": [0], "name": [name], "size_bytes": [size], "expected_participants": [ranks]},
        schema={
            **{"dispatch_id": pl.Int32, "name": pl.String},
            **{"size_bytes": pl.Int64, "expected_participants": pl.Int64},
        },
    )
    dispatch = pl.DataFrame(
        {"dispatch_id": [0], "device_id": [0], "start_ns": [1000], "end_ns": [1000 + took_ns]},
        schema_overrides={"dispatch_id": pl.Int32, "device_id": pl.Int32},
    )
    (row,) = with_rates(part, dispatch, links).rows(named=True)
    assert row["duration_ns"] == took_ns
    return row["algorithm_bytes_per_s"], row["bus_bytes_per_s"], row["share_ratio"], row["remark"]


@pytest.mark.parametrize(
    ("name", "algorithm", "bus"),
    [
        ("all_reduce", 8e9, 2 * 7 / 8 * 8e9),
        ("reduce_scatter", 8e9, 7 / 8 * 8e9),
        # A rank puts in one part of eight.
        ("all_gather", 64e9, 7 / 8 * 64e9),
        ("all_to_all", 8e9, 7 / 8 * 8e9),
        ("broadcast", 8e9, 8e9),
        ("reduce", 8e9, 8e9),
        ("send", 8e9, None),
    ],
)
def test_the_factors_are_those_of_nccl_tests(name: str, algorithm: float, bus: float | None) -> None:
    found = rated(name, 8_000_000, 8, 1_000_000)
    assert found[0] == pytest.approx(algorithm)
    assert found[1] == (None if bus is None else pytest.approx(bus))


def test_a_rate_below_a_tenth_of_the_links_says_what_it_may_be() -> None:
    # 17.6 MB in 9 ms, as a real data-parallel step took.
    _, bus, share, remark = rated("all_reduce", 17_632_384, 8, 9_000_000)
    assert bus == pytest.approx(3.43e9, rel=0.01)
    assert share == pytest.approx(0.0077, rel=0.01)
    assert remark == LATE_OR_BROKEN
    assert rated("all_reduce", 17_632_384, 8, 100_000)[3] is None


def test_a_small_message_is_not_accused_of_its_latency() -> None:
    assert rated("all_reduce", 40_000, 8, 14_000)[3] == "too small for its rate to tell anything"


def test_without_a_known_fabric_there_is_no_share_and_a_reason() -> None:
    assert rated("all_reduce", 8_000_000, 8, 10**9, LINKS.clear())[2:] == (
        None,
        "the rate of the links between such devices is not known",
    )
    assert rated("all_reduce", 8_000_000, 16, 10**9)[2:] == (
        None,
        "more ranks than a device has peers: the rate of the network is not known",
    )


@pytest.mark.parametrize("part", [(None, 8, 8), ("all_reduce", None, 8), ("all_reduce", 8, None)])
def test_missing_facts_give_no_rate(part: tuple[str | None, int | None, int | None]) -> None:
    assert rated(*part, 1000)[1:] == (None, None, None)
