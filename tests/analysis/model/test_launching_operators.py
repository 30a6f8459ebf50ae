"""The operator around each launch: by hand, against a plain search, and on a real trace."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.model.launching_operators import launching_operators
from aaco_pipeline.formats import kineto
from aaco_pipeline.lake.validation import to_contract
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
    # Of two equal intervals nobody can tell which is the inner one.
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


def test_of_several_processes_with_the_same_correlations_each_has_its_own() -> None:
    mine = calls(("operator", "aten::mm", None, 0, 100), ("hip_runtime", "hipLaunchKernel", 1, 20, 25))
    theirs = calls(("operator", "aten::add", None, 0, 100), ("hip_runtime", "hipLaunchKernel", 1, 20, 25))
    theirs = theirs.with_columns(pl.col("call_id") + 2, process_id=pl.lit(1, pl.Int32))
    both = pl.concat(
        [dispatches(1), dispatches(1).with_columns(dispatch_id=1, process_id=1).cast(dispatches(1).schema)]
    )
    found = launching_operators(both, pl.concat([mine, theirs]))
    assert found.select("dispatch_id", "operator").rows() == [(0, "aten::mm"), (1, "aten::add")]


def test_of_calls_with_one_correlation_the_last_begun_launched() -> None:
    made = calls(
        ("operator", "aten::mm", None, 0, 50),
        ("hip_runtime", "hipModuleLaunchKernel", 1, 60, 65),
        ("operator", "aten::add", None, 55, 100),
        ("hip_runtime", "hipLaunchKernel", 1, 20, 25),
    )
    assert launching_operators(dispatches(1), made).get_column("operator").to_list() == ["aten::add"]
