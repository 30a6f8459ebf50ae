"""Selections that differ, by their kind; additional and slower work is none."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.statistics.causes.arms import Arm
from aaco_pipeline.statistics.causes.decomposition import selection_rows
from aaco_pipeline.statistics.causes.matching import replaced_kernels
from aaco_pipeline.statistics.causes.selection import selections
from tests.statistics.causes.made import ADD, GEMM, NORM, STEP, Ran, Tables, arm_of, session

SDPA = Ran("flash_fwd", 800, operator="aten::sdpa", family="attention", library="flash_attention")


def of_arms(before: Arm, after: Arm) -> pl.DataFrame:
    return selections(before, after, replaced_kernels(before.accounts, after.accounts))


def of_steps(before: Sequence[Ran], after: Sequence[Ran]) -> list[dict[str, Any]]:
    return of_arms(arm_of(session(before)), arm_of(session(after))).to_dicts()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (GEMM, replace(GEMM, kernel="sgemm_128x64"), "kernel"),
        (GEMM, replace(GEMM, kernel="Cijk", library="hipblaslt"), "gemm_backend"),
        (NORM, replace(NORM, kernel="triton_norm", library="triton"), "library"),
        (SDPA, replace(SDPA, kernel="fmha", library="ck"), "attention_backend"),
        (SDPA, replace(SDPA, kernel="bmm", library="cublas", family="gemm"), "attention_backend"),
        (replace(SDPA, library="cudnn"), replace(SDPA, kernel="fmha", library=None), "attention_backend"),
        (replace(SDPA, kernel="a"), replace(SDPA, kernel="b"), "kernel"),
        (replace(GEMM, family="conv"), replace(GEMM, family="conv", kernel="nchwToNhwcKernel"), "kernel"),
        (replace(GEMM, dtype="bfloat16"), replace(GEMM, kernel="sgemm_32", dtype="float32"), "datatype"),
        (replace(GEMM, dtype="bfloat16"), replace(GEMM, dtype="float32"), "datatype"),
        (replace(GEMM, library="onnxruntime CPU"), replace(GEMM, library="onnxruntime MIGraphX"), "node_placement"),
    ],
)  # fmt: skip
def test_a_kernel_in_anothers_place_is_named_with_what_it_is(old: Ran, new: Ran, what: str) -> None:
    found = of_steps((old, ADD), (replace(new, ns=1_400), ADD))
    assert [row["what"] for row in found] == [what]
    row = found[0]
    if old.kernel != new.kernel:
        format_ = [f"{one.dtype}, " if what == "datatype" else "" for one in (old, new)]
        expected = (f"{format_[0]}{old.kernel}", f"{format_[1]}{new.kernel}", old.operator)
        assert (row["from_value"], row["to_value"], row["operator"]) == expected
    assert (row["count"], row["baseline_ns"], row["candidate_ns"]) == (1.0, old.ns, 1_400)


def test_fewer_kernels_in_the_same_place_are_a_fusion() -> None:
    bias = replace(GEMM, kernel="bias", family="elementwise", ns=50)
    found = of_steps((GEMM, bias, ADD), (replace(GEMM, kernel="gemm_bias"), ADD))
    assert [(row["what"], row["from_value"], row["to_value"]) for row in found] == [
        ("fusion", "bias + sgemm", "gemm_bias")
    ]


def test_one_product_in_two_kernels_is_no_fusion() -> None:
    reduced = replace(GEMM, kernel="split_k_reduce", ns=50)
    found = of_steps((GEMM, ADD), (replace(GEMM, kernel="split_k"), reduced, ADD))
    assert [row["what"] for row in found] == ["kernel"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_in_one_kernel_that_is_fused_by_its_name_are_a_fusion(dtype: str) -> None:
    second = replace(GEMM, kernel="sgemm_64", ns=500)
    one = replace(GEMM, kernel="triton_tem_fused_mm_mm", dtype=dtype)
    assert [row["what"] for row in of_steps((GEMM, second, ADD), (one, ADD))] == ["fusion"]
    assert [row["what"] for row in of_steps((one, ADD), (GEMM, second, ADD))] == ["fusion"]


def test_kernels_that_a_compiler_wrote_are_one_selection() -> None:
    region = "Torch-Compiled Region"
    written = (
        Ran("triton_per_fused_norm_0", 300, operator=region, library="triton"),
        Ran("triton_poi_fused_add_1", 200, operator=region, library="triton"),
    )
    found = of_steps(STEP, (GEMM, *written))
    assert [(row["what"], row["count"], row["baseline_ns"]) for row in found] == [("compilation", 2.0, None)]
    assert [row["what"] for row in of_steps((GEMM, *written), STEP)] == ["compilation"]


def test_an_optimizer_over_many_tensors_at_once_is_a_fusion() -> None:
    single = tuple(Ran(f"add_{at}", 100, operator="aten::add_") for at in range(3))
    batched = [Ran(f"at::native::multi_tensor_apply_kernel<{one}>", 200, operator="aten::_foreach_") for one in "abc"]
    found = of_steps((*STEP, *single), (*STEP, *batched))
    assert [(row["what"], row["count"], row["baseline_ns"]) for row in found] == [("fusion", 3.0, None)]
    assert of_steps(STEP, (*STEP, *batched)) == []
    assert of_steps((*STEP, *single), (*STEP, *batched[:2])) == []


def test_layouts_that_another_library_needs_no_more_are_the_librarys() -> None:
    turned = Ran("nchwToNhwcKernel", 100, operator="conv", family="conv", library="cudnn")
    conv = Ran("fprop", 900, operator="conv", family="conv", library="cudnn")
    direct = Ran("im2col", 900, operator="conv", family="conv", library="pytorch")
    assert [row["what"] for row in of_steps((turned, conv), (direct,))] == ["library"]
    assert [row["what"] for row in of_steps((turned, conv), (replace(conv, kernel="fprop_nhwc"),))] == ["data_layout"]


@pytest.mark.parametrize(
    "after",
    [
        STEP,
        (*STEP, Ran("tiny", 10, operator="aten::mul_")),
        (*STEP, ADD, ADD),
        tuple(replace(one, ns=one.ns * 3, gap_ns=900, cause="sync") for one in STEP),
        STEP[:2],
    ],
)
def test_more_fewer_and_slower_work_is_no_selection(after: Sequence[Ran]) -> None:
    assert of_steps(STEP, after) == []


def test_selections_of_the_session_come_before_places() -> None:
    before = arm_of(session(STEP, facts={"provider": "MIGraphXExecutionProvider"}))
    after = arm_of(session((replace(GEMM, kernel="slow"), ADD, NORM), facts={"provider": "CPUExecutionProvider"}))
    found = of_arms(before, after)
    assert found.get_column("what").to_list() == ["execution_provider", "kernel"]
    assert selection_rows("a", "b", found).get_column("rank").to_list() == [0, 1]


def test_places_come_by_how_much_their_time_changed() -> None:
    after = (replace(GEMM, kernel="g", ns=950), replace(ADD, kernel="a", ns=700), NORM)
    assert [row["from_value"] for row in of_steps(STEP, after)] == ["add", "sgemm"]


def replayed(tables: Tables) -> Tables:
    nodes = tables["dispatches"].with_columns(graph_node_id=(pl.col("dispatch_id") + 1).cast(pl.UInt64))
    return {**tables, "dispatches": nodes}


def test_graph_replay_in_the_place_of_single_launches() -> None:
    found = of_arms(arm_of(session(STEP)), arm_of(replayed(session(STEP)))).to_dicts()
    assert [(row["what"], row["from_value"], row["to_value"]) for row in found] == [
        ("graph_replay", "single launches", "graph replay")
    ]


def test_caches_and_versions_of_what_chooses_kernels() -> None:
    old = {("cache", "miopen"): "present", ("cache", "miopen_files"): "12", ("package", "torch"): "2.6"}
    new = {("cache", "miopen"): "empty", ("cache", "miopen_files"): "0", ("package", "torch"): "2.7"}
    more = {("package", "numpy"): "1", ("driver", "amdgpu"): "6.12"}
    other = {("package", "numpy"): "2", ("driver", "amdgpu"): "6.14"}
    before, after = session(STEP, environment={**old, **more}), session(STEP, environment={**new, **other})
    found = of_arms(arm_of(before), arm_of(after))
    assert found.select("what", "from_value", "to_value").rows() == [
        ("cache", "miopen: present (12 files)", "miopen: empty (0 files)"),
        ("library_version", "torch 2.6", "torch 2.7"),
    ]


def with_inputs(shapes: str, types: str) -> Tables:
    tables = session(STEP)
    calls = [{"call_id": at, "process_id": 0, "domain": "operator", "name": "aten::mm", "start_ns": 1_000 + 2_100 * at,
              "end_ns": 1_050 + 2_100 * at} for at in range(3)]  # fmt: skip
    inputs = [{"call_id": at, "operator": "aten::mm", "shapes": shapes, "types": types} for at in range(3)]
    tables["api_calls"] = to_contract("api_calls", pl.DataFrame(calls))
    tables["operator_inputs"] = to_contract("operator_inputs", pl.DataFrame(inputs))
    return tables


@pytest.mark.parametrize(
    ("after", "what"),
    [
        (("[[8,8],[8,8]]", '["float","float"]'), None),
        (("[[8,9],[9,8]]", '["float","float"]'), "input_shape"),
        (("[[8,8],[8,8]]", '["c10::Half","c10::Half"]'), "datatype"),
        (("[[8,8],[8,8],[8,8]]", '["float","float","float"]'), None),
    ],
)
def test_operators_called_as_often_with_other_inputs(after: tuple[str, str], what: str | None) -> None:
    before = arm_of(with_inputs("[[8,8],[8,8]]", '["float","float"]'))
    found = of_arms(before, arm_of(with_inputs(*after))).get_column("what").to_list()
    assert found == ([] if what is None else [what])


def test_kernels_of_the_format_that_the_inputs_have_are_no_selection_of_their_own() -> None:
    after = with_inputs("[[8,8],[8,8]]", '["c10::Half","c10::Half"]')
    before = with_inputs("[[8,8],[8,8]]", '["float","float"]')
    for tables, dtype in ((before, "float32"), (after, "float16")):
        tables["kernels"] = tables["kernels"].with_columns(
            pl.when(pl.col("name") == "sgemm").then(pl.lit(dtype)).otherwise("dtype").alias("dtype")
        )
    after["kernels"] = after["kernels"].with_columns(pl.col("name").replace("sgemm", "hgemm"))
    found = of_arms(arm_of(before), arm_of(after)).to_dicts()
    assert [(row["what"], row["from_value"], row["to_value"], row["operator"]) for row in found] == [
        ("datatype", "float", "c10::Half", "aten::mm")
    ]


def copied(memory: str | None, ns: int) -> Tables:
    tables = session(STEP)
    rows = [{"copy_id": at, "process_id": 0, "device_id": 0, "direction": "host_to_device", "size_bytes": 64,
             "start_ns": 1_000 + 2_100 * at, "end_ns": 1_000 + 2_100 * at + ns, "host_memory": memory}
            for at in range(3)]  # fmt: skip
    schema = {"host_memory": pl.String}
    tables["memory_copies"] = to_contract("memory_copies", pl.DataFrame(rows, schema_overrides=schema))
    return tables


def test_copies_by_another_kind_of_host_memory() -> None:
    pageable, pinned = arm_of(copied("pageable", 80)), arm_of(copied("pinned", 20))
    found = of_arms(pageable, pinned).to_dicts()
    assert [(row["what"], row["from_value"], row["to_value"], row["operator"]) for row in found] == [
        ("copy_path", "pageable memory", "pinned memory", "host to device copies")
    ]
    assert (found[0]["count"], found[0]["baseline_ns"], found[0]["candidate_ns"]) == (1.0, 80, 20)
    assert of_arms(pinned, arm_of(copied("pinned", 80))).is_empty()
    assert of_arms(pinned, arm_of(copied(None, 80))).is_empty()


def test_attention_by_products_and_a_softmax_is_another_backend() -> None:
    softmax = Ran("softmax_warp_forward", 200, operator="aten::softmax", family="softmax")
    found = of_steps((GEMM, SDPA), (GEMM, replace(GEMM, kernel="bmm", operator="aten::bmm"), softmax))
    assert [(row["what"], row["from_value"], row["to_value"]) for row in found] == [
        ("attention_backend", "flash_fwd", "products and a softmax")
    ]
    assert of_steps((GEMM, SDPA), (GEMM,)) == []


def test_a_format_that_is_shared_is_no_other_datatype() -> None:
    indexed = Ran("index", 100, operator="aten::index_add_", dtype="float32")
    sort = replace(indexed, kernel="sort", dtype="int64")
    found = of_steps((GEMM, indexed), (GEMM, replace(indexed, kernel="segmented"), sort))
    assert [row["what"] for row in found] == ["fusion"]
