"""Work that the model's operators imply, for kernels that no counter saw."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.roofline.kernel_work import model_work
from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.lake.contracts import polars_types

CPU = (
    ("vector", "fp32", 100e9),
    ("vector", "fp64", 50e9),
    ("vector_integer", "int8", 400e9),
    ("l1", None, 800e9),
    ("l2", None, 400e9),
    ("l3", None, 200e9),
    ("dram", None, 20e9),
)
GPU = (
    ("vector", "fp32", 20e12),
    ("vector_packed", "fp32", 40e12),
    ("matrix", "fp16", 160e12),
    ("vector", "fp16", 20e12),
    ("l2", None, 5e12),
    ("infinity_cache", None, 3e12),
    ("dram", None, 1e12),
)
CACHES = (("l1", 100), ("l2", 1_000), ("l3", 10_000))


def table(name: str, rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    schema = polars_types(name)
    return pl.DataFrame(rows, schema=schema)


def ceilings(rows: Sequence[tuple[str, str | None, float]]) -> pl.DataFrame:
    listed = [
        {"device_id": 0, "resource": r, "dtype": d, "value": v, "source": "spec", "unit": "", "reference": ""}
        for r, d, v in rows
    ]
    return table("ceilings", listed)


def capacities(rows: Sequence[tuple[str, int]]) -> pl.DataFrame:
    schema = {"device_id": pl.Int32, "resource": pl.String, "bytes": pl.Int64}
    return pl.DataFrame([(0, *row) for row in rows], schema=schema, orient="row")


def session(
    nodes: Sequence[dict[str, Any]],
    kernels: Sequence[dict[str, Any]],
    attributed: Sequence[tuple[int | None, int, int]],
    element: str | None = "float32",
    devices: Sequence[int] = (0,),
) -> dict[str, pl.DataFrame]:
    """Tables of a session; `attributed` has node, kernel and dispatches; every kernel has 10 of them in 1 ms."""
    node = {"name": "n", "op_type": "MatMul", "domain": "", "read_bytes": 60, "written_bytes": 20, "flops": 1e6}
    listed = [{**node, "node_id": i, "inputs": [f"t{i}", "w"], "outputs": [f"t{i}o"], **n} for i, n in enumerate(nodes)]
    edges = [{"to_node_id": i, "tensor": f"t{i}", "dtype": element} for i in range(len(nodes))]
    edges += [{"to_node_id": i, "tensor": "w", "dtype": "int64"} for i in range(len(nodes))]
    kernel = {"name": "k", "short_name": "k", "role": "main", "family_source": "op"}
    ids = range(len(kernels))
    return {
        "model_nodes": table("model_nodes", listed),
        "model_edges": table("model_edges", edges),
        "kernels": table("kernels", [{**kernel, "kernel_id": i, **k} for i, k in enumerate(kernels)]),
        "kernel_stats": table("kernel_stats", [_stats(i) for i in ids]),
        "operator_kernels": pl.DataFrame(
            attributed, schema={"node_id": pl.Int32, "kernel_id": pl.Int32, "dispatch_count": pl.Int64}, orient="row"
        ),
        "dispatches": pl.DataFrame(
            [(i, device) for i in ids for device in devices],
            schema={"kernel_id": pl.Int32, "device_id": pl.Int32},
            orient="row",
        ),
    }


def _stats(kernel: int) -> dict[str, Any]:
    times = dict.fromkeys(("mean_ns", "min_ns", "p50_ns", "p99_ns", "max_ns"), 100_000)
    return {"kernel_id": kernel, "dispatch_count": 10, "total_ns": 1_000_000, "share_ratio": 1.0, **times}


def of_one(node: dict[str, Any], element: str | None = "float32", **kernel: Any) -> dict[str, Any]:
    tables = session([node], [kernel], [(0, 0, 10)], element)
    return model_work(tables, ceilings(CPU), capacities(CACHES)).row(0, named=True)


def test_work_is_that_of_all_executions() -> None:
    row = of_one({"flops": 3e6})
    assert (row["dispatch_id"], row["kernel_id"], row["device_id"], row["work_source"]) == (None, 0, 0, "model")
    assert (row["valu_fp32_flops"], row["dispatch_count"], row["duration_ns"]) == (3e7, 10, 1_000_000)
    assert row["quality_flags"] == ["model_based"]


@pytest.mark.parametrize(
    ("touched", "l1", "l2", "l3", "dram"),
    [
        (80, 80, 0, 0, 0),
        (500, 500, 400, 0, 0),
        (5_000, 5_000, 4_900, 3_900, 0),
        (50_000, 50_000, 49_900, 48_900, 38_900),
    ],
)
def test_a_level_carries_what_the_nearer_ones_cannot_hold(touched: int, l1: int, l2: int, l3: int, dram: int) -> None:
    row = of_one({"read_bytes": touched - 10, "written_bytes": 10})
    assert [row[f"{level}_bytes"] / 10 for level in ("l1", "l2", "l3", "dram")] == [l1, l2, l3, dram]


def test_levels_behind_a_cache_of_unknown_size_are_unknown() -> None:
    tables = session([{}], [{}], [(0, 0, 10)])
    row = model_work(tables, ceilings(CPU), capacities(CACHES[:1])).row(0, named=True)
    assert (row["l1_bytes"], row["l2_bytes"], row["l3_bytes"], row["dram_bytes"]) == (800, 0, None, None)
    assert row["quality_flags"] == ["model_based", "cache_size_unknown"]


def test_a_cache_without_a_ceiling_holds_what_it_holds() -> None:
    without = [row for row in CPU if row[0] != "l3"]
    tables = session([{"read_bytes": 50_000, "written_bytes": 0}], [{}], [(0, 0, 10)])
    row = model_work(tables, ceilings(without), capacities(CACHES)).row(0, named=True)
    assert (row["l3_bytes"], row["dram_bytes"]) == (None, 389_000)


def test_the_kernels_format_goes_before_that_of_the_nodes_first_input() -> None:
    assert of_one({}, "float32", dtype="float64")["valu_fp64_flops"] == 1e7
    assert of_one({}, "float64")["valu_fp64_flops"] == 1e7
    assert of_one({}, "uint8")["valu_int8_ops"] == 1e7
    unknown = [of_one({}, None), of_one({}, "int64"), of_one({"op_type": "DequantizeLinear"}, "uint8")]
    for row in unknown:
        assert not [value for name, value in row.items() if name.endswith(("_flops", "_ops")) and value is not None]
        assert row["quality_flags"] == ["model_based", "number_format_unknown"]


def test_operations_are_put_to_the_fastest_pipe_of_their_format() -> None:
    for element, column in (("float32", "valu_packed_fp32_flops"), ("float16", "matrix_fp16_flops")):
        tables = session([{}], [{}], [(0, 0, 10)], element)
        row = model_work(tables, ceilings(GPU), capacities((("l2", 10), ("infinity_cache", 20)))).row(0, named=True)
        assert row[column] == 1e7
        assert (row["l1_bytes"], row["l2_bytes"], row["dram_bytes"]) == (None, 800, 500)
    bf16 = model_work(session([{}], [{}], [(0, 0, 10)], "bfloat16"), ceilings(GPU), capacities(CACHES))
    flags = placement(bf16, ceilings(GPU)).roofline.row(0, named=True)["quality_flags"]
    assert "no_ceiling:matrix" in flags


def kernels_with_work(tables: dict[str, pl.DataFrame], runs: int | None = None) -> list[int]:
    return model_work(tables, ceilings(CPU), capacities(CACHES), runs)["kernel_id"].to_list()


def test_only_kernels_whose_work_the_model_states_in_full_have_a_row() -> None:
    assert kernels_with_work(session([{}], [{}, {}], [(0, 0, 10), (None, 1, 10)])) == [0]
    assert kernels_with_work(session([{}], [{}], [(0, 0, 9), (None, 0, 1)])) == []
    # The two kernels' parts of the operator are unknown; a helper does none of it.
    assert kernels_with_work(session([{}, {}], [{}, {}, {}], [(0, 0, 10), (0, 1, 10), (1, 2, 10)])) == [2]
    assert kernels_with_work(session([{}], [{}, {"role": "auxiliary"}], [(0, 0, 10), (0, 1, 10)])) == [0]
    assert kernels_with_work(session([{}], [{}], [(0, 0, 10)], devices=(0, 1))) == []
    nothing = {"flops": None, "read_bytes": None, "written_bytes": None}
    assert kernels_with_work(session([nothing], [{}], [(0, 0, 10)])) == []
    assert kernels_with_work(session([], [], [])) == []


def test_with_the_number_of_runs_each_node_must_have_run_as_often() -> None:
    tables = session([{}, {}], [{}, {}], [(0, 0, 10), (1, 1, 5), (1, 1, 5)])
    assert kernels_with_work(tables) == kernels_with_work(tables, 10) == [0, 1]
    assert kernels_with_work(tables, 5) == []


def test_one_kernel_of_several_nodes_has_the_work_of_all() -> None:
    tables = session([{"flops": 1e6}, {"flops": 3e6, "read_bytes": 540}], [{}], [(0, 0, 4), (1, 0, 6)])
    row = model_work(tables, ceilings(CPU), capacities(CACHES)).row(0, named=True)
    assert (row["valu_fp32_flops"], row["l1_bytes"], row["l2_bytes"]) == (22e6, 4 * 80 + 6 * 560, 6 * 460)
    unknown = session([{"flops": None}, {}], [{}], [(0, 0, 4), (1, 0, 6)])
    half = model_work(unknown, ceilings(CPU), capacities(CACHES)).row(0, named=True)
    assert (half["valu_fp32_flops"], half["l1_bytes"]) == (None, 800)
    assert half["quality_flags"] == ["model_based", "operations_unknown"]
    placed = placement(model_work(unknown, ceilings(CPU), capacities(CACHES)), ceilings(CPU)).roofline
    assert placed["bound"].to_list() == [None]


def test_a_modelled_kernel_is_placed_by_its_work() -> None:
    tables = session([{"flops": 8e6}, {"read_bytes": 1_510_000}], [{}, {}], [(0, 0, 10), (1, 1, 10)])
    found = placement(model_work(tables, ceilings(CPU), capacities(CACHES)), ceilings(CPU))
    rows = {row["kernel_id"]: row for row in found.roofline.iter_rows(named=True)}
    assert {row["dispatch_id"] for row in rows.values()} == {None}
    assert (rows[0]["bound"], rows[0]["efficiency_ratio"]) == ("vector", pytest.approx(0.8))
    assert (rows[1]["bound"], rows[1]["efficiency_ratio"]) == ("dram", pytest.approx(0.75, rel=0.01))
    assert rows[1]["quality_flags"] == ["model_based"]
    assert set(found.bounds["work_source"]) == {"model"}
    counted = pl.DataFrame(
        {"dispatch_id": [5, 6], "kernel_id": 2, "device_id": 0, "duration_ns": 10_000, "valu_instructions": 0.0}
        | {"fabric_read_bytes": 160e3, "flops_is_lower_bound": None, "quality_flags": [["counted"], []]},
        schema_overrides={"dispatch_id": pl.Int32, "kernel_id": pl.Int32, "device_id": pl.Int32},
    )
    limits = pl.concat([ceilings(CPU), ceilings((("fabric", None, 20e9), ("vector_issue", None, 1e9)))])
    alone = [placement(part, limits) for part in (model_work(tables, limits, capacities(CACHES)), counted)]
    both = pl.concat([counted, model_work(tables, limits, capacities(CACHES))], how="diagonal_relaxed")
    found = placement(both, limits)
    assert found.roofline.equals(pl.concat([one.roofline for one in alone]))
    assert found.bounds.equals(pl.concat([one.bounds for one in alone]))
    assert found.roofline["bound"].to_list() == ["vector", "dram", "dram", "dram", "dram"]
