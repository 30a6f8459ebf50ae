"""Operations and bytes from counters: worked by hand, per architecture, and laws that hold for any counts."""

from collections.abc import Mapping

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.hardware.counters import (
    AMOUNTS,
    MATRIX_FORMATS,
    MULTIPROCESSORS,
    RATIOS,
    TRAITS,
    Family,
    family_of,
    floating_formats,
    plain_name,
)
from aaco_pipeline.hardware.counters.formulas import (
    DerivedMetric,
    Formula,
    derived_metrics,
    formulas,
    read_size_is_assumed,
    term,
    work_formulas,
)

COUNT = st.integers(0, 10**9)
FLOATING = ("ADD", "MUL", "TRANS", "FMA")
TO_L2 = tuple(f"TCP_TCC_{kind}_REQ" for kind in ("READ", "WRITE", "ATOMIC_WITH_RET", "ATOMIC_WITHOUT_RET"))


def evaluated(formula: pl.Expr, **known: float | None) -> float | bool | None:
    """The formula on one dispatch; what is not named was not counted."""
    columns: Mapping[str, float | None] = {**dict.fromkeys(formula.meta.root_names()), **known}
    frame = pl.DataFrame({name: pl.Series([value], dtype=pl.Float64) for name, value in columns.items()})
    value: float | bool | None = frame.select(formula).item()
    return value


def figure(family: Family, name: str) -> DerivedMetric:
    (found,) = (one for one in derived_metrics(family) if one.name == name)
    return found


@pytest.mark.parametrize(
    ("arch", "family"),
    [
        ("gfx906", Family.GFX906),
        ("gfx900", Family.GFX906),
        ("gfx908", Family.GFX908),
        ("gfx90a", Family.GFX90A),
        ("gfx90a:sramecc+:xnack-", Family.GFX90A),
        ("gfx940", Family.GFX942),
        ("gfx942", Family.GFX942),
        ("gfx950", Family.GFX950),
        ("gfx1100", Family.GFX11),
        ("gfx1151", Family.GFX11),
        ("gfx1201", Family.GFX12),
        ("gfx1250", Family.UNKNOWN),
        ("gfx1251", Family.UNKNOWN),
        ("gfx1300", Family.UNKNOWN),
        ("gfx9999", Family.UNKNOWN),
        ("gfx90aa", Family.UNKNOWN),
        ("gfx1030", Family.UNKNOWN),
        ("gfx803", Family.UNKNOWN),
        ("sm_90", Family.SM90),
        ("sm_90a", Family.SM90),
        ("sm_80", Family.SM80),
        ("sm_100", Family.UNKNOWN),
        ("sm_86", Family.UNKNOWN),
        ("", Family.UNKNOWN),
        (None, Family.UNKNOWN),
    ],
)
def test_architectures_belong_to_families(arch: str | None, family: Family) -> None:
    assert family_of(arch) is family


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("TCC_EA_RDREQ_sum", "TCC_EA_RDREQ"),
        ("TCC_EA0_RDREQ_sum", "TCC_EA_RDREQ"),
        ("TCC_EA0_WRREQ_64B", "TCC_EA_WRREQ_64B"),
        ("TCC_EA1_WRREQ_sum", "TCC_EA_WRREQ"),
        ("TCC_HIT_sum", "TCC_HIT"),
        ("SQ_WAVES", "SQ_WAVES"),
        ("dram__bytes_read.sum", "dram__bytes_read"),
        ("gpc__cycles_elapsed.max", "gpc__cycles_elapsed.max"),
        ("TCP_TCC_EA0_X", "TCP_TCC_EA0_X"),
    ],
)
def test_one_counter_has_one_name(written: str, plain: str) -> None:
    assert plain_name(written) == plain
    assert plain_name(plain) == plain


def test_vector_operations_count_a_fused_instruction_twice_and_transcendental_ones_once() -> None:
    counted = {"SQ_INSTS_VALU_ADD_F32": 3, "SQ_INSTS_VALU_MUL_F32": 5, "SQ_INSTS_VALU_TRANS_F32": 7}
    formula = work_formulas(Family.GFX90A)["valu_fp32_flops"]
    assert evaluated(formula, **counted, SQ_INSTS_VALU_FMA_F32=11, wavefront_size=64) == 64 * (3 + 5 + 7 + 2 * 11)
    assert evaluated(formula, **counted, wavefront_size=64) is None, "an uncounted FMA is not none"


def test_matrix_operations_are_512_a_count_and_only_of_formats_that_the_architecture_has() -> None:
    assert evaluated(work_formulas(Family.GFX942)["matrix_xf32_flops"], SQ_INSTS_VALU_MFMA_MOPS_XF32=2) == 1024
    assert evaluated(work_formulas(Family.GFX90A)["matrix_xf32_flops"]) is None
    assert evaluated(work_formulas(Family.GFX950)["matrix_f6f4_flops"], SQ_INSTS_VALU_MFMA_MOPS_F6F4=3) == 1536
    assert set(TRAITS[Family.GFX950].matrix_formats) == set(MATRIX_FORMATS) - {"matrix_xf32_flops"}


def test_architectures_without_counters_of_formats_have_no_flops_but_instructions() -> None:
    for family in (Family.GFX906, Family.GFX908, Family.GFX11, Family.GFX12, Family.UNKNOWN):
        formulas = work_formulas(family)
        assert evaluated(formulas["valu_fp32_flops"]) is None
        assert evaluated(term("flops", family)) is None
        assert evaluated(formulas["valu_instructions"], SQ_INSTS_VALU=7) == 7
    with_matrix = work_formulas(Family.GFX90A)["valu_instructions"]
    assert evaluated(with_matrix, SQ_INSTS_VALU=7, SQ_INSTS_MFMA=2) == 5
    assert evaluated(with_matrix, SQ_INSTS_VALU=7) is None


def test_all_flops_leave_out_an_uncounted_matrix_format_but_never_the_vector_ones() -> None:
    known: dict[str, float | None] = dict.fromkeys(floating_formats(Family.GFX942), 1.0)
    assert evaluated(term("flops", Family.GFX942), **known) == 9
    assert evaluated(term("flops", Family.GFX942), **{**known, "matrix_xf32_flops": None}) == 8
    assert evaluated(term("flops", Family.GFX942), **{**known, "valu_fp16_flops": None}) is None


@pytest.mark.parametrize("family", [Family.GFX906, Family.GFX908, Family.GFX90A])
def test_reads_are_of_32_or_64_bytes_before_gfx942(family: Family) -> None:
    assert evaluated(term("fabric_read_bytes", family), TCC_EA_RDREQ=10, TCC_EA_RDREQ_32B=4) == 4 * 32 + 6 * 64
    assert evaluated(term("fabric_read_bytes", family), TCC_EA_RDREQ=10) is None
    assert evaluated(term("fabric_read_bytes", family), TCC_EA_RDREQ=10, FETCH_SIZE=2) == 2048


def test_a_bubble_is_a_read_of_128_bytes_on_gfx942() -> None:
    counted = {"TCC_EA_RDREQ": 10.0, "TCC_EA_RDREQ_32B": 1.0}
    assert evaluated(term("fabric_read_bytes", Family.GFX942), **counted, TCC_BUBBLE=4) == 4 * 128 + 5 * 64 + 32
    assert evaluated(term("fabric_read_bytes", Family.GFX942), **counted) is None


def test_gfx950_reads_are_by_size_or_bubble_or_assumed_to_be_128_bytes() -> None:
    formula, assumed = term("fabric_read_bytes", Family.GFX950), read_size_is_assumed(Family.GFX950)
    requests = {"TCC_EA_RDREQ": 65_612.0, "TCC_EA_RDREQ_32B": 0.0}
    assert evaluated(formula, **requests, TCC_BUBBLE=0) == 65_612 * 128
    assert evaluated(assumed, **requests, TCC_BUBBLE=0) is True
    assert evaluated(formula, **requests, TCC_BUBBLE=600) == 600 * 128 + 65_012 * 64
    assert evaluated(assumed, **requests, TCC_BUBBLE=600) is False
    sizes = {"TCC_EA_RDREQ_32B": 1.0, "TCC_EA_RDREQ_64B": 2.0, "TCC_EA_RDREQ_128B": 3.0}
    assert evaluated(formula, **sizes, TCC_EA_RDREQ=6, TCC_BUBBLE=0) == 32 + 128 + 384
    assert evaluated(assumed, **sizes, TCC_EA_RDREQ=6, TCC_BUBBLE=0) is False
    pieces = {"TCC_EA_RDREQ_DRAM_32B": 4.0, "TCC_EA_RDREQ_GMI_32B": 2.0, "TCC_EA_RDREQ_IO_32B": 1.0}
    assert evaluated(formula, **pieces, **requests) == 7 * 32
    assert evaluated(assumed, **pieces, **requests) is False
    assert evaluated(formula, FETCH_SIZE=100) is None, "FETCH_SIZE includes TCC_BUBBLE there"
    assert evaluated(assumed) is False
    assert evaluated(read_size_is_assumed(Family.GFX942), **requests, TCC_BUBBLE=0) is False


def test_gfx11_and_gfx12_count_by_size() -> None:
    sizes = {"GL2C_EA_RDREQ_32B": 1.0, "GL2C_EA_RDREQ_64B": 1.0, "GL2C_EA_RDREQ_128B": 1.0}
    assert evaluated(term("fabric_read_bytes", Family.GFX12), **sizes) == 224
    assert evaluated(term("fabric_read_bytes", Family.GFX11), **sizes) is None, "gfx11 has reads of 96 bytes, too"
    assert evaluated(term("fabric_read_bytes", Family.GFX11), **sizes, GL2C_EA_RDREQ_96B=1) == 320
    assert evaluated(term("fabric_read_bytes", Family.GFX11), FETCH_SIZE=10.625) == 10_880


def test_writes_are_of_32_or_64_bytes() -> None:
    for family in (family for family in Family if family not in MULTIPROCESSORS):
        if family not in (Family.GFX11, Family.GFX12):
            written = evaluated(term("fabric_write_bytes", family), TCC_EA_WRREQ=5, TCC_EA_WRREQ_64B=3)
            assert written == 3 * 64 + 2 * 32
        assert evaluated(term("fabric_write_bytes", family), WRITE_SIZE=1) == 1024
        assert evaluated(term("fabric_write_bytes", family), TCC_EA_WRREQ=5) is None


@pytest.mark.parametrize("family", MULTIPROCESSORS)
def test_on_nvidia_a_multiply_add_is_two_operations_and_l2_bytes_are_the_multiprocessors_sectors(
    family: Family,
) -> None:
    work = work_formulas(family)
    executed = {
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on": n for op, n in (("fadd", 3), ("fmul", 5), ("ffma", 7))
    }
    assert evaluated(work["valu_fp32_flops"], **executed) == 3 + 5 + 2 * 7
    assert evaluated(work["valu_fp32_flops"], smsp__sass_thread_inst_executed_op_ffma_pred_on=7) is None
    sectors = {f"lts__t_sectors_srcunit_tex_op_{op}": float(n) for op, n in (("read", 10), ("write", 5))}
    assert evaluated(work["l2_bytes"], **sectors) == 15 * 32
    assert evaluated(work["l2_bytes"], **sectors, lts__t_sectors_srcunit_tex_op_red=2.0) == 17 * 32
    assert evaluated(work["l2_bytes"], lts__t_sectors=99.0) is None
    assert evaluated(work["fabric_read_bytes"], dram__bytes_read=64) == 64
    halves = {
        name.replace("op_ffma", "op_hfma").replace("op_fa", "op_ha").replace("op_fm", "op_hm"): value
        for name, value in executed.items()
    }
    assert evaluated(work["valu_fp16_flops"], **halves) == 2 * (3 + 5 + 2 * 7), "two halves an instruction"
    assert evaluated(work["matrix_fp16_flops"]) is None, "what was not counted is not zero"
    assert evaluated(work["valu_instructions"], SQ_INSTS_VALU=7) is None


def test_dram_reads_are_known_only_where_no_infinity_cache_lies_between() -> None:
    counted = {"TCC_EA_RDREQ": 10.0, "TCC_EA_RDREQ_32B": 0.0, "TCC_EA_RDREQ_DRAM": 5.0, "TCC_BUBBLE": 0.0}
    assert evaluated(work_formulas(Family.GFX90A)["dram_read_bytes"], **counted) == 320
    assert evaluated(work_formulas(Family.GFX942)["dram_read_bytes"], **counted) is None
    assert evaluated(work_formulas(Family.GFX950)["dram_read_bytes"], **counted) is None


def test_caches_move_lines_of_the_architecture() -> None:
    known = {"TCC_REQ": 2.0, "TCP_TOTAL_CACHE_ACCESSES": 3.0}
    sizes = {Family.GFX908: (64, 64), Family.GFX90A: (128, 64), Family.GFX942: (128, 128), Family.GFX950: (128, 128)}
    for family, (l2, vl1d) in sizes.items():
        formulas = work_formulas(family)
        assert evaluated(formulas["l2_bytes"], **known) == 2 * l2
        assert evaluated(formulas["vl1d_bytes"], **known) == 3 * vl1d
    between = {"TCP_TCC_READ_REQ": 1.0, "TCP_TCC_WRITE_REQ": 1.0}
    atomics = {"TCP_TCC_ATOMIC_WITH_RET_REQ": 1.0, "TCP_TCC_ATOMIC_WITHOUT_RET_REQ": 1.0}
    assert evaluated(term("vl1d_to_l2_bytes", Family.GFX90A), **between, **atomics) == 4 * 64
    assert evaluated(term("vl1d_to_l2_bytes", Family.GFX942), **between, **atomics) == 128 + 3 * 64
    assert evaluated(term("vl1d_to_l2_bytes", Family.UNKNOWN), **between, **atomics) is None


def test_lds_moves_128_bytes_in_each_cycle_without_a_conflict() -> None:
    formula = work_formulas(Family.GFX90A)["lds_bytes"]
    assert evaluated(formula, SQ_LDS_IDX_ACTIVE=10, SQ_LDS_BANK_CONFLICT=4) == 6 * 128
    assert evaluated(formula, SQ_LDS_IDX_ACTIVE=10) is None


def test_busy_shares_are_of_all_compute_units_and_of_four_simds_for_matrix_instructions() -> None:
    formulas = work_formulas(Family.GFX90A)
    device = {"active_cycles": 100.0, "compute_units": 10.0}
    assert evaluated(formulas["valu_busy_ratio"], SQ_ACTIVE_INST_VALU=250, **device) == 0.25
    assert evaluated(formulas["matrix_busy_ratio"], SQ_VALU_MFMA_BUSY_CYCLES=1000, **device) == 0.25
    assert evaluated(formulas["valu_busy_ratio"], SQ_ACTIVE_INST_VALU=250, compute_units=10) is None
    threads = {"SQ_THREAD_CYCLES_VALU": 320.0, "SQ_ACTIVE_INST_VALU": 10.0}
    assert evaluated(formulas["active_threads_ratio"], **threads, wavefront_size=64) == 0.5


def test_occupancy_is_that_of_busy_compute_units_where_these_are_known() -> None:
    formula = work_formulas(Family.GFX90A)["achieved_occupancy_ratio"]
    resident = {"SQ_LEVEL_WAVES_ACCUM": 1600.0, "level_cycles": 100.0, "compute_units": 2.0}
    assert evaluated(formula, **resident, SQ_BUSY_CU_CYCLES=100) == 1600 / 100 / 32
    assert evaluated(formula, **resident) == 1600 / (100 * 2) / 32
    assert evaluated(formula, MeanOccupancyPerActiveCU=8) == 0.25
    assert evaluated(formula, OccupancyPercent=12.5) == 0.125
    assert evaluated(formula) is None
    older = work_formulas(Family.GFX908)["achieved_occupancy_ratio"]
    assert evaluated(older, **resident, SQ_BUSY_CU_CYCLES=100) == 1600 / 100 / 40


@pytest.mark.parametrize("family", list(Family))
def test_every_family_gives_every_amount_and_none_from_nothing(family: Family) -> None:
    formulas = work_formulas(family)
    assert tuple(formulas) == (*AMOUNTS, *RATIOS)
    assert [evaluated(formula) for formula in formulas.values()] == [None] * len(formulas)


@pytest.mark.parametrize("family", list(Family))
def test_figures_have_names_of_their_own_units_that_fit_and_no_value_from_nothing(family: Family) -> None:
    every = derived_metrics(family)
    names = [one.name for one in every]
    assert len(set(names)) == len(names)
    columns = {name for one in every for name in one.columns()}
    nothing = pl.DataFrame(schema=dict.fromkeys(columns, pl.Float64)).clear(1)
    values = nothing.select(one.numerator.cast(pl.Float64).alias(one.name) for one in every)
    assert values.null_count().row(0) == (1,) * len(every)
    for one in every:
        assert one.name.endswith(("_ratio", "_derived", "_with_duplicates", "_per_access")) == (one.unit == "ratio")
        assert one.name.endswith(("_bandwidth", "_rate")) == one.unit.endswith("/s")


@pytest.mark.parametrize("formula", formulas(), ids=lambda one: f"{one.section}: {one.name}")
def test_every_formula_gives_what_its_worked_example_says(formula: Formula) -> None:
    if formula.text.isidentifier():
        assert formula.result is None, "a counter as it is needs no example"
    else:
        assert formula.result is not None, f"{formula.name} in formulas.yaml has no worked example"
        assert evaluated(formula.expression({}), **formula.inputs) == pytest.approx(formula.result, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "counted", "expected"),
    [
        ("fabric_uncached_write_ratio", {"TCC_EA_WR_UNCACHED_32B": 2, "TCC_EA_WRREQ": 2, "TCC_EA_WRREQ_64B": 2}, 0.5),
        ("lds_arithmetic_intensity", {**dict.fromkeys(floating_formats(Family.GFX942), 1), "lds_bytes": 18}, 0.5),
        ("l2_busy_ratio", {"TCC_BUSY": 6400, "active_cycles": 100, "xcc_count": 8}, 0.5),
        ("achieved_occupancy_ratio", {"SQ_LEVEL_WAVES_ACCUM": 1600, "SQ_BUSY_CU_CYCLES": 100}, 0.5),
        ("vl1d_hit_ratio", {"TCP_TOTAL_CACHE_ACCESSES": 8, **dict.fromkeys(TO_L2, 1)}, 0.5),
        ("vl1d_to_l2_bandwidth", {**dict.fromkeys(TO_L2, 1), "duration_s": 2}, 160),
    ],
)
def test_formulas_that_use_others_read_their_counters(name: str, counted: dict[str, float], expected: float) -> None:
    one = figure(Family.GFX942, name)
    assert one.denominator is not None
    quotient = one.numerator / one.denominator
    assert evaluated(quotient, **{key: counted.get(key) for key in quotient.meta.root_names()}) == expected


def test_wavefronts_wait_issue_and_depend_by_shares_of_their_life() -> None:
    waits = figure(Family.GFX90A, "dependency_wait_ratio")
    assert waits.columns() == {"SQ_WAIT_ANY", "SQ_WAVE_CYCLES"}
    cycles = figure(Family.GFX90A, "wavefront_cycles")
    assert evaluated(cycles.numerator, SQ_WAVE_CYCLES=10) == 40, "the counter steps by four cycles"


@given(total=COUNT, small=st.floats(0, 1), large=st.floats(0, 1))
def test_bytes_read_lie_between_those_of_the_smallest_and_largest_requests(
    total: int, small: float, large: float
) -> None:
    of_32 = int(total * small)
    of_128 = int((total - of_32) * large)
    counted = {"TCC_EA_RDREQ": float(total), "TCC_EA_RDREQ_32B": float(of_32), "TCC_BUBBLE": float(of_128)}
    for family in (Family.GFX90A, Family.GFX942, Family.GFX950):
        read = evaluated(term("fabric_read_bytes", family), **counted)
        assert read is not None
        assert 32 * total <= read <= 128 * total


@given(counts=st.lists(COUNT, min_size=4, max_size=4), more=st.integers(1, 1000))
def test_operations_grow_with_every_instruction(counts: list[int], more: int) -> None:
    formula = work_formulas(Family.GFX942)["valu_fp64_flops"]
    known = {f"SQ_INSTS_VALU_{kind}_F64": float(n) for kind, n in zip(FLOATING, counts, strict=True)}
    before = evaluated(formula, **known, wavefront_size=64)
    assert before is not None
    for name, count in known.items():
        after = evaluated(formula, **{**known, name: count + more}, wavefront_size=64)
        assert after == before + 64 * more * (2 if "FMA" in name else 1)
