"""Work of kernels by the shapes of the operators that launched them."""

from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.analysis.roofline.framework_work import framework_work
from aaco_pipeline.analysis.roofline.operators.launches import operator_launches
from aaco_pipeline.formats import kineto
from tests.analysis.roofline.operators.made_up import CACHES, CEILINGS, Run
from tests.places import SHARED

TRACE: Final = SHARED / "gpu_sessions" / "traces" / "elementwise_256mib.json.gz"
ELEMENTS: Final = 2**26
A, B = [4, 8], [8, 2]


def work(run: Run, ceilings: pl.DataFrame = CEILINGS) -> list[dict[str, Any]]:
    return framework_work(run.launches(), run.dispatches, CACHES, ceilings).rows(named=True)


def test_a_kernel_does_the_work_of_the_calls_that_launched_it() -> None:
    run = (
        Run().operator("aten::mm", 0, 100, A, B).kernel(5, 10).operator("aten::mm", 200, 300, B, [2, 8]).kernel(205, 20)
    )
    (row,) = work(run)
    assert (row["kernel_id"], row["device_id"], row["duration_ns"], row["dispatch_count"]) == (0, 0, 30, 2)
    assert row["matrix_bf16_flops"] == 128 + 2 * 8 * 2 * 8
    assert row["dram_bytes"] == 2 * (32 + 16 + 8) + 2 * (16 + 16 + 64)
    assert (row["valu_fp32_flops"], row["l2_bytes"]) == (None, None)
    assert (row["quality_flags"], row["work_source"]) == (["model_based"], "model")


def test_launches_of_unknown_work_are_left_out_with_their_time() -> None:
    run = Run().operator("aten::mm", 0, 100, A, B).kernel(5, 10).kernel(500, 70)
    run.operator("aten::sort", 600, 700, A).kernel(650, 30)
    (row,) = work(run)
    assert (row["duration_ns"], row["dispatch_count"], row["matrix_bf16_flops"]) == (10, 1, 128)
    assert row["quality_flags"] == ["model_based", "other_launches_left_out"]


def test_several_kernels_of_a_call_share_its_work_by_time() -> None:
    run = Run().operator("aten::mm", 0, 100, A, B).kernel(5, 30, 0).kernel(6, 10, 1)
    main, rest = work(run)
    assert (main["matrix_bf16_flops"], rest["matrix_bf16_flops"]) == (96, 32)
    assert main["dram_bytes"] + rest["dram_bytes"] == 112
    assert main["quality_flags"] == ["model_based", "work_shared_by_time"]


def test_a_kernel_that_serves_another_of_its_call_gets_none_of_the_work() -> None:
    run = Run(auxiliary=[1]).operator("aten::mm", 0, 100, A, B).kernel(5, 30, 0).kernel(6, 10, 1)
    main, helper = work(run)
    assert (main["matrix_bf16_flops"], main["quality_flags"]) == (128, ["model_based"])
    assert (helper["duration_ns"], helper["matrix_bf16_flops"], helper["dram_bytes"]) == (10, None, None)
    assert "serves_another_kernel" in helper["quality_flags"]
    # Alone it works for itself.
    (alone,) = work(Run(auxiliary=[1]).operator("aten::copy_", 0, 100, A, A).kernel(5, 30, 1))
    assert alone["dram_bytes"] == 128


def test_what_of_a_kernels_work_is_not_known_is_null_and_flagged() -> None:
    fp32 = [[2, 3, 8, 8], [4, 3, 3, 3]]
    run = (
        Run().operator("aten::mul", 0, 100, A).kernel(5, 10).operator("aten::add", 200, 300, [3, 3]).kernel(205, 10, 1)
    )
    run.inputs[1] |= {"shapes": "[[3, 3]]", "types": '["bool"]'}
    run.operator("aten::convolution", 400, 500, *fp32).kernel(450, 10, 2)
    run.inputs[2] |= {
        "shapes": "[[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []]",
        "types": '["float", "float", "", "", "", "", "", "", ""]',
        "values": '["", "", "", "[1]", "[1]", "[1]", "False", "[0]", "1"]',
    }
    product, truth, rounded = work(run)
    # A function of elements in bf16 is computed in fp32.
    assert (product["valu_fp32_flops"], product["quality_flags"]) == (32, ["model_based"])
    assert (truth["valu_fp32_flops"], truth["quality_flags"]) == (None, ["model_based", "number_format_unknown"])
    # A library may take a convolution in fp32 in fewer bits.
    assert (rounded["valu_fp32_flops"], rounded["quality_flags"]) == (None, ["model_based", "number_format_unknown"])


def test_where_caches_may_have_served_it_a_kernel_has_no_traffic_to_be_judged_by() -> None:
    cached = CACHES.with_columns(bytes=pl.lit(1000, pl.Int64))
    for took, is_known in ((1000, True), (3, False)):
        run = Run().operator("aten::mul", 0, 100, [20, 20], [20, 20]).kernel(5, took)
        (row,) = framework_work(run.launches(), run.dispatches, cached, CEILINGS).rows(named=True)
        assert row["dram_bytes"] == (2 * 3 * 400 - 1000 if is_known else None)
        assert ("served_by_caches_or_not" in row["quality_flags"]) == (not is_known)


def test_bytes_of_l2_are_given_where_it_has_a_roof() -> None:
    roof = CEILINGS.head(1).with_columns(resource=pl.lit("l2"), dtype=pl.lit(None, pl.String), unit=pl.lit("byte/s"))
    (row,) = work(Run().operator("aten::mm", 0, 100, A, B).kernel(5, 10), pl.concat([CEILINGS, roof]))
    assert row["l2_bytes"] == 112


@pytest.mark.skipif(not TRACE.is_file(), reason=f"{TRACE} is not there; set AACO_SHARED")
def test_a_real_traces_additions_have_the_work_of_their_shapes() -> None:
    tables = kineto.read(TRACE).tables
    cache = pl.DataFrame({"device_id": [0], "bytes": [1_000_000]}, schema={"device_id": pl.Int32, "bytes": pl.Int64})
    names = ("dispatches", "memory_copies", "api_calls", "operator_inputs", "kernels")
    launches = operator_launches(*(tables[name] for name in names))
    (row,) = framework_work(launches, tables["dispatches"], cache, CEILINGS).rows(named=True)
    assert row["dispatch_count"] == 30
    assert row["valu_fp32_flops"] == 30 * ELEMENTS
    assert row["dram_bytes"] == 30 * (3 * 4 * ELEMENTS - 1_000_000)
