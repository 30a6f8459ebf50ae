"""Matching of kernels: replaced, added, removed, launched in other shapes."""

from dataclasses import replace

import polars as pl
import pytest

from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.statistics.causes.matching import code_keys, groups_of, normalized, other_work, replaced_kernels
from tests.statistics.causes.made import ADD, GEMM, NORM, STEP, Ran, arm_of, session

EXTRA = Ran("tiny", 50, 10, operator="aten::mul_")


def found(
    before: tuple[Ran, ...], after: tuple[Ran, ...]
) -> list[tuple[dict[str, float], dict[str, float], str | None, str]]:
    sides = arm_of(session(before)), arm_of(session(after))
    return [
        (dict(one.before), dict(one.after), one.operator, one.matched_by)
        for one in replaced_kernels(sides[0].accounts, sides[1].accounts)
    ]


def matched(before: tuple[Ran, ...], after: tuple[Ran, ...]) -> dict[str, str]:
    sides = arm_of(session(before)).accounts, arm_of(session(after)).accounts
    rows = groups_of(*sides, replaced_kernels(*sides))
    return dict(rows.select("name", "matched_by").unique().iter_rows())


def test_the_same_kernels_are_matched_by_name() -> None:
    assert found(STEP, STEP) == []
    assert matched(STEP, STEP) == {"sgemm": "name", "add": "name", "norm": "name"}


def test_a_kernel_in_the_place_of_another_at_its_operator_is_a_replacement() -> None:
    other = replace(GEMM, kernel="Cijk_Alik", library="hipblaslt")
    assert found(STEP, (other, ADD, NORM)) == [({"sgemm": 1.0}, {"Cijk_Alik": 1.0}, "aten::mm", "operator")]
    assert matched(STEP, (other, ADD, NORM))["Cijk_Alik"] == "operator"


def test_half_of_a_kernels_launches_may_be_replaced_by_one_that_was_there_before() -> None:
    other = replace(GEMM, kernel="other_gemm")
    assert found((GEMM, GEMM, other, ADD), (GEMM, other, other, ADD)) == [
        ({"sgemm": 1.0}, {"other_gemm": 1.0}, "aten::mm", "operator")
    ]


@pytest.mark.parametrize("after", [(*STEP, EXTRA), (EXTRA, EXTRA, *STEP), (GEMM, EXTRA, ADD, NORM, EXTRA)])
def test_added_work_replaces_nothing(after: tuple[Ran, ...]) -> None:
    assert found(STEP, after) == []
    assert found(after, STEP) == []
    assert matched(STEP, after)["tiny"] == "added"
    assert matched(after, STEP)["tiny"] == "removed"


def test_added_work_at_one_operator_does_not_replace_what_another_lost() -> None:
    assert found(STEP, (GEMM, ADD, EXTRA)) == []


def test_a_backend_is_found_by_the_operator_around_the_ones_it_calls() -> None:
    flash = Ran("flash", 500, operator="aten::_flash", outermost="aten::sdpa", family="attention")
    efficient = Ran("fmha", 700, operator="aten::_efficient", outermost="aten::sdpa", family="attention")
    assert found((GEMM, flash), (GEMM, efficient)) == [({"flash": 1.0}, {"fmha": 1.0}, "aten::sdpa", "operator")]


def without_operators(step: tuple[Ran, ...]) -> tuple[Ran, ...]:
    return tuple(replace(one, operator=None) for one in step)


def test_without_operators_the_position_tells() -> None:
    other = replace(GEMM, kernel="fast_gemm")
    before, after = without_operators((ADD, GEMM, NORM)), without_operators((ADD, other, NORM))
    assert found(before, after) == [({"sgemm": 1.0}, {"fast_gemm": 1.0}, None, "position")]


def test_two_kernels_that_became_one_are_found_between_their_neighbours() -> None:
    fused = replace(ADD, kernel="add_norm")
    before, after = without_operators((GEMM, ADD, NORM, GEMM)), without_operators((GEMM, fused, GEMM))
    assert found(before, after) == [({"add": 1.0, "norm": 1.0}, {"add_norm": 1.0}, None, "position")]


def test_an_order_that_changed_replaces_nothing() -> None:
    assert found(without_operators((ADD, GEMM, NORM)), without_operators((NORM, GEMM, ADD))) == []


def test_equal_normalized_names_are_the_last_hint() -> None:
    before = replace(GEMM, kernel="Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_SN", operator="aten::mm")
    after = replace(GEMM, kernel="Cijk_Ailk_Bljk_HHS_BH_MT64x64x64_SE", operator="aten::bmm")
    assert found((before, ADD), (ADD, after))[0][3] == "normalized_name"


def test_a_kernel_that_runs_once_in_many_iterations_is_matched_if_one_side_lacks_it() -> None:
    """When an iteration is a layer, the last projection of a pass is a small part of a launch."""
    layers = 12 * (ADD, NORM)
    sides = []
    for last in (GEMM, replace(GEMM, kernel="other_gemm")):
        tables = session((*layers, last), steps=1)
        tables["iterations"] = tables["iterations"].clear()
        part = {"device_id": 0, "part": "steady", "start_ns": 1_000, "end_ns": 15_000, "repetitions": 12, "reason": "-"}
        tables["session_parts"] = to_contract("session_parts", pl.DataFrame([part]))
        sides.append(arm_of(tables).accounts)
    (one,) = replaced_kernels(*sides)
    assert (dict(one.before), dict(one.after)) == ({"sgemm": 1 / 12}, {"other_gemm": 1 / 12})


def test_one_kernel_launched_in_another_shape_stays_one_group() -> None:
    assert matched(STEP, (replace(GEMM, launch=512), ADD, NORM))["sgemm"] == "launch"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void gemm<float, Tile<128, 4>>(float*, int)", "void gemm<half, Tile<64, 8>>(half*, int)"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI16x16x1_SN_1LDSB1", "Cijk_Ailk_Bljk_HHS_BH_MT16x64x32_SE"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz", "nvjet_sm90_tst_64x8_64x16_4x2_h_bz"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_13"),
    ],
)
def test_tiles_templates_and_numbers_are_not_part_of_a_normalized_name(one: str, other: str) -> None:
    assert normalized(pl.Series([one])).equals(normalized(pl.Series([other])))


def test_another_function_has_another_normalized_name() -> None:
    names = normalized(
        pl.Series(["void gemm<float>(int)", "void gemv<float>(int)", "Cijk_Alik_Bljk_S_B", "Cijk_Ailk_Bljk_S_B"])
    )
    assert names.n_unique() == 4


@pytest.mark.parametrize(
    ("name", "one", "other", "equal"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, F>(int)", "k [Gelu]", "k [clamp]", False),
        ("void at::native::vectorized_elementwise_kernel<4, F>(int)", "k [Gelu]", "k [Gelu]", True),
        ("void cutlass::Kernel2<K>(int)", "Kernel2 [sgemm_128x64]", "Kernel2 [sgemm_64x64]", True),
        ("void cutlass::Kernel2<K>(int)", "Kernel2 [sgemm_128x64]", "Kernel2 [s1688gemm_128x64]", False),
        ("my_kernel_7", None, None, True),
    ],
)
def test_the_functor_of_a_kernel_is_part_of_its_key(name: str, one: str | None, other: str | None, equal: bool) -> None:
    keys = code_keys(pl.Series([name, name.replace("4", "8")]), pl.Series([one, other], dtype=pl.String))
    assert (keys[0] == keys[1]) == equal


def test_carriers_of_unknown_work_are_not_one_code() -> None:
    names = pl.Series(["void at::native::reduce_kernel<512, A>(A)", "void at::native::reduce_kernel<128, B>(B)"])
    assert code_keys(names, pl.Series([None, None], dtype=pl.String)).n_unique() == 2


def test_sessions_without_a_kernel_or_operator_in_common_are_other_work() -> None:
    alien = (Ran("attn_fwd", 900, operator="vllm::attention"), Ran("rms", 400, operator="vllm::rms"))
    ours, theirs = arm_of(session(STEP)).accounts, arm_of(session(alien)).accounts
    assert other_work(ours, theirs) is not None
    assert other_work(ours, arm_of(session((*alien, replace(GEMM, kernel="other", ns=300)))).accounts) is None
    assert other_work(ours, ours) is None
