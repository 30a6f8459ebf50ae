"""The operator around each launch: by hand, against a plain search, and on a real trace.

Operators of a framework to kernels: conserved on real traces, and the outermost operator against a plain search.
"""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.model.launching_operators import (
    BY_CORRELATION,
    launching_operators,
    operator_kernels,
    operators_of_dispatches,
)
from aaco_pipeline.analysis.timeline.activities import kernel_stats
from aaco_pipeline.formats import kineto
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import conform, to_contract
from tests.places import SHARED

Call = tuple[str, str, int | None, int, int]


def calls(*rows: Call, thread: int = 1) -> pl.DataFrame:
    """Calls as (domain, name, correlation, start, end)."""
    names = ("domain", "name", "correlation_id", "start_ns", "end_ns")
    return to_contract(
        "api_calls",
        pl.DataFrame(
            [
                {"call_id": i, "process_id": 0, "thread_id": thread, **dict(zip(names, row, strict=True))}
                for i, row in enumerate(rows)
            ]
        ),
    )


def dispatches(count: int) -> pl.DataFrame:
    """Dispatches with the correlations 1, 2, …, each of 10 ns, long after their launch."""
    return to_contract(
        "dispatches",
        pl.DataFrame(
            {
                "dispatch_id": range(count),
                "process_id": 0,
                "device_id": 0,
                "kernel_id": 0,
                "correlation_id": range(1, count + 1),
                "start_ns": 10_000,
                "end_ns": 10_010,
                "below_resolution": False,
            }
        ),
    )


def test_the_innermost_open_operator_launched_the_kernel() -> None:
    made = calls(
        ("operator", "aten::linear", None, 0, 100),
        ("operator", "aten::addmm", None, 10, 50),
        ("cuda_runtime", "cudaLaunchKernel", 1, 20, 25),
        ("operator", "aten::relu", None, 60, 90),
        ("cuda_runtime", "cudaLaunchKernel", 2, 55, 58),
        ("cuda_runtime", "cudaLaunchKernel", 3, 70, 75),
        ("cuda_runtime", "cudaLaunchKernel", 4, 150, 155),
    )
    found = launching_operators(dispatches(5), made)
    assert found.select("dispatch_id", "operator", "duration_ns").rows() == [
        (0, "aten::addmm", 10),
        (1, "aten::linear", 10),
        (2, "aten::relu", 10),
    ]


def test_an_operator_of_another_thread_launched_nothing_here() -> None:
    made = pl.concat(
        [
            calls(("cuda_runtime", "cudaLaunchKernel", 1, 20, 25)),
            calls(("operator", "aten::add", None, 0, 100), thread=2),
        ]
    )
    assert launching_operators(dispatches(1), made).is_empty()


@given(st.lists(st.integers(0, 60), max_size=12), st.lists(st.integers(-1, 70), min_size=1, max_size=8), st.data())
def test_it_is_what_a_plain_search_finds(cuts: list[int], moments: list[int], data: st.DataObject) -> None:
    """Operators are random nested intervals: each new one lies within one of those before, or beside all."""
    intervals: list[tuple[int, int]] = []
    for cut in cuts:
        low, high = data.draw(st.sampled_from([(0, 60), *intervals]))
        start = min(max(cut, low), high)
        end = data.draw(st.integers(start, high))
        if all(end <= a or start >= b or (a <= start and end <= b) or (start <= a and b <= end) for a, b in intervals):
            intervals.append((start, end))
    # The inner one of two equal intervals is unknown.
    distinct = sorted({(a, b) for a, b in intervals if b > a})
    made = calls(
        *[("operator", f"{a}-{b}", None, a, b) for a, b in distinct],
        *[("hip_runtime", "hipLaunchKernel", i + 1, at, at + 1) for i, at in enumerate(moments)],
    )
    found = dict(launching_operators(dispatches(len(moments)), made).select("dispatch_id", "operator").iter_rows())
    for number, at in enumerate(moments):
        around = [(b - a, f"{a}-{b}") for a, b in distinct if a <= at < b]
        if any(at == b for _, b in distinct):
            continue  # a launch on the very tick on which an operator ends may count to either side
        assert found.get(number) == (min(around)[1] if around else None)


def test_in_a_real_trace_nearly_every_linked_kernel_has_its_operator() -> None:
    path = SHARED / "kineto/mi300x_resnet_train_ddp.json.gz"
    if not path.is_file():
        pytest.skip("the shared traces are not here")
    tables = kineto.read(path).tables
    found = launching_operators(tables["dispatches"], tables["api_calls"])
    linked = tables["dispatches"].join(
        tables["api_calls"].filter(pl.col("domain") == "hip_runtime").select("process_id", "correlation_id").unique(),
        on=["process_id", "correlation_id"],
    )
    assert found.height <= linked.height
    assert found.height / linked.height > 0.95
    names = found.get_column("operator").value_counts(sort=True).get_column("operator").to_list()
    assert "aten::miopen_convolution" in names


def test_without_any_launch_nothing_has_an_operator() -> None:
    assert launching_operators(dispatches(2), calls(("operator", "aten::mm", None, 0, 100))).is_empty()


def test_equal_correlations_of_several_processes_are_kept_apart() -> None:
    mine = calls(("operator", "aten::mm", None, 0, 100), ("hip_runtime", "hipLaunchKernel", 1, 20, 25))
    theirs = calls(("operator", "aten::add", None, 0, 100), ("hip_runtime", "hipLaunchKernel", 1, 20, 25))
    theirs = theirs.with_columns(pl.col("call_id") + 2, process_id=pl.lit(1, pl.Int32))
    both = pl.concat(
        [dispatches(1), dispatches(1).with_columns(dispatch_id=1, process_id=1).cast(dispatches(1).schema)]
    )
    found = launching_operators(both, pl.concat([mine, theirs]))
    assert found.select("dispatch_id", "operator").rows() == [(0, "aten::mm"), (1, "aten::add")]


def test_the_last_call_with_a_correlation_launched() -> None:
    made = calls(
        ("operator", "aten::mm", None, 0, 50),
        ("hip_runtime", "hipModuleLaunchKernel", 1, 60, 65),
        ("operator", "aten::add", None, 55, 100),
        ("hip_runtime", "hipLaunchKernel", 1, 20, 25),
    )
    assert launching_operators(dispatches(1), made).get_column("operator").to_list() == ["aten::add"]


#: A launch: its thread and moment. An operator: its thread, start and end.
Launch = tuple[int, int]
Operator = tuple[int, int, int]


def case(operators: list[Operator], launches: list[Launch]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Dispatches of one kernel, the n-th of n + 1 ns, and the calls: operators named by start and end."""
    made = [
        {"domain": "operator", "thread_id": thread, "name": f"{a}-{b}", "start_ns": a, "end_ns": b}
        for thread, a, b in operators
    ]
    made += [
        {
            "domain": "hip_runtime",
            "thread_id": thread,
            "name": "hipLaunchKernel",
            "correlation_id": n,
            "start_ns": at,
            "end_ns": at + 1,
        }
        for n, (thread, at) in enumerate(launches)
    ]
    calls = [{"correlation_id": None, **row, "call_id": i, "process_id": 0} for i, row in enumerate(made)]
    count = len(launches)
    dispatches = {
        "dispatch_id": range(count),
        "process_id": 0,
        "device_id": 0,
        "kernel_id": 0,
        "correlation_id": range(count),
        "start_ns": 1_000,
        "end_ns": [1_001 + n for n in range(count)],
        "self_ns": range(1, count + 1),
        "below_resolution": False,
    }
    return to_contract("dispatches", pl.DataFrame(dispatches)), to_contract("api_calls", pl.DataFrame(calls))


def test_a_kernel_of_two_operators_has_a_row_for_each_and_the_rest_is_unattributed() -> None:
    # The fourth begins as the first ends, and the one after it on another thread goes on while they come and go.
    operators = [(1, 0, 100), (1, 10, 50), (1, 55, 80), (1, 100, 130), (2, 0, 900), (3, 5, 6)]
    dispatches, calls = case(operators, [(1, 20), (1, 60), (1, 110), (1, 150), (1, 30), (3, 20)])
    rows = operator_kernels(operators_of_dispatches(dispatches, calls))
    conform(contract("operator_kernels"), rows, "20250101T000000Z-00000000")
    columns = ("operator", "outermost_operator", "dispatch_count", "total_ns", "match", "score")
    assert sorted(rows.select(columns).rows(), key=lambda row: row[3]) == [
        ("55-80", "0-100", 1, 2, "correlation", BY_CORRELATION),
        ("100-130", "100-130", 1, 3, "correlation", BY_CORRELATION),
        ("10-50", "0-100", 2, 6, "correlation", BY_CORRELATION),
        (None, None, 2, 10, "unattributed", None),
    ]


def test_a_dispatch_without_times_counts_and_adds_nothing() -> None:
    dispatches, calls = case([(1, 0, 9)], [(1, 3), (1, 4)])
    dispatches = dispatches.with_columns(self_ns=pl.Series([None, 5], dtype=pl.Int64))
    (row,) = operator_kernels(operators_of_dispatches(dispatches, calls)).rows(named=True)
    assert (row["dispatch_count"], row["total_ns"]) == (2, 5)


def test_without_operators_all_is_unattributed_and_without_dispatches_there_is_nothing() -> None:
    dispatches, calls = case([], [(1, 3), (1, 4)])
    assert operator_kernels(operators_of_dispatches(dispatches, calls)).select("match", "total_ns").rows() == [
        ("unattributed", 3)
    ]
    nothing = operator_kernels(operators_of_dispatches(dispatches.clear(), calls.clear()))
    assert conform(contract("operator_kernels"), nothing, "20250101T000000Z-00000000").is_empty()


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 40)), max_size=10), st.data())
def test_the_outermost_operator_is_what_a_plain_search_finds(cuts: list[tuple[int, int]], data: st.DataObject) -> None:
    """Operators are random nested intervals per thread; launches lie at half steps, never on an end."""
    operators: list[Operator] = []
    for thread, cut in cuts:
        low, high = data.draw(st.sampled_from([(0, 40), *[(a, b) for t, a, b in operators if t == thread]]))
        start = min(max(cut, low), high)
        end = data.draw(st.integers(start, high))
        beside = all(
            t != thread or end < a or start > b or (a < start and end < b) or (start < a and b < end)
            for t, a, b in operators
        )
        if beside and end > start:
            operators.append((thread, start, end))
    doubled = [(thread, 2 * a, 2 * b) for thread, a, b in operators]
    launches = data.draw(
        st.lists(st.tuples(st.integers(1, 2), st.integers(0, 40).map(lambda at: 2 * at + 1)), max_size=8)
    )
    dispatches, calls = case(doubled, launches)
    found = operators_of_dispatches(dispatches, calls).sort("dispatch_id")
    for (thread, at), operator, outermost in zip(
        launches, found.get_column("operator"), found.get_column("outermost_operator"), strict=True
    ):
        around = sorted((b - a, f"{a}-{b}") for t, a, b in doubled if t == thread and a <= at < b)
        assert (operator, outermost) == ((around[0][1], around[-1][1]) if around else (None, None))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("gpu_sessions/traces/transformer_b1", 1.0),
        ("gpu_sessions/traces/graph_replay", 0.0),
        ("kineto/mi300x_qwen1.5_0.5b", 0.69),
    ],
)
def test_real_kernel_time_is_conserved_and_what_is_linked_has_its_operator(name: str, least: float) -> None:
    path = SHARED / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there: the shared captures are not part of the repository")
    tables = kineto.read(path).tables
    rows = operator_kernels(operators_of_dispatches(tables["dispatches"], tables["api_calls"]))
    again = rows.group_by("kernel_id").agg(pl.col("dispatch_count", "total_ns").sum()).sort("kernel_id")
    stats = kernel_stats(tables["dispatches"]).select("kernel_id", "dispatch_count", "total_ns")
    assert again.rows() == stats.rows()
    attributed = int(rows.filter(pl.col("match") == "correlation").get_column("total_ns").sum())
    assert least <= attributed / int(stats.get_column("total_ns").sum()) < least + 0.01
