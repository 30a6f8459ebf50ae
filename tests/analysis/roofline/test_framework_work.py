"""Work by the shapes of framework operators: operations and bytes that anyone can check by hand."""

from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.analysis.roofline.framework_work import framework_work, operator_figures
from aaco_pipeline.formats import kineto
from tests.places import SHARED

TRACE: Final = SHARED / "gpu_sessions" / "traces" / "elementwise_256mib.json.gz"
ELEMENTS: Final = 2**26

BF16, FP32 = "c10::BFloat16", "float"


@pytest.mark.parametrize(
    ("operator", "dims", "types", "expected"),
    [
        ("aten::mm", [[4, 8], [8, 2]], [BF16, BF16], ("bf16", 2 * 4 * 8 * 2, 2 * (32 + 16 + 8), "matrix")),
        ("aten::bmm", [[3, 4, 8], [3, 8, 2]], [FP32, FP32], ("fp32", 3 * 128, 4 * 3 * 56, "matrix")),
        ("aten::addmm", [[2], [4, 8], [8, 2], [], []], [FP32] * 3 + ["Scalar"] * 2, ("fp32", 128, 4 * 56, "matrix")),
        ("aten::add", [[10], [10], []], [FP32, FP32, "Scalar"], ("fp32", 10, 4 * 30, "vector")),
        # The fourth tensor is where the result goes.
        ("aten::add", [[10], [10], [], [10]], [FP32, FP32, "Scalar", FP32], ("fp32", 10, 4 * 30, "vector")),
        ("aten::mul", [[5, 10], []], [FP32, "double"], ("fp32", 50, 4 * 100, "vector")),
        ("aten::add_", [[10], [], []], [FP32, "double", "Scalar"], ("fp32", 10, 4 * 20, "vector")),
        ("aten::mul", [[5, 10], [10]], [FP32, FP32], ("fp32", 50, 4 * (50 + 10 + 50), "vector")),
    ],
)
def test_figures_of_an_operator(operator: str, dims: list[Any], types: list[str], expected: tuple[Any, ...]) -> None:
    assert operator_figures(operator, dims, types) == expected


@pytest.mark.parametrize(
    ("operator", "dims", "types"),
    [
        ("aten::sort", [[10]], [FP32]),
        ("aten::mm", [[4, 8], [9, 2]], [BF16, BF16]),
        ("aten::mm", [[4, 8]], [BF16]),
        ("aten::add", [[10], [10], []], [FP32, BF16, "Scalar"]),
        ("aten::add", [[], [], []], ["Scalar", "Scalar", "Scalar"]),
        ("aten::add", [], []),
    ],
)
def test_without_a_formula_or_fitting_shapes_there_are_none(operator: str, dims: list[Any], types: list[str]) -> None:
    assert operator_figures(operator, dims, types) is None


@pytest.mark.skipif(not TRACE.is_file(), reason=f"{TRACE} is not there; set AACO_SHARED")
def test_a_real_traces_additions_have_the_work_of_their_shapes() -> None:
    tables = kineto.read(TRACE).tables
    shapes = tables["operator_shapes"]
    cache = pl.DataFrame({"device_id": [0], "bytes": [1_000_000]}, schema={"device_id": pl.Int32, "bytes": pl.Int64})
    (row,) = framework_work(tables["dispatches"], tables["api_calls"], shapes, cache).rows(named=True)
    assert row["dispatch_count"] == 30
    assert row["valu_fp32_flops"] == 30 * ELEMENTS
    assert row["dram_bytes"] == 30 * (3 * 4 * ELEMENTS - 1_000_000)
    # A kernel of which one dispatch is not known is not known.
    assert framework_work(tables["dispatches"], tables["api_calls"], shapes.head(-1), cache).height == 0
