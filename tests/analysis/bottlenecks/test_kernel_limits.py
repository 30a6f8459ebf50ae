"""One decision on what limits a kernel: the same code at the same speed gets the same one, whatever else differs."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.bottlenecks.kernel_limits import LABEL_OF_RESOURCE, grids, kernel_limits
from aaco_pipeline.analysis.thresholds import AT_A_ROOF, BALANCED, LAUNCH_SIZED_NS, ROOF_UNCERTAINTY
from aaco_pipeline.lake.contracts import polars_types

LONG = 500_000
GRID = "1048576/256"
Kernel = dict[str, Any]


def kernel(bound: str = "dram", share: float | None = 0.7, **stated: Any) -> Kernel:
    return {"bound": bound, "share": share, "median": LONG, "name": "k", "grid": GRID, **stated}


def decided(*kernels: Kernel, numbers: Sequence[int] | None = None, on_cpu: float = 1.0) -> dict[int, dict[str, Any]]:
    """The decision on each kernel by its number, which is its place unless `numbers` says otherwise."""
    rows = list(zip(numbers or range(len(kernels)), kernels, strict=True))
    stats = pl.DataFrame(
        [(i, one["median"]) for i, one in rows], schema={"kernel_id": pl.Int32, "p50_ns": pl.Int64}, orient="row"
    )
    placed = pl.DataFrame(
        [
            {
                "kernel_id": i,
                "duration_ns": one["median"],
                "bound": one["bound"] if one["share"] is not None else None,
                "efficiency_ratio": one["share"],
                "second_bound": one.get("second"),
                "second_ratio": one.get("second_share"),
                "quality_flags": one.get("flags", []),
            }
            for i, one in rows
        ],
        schema={name: dtype for name, dtype in polars_types("roofline").items() if name in PLACED},
    )
    launched = pl.DataFrame(
        [(i, one["name"], one["grid"]) for i, one in rows],
        schema={"kernel_id": pl.Int32, "name": pl.String, "grid": pl.String},
        orient="row",
    )
    indirect = pl.DataFrame(
        [(i, one.get("indirect")) for i, one in rows],
        schema={"kernel_id": pl.Int32, "indirect_access": pl.Float64},
        orient="row",
    )
    found = kernel_limits(placed, stats, launched, indirect, on_cpu)
    return {row["kernel_id"]: row for row in found.iter_rows(named=True)}


PLACED = ("kernel_id", "duration_ns", "bound", "efficiency_ratio", "second_bound", "second_ratio", "quality_flags")


def decision(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["nearest"], row["is_limit"], row["is_near"], row["is_sure"], row["too_short"]


@pytest.mark.parametrize("resource", LABEL_OF_RESOURCE)
def test_at_the_threshold_the_nearest_roof_limits_and_just_below_it_is_near(resource: str) -> None:
    at, below, far, sure = (
        decided(kernel(resource, share))[0]
        for share in (AT_A_ROOF, AT_A_ROOF - 0.001, AT_A_ROOF - ROOF_UNCERTAINTY - 0.001, AT_A_ROOF + ROOF_UNCERTAINTY)
    )
    assert (at["is_limit"], at["is_near"], at["is_sure"]) == (True, False, False)
    assert (below["is_limit"], below["is_near"]) == (False, True)
    assert (far["is_limit"], far["is_near"]) == (False, False)
    assert (sure["is_limit"], sure["is_sure"]) == (True, True)
    assert {row["nearest"] for row in (at, below, far, sure)} == {LABEL_OF_RESOURCE[resource]}


def test_two_identical_stencils_on_both_sides_of_the_threshold_have_one_limit() -> None:
    found = decided(kernel(share=0.645), kernel(share=0.569, name="k.kd"))
    assert decision(found[0]) == decision(found[1])
    assert found[0]["is_limit"]
    assert found[0]["share"] == pytest.approx(0.607)


@pytest.mark.parametrize("other", [{"grid": "64/64"}, {"name": "j"}, {"share": 0.3}, {"bound": "l2"}])
def test_what_is_not_the_same_code_grid_roof_or_speed_is_decided_apart(other: dict[str, Any]) -> None:
    found = decided(kernel(share=0.62), kernel(**{"share": 0.57, **other}))
    assert (found[0]["is_limit"], found[1]["is_limit"]) == (True, False)


def test_below_a_launch_nothing_is_decided() -> None:
    row = decided(kernel(median=LAUNCH_SIZED_NS - 1, share=0.9))[0]
    assert (row["too_short"], row["nearest"], row["share"], row["is_limit"]) == (True, None, None, None)
    assert decided(kernel(median=LAUNCH_SIZED_NS, share=0.9))[0]["is_limit"]


def test_without_a_roof_nothing_is_decided() -> None:
    row = decided(kernel(share=None))[0]
    assert decision(row) == (None, None, None, None, False)


@pytest.mark.parametrize(("second_share", "expected"), [(BALANCED * 0.8, "compute_matrix"), (0.71, None)])
def test_a_second_roof_is_named_where_it_needed_nearly_as_long(second_share: float, expected: str | None) -> None:
    row = decided(kernel(share=0.8, second="matrix", second_share=second_share))[0]
    assert row["second"] == expected


@pytest.mark.parametrize(
    ("indirect", "bound", "share", "limits"),
    [
        (None, "dram", 0.41, True),
        (None, "dram", 0.39, False),
        (1.0, "dram", 0.39, False),
        (0.0, "dram", 0.26, True),
        (0.0, "dram", 0.24, False),
        (0.0, "vector", 0.41, False),
    ],
)
def test_the_least_bytes_that_shapes_imply_need_not_reach_as_far(
    indirect: float | None, bound: str, share: float, limits: bool
) -> None:
    assert decided(kernel(bound, share, flags=["model_based"], indirect=indirect))[0]["is_limit"] == limits


def test_time_without_a_cpu_is_taken_out() -> None:
    assert decided(kernel(share=0.4), on_cpu=0.5)[0]["share"] == pytest.approx(0.8)


def test_grids_tell_launches_apart_and_not_how_often_they_were() -> None:
    dispatches = pl.DataFrame(
        {"kernel_id": [0, 0, 1, 1, 2], "grid_work_items": [64, 64, 64, 128, None], "workgroup_work_items": [64] * 5}
    )
    found = dict(grids(dispatches).iter_rows())
    assert found == {0: "64/64", 1: "128/64,64/64", 2: "0/64"}


shares = st.floats(0.05, 1.2)


@given(
    shares=st.lists(shares, min_size=1, max_size=6),
    noise=st.lists(st.floats(-0.02, 0.02), min_size=6, max_size=6),
    order=st.permutations(range(12)),
    numbers=st.permutations(range(100, 112)),
)
def test_the_same_code_at_the_same_speed_gets_the_same_decision(
    shares: list[float], noise: list[float], order: list[int], numbers: list[int]
) -> None:
    """Each kernel twice, a little faster or slower the second time, under any numbers and in any order."""
    twice = [
        kernel(share=share * (1 + jitter), name=f"void k<{i}>(float*){suffix}")
        for i, share in enumerate(shares)
        for suffix, jitter in (("", 0.0), (" [clone .kd]", noise[i]))
    ]
    found = decided(*twice)
    for i in range(len(shares)):
        assert decision(found[2 * i]) == decision(found[2 * i + 1])
    # Neither the order of the rows, nor numbers, nor what the names are, decides anything.
    places = [place for place in order if place < len(twice)]
    renamed = [{**twice[place], "name": twice[place]["name"].replace("void k", "other")} for place in places]
    again = decided(*renamed, numbers=[numbers[place] for place in places])
    for place in places:
        assert decision(again[numbers[place]]) == decision(found[place])


@given(share=shares, others=st.lists(shares, max_size=5))
def test_a_kernels_decision_does_not_depend_on_other_codes_of_its_session(share: float, others: list[float]) -> None:
    alone = decided(kernel(share=share))[0]
    among = decided(kernel(share=share), *(kernel(share=one, name=f"other{i}") for i, one in enumerate(others)))[0]
    assert among == alone
