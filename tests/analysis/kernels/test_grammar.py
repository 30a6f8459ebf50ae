"""The naming grammars of libraries, on names that follow them."""

import pytest

from aaco_pipeline.analysis.kernels import grammar

TENSILE = "Cijk_Alik_Bjlk_HHS_BH_Bias_HA_S_SAV_UserArgs_MT96x128x32_MI16x16x1_SN_LDSB1_ISA90a_IU1_SK3_WS64"
TENSILE_OLD = "Cijk_Ailk_Bljk_SB_MT64x32x16_MI32x32x2x1_SN_1LDSB0_ISA942_WG16_16_1"
CK = (
    "void ck::tensor_operation::device::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3<"
    "ck::tensor_layout::gemm::RowMajor, ck::tensor_layout::gemm::ColumnMajor, ck::tensor_layout::gemm::RowMajor, "
    "unsigned short, unsigned short, float, (ck::Kind)7, 256, 128, 192, 64, 8, 8, 32, 32, 2, 2, ck::Sequence<8> > >()"
)


def test_tensile_in_both_forms() -> None:
    new, old = grammar.tensile(TENSILE), grammar.tensile(TENSILE_OLD)
    assert (new["dtype"], new["tile"], new["architecture"]) == ("float16", "96x128x32", "gfx90a")
    assert (new["transpose_a"], new["transpose_b"], new["variant"]) == (True, True, "SK3")
    # The newer form does not state K of the instruction, and none is made up.
    assert (new["matrix_instruction"], old["matrix_instruction"]) == ("16x16x1", "32x32x2x1")
    assert (old["dtype"], old["transpose_a"], old["transpose_b"]) == ("float32", False, False)
    assert "role" not in new


@pytest.mark.parametrize(
    ("formats", "dtype"),
    [("B_BS_BH", "bfloat16"), ("S_B", "float32"), ("DB", "float64"), ("F8BS_BH", "float8"), ("I8II_BH", "int8"),
     ("F8NBS_BH", "float8e4m3fnuz"), ("HB", "float16"), ("ZB", "complex128")],
)  # fmt: skip
def test_tensile_formats(formats: str, dtype: str) -> None:
    assert grammar.tensile(f"Cijk_Alik_Bljk_{formats}_MT16x16x16_SN")["dtype"] == dtype


@pytest.mark.parametrize("name", ["Cijk_S_BiasS_HAS_PostGSU16_VW4", "Cijk_SB_GB", "Cijk_B_GA"])
def test_tensile_helpers(name: str) -> None:
    fields = grammar.tensile(name)
    assert (fields["family"], fields["role"]) == ("gemm", "auxiliary")
    assert "tile" not in fields


def test_igemm() -> None:
    fields = grammar.igemm("igemm_wrw_gtcx2_nchw_fp16_bx4_ex1_bt256x64x16_wt32x32x8_ws1x1_wr2x2_gkgs")
    assert fields == {
        "family": "conv", "variant": "wrw_nchw", "dtype": "float16", "tile": "256x64x16",
        "matrix_instruction": "32x32x8", "architecture": "gfx90a",
        "short_name": "igemm_wrw_gtcx2_nchw_fp16_bx4_ex1_bt256x64x16",
    }  # fmt: skip


def test_composable_kernel() -> None:
    fields = grammar.composable_kernel(CK)
    assert (fields["tile"], fields["matrix_instruction"], fields["dtype"]) == ("128x192x64", "32x32", "bfloat16")
    assert (fields["transpose_a"], fields["transpose_b"]) == (False, True)
    staged = grammar.composable_kernel(
        "void ck::k_fwd<ck::Gridwise<_Float16, 1, 256, 64, 128, 32, 8, 8, 32, 32, 2, 1, X> >"
    )
    assert (staged["tile"], staged["dtype"], staged["variant"]) == ("64x128x32", "float16", "fwd")
    early = grammar.composable_kernel("void ck::k<ck::Gridwise_bwd<64, float, 128, 32, 4, 32, 32, 8, 2, 1, X> >()")
    assert early["tile"] == "128x32x32"


@pytest.mark.parametrize(
    ("name", "dtype", "tile", "architecture", "transposes"),
    [
        ("ampere_sgemm_128x64_tn", "float32", "128x64", "sm_80", (True, False)),
        ("volta_h884gemm_256x64_ldg8_nt", None, None, "sm_70", (False, True)),
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4", "tfloat32", "256x64x16", "sm_80", (False, False)),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warp", None, "128x64x64", "sm_90", (True, False)),
    ],
)
def test_cuda_libraries(
    name: str, dtype: str | None, tile: str | None, architecture: str, transposes: tuple[bool, bool]
) -> None:
    fields = grammar.cuda_library(name)
    assert fields.get("dtype") == dtype
    assert tile is None or fields["tile"] == tile
    assert fields["architecture"] == architecture
    assert (fields["transpose_a"], fields["transpose_b"]) == transposes


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("<4, at::native::CUDAFunctor_add<c10::BFloat16> >(int)", "bfloat16"),
        ("<4, f(int)::{lambda()#1}::operator()() const::{lambda(c10::Half)#1}, float>", "float16"),
        ("<4, f(double, double)::{lambda(float)#1}>", "float32"),
        ("<4, FillFunctor<long>, unsigned int>", "int64"),
        ("<bool, c10::BFloat16>", "bfloat16"),
        ("<128, unsigned int>(int, int)", None),
        ("(int, int)", None),
        ("_matmul_bf16xbf16xmxfp4_16x128", "bfloat16"),
        ("sm80_xmma_tf32f32_tf32f32_f32_nhwc", "tfloat32"),
    ],
)
def test_number_formats(text: str, dtype: str | None) -> None:
    assert grammar.number_format(text) == dtype


def test_collectives() -> None:
    assert grammar.collective("ncclDevKernel_AllReduce_Sum_bf16_RING_LL")["variant"] == "AllReduce_Sum_bf16_RING_LL"
    assert grammar.collective("ncclDevKernel_Generic_4(x)")["variant"] == "Generic"


def test_architectures_anywhere() -> None:
    assert grammar.architecture("miopenSp3AsmConv_v30_3_1_gfx94x_fp16_f2x3_stride1") == "gfx94x"
    assert grammar.architecture("add_kernel") is None
