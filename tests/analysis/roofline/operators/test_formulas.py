"""Formulas of operators, and the assignment of each launch to one call."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.roofline.operators.made_up import Run

A, B = [4, 8], [8, 2]


def owners(run: Run) -> list[tuple[str, str, int]]:
    """Operator, kind and number of every launch that has an owner."""
    found = run.launches()
    named = found.launches.join(found.figures, on="work").sort("activity_kind", "activity_id")
    return named.select("operator", "activity_kind", "activity_id").rows()


def test_the_innermost_operator_with_a_formula_has_the_launch() -> None:
    run = Run().operator("aten::linear", 0, 100, A, [2, 8]).operator("aten::mm", 10, 90, A, B).kernel(50, 10)
    assert owners(run) == [("aten::mm", "dispatch", 0)]


def test_one_without_a_formula_hands_it_to_what_it_lies_in() -> None:
    run = Run().operator("aten::mm", 0, 100, A, B).operator("aten::inner", 10, 90, A).kernel(50, 10)
    assert owners(run) == [("aten::mm", "dispatch", 0)]


def test_copies_and_fills_of_a_whole_operator_are_its_own() -> None:
    run = Run().operator("aten::mm", 0, 100, A, B).kernel(5, 10).operator("aten::fill_", 10, 20, A).kernel(15, 1)
    assert owners(run.copy(30, 3)) == [
        *(("aten::mm", "dispatch", 0), ("aten::mm", "dispatch", 1)),
        ("aten::mm", "memory_copy", 0),
    ]
    (row,) = run.launches().launches.group_by("call_id").agg(pl.col("part").sum()).rows()
    assert row == (0, 1.0)


def test_only_the_inner_one_of_two_nested_whole_operators_counts() -> None:
    run = Run().operator("aiter::gemm_a16w16", 0, 100, A, [2, 8]).operator("aten::mm", 10, 50, A, B).kernel(20, 10)
    run.operator("aten::mul", 60, 90, [4, 2], [4, 2]).kernel(70, 5)
    assert owners(run) == [("aten::mm", "dispatch", 0), ("aten::mul", "dispatch", 1)]


def test_without_a_formula_the_innermost_operator_is_named() -> None:
    run = Run().operator("aten::sort", 0, 100, A).operator("my::sort", 10, 90, A).kernel(50, 10)
    assert owners(run) == [("my::sort", "dispatch", 0)]
    assert run.launches().figures.select("flops", "least_bytes", "reason").rows() == [
        (None, None, "no formula for my::sort")
    ]


def test_launches_outside_operators_of_other_threads_or_without_inputs_have_no_owner() -> None:
    run = Run().operator("aten::mm", 0, 100, A, B).kernel(150, 10).kernel(50, 10, thread=2)
    run.operator("aten::mm", 200, 300).kernel(250, 10)
    assert owners(run) == []


def test_collectives_are_no_work_on_shapes() -> None:
    assert owners(Run().operator("record_param_comms", 0, 100, A).kernel(50, 10)) == []


@given(st.lists(st.tuples(st.sampled_from(["aten::mm", "aten::copy_", "aten::other"]), st.integers(1, 40)), max_size=6))
def test_every_launch_counts_to_one_operator_however_they_nest(nested: list[tuple[str, int]]) -> None:
    run, ends = Run(), 1000
    for depth, (name, _) in enumerate(nested):
        run.operator(name, depth, ends - depth, A, B)
    for place, (_, took) in enumerate(nested):
        run.kernel(100 + place, took)
    if not nested:
        return
    launches = run.launches().launches
    assert launches.get_column("activity_id").to_list() == list(range(len(nested)))
    assert launches.get_column("duration_ns").sum() == sum(took for _, took in nested)
    shares = launches.group_by("call_id").agg(pl.col("part").sum())
    assert shares.get_column("part").to_list() == pytest.approx([1.0] * shares.height)
