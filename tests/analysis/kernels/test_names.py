"""Families, roles and sources of kernels, from names alone and with the operators that launched them.

Names cleaned, cut and split into words.
"""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.kernels.families import OPERATORS, PHRASES
from aaco_pipeline.analysis.kernels.grammar import fused_operators
from aaco_pipeline.analysis.kernels.names import (
    SCHEMA,
    classify_names,
    cleaned,
    comparable,
    head_and_arguments,
    operator_family,
    shortened,
    with_operators,
    words,
)
from tests.places import SHARED

CORPUS = SHARED / "kernels"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="needs the kernel names of the shared data")

#: name: family, library, role; written after the grammars, nearly all unlike any name of the shared corpus.
NAMES = {
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)": ("comm", "rccl", "main"),
    "void vllm::cross_device_reduce_2stage<float, 8>(int)": ("comm", "vllm", "main"),
    "Cijk_Alik_Bljk_HHS_BH_Bias_HAS_SAV_UserArgs_MT32x32x16_SN": ("gemm", "hipblaslt", "main"),
    "Cijk_Ailk_Bljk_DB_MT32x32x16_SN": ("gemm", "tensile", "main"),
    "igemm_bwd_gtcx3_nchw_fp32_bx0_ex0_bt16x16x16_wt": ("conv", "miopen", "main"),
    "miopenSp3AsmConv_v21_1_3_gfx9_fp32_f3x2_stride2.kd": ("conv", "miopen", "main"),
    "batched_transpose_8x8_dword": ("conv", "miopen", "auxiliary"),
    "MIOpenBatchNormFwdInferSpatialEst": ("norm", "miopen", "main"),
    "mloPoolingG": ("pool", "miopen", "main"),
    "attn_fwd": ("attention", "aotriton", "main"),
    "void flash::flash_bwd_dq_dk_dv_loop_kernel<flash::T>(int)": ("attention", "flash_attention", "main"),
    "void flash::flash_fwd_splitkv_combine_kernel<flash::T>(int)": ("attention", "flash_attention", "auxiliary"),
    "void ck_tile::kentry<1, ck_tile::Layernorm2dFwd<int> >(int)": ("norm", "ck_tile", "main"),
    "void ck_tile::kentry<1, ck_tile::FmhaFwdKernel<int> >(int)": ("attention", "ck_tile", "main"),
    "__amd_rocclr_fillBufferAligned": ("copy/memset", "rocclr", "main"),
    "Memcpy DtoD (Device -> Device)": ("copy/memset", "runtime", "main"),
    "void rocprim::detail::trampoline_kernel<rocprim::default_config, rocprim::detail::scan_config<int> >(int)": (
        "sort/scan", "rocprim", "main"),
    "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)": ("sort/scan", "pytorch", "main"),
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, A>(int)": (
        "copy/memset", "pytorch", "main"),
    "void at::native::vectorized_elementwise_kernel<4, at::native::masked_fill_kernel(T&)::{lambda(float)#1}>(int)": (
        "elementwise", "pytorch", "main"),
    "void at::native::index_elementwise_kernel<128, 4, at::native::index_fill<int> >(int)": (
        "embedding/gather", "pytorch", "main"),
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MaxOps<float> > >(int)": (
        "reduction", "pytorch", "main"),
    "void multi_tensor_apply_kernel<TensorListMetadata<2>, LAMBFunctor<float> >(int)": ("elementwise", None, "main"),
    "void splitKreduce_kernel<float>(cublasSplitKParams<float>)": ("gemm", "cublas", "auxiliary"),
    "void cudnn::ops::nchwToNhwcKernel<float>(int)": ("conv", "cudnn", "auxiliary"),
    "mlir_quant_convolution_dequantizelinear_relu": ("conv", "rocmlir", "main"),
    "mlir_dot_mul_softmax_dot": ("attention", "rocmlir", "main"),
    "reduce_mean_sub_kernel": ("reduction", "migraphx", "main"),
    "triton_red_fused_native_group_norm_7": ("norm", "triton", "main"),
    "triton_red_fused_mean_mul_pow_rsqrt_1": ("norm", "triton", "main"),
    "triton_per_fused__softmax_add_2": ("softmax", "triton", "main"),
    "triton_poi_fused_convolution_transpose_4": ("conv", "triton", "auxiliary"),
    "triton_poi_fused_convolution_relu_4": ("elementwise", "triton", "main"),
    "triton_poi_fused_clone_view_9": ("copy/memset", "triton", "main"),
    "triton_tem_fused_addmm_relu_0": ("gemm", "triton", "main"),
    "triton_tem_fused_flex_attention_0": ("attention", "triton", "main"),
    "triton_poi_fused_max_pool2d_with_indices_3": ("pool", "triton", "main"),
    "Custom_Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT32x32x16_SN": ("gemm", "hipblaslt", "main"),
    "void vllm::rotary_embedding_kernel<c10::Half, true>(int)": ("elementwise", "vllm", "main"),
    "miopenGcnAsmConv3x3U.kd": ("conv", "miopen", "main"),
    "void mul_mat_vec_q<(ggml_type)13, 1, false>(void const*, int)": ("gemm", "ggml", "main"),
    "mul_mat_vec_f": ("gemm", None, "main"),
    "void matrixMul<32>(float*, float*)": ("gemm", None, "main"),
    "batched_matrix_multiplication_naive": ("gemm", None, "main"),
    "mul_of_something": (None, None, "main"),
    "mul_kernel": ("elementwise", "migraphx", "main"),
    "void vllm::concat_and_cache_mla_kernel<unsigned short>(int)": ("kv cache", "vllm", "main"),
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<int>(int)": ("attention", "flashinfer", "main"),
    "_fwd_grouped_kernel_stage1": ("attention", None, "main"),
    "_bwd_kernel_split_dq_causal": ("attention", "aiter", "main"),
    "void ck::kernel_batched_gemm_softmax_gemm_xdl_cshuffle_v1<int>(int)": ("attention", "composable_kernel", "main"),
    "gmm_kernel": ("gemm", "aiter", "main"),
    "e2e_moe_kernel": ("gemm", "aiter", "main"),
    "mfma_moe1_silu_mul": ("gemm", "aiter", "main"),
    "void wvSplitKQ_hf_sml_<__hip_bfloat16, 64, 16>(int)": ("gemm", None, "main"),
    "void vllm::moe::moe_align_block_size_kernel<int>(int)": ("moe routing", "vllm", "auxiliary"),
    "void gated_delta_net_cuda<128, false>(float const*)": ("linear attention", "ggml", "main"),
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": ("linear attention", None, "main"),
    "void at::native::sampleMultinomialOnce<float, float>(long*)": ("sampling", "pytorch", "main"),
    "fft_rtc_fwd_len1024_factors_16_8_8_wgs_128_tpt_128_sp_op_CI_CI_unitstride_sbrr": ("fft", "rocfft", "main"),
    "void rocsparse::csrmvn_general_kernel<256u, 4u>(bool)": ("sparse", "rocsparse", "main"),
    "void k_get_rows_float<float, float>(float const*)": ("embedding/gather", "ggml", "main"),
    "void cpy_f32_q<&cpy_blck_f32_q8_0>(char const*)": ("copy/memset", "ggml", "main"),
    "void vllm::dynamic_scaled_int8_quant_kernel<float>(int)": ("quantization", "vllm", "main"),
    "void fft2d_r2c_32x32<float>(float2*, cudnnTensorStruct)": ("conv", "cudnn", "auxiliary"),
    "_fwd_kernel_of_something": ("attention", None, "main"),
    "some_fwd_kernel_of_something": (None, None, "main"),
    "xyzzy_plugh": (None, None, "main"),
    "": (None, None, "main"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_names_tell(name: str, expected: tuple[str | None, str | None, str]) -> None:
    row = classify_names(pl.Series([name])).row(0, named=True)
    assert (row["family"], row["library"], row["role"]) == expected
    assert row["family_source"] == ("none" if expected[0] is None else "name")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        # What a launcher of classes runs: of several words the first kind decides, as in a function's own name.
        ("void ck_tile::kentry<256, 1, ck_tile::FmhaFwdAppendKVKernel<ck_tile::Tile>>(int)", "kv cache"),
        ("void ck_tile::kentry<1, ck_tile::Rmsnorm2dFwd<ck_tile::OnePass>>(int)", "norm"),
        ("void cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK<x>>(int)", "conv"),
        # A launcher for all elements that goes by an index: what it applies decides.
        ("void at::native::index_elementwise_kernel<128, 4, at::native::flip_kernel_impl<x>(int)>(int)", "copy/memset"),
        ("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<x>(int)>(int)",
         "embedding/gather"),
        # Words that only say how elements lie stand behind what is done with them.
        ("void at::native::upsample_bilinear2d_nhwc_out_frame<float>(float*)", "elementwise"),
        ("_swiglu_contiguous_kernel", "elementwise"), ("nchwToNhwcKernel", "copy/memset"),
        ("upsample_trilinear3d_out_frame", "elementwise"), ("tril_indices_kernel", "copy/memset"),
        ("_QuantizeLinearKernel", "quantization"), ("_mxfp8_linear_kernel", "gemm"),
        ("_fit_kpool_indices_kernel", None), ("max_pool_backward_nhwc", "pool"),
        ("_prepare_pos_seq_lens_kernel", "attention"), ("_gather_block_tables_kernel", "attention"),
        ("_compute_slot_mappings_kernel", "kv cache"), ("multi_tensor_swizzle_row_scaling_kernel", "copy/memset"),
    ],
)  # fmt: skip
def test_words_of_names_tell_kinds_of_work(name: str, family: str | None) -> None:
    assert classify_names(pl.Series([name]))["family"].to_list() == [family]


def test_rows_follow_the_input() -> None:
    names = pl.Series(["b_softmax", None, "a_gemm", "b_softmax"], dtype=pl.String)
    rows = classify_names(names)
    assert rows["name"].to_list() == names.to_list()
    assert rows["family"].to_list() == ["softmax", None, "gemm", "softmax"]
    assert rows.columns == ["name", *SCHEMA]
    assert [rows.schema[column] for column in SCHEMA] == list(SCHEMA.values())


def test_a_frame_keeps_its_other_columns() -> None:
    frame = pl.DataFrame({"kernel_id": [1, 0], "name": ["x", "softmax"], "family": ["old", "old"]})
    rows = classify_names(frame)
    assert rows["kernel_id"].to_list() == [1, 0]
    assert rows["family"].to_list() == [None, "softmax"]


def test_no_names_give_no_rows() -> None:
    assert classify_names(pl.Series("name", [], dtype=pl.String)).is_empty()


@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_names_are_described(names: list[str]) -> None:
    rows = classify_names(pl.Series("name", names, dtype=pl.String))
    assert rows["name"].to_list() == names
    assert set(rows["role"]) <= {"main", "auxiliary"}
    assert (rows["family"].is_null() == (rows["family_source"] == "none")).all()
    assert set(rows["family"].drop_nulls()) <= set(PHRASES)
    assert rows.equals(classify_names(pl.Series("name", names, dtype=pl.String)))


def test_operators_decide_first() -> None:
    kernels = classify_names(
        pl.DataFrame({"kernel_id": [0, 1, 2, 3], "name": ["Cijk_X", "copy_it", "xyzzy", "softmax"]})
    )
    operators = pl.DataFrame(
        {
            "kernel_id": [0, 0, 1, 2, 3],
            "operator": ["aten::miopen_convolution", "aten::mm", "Conv", "custom::unheard", None],
            "total_ns": [90, 10, 5, 5, 5],
        }
    )
    rows = with_operators(kernels, operators)
    assert rows["family"].to_list() == ["conv", "conv", None, "softmax"]
    assert rows["family_source"].to_list() == ["op", "op", "none", "name"]
    assert rows["role"].to_list() == ["main", "auxiliary", "main", "main"]
    assert rows.columns == kernels.columns


def test_operators_by_name_and_count() -> None:
    kernels = classify_names(pl.Series(["shared_kernel"]))
    operators = pl.DataFrame({"name": ["shared_kernel"] * 3, "operator": ["aten::mm", "Softmax", "Softmax"]})
    assert with_operators(kernels, operators)["family"].to_list() == ["softmax"]
    none = operators.clear()
    assert with_operators(kernels, none).equals(kernels)


@pytest.mark.parametrize(
    ("operator", "family"),
    [
        ("aten::addmm", "gemm"), ("aten::convolution_backward", "conv"), ("aten::_softmax", "softmax"),
        ("aten::native_layer_norm", "norm"), ("aten::_foreach_mul_", "elementwise"), ("MatMul", "gemm"),
        ("LayerNormalization", "norm"), ("BatchNormalization", "norm"), ("ConvTranspose", "conv"),
        ("GlobalAveragePool", "pool"), ("MaxPool", "pool"), ("Gather", "embedding/gather"), ("TopK", "sort/scan"),
        ("ReduceMean", "reduction"), ("ArgMax", "reduction"), ("Relu", "elementwise"), ("Transpose", "copy/memset"),
        ("Concat", "copy/memset"), ("MultiHeadAttention", "attention"), ("gpu::convolution", "conv"),
        ("c10d::allreduce_", "comm"), ("Max", "elementwise"), ("aten::max", "reduction"), ("And", "elementwise"),
        ("aten::_foreach_copy_", "elementwise"), ("aten::copy_", "copy/memset"), ("record_param_comms", "comm"),
        ("aten::max_pool2d_with_indices", "pool"), ("custom::unheard", None), ("aten::_fft_r2c", "fft"),
        ("DequantizeLinear", "quantization"), ("QLinearConv", "conv"), ("aten::multinomial", "sampling"),
        ("_moe_C::topk_softmax", "moe routing"), ("_C_cache_ops::reshape_and_cache_flash", "kv cache"),
        ("fla::chunk_gated_delta_rule", "linear attention"), ("aten::_foreach_mul_", "elementwise"),
    ],
)  # fmt: skip
def test_operators_have_families(operator: str, family: str | None) -> None:
    assert operator_family(operator) == family


def test_operators_are_of_known_families() -> None:
    assert set(OPERATORS) <= set(PHRASES)


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("mlir_convolution_add_relu", ["convolution", "add", "relu"]),
        ("gpu::code_object::mlir_transpose_dot_reduce_sum", ["transpose", "dot", "reduce_sum"]),
        ("add_layernorm_mul_kernel", ["add", "layernorm", "mul"]),
        ("convert_kernel_2", ["convert"]),
        ("vectorized_elementwise_kernel", []),
        ("add_relu", []),
        ("xyzzy", []),
    ],
)
def test_fused_operators(name: str, operators: list[str]) -> None:
    assert fused_operators(name) == operators


@needs_corpus
def test_real_names_reach_the_target() -> None:
    rows = classify_names(pl.read_csv(CORPUS / "kernel_names.csv.gz", infer_schema_length=None))
    operator = pl.col("parent_op").fill_null("")
    # The library FBGEMM ends in the word for products, and Inductor's kernels are launched under their own names.
    scored = rows.filter(
        pl.col("op_family").is_not_null(),
        pl.col("main_frac") >= 0.5,
        ~operator.str.contains(r"\bfb(gemm)?::|fbgemm_gpu"),
        operator != pl.col("name"),
    ).with_columns(right=(pl.col("family") == pl.col("op_family")).fill_null(value=False))
    right = scored.filter("right")
    assert right.height >= 0.97 * scored.height
    assert float(right["total_us"].sum()) >= 0.99 * float(scored["total_us"].sum())


@needs_corpus
def test_migraphx_names() -> None:
    rows = classify_names(pl.read_csv(CORPUS / "migraphx_names.csv"))
    assert rows["family"].to_list() == rows["op_family"].to_list()


@needs_corpus
def test_grammars_are_decoded() -> None:
    names = pl.read_csv(CORPUS / "kernel_names.csv.gz", infer_schema_length=None)["name"].unique()
    rows = classify_names(names.filter(names.str.contains("^(Cijk_|igemm_)")))
    assert rows["dtype"].count() >= 0.95 * rows.height
    assert rows["tile"].count() >= 0.95 * rows.height


LONG_REDUCTION = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >(int)"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add_kernel.kd", "add_kernel"),
        ("_Z4copyPfPKf.kd", "copy(float*, float const*)"),
        ("add_kernel [clone .kd]", "add_kernel"),
        ("_Z4copyPfPKf [clone .isra.0] [clone .kd]", "copy(float*, float const*)"),
        ("add_kernel.constprop.0.isra.1", "add_kernel"),
        ("add_kernel @ 0x7f00deadbeef", "add_kernel"),
        ("void rocprim::ROCPRIM_400001_NS::detail::scan<int>()", "void rocprim::detail::scan<int>()"),
        ("void cub::CUB_200200_700_NS::run()", "void cub::run()"),
        ("void at::native::(anonymous namespace)::run()", "void at::native::run()"),
        ("sm90_xmma_gemm_f16__5x_cublas", "sm90_xmma_gemm_f16_cublas"),
    ],
)
def test_parts_of_names_that_differ_between_builds_are_cut(name: str, expected: str) -> None:
    assert cleaned(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("triton_poi_fused_add_3", "triton_poi_fused_add"),
        ("triton_red_fused_native_layer_norm_12", "triton_red_fused_native_layer_norm"),
        ("triton_poi_fused_0", "triton_poi_fused"),
        ("add_relu_kernel_2", "add_relu_kernel_2"),
    ],
)
def test_only_compilation_counters_are_cut(name: str, expected: str) -> None:
    assert comparable(name) == expected


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (LONG_REDUCTION, "reduce_kernel [MeanOps]"),
        ("void at::native::layer_norm<float>(int)", "layer_norm"),
        ("std::enable_if<!(false), void>::type internal::gemvx::run<int, float>(int)", "run"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32>(int)", "Kernel2 [cutlass_80_simt_sgemm_128x32]"),
        ("void ck_tile::kentry<1, ck_tile::Rmsnorm2dFwd<int> >(int)", "kentry [Rmsnorm2dFwd]"),
        ("gpu::code_object::add_relu_kernel", "add_relu_kernel"),
    ],
)
def test_short_names_have_no_arguments(name: str, short: str) -> None:
    assert shortened(*head_and_arguments(name)) == short


def test_words_split_camel_case() -> None:
    assert words("cunn_SoftMaxForward") == "_cunn_soft_max_forward_"
    assert words("MIOpenBatchNormFwd") == "_mi_open_batch_norm_fwd_"


@given(st.text(max_size=80))
def test_any_text_is_survived(name: str) -> None:
    clean = cleaned(name)
    head, arguments = head_and_arguments(clean)
    assert isinstance(shortened(comparable(head), arguments), str)
    assert words(name).startswith("_")
