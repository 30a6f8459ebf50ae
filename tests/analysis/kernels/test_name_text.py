"""Names cleaned, cut and split into words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.kernels.name_text import cleaned, comparable, head_and_arguments, shortened, words

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
def test_what_differs_between_builds_is_cut(name: str, expected: str) -> None:
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
