"""Work of kernels by the shapes of the operators that launched them.

The table of operators and shapes: by hand, and against another tool's values on real traces.
"""

import ast
import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.analysis.roofline.framework_work import framework_work, operator_launches, operator_shapes
from aaco_pipeline.formats import kineto
from aaco_pipeline.hardware.ceilings import spec_ceilings
from aaco_pipeline.hardware.device_facts import cache_bytes
from aaco_pipeline.lake.validation import to_contract
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


def test_unknown_work_of_a_kernel_is_null_and_flagged() -> None:
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


def test_traffic_that_caches_may_have_served_is_unknown() -> None:
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


KINETO: Final = SHARED / "kineto"
TRACES: Final = ("mi300x_qwen1.5_0.5b", "mi300x_sglang_qwen3_8b", "mi300x_resnet_train_ddp", "h100_qwen1.5_0.5b")


def table(run: Run) -> pl.DataFrame:
    return to_contract("operator_shapes", operator_shapes(run.launches(), CACHES, CEILINGS))


def test_a_row_is_an_operator_with_shapes_and_its_rates() -> None:
    run = Run().operator("aten::mm", 0, 100, A, B).kernel(5, 100).copy(8, 28).operator("aten::mm", 200, 300, A, B)
    (row,) = table(run.kernel(205, 128)).rows(named=True)
    assert row == {
        **{"operator": "aten::mm", "shapes": "[[4, 8], [8, 2]]", "types": '["c10::BFloat16", "c10::BFloat16"]'},
        **{"detail": None, "dtype": "bf16", "device_id": 0, "call_count": 2, "launch_count": 3},
        "inputs_from": "trace",
        **{"kernel_ns": 228, "copy_ns": 28, "flops": 128.0, "least_bytes": 112},
        **{"achieved_flops_per_s": pytest.approx(1e9), "achieved_bytes_per_s": pytest.approx(224e9 / 256)},
        # 256 operations at 10¹² a second are less than 224 bytes at the same: 0.224 of 256 ns.
        **{"bound": "matrix", "share_ratio": pytest.approx(0.256 / 256), "reason": None},
    }


def test_each_device_has_its_row_and_what_is_not_known_its_reason() -> None:
    run = Run().operator("aten::mm", 0, 100, A, B).kernel(5, 10).kernel(6, 10, device=1)
    found = table(run.operator("aten::sort", 200, 300, A).kernel(250, 7))
    assert found.select("operator", "device_id", "kernel_ns", "flops", "share_ratio", "reason").rows() == [
        ("aten::mm", 0, 10, 128.0, pytest.approx(0.128 / 10), None),
        ("aten::mm", 1, 10, 128.0, None, None),
        ("aten::sort", 0, 7, None, None, "no formula for aten::sort"),
    ]


def test_a_copy_over_the_host_is_not_held_against_the_devices_memory() -> None:
    for direction, is_held in (("host_to_device", False), ("device_to_device", True)):
        run = Run().operator("aten::copy_", 0, 100, [1000], [1000]).copy(5, 4000, direction).kernel(500, 1)
        (row,) = table(run).rows(named=True)
        assert (row["copy_ns"], row["least_bytes"]) == (4000, 4000)
        assert (row["share_ratio"] is not None) == is_held


def test_two_makings_of_the_table_are_the_same() -> None:
    run = Run()
    for place in range(40):
        run.operator("aten::mul", 100 * place, 100 * place + 50, [1 + place % 7, 3], [3]).kernel(100 * place + 5, 9)
    assert table(run).equals(table(run))


def test_no_launches_give_no_rows() -> None:
    assert table(Run().kernel(5, 10)).is_empty()


# ---- real traces -----------------------------------------------------------------------------------------------------


def of_trace(name: str) -> tuple[pl.DataFrame, dict[str, Any]]:
    path = KINETO / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there; set AACO_SHARED")
    tables = kineto.read(path).tables
    names = ("dispatches", "memory_copies", "api_calls", "operator_inputs", "kernels")
    launches = operator_launches(*(tables[one] for one in names))
    ceilings = to_contract("ceilings", spec_ceilings(tables["devices"]))
    rows = to_contract("operator_shapes", operator_shapes(launches, cache_bytes(tables["devices"]), ceilings))
    return rows, json.loads(Path(KINETO / "oracle" / f"shapes_{name}.json").read_text())


def is_of(row: dict[str, Any], params: dict[str, str]) -> bool:
    """True when the row has the shapes that the other tool names."""
    shapes, kind = json.loads(row["shapes"]), row["operator"].removeprefix("aten::")
    sizes = {key: int(params[key]) for key in ("B", "M", "N", "K") if key in params}
    if kind in ("mm", "addmm", "bmm"):
        a, b = shapes[1:3] if kind == "addmm" else shapes[:2]
        return bool((a[-2:], b[-2:]) == ([sizes["M"], sizes["K"]], [sizes["K"], sizes["N"]]))
    if kind.startswith("convolution"):
        first = 1 if kind.endswith("backward") else 0
        stride = "×".join(map(str, ast.literal_eval(params["stride"])))
        named = [list(ast.literal_eval(params[key])) for key in ("input_shape", "filter_shape")]
        return bool(shapes[first : first + 2] == named and row["detail"].startswith(f"stride {stride},"))
    heads = [int(params[key]) for key in ("B", "H_Q", "N_Q", "d_h_qk")]
    return bool(shapes[0] == heads)


@pytest.mark.parametrize("name", TRACES)
def test_calls_operations_and_times_are_those_of_another_tool(name: str) -> None:
    """Both decide alone. Fills count beside the kernels here; on CUDA the other tool adds them to its kernels' time."""
    rows, oracle = of_trace(name)
    for other in oracle["shapes"]:
        # The wrapper's kernels are those of the product that it calls: only one of the two may have them.
        operator = "aten::mm" if other["op"] == "aiter::gemm_a16w16" else other["op"]
        (row,) = [
            row for row in rows.filter(pl.col("operator") == operator).rows(named=True) if is_of(row, other["params"])
        ]
        assert row["call_count"] == other["count"]
        took = row["kernel_ns"] + (row["copy_ns"] if name.startswith("h100") else 0)
        assert took / 1e3 == pytest.approx(other["kernel_us_sum"], rel=0.005)
        # The first layer needs no gradient of its data, and its output mask says so; the other tool counts it.
        halved = 2 if "no data gradient" in (row["detail"] or "") else 1
        assert halved * row["flops"] == pytest.approx(other["gflop_per_call"] * 1e9, rel=1e-12)


@pytest.mark.parametrize("name", TRACES)
def test_the_work_of_most_kernel_time_is_known(name: str) -> None:
    rows, oracle = of_trace(name)
    time = pl.col("kernel_ns").sum() + pl.col("copy_ns").sum()
    known = rows.filter(pl.col("flops").is_not_null() | pl.col("least_bytes").is_not_null()).select(time).item()
    assert known / rows.select(time).item() > 0.9
    assert known / 1e3 > 0.9 * oracle["total_kernel_us"]
    assert rows.filter(pl.col("share_ratio") > 1).is_empty()
    # Nothing counts twice: all of it is what the launches took.
    assert rows.select(time).item() / 1e3 < 1.02 * oracle["total_kernel_us"]
