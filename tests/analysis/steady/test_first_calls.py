"""Host calls that do the work of a first time: by their names, by their lengths, and by what they are not."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.analysis.steady.first_calls import first_calls, time_of
from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls
from tests.analysis.steady.made_up import PACE, Tables, begins, call, copy, judged, recording


def first_of(tables: Tables) -> pl.DataFrame:
    calls = host_calls(tables["api_calls"])
    activities = device_activities(tables["dispatches"], tables["memory_copies"], tables["kernels"], calls)
    return first_calls(calls, activities, tables["memory_copies"])


def kinds(*calls: dict[str, Any], **more: Any) -> list[tuple[str, str]]:
    """Kind and name of the first calls among these, beside 40 kernels that were launched as usual."""
    return first_of(recording([1] * 40, calls=calls, **more)).select("kind", "name").rows()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hipModuleLoadData", "module_load"),
        ("hipModuleGetFunction", "module_load"),
        ("cuModuleLoadData", "module_load"),
        ("cuLibraryLoadData", "module_load"),
        ("cudaGetKernel", "module_load"),
        ("__hipRegisterFatBinary", "module_load"),
        ("hsa_executable_load_agent_code_object", "module_load"),
        ("hiprtcCompileProgram", "compilation"),
        ("nvrtcCompileProgram", "compilation"),
        ("cuLinkComplete", "compilation"),
        ("hipInit", "initialization"),
        ("cuInit", "initialization"),
        ("cuDevicePrimaryCtxRetain", "initialization"),
        ("cublasCreate_v2", "initialization"),
        ("hipblasLtCreate", "initialization"),
        ("miopenCreate", "initialization"),
        ("rocblas_create_handle", "initialization"),
        ("ncclCommInitRank", "initialization"),
        ("hipMalloc", "allocation"),
        ("cudaMalloc", "allocation"),
        ("cudaHostAlloc", "allocation"),
        ("hipGraphInstantiate", "graph_capture"),
    ],
)
def test_calls_that_say_so_by_their_names(name: str, kind: str) -> None:
    assert kinds(call(name, 0, 10)) == [(kind, name)]


@pytest.mark.parametrize(
    "name",
    ["hipMallocAsync", "cudaFuncSetAttribute", "hipDeviceSynchronize", "hipMemcpy", "hipGraphLaunch", "cudaFree"],
)
def test_calls_of_steady_work_are_none(name: str) -> None:
    assert kinds(call(name, 0, 900_000)) == []


def test_memory_that_is_allocated_in_every_step_is_steady_work() -> None:
    again = [call("hipMalloc", begins(i) + 5_000, begins(i) + 6_000) for i in range(0, 40, 4)]
    assert kinds(*again) == []
    assert kinds(*again[:3]) == [("allocation", "hipMalloc")] * 3


def test_the_first_call_of_a_name_that_took_far_longer() -> None:
    long = [
        call("cudaFree", 0, 6_000_000),
        *(call("cudaFree", 6_100_000 + i, 6_100_500 + i) for i in (0, 1_000, 2_000)),
    ]
    assert kinds(*long) == [("initialization", "cudaFree")]
    usual = [call("cudaFree", i * 6_000_000, i * 6_000_000 + 5_000_000) for i in range(4)]
    assert kinds(*usual) == []
    waits = [call("hipDeviceSynchronize", 0, 6_000_000), call("hipStreamQuery", 0, 6_000_000)]
    assert kinds(*waits) == []


def launches_of(length: int, before: int, pause: int) -> list[str]:
    """Kinds found where the first launch of a second kernel takes so long, and the device waits so long for it."""
    tables = recording([1] * 20 + [2] * 20, pauses={20: pause})
    number = pl.col("correlation_id") == 21
    kernel_starts = begins(20) + pause
    tables["api_calls"] = tables["api_calls"].with_columns(
        start_ns=pl.when(number).then(kernel_starts - before).otherwise("start_ns"),
        end_ns=pl.when(number).then(kernel_starts - before + length).otherwise("end_ns"),
    )
    return first_of(tables).get_column("kind").to_list()


def test_a_first_launch_that_kept_the_device_waiting_loaded_its_code() -> None:
    assert launches_of(3_000_000, 3_001_000, 3_100_000) == ["module_load"]
    # The device was busy: the launch waited for room in the queue.
    assert launches_of(3_000_000, 3_001_000, 0) == []
    # The kernel ran at once: the launch waited for it, and not the other way round.
    assert launches_of(3_000_000, 4_000, 3_100_000) == []


def test_a_capture_reaches_from_its_first_to_its_last_call() -> None:
    found = first_of(
        recording([1] * 40, calls=[call("hipStreamBeginCapture", 10, 20), call("hipStreamEndCapture", 800, 900)])
    )
    assert found.select("kind", "start_ns", "end_ns").rows() == [("graph_capture", 10, 900)]


def test_a_call_inside_a_listed_one_is_part_of_it() -> None:
    assert kinds(call("cudaMalloc", 0, 100), call("cuMemAlloc_v2", 10, 90)) == [("allocation", "cudaMalloc")]


def test_the_first_of_like_copies_touches_memory_first() -> None:
    lengths = (9_000_000, 500_000, 400_000)
    starts = (1_000, 10_000_000, 11_000_000)
    copies = [copy(start + 100, start + 200, size_bytes=4096, correlation_id=900 + i) for i, start in enumerate(starts)]
    calls = [
        call("hipMemcpy", start, start + length, correlation_id=900 + i)
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    allocation = call("hipMalloc", 0, 500)
    assert ("first_touch", "hipMemcpy") in kinds(allocation, *calls, copies=copies)
    # Memory that was there before the recording had been touched: the copy waited for something else.
    assert kinds(*calls, copies=copies) == []


def test_kernels_that_are_tried_out_before_one_is_taken() -> None:
    tried = [kernel for kernel in range(10, 18) for _ in range(3)]
    tables = recording([*tried, *([1, 12] * 40)], launched=False)
    family = pl.when(pl.col("kernel_id") == 1).then(pl.lit("elementwise")).otherwise(pl.lit("gemm"))
    tables["kernels"] = tables["kernels"].with_columns(family=family)
    found = judged(tables).first_calls
    assert found.select("kind", "name", "start_ns").rows() == [("autotuning", "gemm", begins(0))]
    assert "8 kernels of the family gemm ran 24 times" in found.item(0, "reason")


def test_time_of_first_calls_counts_once_and_leaves_copies_out() -> None:
    calls = [call("hipMalloc", 0, 100, thread_id=1), call("hipMalloc", 50, 150, thread_id=2)]
    found = judged(recording([1] * 40, calls=[*calls, call("hipMemcpy", 200, 300)])).first_calls
    assert "set_up_copy" in found.get_column("kind").to_list()
    assert time_of(found, np.array([0, 120]), np.array([PACE, 130])).tolist() == [150, 10]
