"""The table of operators and shapes: by hand, and against another tool's values on real traces."""

import ast
import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.analysis.roofline.operators.launches import operator_launches
from aaco_pipeline.analysis.roofline.operators.shape_table import operator_shapes
from aaco_pipeline.formats import kineto
from aaco_pipeline.hardware.ceilings import spec_ceilings
from aaco_pipeline.hardware.device_facts import cache_bytes
from aaco_pipeline.lake.validation import to_contract
from tests.analysis.roofline.operators.made_up import CACHES, CEILINGS, Run
from tests.places import SHARED

KINETO: Final = SHARED / "kineto"
TRACES: Final = ("mi300x_qwen1.5_0.5b", "mi300x_sglang_qwen3_8b", "mi300x_resnet_train_ddp", "h100_qwen1.5_0.5b")
A, B = [4, 8], [8, 2]


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


def test_of_no_launches_there_are_no_rows() -> None:
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
    """Whether the row's shapes are those that the other tool names."""
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
