"""The table of kernel symbols: it loads, the row that says most decides, and lists of libraries' symbols are right."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.kernels.families import PHRASES, parsed, symbol_of, symbols
from aaco_pipeline.analysis.kernels.names import classify_names
from aaco_pipeline.lake.contracts import contract
from tests.places import ROOT

#: Symbols with the kind that their source shows, each list unseen when it was first scored (docs say with what result).
LISTS = pl.read_csv(ROOT / "tests/analysis/kernels/symbols_from_sources.csv")
SOURCE: dict[str, Any] = {
    "library": "lib", "repository": "someone/lib", "commit": "0" * 40,
    "symbols": {"gemm": ["lib::mul_*", "mul_mat_?"], "elementwise": ["lib::mul_one"]},
}  # fmt: skip


def test_every_row_says_where_it_was_read() -> None:
    rows = symbols()
    assert {row.kind for row in rows} <= set(PHRASES)
    assert len({row.pattern for row in rows}) == len(rows) > 400
    assert {"ROCm/aiter", "ROCm/composable_kernel", "ROCm/rocBLAS", "ROCm/rocFFT", "ROCm/rocSPARSE", "ROCm/rocPRIM",
            "ROCm/MIOpen", "ROCm/rccl", "ROCm/Tensile", "ROCm/vllm", "ROCm/hipBLASLt", "pytorch/pytorch",
            "sgl-project/sglang", "ggml-org/ggml", "Dao-AILab/flash-attention",
            "fla-org/flash-linear-attention"} <= {row.repository for row in rows}  # fmt: skip


@pytest.mark.parametrize(
    ("head", "pattern"),
    [
        ("_fwd_grouped_kernel_stage1", "fwd_grouped_kernel_stage*"),
        ("anything::k_get_rows_float", "k_get_rows*"),
        ("chunk_local_cumsum_scalar_kernel", "chunk_local_cumsum_*"),
        ("rocsparse::permute_cols_kernel", "permute_cols_kernel*"),
        ("my_k_get_rows_float", None),
        ("", None),
        ("::", None),
    ],
)
def test_the_row_that_says_most_of_a_name_decides(head: str, pattern: str | None) -> None:
    found = symbol_of(head)
    assert (found and found.pattern) == pattern


@given(st.text(max_size=80) | st.sampled_from(LISTS["name"].to_list()))
def test_no_row_says_more_than_the_one_found(head: str) -> None:
    found = symbol_of(head)
    if found is not None:
        assert found in symbols()
        assert symbol_of(f"outer::{head}") is not None


def test_rows_are_ordered_by_what_they_say() -> None:
    assert [row.pattern for row in parsed([SOURCE])] == ["lib::mul_one", "lib::mul_*", "mul_mat_?"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"commit": "head"}, "commit of 40 digits"),
        ({"repository": "lib"}, "repository"),
        ({"symbols": {"magic": ["lib_*"]}}, "magic, which is no kind"),
        ({"symbols": {"gemm": ["**"]}}, "no symbol of at least"),
        ({"symbols": {"gemm": ["a b c"]}}, "no symbol of at least"),
        ({"symbols": {"gemm": ["lib_*"], "conv": ["lib_*"]}}, "stands twice, as gemm and as conv"),
        ({"formats": {"float3": ["lib::mul_*"]}}, "float3, which is no kind"),
        ({"formats": {"float32": ["other_*"]}}, "no kind of work"),
        ({"extra": 1}, "needs commit, library"),
    ],
)
def test_a_table_that_is_not_well_formed_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parsed([SOURCE | change])


def test_a_symbol_states_its_library_and_number_format() -> None:
    row = classify_names(pl.Series(["rocblas_haxpy_mlt_8_kernel", "rocsparse::csrmvn_general_kernel"]))
    assert row["library"].to_list() == ["rocblas", "rocsparse"]
    assert row["dtype"].to_list() == ["float16", None]
    assert row["family_source"].to_list() == ["name", "name"]


@pytest.mark.parametrize(
    ("drawn", "least", "most_wrong"),
    [
        ("first", 0.95, 0.02), ("second", 0.95, 0.02), ("third", 0.95, 0.02), ("other libraries", 0.80, 0.08),
        ("fourth", 0.98, 0.01), ("fourth, held out", 0.97, 0.01), ("fifth", 0.90, 0.06),
    ],
)  # fmt: skip
def test_symbols_of_libraries_have_the_kind_their_source_shows(drawn: str, least: float, most_wrong: float) -> None:
    rows = classify_names(LISTS.filter(pl.col("drawn") == drawn))
    right = rows.filter(pl.col("family") == pl.col("kind")).height
    silent = rows["family"].null_count()
    assert right >= least * rows.height
    assert rows.height - right - silent <= most_wrong * rows.height


def test_the_contract_names_every_kind() -> None:
    (column,) = (one for one in contract("kernels").columns if one.name == "family")
    assert all(f"`{kind}`" in column.meaning for kind in PHRASES)
